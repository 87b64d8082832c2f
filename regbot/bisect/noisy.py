"""The search on noisy values: choose the next run from the runs so far.

A search has up to four parts:

    search      makes the most informative runs until one commit, or "none", reaches the requested probability
    confirm     compares the culprit with its parent, in ABBA blocks, by the paired gate. The gate clears a culprit that
                is not slower than its parent. A cleared culprit is excluded, and the search continues. If the bisection
                continues the session of a check, the posterior may confirm the culprit after any block
    remainder   searches the ranges before and after the culprit for a second culprit. It uses the runs that exist
                already and makes a few more. A second culprit is confirmed too
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
from regbot.stats.culprit import CulpritModel, Floats, Sample, is_noise_known
from regbot.stats.next_run import choose_next_run, run_costs, runs_before_none, unmeasured_shares
from regbot.stats.paired import LOOKS, SequentialTest, Thresholds, sequential_test

BLOCK_VOID_LIMIT = 5
"""After this many void runs in one block, the confirmation ends for this session."""
MOVED_MARKER = ", nodes lost: "
"""Marker in the name of a stratum. The text before the marker is the session. The text after the marker says how often
nodes were lost.
"""

CONTINUED_CONFIRMATION_POSTERIOR = 0.5
"""A confirmation that has begun continues while the culprit has at least this probability."""

MAX_UNCONFIRMED_CULPRITS = 3
"""Maximum number of likely culprits whose confirmation did not prove a slowdown. With more of them the search stops,
because the runs do not fit the model.
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
    """A request for one measurement."""

    point: Point
    purpose: Purpose
    contrast: str = ""
    """For a confirmation, the name of the contrast. Otherwise the name of the span, which is '' for the whole range."""
    block: int = 0
    """Number of the block in the contrast, from 1; 0 if the run belongs to no block."""
    index_in_block: int = 0
    """Position of the run in the block, from 0."""
    entry: str = ""
    """The workload to trace, if the bisection compares ledgers; '' if it compares times or what a command prints."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a noisy search."""

    noise: Noise
    posterior: float
    """Probability at which a culprit is named."""
    most_runs: int
    """Maximum number of search runs."""
    summary: str
    """Summary of a run that the search compares: median, mean or cost."""
    indifference: float
    """The gate's indifference threshold, as a log-ratio. Smaller slowdowns do not matter."""
    confirm: bool = True
    """Whether a culprit is compared with its parent before it counts."""
    seed: int = 0
    """Seed of the order of runs in a confirmation, and of the outcomes that are imagined for pending runs."""

    @classmethod
    def from_header(cls, header: BisectionHeader, indifference: float) -> "SearchSettings":
        """Return the settings that a log's header gives. ``indifference`` comes from the configuration."""
        noise_sd = math.log1p(header.noise_pct / 100) if header.noise_pct else None
        return cls(
            noise=Noise(noise_sd, header.noise_pairs),
            posterior=header.posterior,
            most_runs=header.most_runs,
            summary=header.summary,
            indifference=indifference,
            confirm=header.confirm,
            seed=header.seed,
        )


@dataclass(frozen=True)
class RunCosts:
    """Mean seconds of a run and of a build so far."""

    run_s: float = 1.0
    build_s: float = 0.0
    built: frozenset[str] = frozenset()
    """Keys of the points that need no build."""


