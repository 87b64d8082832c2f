"""The search on noisy values: choose the next run from the runs so far.

A search has up to four parts:

    search      makes the most informative runs until one commit, or "none", reaches the requested probability
    confirm     compares the culprit with its parent, in ABBA blocks, by the paired gate. A culprit that the gate clears
                is excluded, and the search continues. After a check in the same session, the posterior may confirm the
                culprit after any block
    remainder   searches the ranges before and after the culprit, with the runs that exist already. A second culprit in
                them is confirmed in turn
    inside      searches the commits that the culprit brought in, if the culprit is a merge

The observations are the only state, so an interrupted bisection continues from its log. Search runs and confirmation
runs are counted separately. The posterior uses both kinds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from regbot.bisect import chained
from regbot.bisect.broken import success_chances
from regbot.bisect.span import Noise, NoisySpan, SpanAnalysis, analyse_span, build_culprit_model, failing_places
from regbot.records.bisection import BisectionHeader, Observation, Point, Purpose
from regbot.sessions.blocks import (
    BLOCK_SLOTS,
    MAX_ATTEMPTS,
    Attempt,
    block_count,
    block_state,
    draw_order,
    pair_slots,
)
from regbot.stats.culprit import Floats, Sample, is_noise_known
from regbot.stats.next_run import choose_next_run, run_costs, runs_before_none, unmeasured_shares
from regbot.stats.paired import LOOKS, SequentialTest, Thresholds, sequential_test

BLOCK_VOID_LIMIT = 5
"""After this many void runs in one block, the confirmation ends for this session."""
MOVED_MARKER = ", nodes lost: "
"""Marker in the name of a stratum. The text before it is the session; the text after it says how often nodes
were lost.
"""

MAX_CLEARED_CULPRITS = 3
"""Maximum number of culprits that the gate clears or does not confirm. With more of them the search stops, because the
runs do not fit the model.
"""

REMAINDER_NONE_PRIOR = 0.7
"""Prior probability that there is no second culprit."""
REMAINDER_EFFECT_SHARE = 1 / 3
"""The smallest second slowdown to look for, as a share of the first slowdown."""
MAX_REMAINDER_RUNS = 10
"""Maximum number of additional search runs for the range before or after a culprit, if the earlier runs do
not suffice.
"""

MERGE_ITSELF_PRIOR = 0.2
"""Prior probability that the merge itself is the culprit, and not a commit that it brought in."""

SLOWER_SHARE, CLEARED_SHARE = 1 / 4, 1 / 2
"""Shares of the effect that the search estimates. The gate confirms a culprit by proving a slowdown above the first
share, and clears it by ruling out a slowdown of the second share.
"""

Status = Literal["searching", "none", "found", "undecided", "unmeasurable"]


@dataclass(frozen=True)
class MeasurementRequest:
    """A request for one measurement.

    For a run of a confirmation, ``contrast`` is the name of the confirmation, and ``block`` and ``index_in_block`` say
    where the run belongs in it. ``entry`` is the workload.
    """

    point: Point
    purpose: Purpose
    contrast: str = ""
    block: int = 0
    index_in_block: int = 0
    entry: str = ""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a noisy search."""

    noise: Noise
    posterior: float
    most_runs: int
    summary: str
    indifference: float
    """The gate's indifference threshold, as a log-ratio."""
    confirm: bool = True
    seed: int = 0

    @classmethod
    def from_header(cls, header: BisectionHeader, indifference: float) -> "SearchSettings":
        noise = Noise(math.log1p(header.noise_pct / 100) if header.noise_pct else None, header.noise_pairs)
        return cls(
            noise,
            header.posterior,
            header.most_runs,
            header.summary,
            indifference,
            header.confirm,
            header.seed,
        )


@dataclass(frozen=True)
class RunCosts:
    """Mean seconds of a run and of a build so far, and the keys of the points that need no build."""

    run_s: float = 1.0
    build_s: float = 0.0
    built: frozenset[str] = frozenset()


@dataclass
class SearchState:
    """State of one search and its follow-up searches."""

    span: NoisySpan
    status: Status
    analysis: SpanAnalysis | None = None
    gate: SequentialTest | None = None
    gate_finished: bool = False
    """Whether the result of the confirmation is final, so that no more runs are needed."""
    failure: str = ""
    nodes_unfit: bool = False
    """Whether the confirmation ended because nodes were unfit. Another session can finish it."""
    blocks: int = 0
    """Number of complete blocks of the confirmation."""
    cleared_places: tuple[int, ...] = ()
    unmeasured_shares: tuple[float, ...] = ()
    """After the answer "none": shares of the prior probability near which no place can be measured."""
    requests: list[MeasurementRequest] = field(default_factory=list)
    children: dict[str, "SearchState"] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """The place of the culprit. If no run can separate several places, the last of them that can be measured."""
        assert self.analysis is not None
        usable = [place for place in self.analysis.likeliest if self.analysis.available[place]]
        return max(usable or self.analysis.likeliest)


