"""Exposed and hidden communication time, computed from unions of intervals.

A sum of kernel times would count time twice when kernels run concurrently. So the intervals of communication are merged
first, and the intervals of compute too. Communication time that overlaps compute on the same device is hidden. The
remaining communication time is exposed. A communication kernel that waits for its peers counts as communication,
because its interval includes the wait.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.float64]


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order. All times have the same unit, which the caller chooses."""

    starts: Times
    ends: Times

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())


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
        return Intervals(begin, end)
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    is_first = np.concatenate(([True], begin[1:] > reach[:-1]))
    is_last = np.concatenate((is_first[1:], [True]))
    return Intervals(begin[is_first], reach[is_last])


def overlap(communication: Intervals, compute: Intervals) -> Overlap:
    """Return how much of ``communication`` is exposed and how much is hidden by ``compute``."""
    hidden = float((_length_before(compute, communication.ends) - _length_before(compute, communication.starts)).sum())
    return Overlap(max(communication.length - hidden, 0.0), hidden)


def _length_before(intervals: Intervals, moments: Times) -> Times:
    """Return, for each of ``moments``, the total length of the parts of ``intervals`` that lie before it."""
    if not intervals.starts.size:
        return np.zeros_like(moments)
    total = np.concatenate(([0.0], np.cumsum(intervals.ends - intervals.starts)))
    index = np.searchsorted(intervals.starts, moments, side="right")
    tail = np.where(index > 0, np.clip(intervals.ends[index - 1] - moments, 0.0, None), 0.0)
    length: Times = total[index] - tail
    return length