@dataclass
class SearchState:
    """State of one search and its follow-up searches."""

    span: NoisySpan
    status: Status
    """The status "found" means that a culprit is likely enough. Its confirmation may still be open
    (``gate_finished``). "none": the answer is that the span has no culprit. "undecided": the search stopped without an
    answer. "unmeasurable": good or bad cannot be measured.
    """
    analysis: SpanAnalysis | None = None
    """Analysis of the runs in the span. It is never None in a state that ``compute_search`` returns."""
    gate: SequentialTest | None = None
    """Result of the culprit's confirmation so far; None before its first look."""
    gate_finished: bool = False
    """Whether the result of the confirmation is final, so that no more runs are needed."""
    failure: str = ""
    """Why the confirmation could not be finished; '' if nothing failed."""
    nodes_unfit: bool = False
    """Whether the confirmation ended because nodes were unfit. Another session can finish it."""
    blocks: int = 0
    """Number of complete blocks of the confirmation."""
    cleared_places: tuple[int, ...] = ()
    """Places that a confirmation has cleared. They are no candidates any more."""
    unmeasured_shares: tuple[float, ...] = ()
    """After the answer "none": shares of the prior probability near which no place can be measured. For example, 0.5
    means the place that has half of the prior probability before it.
    """
    requests: list[MeasurementRequest] = field(default_factory=list)
    """The next run of this search, as a list of at most one request."""
    children: dict[str, "SearchState"] = field(default_factory=dict)
    """The follow-up searches by name: "inside", "before" and "after"."""

    @property
    def place(self) -> int:
        """The place of the likeliest culprit.

        If no run can separate several places, this is the last of them that can be measured.
        """
        assert self.analysis is not None
        usable = [place for place in self.analysis.likeliest if self.analysis.available[place]]
        return max(usable or self.analysis.likeliest)


ExpandNoisyMerge = Callable[[Point], NoisySpan | None]
"""Returns the span of the commits that a merge brought in; None if the commit is no merge, or if there is nothing to
search.
"""


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
    """Compute the state of the search in ``span``, and of its follow-up searches after the culprit is confirmed.

    The first state that needs a run contains a request for it. ``stratum`` is the stratum of this run. ``pending`` has
    the running requests, each with its stratum. ``mean_costs`` decides which run gives most information per second.
    """
    state = _compute_state(span, observations, pending, stratum, settings, mean_costs)
    is_confirmed = state.gate_finished or not settings.confirm
    if state.status != "found" or state.requests or not is_confirmed or state.analysis is None:
        return state
    for name, follow_up in _follow_up_spans(state, expand_merge):  # the spans of the follow-up searches
        state.children[name] = compute_search(
            follow_up, observations, pending, stratum, settings, mean_costs, expand_merge=expand_merge
        )
        if collect_requests(state.children[name]):  # the other follow-up searches wait until this one is done
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
    """Compute the state of the search in one span, without its follow-up searches. Parameters as in ``compute_search``.

    If the gate clears the likeliest culprit, the state is computed again without this culprit.
    """
    cleared_places: tuple[int, ...] = ()
    while True:
        model = build_culprit_model(span, settings.noise, cleared_places)
        analysis = analyse_span(span, model, observations, settings.summary)
        state = SearchState(span, "searching", analysis, cleared_places=cleared_places)
        is_good_available, is_bad_available = analysis.available[0], analysis.available[-1]
        if not (is_good_available and is_bad_available):
            state.status = "unmeasurable"
            return state
        if not is_noise_known(model, analysis.samples):  # without the noise, the posterior cannot be trusted
            return _request_run(state, model, observations, pending, stratum, settings, mean_costs=mean_costs)
        if analysis.posterior.no_culprit >= settings.posterior:
            chances = _measurement_chances(span, analysis, observations)
            is_follow_up = span.remainder or bool(span.merge)
            # Before the whole range gets the answer "none", points between the ends are run too. They would show a
            # slowdown that a later commit undid.
            if not is_follow_up and runs_before_none(model, analysis.samples, stratum, chances):
                return _request_run(state, model, observations, pending, stratum, settings, mean_costs=mean_costs)
            state.status = "none"
            if not is_follow_up:
                state.unmeasured_shares = tuple(unmeasured_shares(model, chances))
            return state
        has_confirmation = settings.confirm and _has_confirmation_run(span, state.place, observations)
        # A search is chained if it continues the session of a check. Follow-up searches have a span with a name, and
        # are not chained.
        is_chained = settings.confirm and not span.name and chained.has_check_of_session(observations)
        if has_confirmation:
            needed_probability = CONTINUED_CONFIRMATION_POSTERIOR
        elif is_chained:
            needed_probability = min(settings.posterior, chained.HANDOVER_POSTERIOR)
        else:
            needed_probability = settings.posterior
        is_likely = analysis.probability >= needed_probability
        has_failed_often = (
            settings.confirm and _count_unconfirmed(span, analysis, observations, settings) > MAX_UNCONFIRMED_CULPRITS
        )
        continues_confirmation = has_confirmation and is_likely
        if has_failed_often and not continues_confirmation:
            state.status = "undecided"
            return state
        if not is_likely:
            return _request_run(state, model, observations, pending, stratum, settings, mean_costs=mean_costs)
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
        candidate_count = len(span.points) - 1
        if len(cleared_places) >= candidate_count:
            state.status, state.cleared_places = "none", cleared_places
            return state