ExpandNoisyMerge = Callable[[Point], NoisySpan | None]
"""Return the span of the commits that a merge brought in; None if the commit is no merge."""


def compute_search(
    span: NoisySpan,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
    mean_costs: RunCosts,
    *,
    expand_merge: ExpandNoisyMerge,
) -> SearchState:
    """Compute the state of the search in ``span`` and, as needed, of its follow-up searches.

    The first state that needs a run holds a request for ``stratum``. ``pending`` has the running requests, each with
    its stratum.
    """
    state = _compute_state(span, observations, pending, stratum, settings, mean_costs)
    if (
        state.status != "found"
        or state.requests
        or (settings.confirm and not state.gate_finished)
        or state.analysis is None
    ):
        return state
    for name, follow_up in _follow_up_spans(state, expand_merge):
        state.children[name] = compute_search(
            follow_up, observations, pending, stratum, settings, mean_costs, expand_merge=expand_merge
        )
        if collect_requests(state.children[name]):
            break
    return state


def collect_requests(state: SearchState) -> list[MeasurementRequest]:
    """Return the next requests of a state or of its follow-up searches."""
    return state.requests or [request for child in state.children.values() for request in collect_requests(child)]


def _compute_state(
    span: NoisySpan,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
    mean_costs: RunCosts,
) -> SearchState:
    cleared_places: tuple[int, ...] = ()
    while True:
        model = build_culprit_model(span, settings.noise, cleared_places)
        analysis = analyse_span(span, model, observations, settings.summary)
        state = SearchState(span, "searching", analysis, cleared_places=cleared_places)
        if not (analysis.available[0] and analysis.available[-1]):
            state.status = "unmeasurable"
            return state
        if not is_noise_known(model, analysis.samples):
            break
        if analysis.posterior.no_culprit >= settings.posterior:
            chances = _measurement_chances(span, analysis, observations)
            if span.remainder or span.merge or not runs_before_none(model, analysis.samples, stratum, chances):
                state.status = "none"
                if not (span.remainder or span.merge):
                    state.unmeasured_shares = tuple(unmeasured_shares(model, chances))
                return state
            break
        has_confirmation = settings.confirm and _confirmation_runs(span, state.place, observations) is not None
        is_chained = settings.confirm and not span.name and chained.has_check_of_session(observations)
        least = min(settings.posterior, chained.HANDOVER_POSTERIOR) if is_chained else settings.posterior
        is_likely = analysis.probability >= (0.5 if has_confirmation else least)
        has_failed_often = (
            settings.confirm and _count_unconfirmed(span, analysis, observations, settings) > MAX_CLEARED_CULPRITS
        )
        if has_failed_often and not (has_confirmation and is_likely):
            state.status = "undecided"
            return state
        if is_likely:
            state.status = "found"
            if not settings.confirm:
                return state
            is_cleared = _confirm(state, observations, pending, stratum, settings)
            # The posterior is looked at between blocks only, so that no block is left unfinished.
            if is_chained and not state.gate_finished and not pending and state.requests[0].index_in_block == 0:
                thresholds = _gate_thresholds(span, analysis, settings)
                gate = chained.posterior_test(analysis, state.blocks, thresholds, settings.posterior, settings.summary)
                if gate is not None:
                    state.gate, state.gate_finished, state.requests = gate, True, []
            if not is_cleared:
                return state
            cleared_places = (*cleared_places, *analysis.likeliest)
            if len(cleared_places) < len(span.points) - 1:
                continue
            state.status, state.cleared_places = "none", cleared_places
            return state
        break
    purpose: Purpose = "remainder" if span.remainder else "search"
    purpose_runs = [
        observation for observation in observations if observation.purpose == purpose and not observation.cached
    ]
    span_run_count = sum(run.contrast == span.name for run in purpose_runs) + len(pending)
    if (
        span_run_count >= MAX_REMAINDER_RUNS
        if purpose == "remainder"
        else len(purpose_runs) + len(pending) >= settings.most_runs
    ):
        state.status = "undecided"
        return state
    if any(request.purpose == "confirm" for request, _ in pending):
        return state
    running = [
        Sample(span.places[request.point.key], 0.0, request_stratum)
        for request, request_stratum in pending
        if request.point.key in span.places
    ]
    built = [place for place, point in enumerate(span.points) if point.key in mean_costs.built]
    chances = _measurement_chances(span, analysis, observations)
    if not chances.any():
        state.status = "undecided"
        return state
    if is_noise_known(model, analysis.samples) and analysis.posterior.no_culprit >= settings.posterior:
        places = runs_before_none(model, analysis.samples, stratum, chances, running)
        if not places:
            return state
        chosen = places[0]
    else:
        chosen = choose_next_run(
            model,
            analysis.samples,
            stratum,
            chances,
            running,
            run_costs(len(span.points), built, mean_costs.run_s, mean_costs.build_s),
            seed=settings.seed,
        )
    state.requests = [MeasurementRequest(span.points[chosen], purpose, span.name)]
    return state


