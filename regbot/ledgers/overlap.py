"""Exposed and hidden communication time, computed from unions of intervals, because a sum of kernel times counts time
twice when kernels run concurrently. Communication that overlaps compute on the same device is hidden, the rest is
exposed. A communication kernel that waits for its peers counts as communication."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.float64]
Device = TypeVar("Device")


@dataclass
class Spans:
    """Start and end times of many intervals, in any order."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, start: float, end: float) -> None:
        self.starts.append(start)
        self.ends.append(end)


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order. All times have the same unit, which the caller chooses."""

    starts: Times
    ends: Times
    before: Times
    """Total length of the intervals before each one, and at the end the length of all. It has one item more than
    ``starts``."""

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())

    def contains(self, moment: float) -> bool:
        position = int(np.searchsorted(self.starts, moment, side="right")) - 1
        return position >= 0 and moment <= float(self.ends[position])


class Overlap(NamedTuple):
    """Length of communication without concurrent compute (exposed) and with it (hidden), in the unit of the
    intervals.
    """

    exposed: float
    hidden: float


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """Merge the intervals ``[starts[i], ends[i])``. The input intervals may be unordered, nested, touching or empty."""
    begin, end = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    nonempty = end > begin
    begin, end = begin[nonempty], end[nonempty]
    if not begin.size:
        return Intervals(begin, end, np.zeros(1))
    order = np.argsort(begin, kind="stable")
    begin, latest_end = begin[order], np.maximum.accumulate(end[order])
    # A merged interval starts wherever an input interval begins after the end of all earlier ones. It ends with the
    # last input interval before the next start. Both arrays are bool, with one element per input interval.
    is_merged_start = np.concatenate(([True], begin[1:] > latest_end[:-1]))
    is_merged_end = np.concatenate((is_merged_start[1:], [True]))
    merged_starts, merged_ends = begin[is_merged_start], latest_end[is_merged_end]
    return Intervals(merged_starts, merged_ends, np.concatenate(([0.0], np.cumsum(merged_ends - merged_starts))))


def overlap(communication: Intervals, compute: Intervals) -> Overlap:
    # Length of compute during each interval of communication.
    compute_during = _length_before(compute, communication.ends) - _length_before(compute, communication.starts)
    hidden = float(compute_during.sum())
    return Overlap(exposed=max(communication.length - hidden, 0.0), hidden=hidden)


def overlap_devices(communication: Mapping[Device, Spans], compute: Mapping[Device, Intervals]) -> Overlap:
    """Return the sum of ``overlap`` over the devices. Compute hides only communication of the same device."""
    overlaps = [
        overlap(union(spans.starts, spans.ends), compute.get(device, union([], [])))
        for device, spans in communication.items()
    ]
    return Overlap(sum(part.exposed for part in overlaps), sum(part.hidden for part in overlaps))


def _length_before(intervals: Intervals, moments: Times) -> Times:
    """Return, for each of ``moments``, the total length of the parts of ``intervals`` that lie before it."""
    if not intervals.starts.size:
        return np.zeros_like(moments)
    started_count = np.searchsorted(intervals.starts, moments, side="right")
    # The last interval that started may end after the moment. The part after the moment does not count.
    # Where no interval has started, the index is -1 and the value has no meaning; ``np.where`` replaces it by 0.
    last_ends = intervals.ends[started_count - 1]
    after_moment = np.where(started_count > 0, np.clip(last_ends - moments, 0.0, None), 0.0)
    length: Times = intervals.before[started_count] - after_moment
    return length