def _request_run(
    state: SearchState,
    model: CulpritModel,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
    *,
    mean_costs: RunCosts,
) -> SearchState:
    """Add a request for the next search run to ``state``, and return ``state``.

    ``model`` has the prior of each place. ``mean_costs`` has the cost of a run and of a build.

    The state gets no request while a run of a confirmation is pending. It becomes "undecided" if the maximum number of
    runs is reached, or if no place can be measured any more.
    """
    span, analysis = state.span, state.analysis
    assert analysis is not None
    # A remainder is the range before or after a culprit that was found. Its runs are counted separately.
    purpose: Purpose = "remainder" if span.remainder else "search"
    if _is_run_limit_reached(span, purpose, observations, pending, settings):
        state.status = "undecided"
        return state
    if any(request.purpose == "confirm" for request, _ in pending):
        return state
    # The values of the running measurements are not known yet, so 0 stands for them.
    running = [
        Sample(span.places[request.point.key], value=0.0, stratum=request_stratum)
        for request, request_stratum in pending
        if request.point.key in span.places
    ]
    # The places that need no build, so that a run of them costs less.
    built = [place for place, point in enumerate(span.points) if point.key in mean_costs.built]
    chances = _measurement_chances(span, analysis, observations)
    if not chances.any():
        state.status = "undecided"
        return state
    if is_noise_known(model, analysis.samples) and analysis.posterior.no_culprit >= settings.posterior:
        # "None" is probable enough. A few places between the ends are still run before it becomes the answer.
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


def _is_run_limit_reached(
    span: NoisySpan,
    purpose: Purpose,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    settings: SearchSettings,
) -> bool:
    """Return whether the search may make no more runs.

    The limit of a remainder counts the runs of its own span only: those with the name of the span as ``contrast``. The
    limit of a search counts all search runs, also those of other spans. Runs from the cache do not count.
    """
    runs = [run for run in observations if run.purpose == purpose and not run.cached]
    if purpose == "remainder":
        span_run_count = sum(run.contrast == span.name for run in runs)
        return span_run_count + len(pending) >= MAX_REMAINDER_RUNS
    return len(runs) + len(pending) >= settings.most_runs


def _measurement_chances(span: NoisySpan, analysis: SpanAnalysis, observations: Sequence[Observation]) -> Floats:
    """Return for each place the chance that a run of it gives a value.

    The chance is 0 for a place that failed and has no value. It is also 0 for a place whose last ``MAX_ATTEMPTS`` runs
    failed, even if earlier runs gave values.
    """
    measured = {sample.point for sample in analysis.samples}
    broken = [int(place) for place in np.flatnonzero(~analysis.available)]
    chances = success_chances(len(span.points), measured, broken)
    chances[failing_places(span, observations, MAX_ATTEMPTS)] = 0.0
    return chances


def contrast_name(span: NoisySpan, place: int) -> str:
    """Return the name of the confirmation of ``place``, which its runs carry."""
    return f"{span.points[place].key} against its parent"


def _has_confirmation_run(span: NoisySpan, place: int, observations: Sequence[Observation]) -> bool:
    name = contrast_name(span, place)
    return any(run.purpose == "confirm" and run.contrast == name for run in observations)


def _count_unconfirmed(
    span: NoisySpan, analysis: SpanAnalysis, observations: Sequence[Observation], settings: SearchSettings
) -> int:
    """Return how many places of the span have a confirmation that did not prove a slowdown."""
    confirmation_names = {run.contrast for run in observations if run.purpose == "confirm"}
    span_names = {contrast_name(span, place) for place in range(1, len(span.points))}
    thresholds = _gate_thresholds(span, analysis, settings)
    # The runs of a contrast are identified by its name. The points matter for new requests only, which are not used.
    unused_point = span.points[0]
    unconfirmed_count = 0
    for name in confirmation_names & span_names:
        sides = ContrastSides(name, unused_point, unused_point)
        contrast = evaluate_contrast(sides, observations, pending=(), seed=settings.seed, thresholds=thresholds)
        if contrast.gate is None or contrast.gate.decision != "regressed":
            unconfirmed_count += 1
    return unconfirmed_count