def _measurement_chances(span: NoisySpan, analysis: SpanAnalysis, observations: Sequence[Observation]) -> Floats:
    """Return [places] the chance that a run of the place gives a value; 0 if the place cannot be measured any more."""
    measured = {sample.point for sample in analysis.samples}
    broken = [int(place) for place in np.flatnonzero(~analysis.available)]
    chances = success_chances(len(span.points), measured, broken)
    chances[failing_places(span, observations, MAX_ATTEMPTS)] = 0.0
    return chances


def contrast_name(span: NoisySpan, place: int) -> str:
    return f"{span.points[place].key} against its parent"


def _confirmation_runs(span: NoisySpan, place: int, observations: Sequence[Observation]) -> list[Observation] | None:
    runs = [run for run in observations if run.purpose == "confirm" and run.contrast == contrast_name(span, place)]
    return runs or None


def _count_unconfirmed(
    span: NoisySpan, analysis: SpanAnalysis, observations: Sequence[Observation], settings: SearchSettings
) -> int:
    """Return how many places of the span have a confirmation that did not prove a slowdown."""
    confirmation_names = {run.contrast for run in observations if run.purpose == "confirm"}
    names = confirmation_names & {contrast_name(span, place) for place in range(1, len(span.points))}
    thresholds = _gate_thresholds(span, analysis, settings)
    good = span.points[0]
    contrasts = (
        evaluate_contrast(ContrastSides(name, good, good), observations, (), settings.seed, thresholds)
        for name in names
    )
    return sum(contrast.gate is None or contrast.gate.decision != "regressed" for contrast in contrasts)


def _gate_thresholds(span: NoisySpan, analysis: SpanAnalysis, settings: SearchSettings) -> Thresholds:
    effect = max(analysis.posterior.effect, span.smallest)
    return Thresholds(CLEARED_SHARE * effect, min(settings.indifference, SLOWER_SHARE * effect))


def _confirm(
    state: SearchState,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
) -> bool:
    """Evaluate the confirmation of ``state`` from the runs so far. Return whether the gate clears the culprit.

    If the result is False, the culprit is confirmed or undecided, or ``state`` holds a request for the next run.
    """
    assert state.analysis is not None
    span, place = state.span, state.place
    parent = span.points[_nearest_measurable_before(state)]
    thresholds = _gate_thresholds(span, state.analysis, settings)
    name, culprit = contrast_name(span, place), span.points[place]
    result = evaluate_contrast(
        ContrastSides(name, parent, culprit), observations, pending, settings.seed, thresholds, stratum
    )
    state.gate, state.gate_finished, state.failure, state.requests = (
        result.gate,
        result.finished,
        result.failure,
        result.requests,
    )
    state.nodes_unfit, state.blocks = result.nodes_unfit, result.blocks
    return result.is_cleared


@dataclass(frozen=True)
class ContrastSides:
    """The two points that a contrast compares. ``name`` is the name of the contrast, which its runs carry."""

    name: str
    parent: Point
    culprit: Point


@dataclass(frozen=True)
class Contrast:
    """State of a paired comparison of two points after the runs so far."""

    gate: SequentialTest | None
    finished: bool
    requests: list[MeasurementRequest]
    failure: str = ""
    """Why the comparison could not be finished; '' if there is no such reason."""
    nodes_unfit: bool = False
    """Whether the comparison failed because nodes of this session were unfit, and not because of a point."""
    blocks: int = 0
    """Number of complete blocks."""

    @property
    def is_cleared(self) -> bool:
        """Whether the gate shows no slowdown: the two points are equally fast, or the culprit is faster."""
        return self.finished and self.gate is not None and self.gate.decision in ("no_change", "improved")


