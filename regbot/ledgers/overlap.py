"""How much communication no compute hid: lengths of unions of intervals, never sums of kernel times.

Two kernels that run at the same time take the time of one, and a kernel that waits under another costs nothing. So
intervals are merged first, and what is measured is the part of the merged communication that lies under the merged
compute of the same device (hidden) and the part that does not (exposed). What a kernel spends waiting for its peers is
communication here: an interval does not tell.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.float64]


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order, in any unit of time."""

    starts: Times
    ends: Times

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())


class Overlap(NamedTuple):
    """Length of communication that no compute covers, and that compute covers, in the unit of the intervals."""

    exposed: float
    hidden: float


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """The intervals ``[starts[i], ends[i])`` merged: whatever their order, nested, touching or empty."""
    begin, end = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    real = end > begin
    begin, end = begin[real], end[real]
    if not begin.size:
        return Intervals(begin, end)
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], begin[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(begin[first], reach[last])


def overlap(communication: Intervals, compute: Intervals) -> Overlap:
    """What of ``communication`` runs outside and under ``compute``."""
    hidden = float((_length_before(compute, communication.ends) - _length_before(compute, communication.starts)).sum())
    return Overlap(max(communication.length - hidden, 0.0), hidden)


def _length_before(intervals: Intervals, moments: Times) -> Times:
    """Length of ``intervals`` that lies before each moment."""
    if not intervals.starts.size:
        return np.zeros_like(moments)
    total = np.concatenate(([0.0], np.cumsum(intervals.ends - intervals.starts)))
    index = np.searchsorted(intervals.starts, moments, side="right")
    inside = np.where(index > 0, np.clip(intervals.ends[index - 1] - moments, 0.0, None), 0.0)
    found: Times = total[index] - inside
    return found
