"""The exact search over several workloads and ranges: the next measurement, and the changes so far.

If a culprit is a merge, the range of the commits that it brought in is searched too. For a second workload, the search
first measures where the first workload changed, because one commit often changes all workloads.

``states`` maps a place to its measured value. ``broken`` maps a place that could not be measured to its last failure.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from regbot.bisect import exact
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.span import END_ATTEMPTS
from regbot.records.bisection import BisectionHeader, Observation, Point
from regbot.stats.culprit import Bools, Floats

SHARED_CULPRIT_FACTOR = 10.0
"""Weight of a point where another workload changed, relative to the sum of all weights."""

ExpandExactMerge = Callable[[Point], "ExactSpan | None"]
"""Returns the range of the commits that a merge brought in; None if the commit is no merge or its branch cannot be
searched.
"""


@dataclass(frozen=True)
class ExactSpan:
    """A range of points whose values are compared. A place is the number of its first point, as in ``exact``."""

    points: tuple[Point, ...]
    affected: Bools | None = None
    """Which points a commit affects, in a history with branches: ``affected[k, n]`` says whether point n contains the
    commit ``points[k + 1]``. Shape: [points - 1, points]. None if the range is a line, where each point contains all
    points before it.
    """
    merge: str = ""
    """Key of the merge that brought in the commits of this range; '' if the range is no branch of a merge."""

    @cached_property
    def place_of_point(self) -> list[int]:
        """The place of each point. Neighbouring points that run the same code share one place."""
        return exact.find_places([point.same_as_before for point in self.points])

    @cached_property
    def places(self) -> list[int]:
        """The distinct places in order."""
        return sorted(set(self.place_of_point))

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The places of good and bad."""
        return self.place_of_point[0], self.place_of_point[-1]

    @cached_property
    def place_by_key(self) -> dict[str, int]:
        """The key of every point, with the place of the point."""
        return {point.key: place for point, place in zip(self.points, self.place_of_point, strict=True)}


@dataclass
class ValueChange:
    """A change of the value of one workload."""

    entry: str
    """The workload on its mesh; '' if a command is measured."""
    span: ExactSpan
    before: int
    """Place before the change."""
    candidates: tuple[int, ...]
    """Places of which one made the change. If there are several, no measurement can tell which."""
    branch_changes: list["ValueChange"] = field(default_factory=list)
    """The changes on the merged branch if the only candidate is a merge. Empty if the merge itself is the culprit."""

    @property
    def sole_point(self) -> Point | None:
        """The only candidate; None if there are several candidates."""
        return self.span.points[self.candidates[0]] if len(self.candidates) == 1 else None

    def innermost(self) -> list["ValueChange"]:
        """Return the changes on the merged branch, or on branches merged into it. A change without a branch returns
        itself.
        """
        return [inner for change in self.branch_changes for inner in change.innermost()] or [self]


def compared_entries(header: BisectionHeader) -> list[str]:
    """Return the workloads that are searched; [""] for a search by a command, which has no workload."""
    return header.entries or [""]


def next_requests(
    span: ExactSpan,
    entries: Sequence[str],
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    expand_merge: ExpandExactMerge,
    most_runs: int,
) -> list[MeasurementRequest]:
    """Return the next measurement as a list of at most one request; [] if nothing more can be learned now.

    ``pending`` has the running requests, each with its stratum. ``most_runs`` is the maximum number of measurements. A
    value from the cache does not count.
    """
    run_count = sum(not observation.cached for observation in observations) + len(pending)
    if run_count >= most_runs:
        return []
    for entry in entries:
        other_entries = [other for other in entries if other != entry]
        changed_elsewhere = _changed_points(span, other_entries, observations, expand_merge)
        for searched_span in _searched_spans(span, entry, observations, expand_merge):
            if requests := _next_in_span(searched_span, entry, observations, pending, changed_elsewhere):
                return requests
    return []


def _changed_points(
    span: ExactSpan, entries: Sequence[str], observations: Sequence[Observation], expand_merge: ExpandExactMerge
) -> set[str]:
    """Return the keys of all candidates of the changes of ``entries``, on merged branches too."""
    keys = set()
    for entry in entries:
        for range_change in find_changes(span, entry, observations, expand_merge):
            for change in (range_change, *range_change.innermost()):
                keys |= {change.span.points[place].key for place in change.candidates}
    return keys


def find_changes(
    span: ExactSpan, entry: str, observations: Sequence[Observation], expand_merge: ExpandExactMerge
) -> list[ValueChange]:
    """Return the changes in the value of one workload, each with as few candidates as the values allow."""
    states, broken = place_values(span, entry, observations)
    if span.affected is None:  # the range is a line, without branches
        value_steps = exact.changes_on_line(span.place_of_point, states, broken)
    else:
        value_steps = _steps_in_history(span, span.affected, states, broken)
    changes = [ValueChange(entry, span, step.before, step.candidates) for step in value_steps]
    for change in changes:
        if (branch := _expand_culprit(change, expand_merge)) is not None:
            change.branch_changes = find_changes(branch, entry, observations, expand_merge)
    return changes


def _expand_culprit(change: ValueChange, expand_merge: ExpandExactMerge) -> ExactSpan | None:
    """Return the branch that the culprit merged; None if there are several candidates or the culprit is no merge."""
    return expand_merge(change.sole_point) if change.sole_point is not None else None


