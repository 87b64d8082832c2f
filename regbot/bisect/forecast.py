"""Cost forecast of a bisection: a simulation of the actual search with the noise on record.

The noise on record is the standard deviation of a run that an earlier check or a calibration measured.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regbot.bisect.exact import max_measurements
from regbot.bisect.reuse import ReusedRuns
from regbot.bisect.span import Noise, NoisySpan, build_culprit_model
from regbot.records.bisection import BisectionHeader, BisectionPlan
from regbot.stats.culprit import CulpritModel, Sample, posterior
from regbot.stats.next_run import choose_next_run, runs_before_none
from regbot.stats.paired import LOOKS

TRIALS = {64: 60, 256: 30}
"""Number of simulated bisections by the size of the range: 60 for up to 64 candidates, 30 for up to 256."""
MIN_TRIALS = 15
"""Number of simulated bisections of a larger range, because each of them takes longer."""

MIN_RATIO = 0.7
"""A search is refused if its ratio of effect to noise is smaller, because half of such searches would name no commit.
"""

MIN_SUCCESS = 0.5
"""If a smaller share of the simulated bisections names the right commit, the search is refused."""

UNKNOWN_NOISE = (
    "the search measures the noise itself; to see beforehand how many runs it takes, give the folder of an earlier "
    "check of GOOD and BAD with --check DIR, or the standard deviation of a run with --noise PCT"
)


ROUGH_RUNS_FACTOR = 40
"""Factor of a rough number of runs, which only a message names."""

NO_ANSWER = -1
"""``Trial.culprit`` of a search that used up its runs without an answer."""


class Trial(NamedTuple):
    """Result of one simulated search."""

    culprit: int | None
    """Number of the hypothesis that the search named; hypothesis k is that place k + 1 is the culprit. It is None if
    the search answered "none", and ``NO_ANSWER`` if the search gave no answer.
    """
    runs: int
    builds: int
    """Number of points that were built, each once."""


def simulate(
    model: CulpritModel,
    culprit: int | None,
    effect: float,
    noise: float,
    most_runs: int,
    target: float,
    *,
    rng: np.random.Generator,
    known: Sequence[Sample] = (),
) -> Trial:
    """Simulate one search on runs with Gaussian noise.

    In the array ``model.affected``, element [k, p] says whether place p contains the commit of hypothesis k.
    ``culprit`` is the number of the true hypothesis; None if there is no culprit. ``effect`` is the slowdown by the
    culprit, and ``noise`` the standard deviation of a run, both as log-ratios. The search ends when one answer has the
    probability ``target``, or after ``most_runs`` runs. ``known`` has the runs before the search.
    """
    samples = list(known)
    stratum = "search"  # all simulated runs belong to one stratum
    available = np.ones(model.affected.shape[1], dtype=bool)
    built: set[int] = set()
    for run_count in range(most_runs + 1):
        current_posterior = posterior(model, samples)
        likeliest = int(np.argmax(current_posterior.culprit))
        points_left = runs_before_none(model, samples, stratum, available)  # points to run before the answer "none"
        if current_posterior.no_culprit >= target and not points_left:
            return Trial(None, run_count, len(built))
        if current_posterior.culprit[likeliest] >= target:
            return Trial(likeliest, run_count, len(built))
        if run_count == most_runs:
            break
        if current_posterior.no_culprit >= target:
            point = points_left[0]
        else:
            point = choose_next_run(model, samples, stratum, available)
        contains_culprit = culprit is not None and model.affected[culprit, point]
        true_value = effect if contains_culprit else 0.0
        samples.append(Sample(point, float(rng.normal(true_value, noise)), stratum))
        built.add(point)
    return Trial(NO_ANSWER, most_runs, len(built))


def forecast(header: BisectionHeader, span: NoisySpan, reused_runs: ReusedRuns) -> BisectionPlan:
    """Return the plan of the bisection with its expected cost.

    For an exact search, the cost is the maximum number of measurements. For a noisy search, it is the mean over
    simulated searches. If the noise is not known, the plan has no cost. ``runs_90`` is the number of runs that suffices
    for nine of ten searches, and ``success`` the share of searches with the right answer. ``reused_runs`` are the
    runs of an earlier check of good and bad, with the slowdown that it saw.
    """
    candidate_count = len(span.points) - 1  # the commits that run the same code as the one before them are left out
    plan = BisectionPlan(
        on=header.on,
        exact=header.exact,
        commits=len(header.points) - 1,
        different=candidate_count,
        most_runs=header.most_runs,
        possible=True,
    )
    if header.exact:
        workload_count = max(1, len(header.entries))
        most_measurements = float(max_measurements(candidate_count) * workload_count)
        reasons = ["the plan assumes one change in the range; each further change takes at most as many again"]
        return plan.model_copy(
            update={
                "expected_runs": most_measurements,
                "runs_90": most_measurements,
                "success": 1.0,
                "reasons": reasons,
            }
        )
    noise, effect = _known_noise_and_effect(header, reused_runs)
    if noise is None:
        return plan.model_copy(update={"reasons": [UNKNOWN_NOISE]})
    effect = effect if effect is not None else math.log1p(header.smallest_pct / 100)
    if refusal := find_obstacle(header, span, reused_runs):
        return plan.model_copy(update={"ratio": effect / noise, "possible": False, "reasons": [refusal]})
    trials = _run_trials(header, span, reused_runs, noise, effect)
    run_counts = [trial.runs for _, trial in trials]
    success = sum(truth == trial.culprit for truth, trial in trials) / len(trials)
    expected_builds = float(np.mean([trial.builds for _, trial in trials]))
    if success < MIN_SUCCESS:
        refusal = (
            f"in {100 * success:.0f}% of {len(trials)} simulated bisections the right commit was named within "
            f"{header.most_runs} runs; allow more with --runs, or use a quieter node or longer runs"
        )
    reasons = [refusal] if refusal else []
    if reused_runs.effect is None:
        reasons.append(
            f"the plan is for a slowdown of {100 * math.expm1(effect):.3g}%, the smallest that the search looks for"
        )
    return plan.model_copy(
        update={
            "ratio": effect / noise,
            "expected_runs": float(np.mean(run_counts)),
            "runs_90": float(np.percentile(run_counts, 90)),
            "expected_builds": expected_builds,
            "confirm_runs": 2 * LOOKS[-1] if header.confirm else 0,  # at most: two runs for each pair of the last look
            # in minutes
            "expected_min": float(np.mean(run_counts)) * reused_runs.run_s / 60 if reused_runs.run_s else None,
            "success": success,
            "possible": not refusal,
            "reasons": reasons,
        }
    )


def find_obstacle(header: BisectionHeader, span: NoisySpan, reused_runs: ReusedRuns) -> str:
    """Return why this bisection cannot succeed; '' if it may succeed.

    Only a noisy search with known noise can have an obstacle: good and bad show no slowdown, or the slowdown is too
    small for the noise. ``reused_runs`` has the slowdown that an earlier check of good and bad saw.
    """
    if header.exact:
        return ""
    noise, effect = _known_noise_and_effect(header, reused_runs)
    if noise is None:
        return ""
    effect_size = effect if effect is not None else math.log1p(header.smallest_pct / 100)
    if effect_size <= 0:
        return (
            f"the check of these commits saw no slowdown ({100 * math.expm1(effect_size):+.2g}%): there is nothing to "
            "find; are good and bad swapped?"
        )
    if effect_size / noise >= MIN_RATIO:
        return ""
    # A rough number for the message, because the search is not simulated: the runs grow with the square of noise over
    # effect, and with the logarithm of the number of candidates.
    runs = (noise / effect_size) ** 2 * ROUGH_RUNS_FACTOR * math.log2(len(span.points) + 1)
    return (
        f"a slowdown of {100 * math.expm1(effect_size):.3g}% among runs that differ by {100 * math.expm1(noise):.3g}% "
        f"takes too many runs (about {runs:.0f}); use a quieter node, or make each run longer"
    )


def _known_noise_and_effect(header: BisectionHeader, reused_runs: ReusedRuns) -> tuple[float | None, float | None]:
    """Return the noise of a run and the effect that the check saw, as log-ratios; None for a value that is unknown."""
    noise = math.log1p(header.noise_pct / 100) if header.noise_pct else None
    return noise, reused_runs.effect


def _run_trials(
    header: BisectionHeader, span: NoisySpan, reused_runs: ReusedRuns, noise: float, effect: float
) -> list[tuple[int | None, Trial]]:
    """Simulate bisections. Return the true culprit (None for none) and the result of each simulation."""
    candidate_count = len(span.points) - 1
    # ``limit`` is the largest number of candidates for which this number of trials is used.
    trial_count = next((trials for limit, trials in TRIALS.items() if candidate_count <= limit), MIN_TRIALS)
    model = build_culprit_model(span, Noise(noise, header.noise_pairs))
    rng = np.random.default_rng(0)
    results: list[tuple[int | None, Trial]] = []
    for trial in range(trial_count):
        # The first simulations have no culprit. Their share is header.none_prior.
        has_no_culprit = (trial + 0.5) / trial_count < header.none_prior
        culprit = None if has_no_culprit else int(rng.choice(candidate_count, p=model.prior / model.prior.sum()))
        # The runs of the check, with simulated values. They are runs of good (place 0) and of bad, which contains
        # every candidate.
        known = []
        for observation in reused_runs.observations:
            place = span.places.get(observation.point)
            if place is not None:
                is_slower = culprit is not None and place > 0
                value = float(rng.normal(effect if is_slower else 0.0, noise))
                known.append(Sample(place, value, observation.stratum))
        trial_result = simulate(model, culprit, effect, noise, header.most_runs, header.posterior, rng=rng, known=known)
        results.append((culprit, trial_result))
    return results