def evaluate_contrast(
    sides: ContrastSides,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    seed: int,
    thresholds: Thresholds,
    stratum: str = "",
) -> Contrast:
    """Evaluate the ABBA blocks of two points (A is the parent) with the paired gate, at its planned looks.

    ``stratum`` is the stratum that is free for the next run; '' if only the result is needed. If another stratum has
    begun a block, the block is repeated in ``stratum``, because the two runs of a pair must come from one session.
    """
    contrast_runs = [run for run in observations if run.purpose == "confirm" and run.contrast == sides.name]
    ratios: dict[str, list[float]] = {}
    gate: SequentialTest | None = None
    for block in range(1, block_count(LOOKS[-1]) + 1):
        order = draw_order(seed, sides.name, block)
        block_runs = [run for run in contrast_runs if run.block == block]
        state = block_state(_list_attempts(block_runs, stratum), BLOCK_VOID_LIMIT)
        if state.status in ("failed", "lost"):
            reason = [run.reason for run in block_runs if not run.usable][-1]
            return Contrast(gate, True, [], reason, state.status == "lost")
        if state.status == "open":
            point = sides.parent if order[state.slot] == "A" else sides.culprit
            request = MeasurementRequest(point, "confirm", sides.name, block, state.slot)
            return Contrast(gate, False, [] if pending else [request], blocks=block - 1)
        runs = _last_attempt(block_runs)
        for base, head in ((runs[first], runs[second]) for first, second in pair_slots(order)):
            for summary in base.values.keys() & head.values.keys():
                ratios.setdefault(summary, []).append(head.values[summary] - base.values[summary])
        gate = sequential_test(ratios, len(ratios), thresholds)
        if gate is not None and gate.final:
            break
    return Contrast(gate, True, [])


def _list_attempts(runs: Sequence[Observation], stratum: str) -> list[Attempt]:
    """Return the attempts at a block that count in the session of ``stratum`` (by default the session of the last run).

    A block that another stratum has begun is repeated. Nodes that were lost in another session do not count.
    """
    session = _stratum_session(stratum or (runs[-1].stratum if runs else ""))
    failed = sum(not run.usable and not run.void for run in runs)
    lost = sum(run.void and _stratum_session(run.stratum) == session for run in runs)
    last_attempt = _last_attempt(runs)
    is_repeated = (
        bool(stratum and last_attempt) and last_attempt[-1].stratum != stratum and len(last_attempt) < BLOCK_SLOTS
    )
    return [
        *[Attempt(1, "run")] * failed,
        *[Attempt(1, "nodes")] * lost,
        Attempt(0 if is_repeated else len(last_attempt)),
    ]


def _last_attempt(runs: Sequence[Observation]) -> list[Observation]:
    """Return the runs of a block after its last failure that come from the same stratum as the last run."""
    failures = [number for number, run in enumerate(runs) if not run.usable]
    attempt = list(runs[failures[-1] + 1 :] if failures else runs)
    return [run for run in attempt if run.stratum == attempt[-1].stratum]


def _stratum_session(stratum: str) -> str:
    return stratum.partition(MOVED_MARKER)[0]


def _nearest_measurable_before(state: SearchState) -> int:
    """Return the nearest measurable place before the culprit."""
    assert state.analysis is not None
    parent = state.span.before(min(state.analysis.likeliest))
    while parent > 0 and not state.analysis.available[parent]:
        parent = state.span.before(parent)
    return parent


def _follow_up_spans(state: SearchState, expand_merge: ExpandNoisyMerge) -> list[tuple[str, NoisySpan]]:
    """Return the names and spans of the follow-up searches for a culprit."""
    assert state.analysis is not None
    span, place = state.span, state.place
    point = span.points[place]
    follow_ups: list[tuple[str, NoisySpan]] = []
    if len(state.analysis.likeliest) == 1 and (merged_span := expand_merge(point)) is not None:
        follow_ups.append(("inside", merged_span))
    if not span.is_line:
        return follow_ups
    smallest = max(span.smallest, REMAINDER_EFFECT_SHARE * state.analysis.posterior.effect)
    before, last = _nearest_measurable_before(state), len(span.points) - 1
    if before > 0:
        name = f"before {point.key}"
        follow_ups.append(("before", span.part(name, 0, before, REMAINDER_NONE_PRIOR, smallest)))
    if place < last:
        follow_ups.append(("after", span.part(f"after {point.key}", place, last, REMAINDER_NONE_PRIOR, smallest)))
    return follow_ups


def culprit_probabilities(state: SearchState) -> list[float]:
    """Return, for every point of the state's span, the probability that it is the culprit. The first point is the good
    end. It cannot be the culprit, so its probability is 0."""
    assert state.analysis is not None
    return [0.0, *map(float, state.analysis.posterior.culprit)]
