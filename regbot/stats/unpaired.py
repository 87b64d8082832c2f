"""Intervals for the values of unpaired runs, and Fisher's exact test for counts of runs.

Both assume independent runs. If the arms ran on different nodes or days, an effect of node or day looks like an effect
of the code. The caller must know that all runs are of one session.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from regbot.stats.paired import Interval
from regbot.stats.summary import mean_and_squares

MIN_RUNS = 4
"""Minimum number of runs per arm for a decision. It equals the number of pairs at the first look of the paired test."""


def welch(base: Sequence[float], head: Sequence[float], alpha: float) -> Interval:
    """Return Welch's interval (1947) of mean(head) - mean(base), for unequal variances. ``base`` and ``head`` have one
    value per run, at least two, on the log scale. If both arms are constant, the interval is a point."""
    (base_mean, base_squares), (head_mean, head_squares) = mean_and_squares(base), mean_and_squares(head)
    base_var, head_var = base_squares / (len(base) - 1), head_squares / (len(head) - 1)
    estimate = head_mean - base_mean
    sd, count = math.sqrt(base_var + head_var), len(base) + len(head)
    base_error_sq, head_error_sq = base_var / len(base), head_var / len(head)  # squared standard errors of the means
    if base_error_sq + head_error_sq == 0:  # both arms are constant, so the interval is a point
        return Interval(estimate, estimate, estimate, 0.0, count, alpha)
    # Use shares of the variance, because squares of tiny variances would underflow to 0 / 0.
    base_share = base_error_sq / (base_error_sq + head_error_sq)
    df = 1 / (base_share**2 / (len(base) - 1) + (1 - base_share) ** 2 / (len(head) - 1))
    half_width = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(base_error_sq + head_error_sq)
    return Interval(estimate, estimate - half_width, estimate + half_width, sd, count, alpha)


def student(base: Sequence[float], head: Sequence[float], alpha: float) -> float:
    """Return half the width of Student's interval of mean(head) - mean(base), for equal variances, at level 1 -
    ``alpha``. Each arm needs at least two values."""
    df = len(base) + len(head) - 2
    variance = (mean_and_squares(base)[1] + mean_and_squares(head)[1]) / df
    return float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(variance * (1 / len(base) + 1 / len(head)))


def fisher(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Return the two-sided p-value of Fisher's exact test."""
    from scipy.stats import fisher_exact  # imported late: it takes longer to import than all of regbot

    return float(fisher_exact(np.array([[hits, total - hits], [other_hits, other_total - other_hits]])).pvalue)
