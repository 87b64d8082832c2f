"""What a bisection may cost, before anything is spent: the very search, simulated on the noise that is on record."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regbot.bisect.exact import most_measurements
from regbot.bisect.reuse import Reused
from regbot.bisect.span import Noise, Span, asked
from regbot.records.bisection import BisectionHeader, BisectionPlan
from regbot.stats.culprit import Question, Sample, posterior
from regbot.stats.next_run import choose
from regbot.stats.paired import LOOKS

TRIALS = {64: 60, 256: 30}
"""Simulated bisections by the size of the range; 15 of larger ones."""
FEWEST_TRIALS = 15

LEAST_RATIO = 0.7
"""Effect over noise below which a search is refused: half of the runs that it needs past this would name nobody."""

LEAST_SUCCESS = 0.5

UNKNOWN = (
    "no noise is on record for this node: name a check of the two commits with --check, or give --noise PCT, to know "
    "what it takes"
)


class Trial(NamedTuple):
    """One simulated search."""

    named: int | None
    """Hypothesis that was named; None for "none", -1 where the runs gave out."""
    runs: int
    builds: int


def simulate(
    question: Question,
    culprit: int | None,
    effect: float,
    noise: float,
    most_runs: int,
    target: float,
    rng: np.random.Generator,
    known: Sequence[Sample] = (),
) -> Trial:
    """The search on Gaussian runs. ``culprit``: the true hypothesis; None where there is none."""
    samples = list(known)
    available = np.ones(question.affected.shape[1], dtype=bool)
    built: set[int] = set()
    for made in range(most_runs + 1):
        found = posterior(question, samples)
        best = int(np.argmax(found.culprit))
        if found.none >= target:
            return Trial(None, made, len(built))
        if found.culprit[best] >= target:
            return Trial(best, made, len(built))
        if made == most_runs:
            break
        point = choose(question, samples, "search", available)
        slower = effect if culprit is not None and question.affected[culprit, point] else 0.0
        samples.append(Sample(point, float(rng.normal(slower, noise)), "search"))
        built.add(point)
    return Trial(-1, most_runs, len(built))


def forecast(header: BisectionHeader, span: Span, reused: Reused) -> BisectionPlan:
    """The plan of a bisection: of an exact one its most measurements, of a noisy one what trials of it needed."""
    different = len(span.points) - 1
    said = BisectionPlan(
        on=header.on,
        exact=header.exact,
        commits=len(header.points) - 1,
        different=different,
        most_runs=header.most_runs,
        possible=True,
    )
    if header.exact:
        most = most_measurements(different) * max(1, len(header.entries))
        reasons = ["one change in the range is assumed; each further one takes as many again at most"]
        return said.model_copy(
            update={"expected_runs": float(most), "runs_90": float(most), "success": 1.0, "reasons": reasons}
        )
    noise, effect = _on_record(header, reused)
    if noise is None:
        return said.model_copy(update={"reasons": [UNKNOWN]})
    effect = effect if effect is not None else math.log1p(header.smallest_pct / 100)
    if refusal := impossible(header, span, reused):
        return said.model_copy(update={"ratio": effect / noise, "possible": False, "reasons": [refusal]})
    trials = _trials(header, span, reused, noise, effect)
    runs = [trial.runs for _, trial in trials]
    success = sum(truth == trial.named for truth, trial in trials) / len(trials)
    expected_builds = float(np.mean([trial.builds for _, trial in trials]))
    if success < LEAST_SUCCESS:
        refusal = (
            f"in {100 * success:.0f}% of {len(trials)} simulated bisections the right commit was named within "
            f"{header.most_runs} runs; allow more with --runs, or use a quieter node or longer runs"
        )
    reasons = [refusal] if refusal else []
    if reused.effect is None:
        reasons.append(f"for a slowdown of {100 * math.expm1(effect):.3g}%, the smallest that is looked for")
    return said.model_copy(
        update={
            "ratio": effect / noise,
            "expected_runs": float(np.mean(runs)),
            "runs_90": float(np.percentile(runs, 90)),
            "expected_builds": expected_builds,
            "confirm_runs": 2 * LOOKS[-1] if header.confirm else 0,
            "expected_min": float(np.mean(runs)) * reused.run_s / 60 if reused.run_s else None,
            "success": success,
            "possible": not refusal,
            "reasons": reasons,
        }
    )


def impossible(header: BisectionHeader, span: Span, reused: Reused) -> str:
    """Why a bisection cannot succeed as it is asked for, '' where it may."""
    if header.exact:
        return ""
    noise, effect = _on_record(header, reused)
    if noise is None:
        return ""
    sought = effect if effect is not None else math.log1p(header.smallest_pct / 100)
    if sought <= 0:
        return (
            f"the check of these commits saw no slowdown ({100 * math.expm1(sought):+.2g}%): there is nothing to "
            "find; are good and bad swapped?"
        )
    if sought / noise >= LEAST_RATIO:
        return ""
    runs = (noise / sought) ** 2 * 40 * math.log2(len(span.points) + 1)
    return (
        f"a slowdown of {100 * math.expm1(sought):.3g}% among runs that differ by {100 * math.expm1(noise):.3g}% takes "
        f"more runs than are worth it ({runs:.0f} or so); use a quieter node, or make each run longer"
    )


def _on_record(header: BisectionHeader, reused: Reused) -> tuple[float | None, float | None]:
    """Noise and effect on the log scale, as far as they are known."""
    return (math.log1p(header.noise_pct / 100) if header.noise_pct else None), reused.effect


def _trials(
    header: BisectionHeader, span: Span, reused: Reused, noise: float, effect: float
) -> list[tuple[int | None, Trial]]:
    different = len(span.points) - 1
    number = next((trials for most, trials in TRIALS.items() if different <= most), FEWEST_TRIALS)
    question = asked(span, Noise(noise))
    rng = np.random.default_rng(0)
    found: list[tuple[int | None, Trial]] = []
    for trial in range(number):
        none = (trial + 0.5) / number < header.none_prior
        culprit = None if none else int(rng.choice(different, p=question.prior / question.prior.sum()))
        known = [
            Sample(place, float(rng.normal(effect if culprit is not None and place else 0.0, noise)), each.stratum)
            for each in reused.observations
            if (place := span.places.get(each.point)) is not None
        ]
        made = simulate(question, culprit, effect, noise, header.most_runs, header.posterior, rng, known)
        found.append((culprit, made))
    return found
