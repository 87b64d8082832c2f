"""The answer of a bisection, computed from its observations. This module measures nothing."""

from collections.abc import Sequence
from statistics import fmean

from regbot.bisect import noisy
from regbot.bisect.broken import describe_failures
from regbot.bisect.context import BisectionSetup
from regbot.bisect.exact_answer import exact_answer
from regbot.bisect.noisy_answer import noisy_answer
from regbot.records.bisection import Bisection, Observation
from regbot.text.words import count


def compute_answer(setup: BisectionSetup, observations: Sequence[Observation]) -> Bisection:
    """Return the answer that the observations give, whether or not the search has finished."""
    if setup.header.exact:
        return exact_answer(setup, observations)
    return noisy_answer(setup, observations, estimate_run_costs(observations))


def estimate_run_costs(observations: Sequence[Observation]) -> noisy.RunCosts:
    """Return the mean seconds of the runs and of the builds so far, and the points that are already built.

    Runs of an earlier check and values from the cache do not count. Before the first run, a run counts as one second
    and a build as free. A point counts as built after its first measurement, even a failed one.
    """
    launched = [
        observation for observation in observations if observation.purpose != "reused" and not observation.cached
    ]
    runs = [observation.wall_s for observation in launched if observation.usable]
    builds = [observation.build_s for observation in launched if observation.built]
    return noisy.RunCosts(
        run_s=max(fmean(runs), 1e-3) if runs else 1.0,  # never 0, so that a run always has a cost
        build_s=fmean(builds) if builds else 0.0,
        built=frozenset(observation.point for observation in launched),
    )


def describe_progress(result: Bisection) -> str:
    """Return the state of the search in a few words, for the progress line."""
    return "; ".join(text for text in (_describe_belief(result), describe_failures(result.observations)) if text)


def _describe_belief(result: Bisection) -> str:
    """Return how many changes an exact search has located. For a noisy search, return two probabilities instead: that
    of the likeliest candidate, and that of no culprit.
    """
    if result.exact:
        return f"{count(len(result.changes), 'change')} so far" if result.changes else "no change located yet"
    if not result.candidates:
        return "no run yet"
    best = result.candidates[0]
    return f"{best.point.name} {100 * (result.posterior or 0):.0f}%, none {100 * (result.none_probability or 0):.0f}%"
