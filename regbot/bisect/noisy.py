"""The search on noisy values: choose the next run from the runs so far.

The search makes the most informative run until one commit, or "no culprit", has the probability ``POSTERIOR``. The
culprit is then compared with its parent (``confirmation.py``). A culprit that is not slower than its parent is cleared:
it is no candidate any more, and the search continues.

The observations are the only state, so an interrupted bisection continues from its log. The posterior uses the runs of
search and confirmation.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

import numpy as np

from regbot.bisect.confirmation import Confirmation, confirm, effect_thresholds, posterior_test
from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.span import Span, find_broken, skip_broken
from regbot.records.bisection import Observation
from regbot.stats.culprit import (
    Bools,
    CulpritModel,
    Floats,
    Posterior,
    Sample,
    culprit_model,
    is_noise_known,
    posterior,
)
from regbot.stats.next_run import choose_next_run, run_costs

POSTERIOR = 0.95
"""The search stops when a culprit, or no culprit, has this probability."""
NONE_PRIOR = 0.1
"""Prior probability that there is no culprit."""
CONTINUED_CONFIRMATION_POSTERIOR = 0.5
"""A confirmation that has begun continues while the culprit has at least this probability."""
HANDOVER_POSTERIOR = 0.85
"""Probability at which a confirmation begins if the bisection continues the session of a check. A pair of culprit and
parent is then as informative as two search runs."""
MAX_FAILURES = 2
"""After this many failed runs in a row, a place is not run any more, even if earlier runs gave values."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a noisy search."""

    noise: float | None
    """Standard deviation of the logarithm of a run's time; None if no noise is on record."""
    noise_pairs: int
    """Number of pairs that ``noise`` was estimated from; 0 if the user stated it."""
    smallest: float
    """Smallest slowdown to look for, as a log-ratio."""
    most_runs: int
    """Maximum number of runs."""
    summary: str
    """Summary of a run that the search compares: median, mean or cost."""
    indifference: float
    """The gate's indifference threshold, as a log-ratio. Smaller slowdowns do not matter."""
    seed: int = 0
    """Seed of the order of runs in a confirmation."""


@dataclass(frozen=True)
class SearchState:
    """State of a search after the runs so far."""

    span: Span
    status: Literal["searching", "none", "found", "undecided", "unmeasurable"]
    """found: a culprit is likely enough, but its confirmation may be open. undecided: the search stopped without an
    answer. unmeasurable: good or bad cannot be measured."""
    samples: tuple[Sample, ...]
    broken: dict[int, Observation]
    """Places that cannot be measured, each with its last failure."""
    posterior: Posterior
    likeliest: tuple[int, ...]
    """The likeliest places. There are several if they cannot be separated, because the places between them are broken.
    """
    probability: float
    """Probability that one of the likeliest places is the culprit."""
    request: MeasurementRequest | None = None
    """The next run."""
    confirmation: Confirmation = field(default_factory=Confirmation)
    cleared: tuple[int, ...] = ()
    """Places that a confirmation has cleared. They are no candidates any more."""

    @property
    def place(self) -> int:
        """The place of the culprit: the last of the likeliest places that can be measured."""
        usable = [place for place in self.likeliest if place not in self.broken]
        return max(usable or self.likeliest)

    @property
    def parent(self) -> int:
        """The place to compare the culprit with: the last place before it that can be measured."""
        return max(place for place in range(min(self.likeliest)) if place not in self.broken)


def compute_search(
    span: Span, observations: Sequence[Observation], stratum: str, settings: SearchSettings
) -> SearchState:
    """Compute the state of the search. ``stratum`` is the stratum of the next run; '' if only the result is needed."""
    cleared: tuple[int, ...] = ()
    while True:
        state = _compute_state(span, observations, stratum, settings, cleared)
        if not (state.status == "found" and state.confirmation.is_cleared):
            return state
        cleared = (*cleared, *state.likeliest)
        if len(cleared) >= span.last:
            return replace(state, status="none", cleared=cleared)


def _compute_state(
    span: Span, observations: Sequence[Observation], stratum: str, settings: SearchSettings, cleared: tuple[int, ...]
) -> SearchState:
    """Compute the state of the search in which the places ``cleared`` are no candidates."""
    model = _build_model(span, settings, cleared)
    state = _analyse(span, model, observations, settings.summary, cleared)
    if 0 in state.broken or span.last in state.broken:
        return replace(state, status="unmeasurable")
    noise_known = is_noise_known(model, state.samples)  # without the noise, the posterior cannot be trusted
    if noise_known and state.posterior.no_culprit >= POSTERIOR:
        return replace(state, status="none")
    has_budget = sum(run.purpose != "reused" for run in observations) < settings.most_runs
    is_chained = _continues_check(observations)
    if not noise_known or state.probability < _needed_probability(state, observations, is_chained):
        if not has_budget:
            return replace(state, status="undecided")
        place = _choose_place(state, model, observations, stratum)
        request = MeasurementRequest(span.points[place]) if place is not None else None
        return replace(state, status="searching" if request else "undecided", request=request)
    thresholds = effect_thresholds(max(state.posterior.effect, settings.smallest), settings.indifference)
    parent, culprit = span.points[state.parent], span.points[state.place]
    confirmation = confirm(parent, culprit, observations, stratum, settings.seed, thresholds)
    is_between_blocks = confirmation.request is not None and confirmation.request.index_in_block == 0
    if is_chained and is_between_blocks:
        gate = posterior_test(state.posterior, state.probability, confirmation.blocks, thresholds, settings.summary)
        confirmation = Confirmation(gate, blocks=confirmation.blocks) if gate is not None else confirmation
    request = confirmation.request if has_budget else None
    return replace(state, status="found", confirmation=confirmation, request=request)


