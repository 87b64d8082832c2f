"""The search on exact values, which are compared for equality: ledgers, and numbers that have no noise.

If two measured neighbours on the line differ, a change lies between them, and the search measures the place in the
middle. If the value changed twice, both changes are searched. If a culprit is a merge, the commits that it brought in
are searched too. Like any bisection, the search misses a change that was undone before the next measured place.

An entry is a workload on its mesh; '' if a command is measured. ``states`` maps a place to its measured value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.span import ExpandMerge, Span, find_broken, skip_broken
from regbot.records.bisection import BisectionHeader, Observation, Point


@dataclass(frozen=True)
class ValueChange:
    """A change of the value of one workload, which no further measurement can narrow down."""

    entry: str
    span: Span
    before: int
    """Measured place before the change."""
    after: int
    """Measured place after the change. All places between the two are broken."""

    @property
    def candidates(self) -> range:
        """Places of which one made the change."""
        return range(self.before + 1, self.after + 1)

    @property
    def sole_point(self) -> Point | None:
        """The only candidate; None if there are several candidates."""
        return self.span.points[self.after] if len(self.candidates) == 1 else None


def compared_entries(header: BisectionHeader) -> list[str]:
    return header.entries or [""]


def max_measurements(candidates: int) -> int:
    """Return the maximum number of measurements of a search for one change, if every place can be measured.

    After the two ends, each measurement halves the candidates.
    """
    return 2 + max(0, candidates - 1).bit_length()


def measured_states(span: Span, entry: str, observations: Sequence[Observation]) -> dict[int, str]:
    return {
        span.place_by_key[observation.point]: observation.state
        for observation in observations
        if observation.usable and observation.entry == entry and observation.point in span.place_by_key
    }


def next_request(
    span: Span,
    entries: Sequence[str],
    observations: Sequence[Observation],
    expand_merge: ExpandMerge,
    most_runs: int | None = None,
) -> MeasurementRequest | None:
    """Return the next measurement; None if nothing more can be learned, or after ``most_runs`` measurements.

    One commit often changes several workloads. So for a later workload, the points around the changes of the earlier
    ones are measured first.
    """
    if most_runs is not None and len(observations) >= most_runs:
        return None
    likely: set[str] = set()  # keys of the points around the changes of earlier entries
    for entry in entries:
        changes = find_changes(span, entry, observations, expand_merge)
        for searched in _searched_spans(changes, expand_merge, span):
            place = _next_place(searched, entry, observations, likely)
            if place is not None:
                return MeasurementRequest(searched.points[place], entry=entry)
        for change in changes:
            likely |= {point.key for point in change.span.points[change.before : change.after + 1]}
    return None


def find_changes(
    span: Span, entry: str, observations: Sequence[Observation], expand_merge: ExpandMerge
) -> list[ValueChange]:
    """Return the changes in one range that no further measurement can narrow down, and those in the merges that made
    these changes."""
    states = measured_states(span, entry, observations)
    broken = find_broken(span, observations, entry)
    changes: list[ValueChange] = []
    for before, after in _open_gaps(states):
        if all(place in broken for place in range(before + 1, after)):
            change = ValueChange(entry, span, before, after)
            branch = expand_merge(change.sole_point) if change.sole_point is not None else None
            changes.append(change)
            changes += find_changes(branch, entry, observations, expand_merge) if branch is not None else []
    return changes


def innermost(changes: Sequence[ValueChange]) -> list[ValueChange]:
    """Leave out each change by a merge of which a commit is known that made the change."""
    merges = {change.span.merge for change in changes}
    return [change for change in changes if change.sole_point is None or change.sole_point.key not in merges]


def _searched_spans(changes: Sequence[ValueChange], expand_merge: ExpandMerge, span: Span) -> list[Span]:
    branches = [expand_merge(change.sole_point) for change in changes if change.sole_point is not None]
    return [span, *(branch for branch in branches if branch is not None)]


def _next_place(span: Span, entry: str, observations: Sequence[Observation], likely: set[str]) -> int | None:
    """Return the place of one range to measure next; None if nothing can be learned. ``likely`` has keys of points that
    are measured first, if they can divide the candidates."""
    states = measured_states(span, entry, observations)
    broken = find_broken(span, observations, entry)
    for end in (0, span.last):
        if end in broken:
            return None
        if end not in states:
            return end
    for before, after in _open_gaps(states):
        free = [place for place in range(before + 1, after) if place not in broken]
        if not free:
            continue
        middle = (before + after) // 2
        preferred = [place for place in free if span.points[place].key in likely]
        if preferred or middle in free:
            return preferred[0] if preferred else middle
        return skip_broken(middle, free)
    return None


def _open_gaps(states: dict[int, str]) -> list[tuple[int, int]]:
    """Return the measured neighbours that differ."""
    return [(before, after) for before, after in pairwise(sorted(states)) if states[before] != states[after]]