def _gate_thresholds(span: NoisySpan, analysis: SpanAnalysis, settings: SearchSettings) -> Thresholds:
    """Return the thresholds of a confirmation, as log-ratios.

    A slowdown above ``eps`` confirms the culprit. Ruling out a slowdown of ``delta`` clears it. Both are shares of the
    effect that the search estimates, but ``eps`` is at most the gate's indifference threshold
    (``settings.indifference``). The effect counts as at least ``span.smallest``, the smallest slowdown to look for.
    """
    effect = max(analysis.posterior.effect, span.smallest)
    return Thresholds(delta=CLEARED_SHARE * effect, eps=min(settings.indifference, SLOWER_SHARE * effect))


def _confirm(
    state: SearchState,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    stratum: str,
    settings: SearchSettings,
) -> bool:
    """Evaluate the confirmation of the culprit from the runs so far, and store its result in ``state``.

    Returns whether the gate clears the culprit. If the confirmation needs another run, ``state`` gets a request for it.
    """
    assert state.analysis is not None
    span, place = state.span, state.place
    parent = span.points[_nearest_measurable_before(state)]
    thresholds = _gate_thresholds(span, state.analysis, settings)
    name, culprit = contrast_name(span, place), span.points[place]
    result = evaluate_contrast(
        ContrastSides(name, parent, culprit), observations, pending, settings.seed, thresholds, stratum
    )
    state.gate, state.gate_finished = result.gate, result.finished
    state.failure, state.nodes_unfit = result.failure, result.nodes_unfit
    state.requests, state.blocks = result.requests, result.blocks
    return result.is_cleared


@dataclass(frozen=True)
class ContrastSides:
    """The two points that a contrast compares."""

    name: str
    """Name of the contrast. Its runs have this name as ``Observation.contrast``."""
    parent: Point
    culprit: Point


@dataclass(frozen=True)
class Contrast:
    """State of a paired comparison of two points after the runs so far."""

    gate: SequentialTest | None
    """Result of the gate so far; None before its first look."""
    finished: bool
    """Whether the comparison needs no more runs, because it is decided, has all its pairs, or has failed."""
    requests: list[MeasurementRequest]
    """The next run, as a list of at most one request."""
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
    """Evaluate the ABBA blocks of two points with the paired gate, at its planned looks. A is the parent.

    ``sides`` are the two points. ``seed`` decides the order of the runs in each block. ``thresholds`` say which
    slowdown confirms the culprit, and which clears it. ``stratum`` is the stratum of the next run; '' if only the
    result is needed. If another stratum has begun the block, the block is repeated in ``stratum``, because the two runs
    of a pair must come from one session.
    """
    contrast_runs = [run for run in observations if run.purpose == "confirm" and run.contrast == sides.name]
    log_ratios: dict[str, list[float]] = {}  # by summary (median, mean or cost): culprit against parent, pair by pair
    gate: SequentialTest | None = None
    for block in range(1, block_count(LOOKS[-1]) + 1):  # the blocks that the last look needs
        order = draw_order(seed, sides.name, block)  # "ABBA" or "BAAB"
        block_runs = [run for run in contrast_runs if run.block == block]
        state = block_state(_list_attempts(block_runs, stratum), BLOCK_VOID_LIMIT)
        # "failed": runs failed by themselves too often. "lost": too many runs were void, because the nodes are unfit.
        if state.status in ("failed", "lost"):
            last_failure = [run for run in block_runs if not run.usable][-1]
            nodes_unfit = state.status == "lost"
            return Contrast(gate, finished=True, requests=[], failure=last_failure.reason, nodes_unfit=nodes_unfit)
        if state.status == "open":  # ``state.slot`` is the position of the next run in the block
            point = sides.parent if order[state.slot] == "A" else sides.culprit
            request = MeasurementRequest(point, "confirm", sides.name, block, state.slot)
            return Contrast(gate, finished=False, requests=[] if pending else [request], blocks=block - 1)
        runs = _last_attempt(block_runs)
        for base_index, head_index in pair_slots(order):
            base, head = runs[base_index], runs[head_index]
            for summary in base.values.keys() & head.values.keys():  # the values are logarithms
                log_ratios.setdefault(summary, []).append(head.values[summary] - base.values[summary])
        gate = sequential_test(log_ratios, primary_tests=len(log_ratios), thresholds=thresholds)
        if gate is not None and gate.final:  # it has decided, or this was the last look
            break
    return Contrast(gate, finished=True, requests=[])


