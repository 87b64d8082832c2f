"""Correlation of the pairs of placebo sessions. The paired test assumes that it is at most 0.2.

Base and head of a placebo are the same commit, so the true mean of the log-ratios is 0 and is not estimated. Pairs with
a slow launch are left out, because two such pairs would dominate the estimate.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from scipy.special import ndtri

from regbot.records.calibration_summary import Correlation
from regbot.stats.slow_launches import blank_outliers

MAX_CORRELATION = 0.2
"""Largest correlation that the gate tolerates. If more is proven, the gate loses its vote."""

MIN_NEIGHBOURS = 8
"""Minimum number of products for an estimate. With fewer, Fisher's interval is too rough."""


def lag_correlation(sessions: Sequence[Sequence[float]]) -> Correlation | None:
    """Return the correlation of neighbouring pairs of a session, in session order. None if there are fewer than
    ``MIN_NEIGHBOURS`` products, or if all log-ratios are 0."""
    return _correlate(sessions, first_distance=1)


def block_correlation(sessions: Sequence[Sequence[float]]) -> Correlation | None:
    """Return the correlation of the two pairs of a block, or None as ``lag_correlation``."""
    return _correlate(sessions, first_distance=2)


def _correlate(sessions: Sequence[Sequence[float]], first_distance: int) -> Correlation | None:
    """Return the correlation of neighbouring log-ratios, of which the first ones are ``first_distance`` apart.

    The estimate for n products x y of values with mean 0 is sum(x y) / (sum(x^2 + y^2) / 2). The interval is Fisher's:
    atanh of the estimate is roughly normal with the standard deviation 1 / sqrt(n - 1).
    """
    neighbours = [pair for session in blank_outliers(sessions) for pair in [*pairwise(session)][::first_distance]]
    factors = [(x, y) for x, y in neighbours if x is not None and y is not None]
    squares = math.fsum(x * x + y * y for x, y in factors) / 2
    count = len(factors)
    if count < MIN_NEIGHBOURS or squares == 0:
        return None
    value = math.fsum(x * y for x, y in factors) / squares
    half_width = float(ndtri(0.975)) / math.sqrt(count - 1)
    centre = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value)))  # atanh of 1 and -1 is infinite
    low, high = math.tanh(centre - half_width), math.tanh(centre + half_width)
    return Correlation(value=value, low=low, high=high, count=count)
