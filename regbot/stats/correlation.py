"""Correlation of the pairs of placebo sessions. The paired test assumes that it is at most 0.2.

Two correlations are estimated: of neighbouring pairs of a session (lag 1), and of the two pairs of one block. Noise
that lasts longer than a pair makes them positive. Above 0.2, the interval of the mean is too narrow.
``docs/statistics.md`` has the error rates under correlation.

Base and head of a placebo are the same commit, so the true mean of the log-ratios is 0 and is not estimated. Pairs with
a slow launch are left out, because two such pairs would dominate the estimate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.special import ndtri

from regbot.stats.slow_launches import find_outliers

MAX_CORRELATION = 0.2
"""Largest correlation that the gate tolerates. If more is proven, the gate loses its vote."""

MIN_NEIGHBOURS = 8
"""Minimum number of products for an estimate. With fewer, Fisher's interval is too rough."""


@dataclass(frozen=True)
class CorrelationEstimate:
    """Correlation of two log-ratios, in [-1, 1], with its 95% interval. ``count`` is the number of products, one for
    each two correlated pairs."""

    value: float
    low: float
    high: float
    count: int


def lag_correlation(sessions: Sequence[Sequence[float]]) -> CorrelationEstimate | None:
    """Return the correlation of neighbouring pairs of a session. ``sessions`` has the log-ratios of each placebo
    session in order. None if there are fewer than ``MIN_NEIGHBOURS`` products, or if all log-ratios are 0.
    """
    return _correlate([list(pairwise(range(len(session)))) for session in sessions], sessions)


def block_correlation(sessions: Sequence[Sequence[float]]) -> CorrelationEstimate | None:
    """Return the correlation of the two pairs of a block; None as for ``lag_correlation``."""
    blocks = [[(first, first + 1) for first in range(0, len(session) - 1, 2)] for session in sessions]
    return _correlate(blocks, sessions)


def _correlate(
    neighbours: Sequence[Sequence[tuple[int, int]]], sessions: Sequence[Sequence[float]]
) -> CorrelationEstimate | None:
    """Correlate the log-ratios at the pairs of indices in ``neighbours``, one list for each session.

    The estimate for n products x y of values with mean 0 is sum(x y) / (sum(x^2 + y^2) / 2). The interval is Fisher's:
    atanh of the estimate is roughly normal with the standard deviation 1 / sqrt(n - 1).
    """
    values = [value for session in sessions for value in session]
    outliers = set(find_outliers(values)) if values else set()
    products: list[tuple[float, float]] = []
    start = 0
    for session, indices in zip(sessions, neighbours, strict=True):
        products += [(session[i], session[j]) for i, j in indices if not {start + i, start + j} & outliers]
        start += len(session)
    squares = math.fsum(x * x + y * y for x, y in products) / 2
    count = len(products)
    if count < MIN_NEIGHBOURS or squares == 0:
        return None
    value = math.fsum(x * y for x, y in products) / squares
    half_width = float(ndtri(0.975)) / math.sqrt(count - 1)
    centre = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value)))
    return CorrelationEstimate(value, math.tanh(centre - half_width), math.tanh(centre + half_width), count)