def _list_attempts(runs: Sequence[Observation], stratum: str) -> list[Attempt]:
    """Return the attempts at a block: the failed ones, and the current one last.

    A failed attempt has the fault "run" if a run failed by itself, or "nodes" if its run was void because of the nodes.
    Its number of runs does not matter, so it is always 1. The attempts are listed by fault and not in order of time.

    ``stratum`` is the stratum of the next run; '' means the stratum of the last run. Nodes that were lost in another
    session do not count. If another stratum has begun the block and not finished it, the current attempt begins anew.
    """
    session = _stratum_session(stratum or (runs[-1].stratum if runs else ""))
    failed_count = sum(not run.usable and not run.void for run in runs)
    lost_count = sum(run.void and _stratum_session(run.stratum) == session for run in runs)
    current = _last_attempt(runs)
    is_complete = len(current) == BLOCK_SLOTS
    begins_anew = bool(stratum and current) and current[-1].stratum != stratum and not is_complete
    return [
        *[Attempt(runs=1, fault="run")] * failed_count,
        *[Attempt(runs=1, fault="nodes")] * lost_count,
        Attempt(runs=0 if begins_anew else len(current)),
    ]


def _last_attempt(runs: Sequence[Observation]) -> list[Observation]:
    """Return the runs of a block after its last failure that come from the same stratum as the last run."""
    failures = [number for number, run in enumerate(runs) if not run.usable]
    attempt = list(runs[failures[-1] + 1 :] if failures else runs)
    return [run for run in attempt if run.stratum == attempt[-1].stratum]


def _stratum_session(stratum: str) -> str:
    """Return the session of a stratum, without the number of lost nodes."""
    return stratum.partition(MOVED_MARKER)[0]


def _nearest_measurable_before(state: SearchState) -> int:
    """Return the place of the culprit's parent. If the parent cannot be measured, return the nearest earlier place that
    can be measured.
    """
    assert state.analysis is not None
    parent = state.span.before(min(state.analysis.likeliest))
    while parent > 0 and not state.analysis.available[parent]:
        parent = state.span.before(parent)
    return parent


def _follow_up_spans(state: SearchState, expand_merge: ExpandNoisyMerge) -> list[tuple[str, NoisySpan]]:
    """Return the names and spans of the follow-up searches for a culprit.

    "inside" is the branch that the culprit merged. "before" and "after" are the rest of the range. They exist only on a
    line, because in a history with branches the culprit does not divide the range in two.
    """
    assert state.analysis is not None
    span, place = state.span, state.place
    point = span.points[place]
    follow_ups: list[tuple[str, NoisySpan]] = []
    if len(state.analysis.likeliest) == 1 and (merged_span := expand_merge(point)) is not None:
        follow_ups.append(("inside", merged_span))
    if not span.is_line:
        return follow_ups
    smallest = max(span.smallest, REMAINDER_EFFECT_SHARE * state.analysis.posterior.effect)
    place_before, bad_place = _nearest_measurable_before(state), len(span.points) - 1
    good_place = 0
    if place_before > good_place:
        name = f"before {point.key}"
        follow_ups.append(("before", span.part(name, good_place, place_before, REMAINDER_NONE_PRIOR, smallest)))
    if place < bad_place:
        follow_ups.append(("after", span.part(f"after {point.key}", place, bad_place, REMAINDER_NONE_PRIOR, smallest)))
    return follow_ups


def culprit_probabilities(state: SearchState) -> list[float]:
    """Return the culprit probability of every place of the state's span.

    The first place is the good end. It cannot be the culprit, so its probability is 0.
    """
    assert state.analysis is not None
    return [0.0, *map(float, state.analysis.posterior.culprit)]
