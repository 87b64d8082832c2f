"""From a bisection's observations to its answer. Nothing is measured here."""

from collections.abc import Sequence
from statistics import fmean

from regbot.bisect import noisy
from regbot.bisect.exact_answer import exact_answer
from regbot.bisect.noisy_answer import noisy_answer
from regbot.bisect.site import Site
from regbot.records.bisection import Bisection, Observation
from regbot.report.quantities import count


def answer(site: Site, observations: Sequence[Observation]) -> Bisection:
    """What the observations say, finished or not."""
    if site.header.exact:
        return exact_answer(site, observations)
    return noisy_answer(site, observations, pace(observations))


def pace(observations: Sequence[Observation]) -> noisy.Pace:
    """What a run and a build cost, and what is built."""
    launched = [each for each in observations if each.purpose != "reused" and not each.cached]
    runs = [each.wall_s for each in launched if each.usable]
    builds = [each.build_s for each in launched if each.built]
    return noisy.Pace(
        run_s=max(fmean(runs), 1e-3) if runs else 1.0,
        build_s=fmean(builds) if builds else 0.0,
        built=frozenset(each.point for each in launched),
    )


def standing(found: Bisection) -> str:
    """Where the search stands, in a few words."""
    if found.exact:
        return f"{count(len(found.changes), 'change')} so far" if found.changes else "no change told apart yet"
    if not found.candidates:
        return "no run yet"
    best = found.candidates[0]
    return f"{best.point.name} {100 * (found.posterior or 0):.0f}%, none {100 * (found.none_probability or 0):.0f}%"