def _build_model(span: Span, settings: SearchSettings, cleared: Sequence[int]) -> CulpritModel:
    weights = np.ones(span.last)
    weights[[place - 1 for place in cleared]] = 0.0  # the first place (good) has no weight
    return culprit_model(weights, NONE_PRIOR, settings.smallest, settings.noise, settings.noise_pairs)


def _analyse(
    span: Span, model: CulpritModel, observations: Sequence[Observation], summary: str, cleared: tuple[int, ...]
) -> SearchState:
    broken = find_broken(span, observations)
    samples = tuple(
        Sample(span.place_by_key[run.point], run.values[summary], stratum_of(run))
        for run in observations
        if run.usable and run.point in span.place_by_key
    )
    span_posterior = posterior(model, samples)
    # Hypotheses that no run can separate belong to one set. Hypothesis k is that the place k + 1 is the culprit. A
    # hypothesis with the prior 0 has been cleared.
    set_numbers = np.cumsum(_available(span, broken))[:-1]
    probabilities = np.bincount(set_numbers, weights=span_posterior.culprit)
    likeliest_set = int(np.argmax(probabilities))
    likeliest = np.flatnonzero((set_numbers == likeliest_set) & (model.prior > 0)) + 1
    return SearchState(
        span=span,
        status="searching",
        samples=samples,
        broken=broken,
        posterior=span_posterior,
        likeliest=tuple(int(place) for place in likeliest),
        probability=float(probabilities[likeliest_set]),
        cleared=cleared,
    )


def _available(span: Span, broken: Collection[int]) -> Bools:
    available = np.ones(len(span.points), dtype=bool)
    available[list(broken)] = False
    return available


def _needed_probability(state: SearchState, observations: Sequence[Observation], is_chained: bool) -> float:
    """Return the probability at which the culprit of ``state`` is compared with its parent."""
    culprit = state.span.points[state.place].key
    if any(run.purpose == "confirm" and run.contrast == culprit for run in observations):
        return CONTINUED_CONFIRMATION_POSTERIOR
    return HANDOVER_POSTERIOR if is_chained else POSTERIOR


def _continues_check(observations: Sequence[Observation]) -> bool:
    """Return whether the bisection continues the session of a check: its own runs have the stratum of reused runs."""
    check_strata = {run.stratum for run in observations if run.purpose == "reused"}
    return any(run.purpose != "reused" and run.stratum in check_strata for run in observations)


def _choose_place(
    state: SearchState, model: CulpritModel, observations: Sequence[Observation], stratum: str
) -> int | None:
    """Return the place with the most expected information per second; None if no place can be measured."""
    span = state.span
    available = _available(span, {*state.broken, *_failing_places(span, observations)})
    if not available.any():
        return None
    place = choose_next_run(model, state.samples, stratum, available, _mean_costs(span, observations))
    measured = {sample.point for sample in state.samples}
    is_beside_broken = not available[max(place - 1, 0) : place + 2].all()
    if place in measured or not is_beside_broken:
        return place
    before = max((other for other in measured if other < place), default=0)
    after = min((other for other in measured if other > place), default=span.last)
    return skip_broken(place, [other for other in range(before + 1, after) if available[other]] or [place])


def _failing_places(span: Span, observations: Sequence[Observation]) -> set[int]:
    """Return the places whose last ``MAX_FAILURES`` runs all failed."""
    streaks: dict[int, int] = {}
    for run in observations:
        if run.point in span.place_by_key and not run.void:
            place = span.place_by_key[run.point]
            streaks[place] = 0 if run.usable else streaks.get(place, 0) + 1
    return {place for place, failures in streaks.items() if failures >= MAX_FAILURES}


def _mean_costs(span: Span, observations: Sequence[Observation]) -> Floats:
    """Return the expected seconds of a run at each place. A place that was run before needs no build."""
    own_runs = [run for run in observations if run.purpose != "reused"]
    run_s = [run.wall_s for run in own_runs if run.usable]
    build_s = [run.build_s for run in own_runs if run.built]
    built = {span.place_by_key[run.point] for run in own_runs if run.point in span.place_by_key}
    mean_run_s = max(fmean(run_s), 1e-3) if run_s else 1.0  # never 0, so that a run always has a cost
    return run_costs(len(span.points), built, mean_run_s, fmean(build_s) if build_s else 0.0)


def stratum_of(run: Observation) -> str:
    """Return the stratum of a run. Each block of a confirmation is a stratum of its own, so that a drift of the node
    between blocks cancels."""
    return f"{run.stratum} {run.contrast} {run.block}" if run.purpose == "confirm" else run.stratum