def place_values(
    span: ExactSpan, entry: str, observations: Sequence[Observation]
) -> tuple[dict[int, str], dict[int, Observation]]:
    """Return the value of each measured place of a range, and the last failure of each broken place.

    A place is broken if a measurement failed and none succeeded. An end is broken only after ``END_ATTEMPTS`` failures,
    because the search needs the values of both ends. Void observations do not count.
    """
    states: dict[int, str] = {}
    broken: dict[int, Observation] = {}
    failures: Counter[int] = Counter()
    for observation in observations:
        place = span.place_by_key.get(observation.point)
        if place is None or observation.entry != entry:
            continue
        if observation.usable:
            states[place] = observation.state
        elif not observation.void:
            failures[place] += 1
            if place not in span.ends or failures[place] >= END_ATTEMPTS:
                broken[place] = observation
    return states, {place: observation for place, observation in broken.items() if place not in states}


def _searched_spans(
    span: ExactSpan, entry: str, observations: Sequence[Observation], expand_merge: ExpandExactMerge
) -> list[ExactSpan]:
    """Return the range, and the ranges of the merges that changed the value."""
    spans = [span]
    for change in find_changes(span, entry, observations, expand_merge):
        if (branch := _expand_culprit(change, expand_merge)) is not None:
            spans += _searched_spans(branch, entry, observations, expand_merge)
    return spans


def _next_in_span(
    span: ExactSpan,
    entry: str,
    observations: Sequence[Observation],
    pending: Sequence[tuple[MeasurementRequest, str]],
    changed_elsewhere: set[str],
) -> list[MeasurementRequest]:
    """Return the next measurement in one range, as a list of at most one request; [] if nothing can be learned now.

    ``changed_elsewhere`` has the keys of the points where another workload changed. They get a large weight.
    """
    states, broken = place_values(span, entry, observations)
    running = {
        span.place_by_key[request.point.key]
        for request, _ in pending
        if request.entry == entry and request.point.key in span.place_by_key
    }
    extra_weight = SHARED_CULPRIT_FACTOR * sum(point.weight for point in span.points)
    weights = [point.weight + extra_weight * (point.key in changed_elsewhere) for point in span.points]
    if span.affected is None:  # the range is a line, without branches
        chosen = exact.next_on_line(span.place_of_point, weights, states, broken, running, slots=1)
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
    """Return the place that separates the candidates best, as a list of at most one.

    ``affected`` is ``span.affected``. ``weights`` has the suspicion of each point, and ``running`` the places that are
    being measured now. The values of other places can already prove which commit is the culprit. Then the culprit's
    parent is returned if it is not measured, and after that the culprit itself. Every place but the first (good) is a
    candidate.
    """
    # Here a place is the number of its first point. ``next_in_history`` numbers the places 0, 1, 2 instead.
    index_of = {place: index for index, place in enumerate(span.places)}
    prior: Floats = np.array([weights[place] for place in span.places[1:]])
    chosen = exact.next_in_history(
        _reduce_to_places(span, affected),
        prior,
        {index_of[place]: state for place, state in states.items()},
        [index_of[place] for place in broken],
        [index_of[place] for place in running],
        slots=1,
    )
    if chosen:
        return [span.places[index] for index in chosen]
    tried = {*states, *broken, *running}
    for step in _steps_in_history(span, affected, states, broken):
        for place in (_parent_place(span, step.candidates[0]), *step.candidates):
            if place not in tried:
                return [place]
    return []


def _steps_in_history(
    span: ExactSpan, affected: Bools, states: dict[int, str], broken: dict[int, Observation]
) -> list[exact.ValueStep]:
    """Return the change in a history with branches, as a list of at most one step; [] while it is not known.

    Place 0 is good, and the last place is bad.
    """
    last_place = span.place_of_point[-1]
    if 0 not in states or last_place not in states or states[0] == states[last_place]:
        return []
    reduced = _reduce_to_places(span, affected)
    index_of = {place: index for index, place in enumerate(span.places)}
    state_at = {index_of[place]: state for place, state in states.items()}
    broken_indices = [index_of[place] for place in broken]
    equal_prior = np.ones(len(reduced))
    if exact.next_in_history(reduced, equal_prior, state_at, broken_indices, pending=(), slots=1):
        return []  # another measurement can still separate the candidates
    candidate_rows = np.flatnonzero(exact.remaining_hypotheses(reduced, state_at))
    candidates = tuple(span.places[int(row) + 1] for row in candidate_rows)
    if not candidates:
        return []
    # The place before the change is the culprit's parent. If the parent was not measured or differs from good, it is
    # the last ancestor that was measured and equals good. Row ``place - 1`` of ``affected`` belongs to ``place``.
    first = candidates[0]
    ancestors = [place for place in span.places[1:] if place < first and affected[place - 1, first]]
    good_ancestors = [0, *(place for place in ancestors if states.get(place) == states[0])]
    parent = _parent_place(span, first)
    return [exact.ValueStep(parent if parent in good_ancestors else good_ancestors[-1], candidates)]


def _reduce_to_places(span: ExactSpan, affected: Bools) -> Bools:
    """Return ``affected`` with one row for each candidate place and one column for each place.

    Every place but the first (good) is a candidate. Row k of ``affected`` belongs to point k + 1.
    """
    candidate_rows = [place - 1 for place in span.places[1:]]
    return affected[candidate_rows][:, span.places]


def _parent_place(span: ExactSpan, place: int) -> int:
    """Return the place of the first parent that the range contains; 0 (good) if it contains none."""
    parents = span.points[place].parents
    return next((span.place_by_key[parent] for parent in parents if parent in span.place_by_key), 0)
