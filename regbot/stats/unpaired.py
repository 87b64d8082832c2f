"""Welch's interval on run values: for runs that were not launched side by side.

It assumes that runs are independent. They are not when all runs of one arm come from another node or another day: what
that adds to every run of the arm is then read as an effect of the code. Nothing in the numbers can show it, so whoever
prints such an interval has to say so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

LEAST_RUNS = 4
"""Runs of each arm before anything is decided: as many as the first look of the paired test has."""


@dataclass(frozen=True)
class Difference:
    """Two-sided confidence interval of mean(head) - mean(base) on the log scale, at level 1 - ``alpha``."""

    estimate: float
    low: float
    high: float
    sd: float
    """Of one head run minus one base run: comparable with the sd of a pair."""
    df: float
    alpha: float


def welch(base: Sequence[float], head: Sequence[float], alpha: float) -> Difference:
    """Welch (1947): unequal variances, degrees of freedom after Satterthwaite.

    Values are a summary of each run. Raises ValueError for fewer than two runs of an arm. Where no run of either arm
    differs from another the interval is the point, as in the paired test.
    """
    if min(len(base), len(head)) < 2:
        raise ValueError("each arm needs two runs to have a variance")
    (mean_base, var_base), (mean_head, var_head) = _moments(base), _moments(head)
    estimate = mean_head - mean_base
    sd = math.sqrt(var_base + var_head)
    a, b = var_base / len(base), var_head / len(head)
    if a + b == 0:
        return Difference(estimate, estimate, estimate, 0.0, math.inf, alpha)
    # Shares of the variance instead of squares of variances: those of tiny variances would underflow to 0 / 0.
    share = a / (a + b)
    df = 1 / (share**2 / (len(base) - 1) + (1 - share) ** 2 / (len(head) - 1))
    half = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(a + b)
    return Difference(estimate, estimate - half, estimate + half, sd, df, alpha)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if min(values) == max(values):
        return values[0], 0.0
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
