"""The exact search over several workloads and ranges: the next measurement, and the changes so far.

If a culprit is a merge, the range of the commits that it brought in is searched too. For a second workload, the search
first measures where the first workload changed, because one commit often changes all workloads.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from regbot.bisect import exact
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.span import END_ATTEMPTS
from regbot.records.bisection import Observation, Point
from regbot.stats.culprit import Bools, Floats

SHARED_CULPRIT_FACTOR = 10.0
"""Weight of a point where another workload changed, relative to the sum of all weights."""

ExpandExactMerge = Callable[[Point], "ExactSpan | None"]
"""Return the range of the commits that a merge brought in; None if the commit is no merge."""


@dataclass(frozen=True)
class ExactSpan:
    """A range of points whose values are compared. ``affected`` is None if the range is a line."""

    points: tuple[Point, ...]
    affected: Bools | None = None
    merge: str = ""

    @cached_property
    def classes(self) -> list[int]:
        return exact.code_classes([point.same_as_before for point in self.points])

    @cached_property
    def class_starts(self) -> list[int]:
        return sorted(set(self.classes))

    @cached_property
    def class_by_key(self) -> dict[str, int]:
        return {point.key: code_class for point, code_class in zip(self.points, self.classes, strict=True)}


@dataclass
class ValueChange:
    """A change of the value of one workload."""

    entry: str
    span: ExactSpan
    before: int
    candidates: tuple[int, ...]
    branch_changes: list["ValueChange"] = field(default_factory=list)
    """The changes on the merged branch if the only candidate is a merge. Empty if the merge itself is the culprit."""

    def innermost(self) -> list["ValueChange"]:
        """Return the innermost changes on the merged branch. If the branch has no change, return this change itself."""
        return [inner for change in self.branch_changes for inner in change.innermost()] or [self]


def next_requests(
    span: ExactSpan,
    entries: Sequence[str],
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    expand_merge: ExpandExactMerge,
    most_runs: int,
) -> list[MeasurementRequest]:
    """Return the next measurement as a list of at most one request; [] if nothing more can be learned now."""
    run_count = sum(not observation.cached for observation in observations) + len(pending)
    if run_count >= most_runs:
        return []
    for entry in entries:
        suspects = {
            innermost_change.span.points[code_class].key
            for other_entry in entries
            if other_entry != entry
            for change in find_changes(span, other_entry, observations, expand_merge)
            for innermost_change in (change, *change.innermost())
            for code_class in innermost_change.candidates
        }
        for part in _measurable_spans(span, entry, observations, expand_merge):
            if requests := _next_in_part(part, entry, observations, pending, suspects):
                return requests
    return []


def find_changes(
    span: ExactSpan, entry: str, observations: Sequence[Observation], expand_merge: ExpandExactMerge
) -> list[ValueChange]:
    """Return the changes in the value of one workload, each with as few candidates as the values allow."""
    states, broken = class_values(span, entry, observations)
    span_changes = [
        ValueChange(entry, span, step.before, step.candidates)
        for step in (
            exact.changes_on_line(span.classes, states, broken)
            if span.affected is None
            else _steps_in_history(span, span.affected, states, broken)
        )
    ]
    for change in span_changes:
        if len(change.candidates) == 1 and (branch := expand_merge(span.points[change.candidates[0]])) is not None:
            change.branch_changes = find_changes(branch, entry, observations, expand_merge)
    return span_changes


def class_values(
    span: ExactSpan, entry: str, observations: Sequence[Observation]
) -> tuple[dict[int, str], dict[int, Observation]]:
    """Return the value of each measured class of a range, and the last failure of each broken class."""
    states: dict[int, str] = {}
    broken: dict[int, Observation] = {}
    failures: Counter[int] = Counter()
    # the search needs the values of both ends, so a failed end is tried again
    end_classes = (span.classes[0], span.classes[-1])
    for observation in observations:
        code_class = span.class_by_key.get(observation.point)
        if code_class is None or observation.entry != entry:
            continue
        if observation.usable:
            states[code_class] = observation.state
        elif not observation.void:
            failures[code_class] += 1
            if code_class not in end_classes or failures[code_class] >= END_ATTEMPTS:
                broken[code_class] = observation
    return states, {code_class: observation for code_class, observation in broken.items() if code_class not in states}


def _measurable_spans(
    span: ExactSpan, entry: str, observations: Sequence[Observation], expand_merge: ExpandExactMerge
) -> list[ExactSpan]:
    """Return the range, and the ranges of the merges that changed the value."""
    parts = [span]
    for change in find_changes(span, entry, observations, expand_merge):
        if (
            len(change.candidates) == 1
            and (branch := expand_merge(change.span.points[change.candidates[0]])) is not None
        ):
            parts += _measurable_spans(branch, entry, observations, expand_merge)
    return parts


def _next_in_part(
    span: ExactSpan,
    entry: str,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    suspects: set[str],
) -> list[MeasurementRequest]:
    states, broken = class_values(span, entry, observations)
    running = {
        span.class_by_key[request.point.key]
        for request, _ in pending
        if request.entry == entry and request.point.key in span.class_by_key
    }
    extra_weight = SHARED_CULPRIT_FACTOR * sum(point.weight for point in span.points)
    weights = [point.weight + extra_weight * (point.key in suspects) for point in span.points]
    if span.affected is None:
        chosen = exact.next_on_line(span.classes, weights, states, broken, running, 1)
    else:
        chosen = _choose_in_history(span, span.affected, weights, states, broken, running)
    return [MeasurementRequest(span.points[chosen[0]], "search", entry=entry)] if chosen else []


def _choose_in_history(
    span: ExactSpan,
    affected: Bools,
    weights: Sequence[float],
    states: dict[int, str],
    broken: dict[int, Observation],
    running: set[int],
) -> list[int]:
    """Return the point that separates the candidates best.

    If the culprit is already known, but only from the values of other points, first return its parent and then the
    culprit itself, so that both are measured.
    """
    index_of = {code_class: index for index, code_class in enumerate(span.class_starts)}
    prior: Floats = np.array([weights[code_class] for code_class in span.class_starts[1:]])
    chosen = exact.next_in_history(
        _reduce_to_classes(span, affected),
        prior,
        {index_of[code_class]: state for code_class, state in states.items()},
        [index_of[code_class] for code_class in broken],
        [index_of[code_class] for code_class in running],
        1,
    )
    if chosen:
        return [span.class_starts[index] for index in chosen]
    unconfirmed = (
        code_class
        for step in _steps_in_history(span, affected, states, broken)
        for code_class in (_parent_class(span, step.candidates[0]), *step.candidates)
    )
    return [
        code_class
        for code_class in unconfirmed
        if code_class not in states and code_class not in broken and code_class not in running
    ][:1]


def _steps_in_history(
    span: ExactSpan, affected: Bools, states: dict[int, str], broken: dict[int, Observation]
) -> list[exact.ValueStep]:
    """Return the change in a history with branches, as a list of at most one step; [] while it is not known."""
    last_class = span.classes[-1]
    if 0 not in states or last_class not in states or states[0] == states[last_class]:
        return []
    reduced = _reduce_to_classes(span, affected)
    index_of = {code_class: index for index, code_class in enumerate(span.class_starts)}
    state_at = {index_of[code_class]: state for code_class, state in states.items()}
    if exact.next_in_history(
        reduced, np.ones(len(reduced)), state_at, [index_of[code_class] for code_class in broken], (), 1
    ):
        return []
    candidates = tuple(
        span.class_starts[int(index) + 1] for index in np.flatnonzero(exact.remaining_hypotheses(reduced, state_at))
    )
    if not candidates:
        return []
    # If the parent was not measured, use the last measured ancestor of the culprit.
    first = candidates[0]
    ancestors = [
        code_class for code_class in span.class_starts[1:] if code_class < first and affected[code_class - 1, first]
    ]
    measured = [0, *(code_class for code_class in ancestors if states.get(code_class) == states[0])]
    parent = _parent_class(span, first)
    return [exact.ValueStep(parent if parent in measured else measured[-1], candidates)]


def _reduce_to_classes(span: ExactSpan, affected: Bools) -> Bools:
    return affected[[code_class - 1 for code_class in span.class_starts[1:]]][:, span.class_starts]


def _parent_class(span: ExactSpan, place: int) -> int:
    """Return the class of the first parent; 0 (good) if the parent is not in the range."""
    parents = span.points[place].parents
    return next((span.class_by_key[parent] for parent in parents if parent in span.class_by_key), 0)
