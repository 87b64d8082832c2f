"""Where in the history of a workload did its level change? An annotation of a trend, and never a gate.

Samples are levels of sessions, one number each, oldest first, on the log scale. A session that stands out is set aside
while looking (Hampel's filter over seven sessions): what comes back to the old level was a bad night. In what is left
PELT (Killick 2012) pays ``PENALTY`` times log(n) times the variance for each change. The variance comes from the
differences of neighbouring sessions, which a change of level does not touch.

It assumes that sessions are independent of each other: levels that wander (one node for a month, then another) show
changes that nobody made. And it is late: where sessions scatter by 1%, as usual, a step of 2% that is five sessions old
is seen in less than half of all cases. That is why it decides nothing. ``benchmarks/history.py --rates`` prints how
often it errs.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

PENALTY = 4.0
"""With it one flat series of 200 sessions in 250 shows a change; with 3, one in sixty."""

SEGMENT = 3
"""The fewest sessions that make a level."""

LEAST = 8
"""Sessions below which no change is looked for: what they scatter by is not known."""

SMALL = 6
"""The scatter is taken to be larger by this over the number of sessions: of few it may come out too small."""

MOST_LEVELS = 1000
"""Levels that are searched at most; the time grows faster than their number. Longer histories come in as means of
neighbouring sessions."""

HAMPEL_WINDOW, HAMPEL_SDS = 3, 4.0
"""Sessions on either side, and how far a session is from the middle of them, in their robust sd, if it is set aside.
Four new sessions are the most of seven, so a new level is seen from its fourth session on."""

_FLAT = 1e-6
"""Log scale. Levels that are all the same have no scatter, and yet no change either."""


def change_points(levels: ArrayLike) -> list[int]:
    """Positions at which a new level begins, of levels oldest first; none for fewer than ``LEAST``.

    Raises ValueError where a level is not finite, or there are more than ``MOST_LEVELS``.
    """
    given = np.asarray(levels, dtype=np.float64)
    if given.ndim != 1 or not np.isfinite(given).all():
        raise ValueError("levels are a list of finite numbers")
    if len(given) > MOST_LEVELS:
        raise ValueError(f"{len(given)} levels are more than {MOST_LEVELS}; take means of neighbours")
    if len(given) < LEAST:
        return []
    from ruptures import KernelCPD  # type: ignore[import-untyped]  # here: it takes longer to import than to search

    points = without_outliers(given)
    noise = max(_scatter(points), _FLAT)
    search = KernelCPD(kernel="linear", min_size=SEGMENT).fit(points[:, None])
    ends: list[int] = search.predict(pen=PENALTY * math.log(len(points)) * noise**2)
    return [int(end) for end in ends[:-1]]


def without_outliers(levels: Array) -> Array:
    """The levels, those that stand out replaced by the median of their neighbourhood."""
    padded = np.pad(levels, HAMPEL_WINDOW, mode="reflect")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * HAMPEL_WINDOW + 1), axis=1)
    distance = np.abs(levels - usual)
    return np.where(distance > HAMPEL_SDS * 1.4826 * np.median(distance), usual, levels)


def bucket_starts(total: int, most: int) -> Sequence[int]:
    """Where the buckets of ``total`` sessions begin: at most ``most``, of equal numbers but for one."""
    count = min(total, most)
    return [bucket * total // count for bucket in range(count)]


def _scatter(points: Array) -> float:
    """Standard deviation of a level around its own stretch: robust, of the differences of neighbours."""
    steps = np.diff(points)
    robust = 1.4826 * float(np.median(np.abs(steps - np.median(steps))))
    return robust / math.sqrt(2) * (1 + SMALL / len(points))
