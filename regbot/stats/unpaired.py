"""Intervals for the values of unpaired runs, and Fisher's exact test for counts of runs.

Welch's interval and Fisher's test assume independent runs. If the arms ran on different nodes or days, an effect of
node or day looks like an effect of the code. The values of the runs cannot show this, so the caller must know that all
runs are of one session. The prediction interval is for base runs of separate sessions, whose scatter contains the
effects of node and day.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtrit

from regbot.stats.paired import POWER, Thresholds
from regbot.stats.prediction import MIN_SESSIONS, PredictionInterval, prediction_interval

MIN_RUNS = 4
"""Minimum number of runs per arm for a decision. It equals the number of pairs at the first look of the paired test."""

MAX_SESSIONS = 200
"""Largest number of base runs that ``sessions_needed`` considers. More hardly narrow the interval."""


@dataclass(frozen=True)
class Difference:
    """Two-sided confidence interval of mean(head) - mean(base) on the log scale, at level 1 - ``alpha``."""

    estimate: float
    low: float
    high: float
    sd: float
    """Standard deviation of one head run minus one base run; comparable with the sd of a pair."""
    df: float
    """Degrees of freedom of the t interval; inf for a normal interval."""
    alpha: float


def welch(base: Sequence[float], head: Sequence[float], alpha: float) -> Difference:
    """Return Welch's interval (1947), for unequal variances. The degrees of freedom are Satterthwaite's.

    ``base`` and ``head`` have one value per run: the logarithm of its median or mean step time. If all runs of base are
    equal and all runs of head are equal, the interval is a point, as in the paired test. Raises ValueError for fewer
    than two runs in an arm.
    """
    if min(len(base), len(head)) < 2:
        raise ValueError("each arm needs at least two runs")
    base_mean, base_var = _mean_and_variance(base)
    head_mean, head_var = _mean_and_variance(head)
    estimate = head_mean - base_mean
    sd = math.sqrt(base_var + head_var)
    base_error_sq, head_error_sq = base_var / len(base), head_var / len(head)  # squared standard errors of the means
    if base_error_sq + head_error_sq == 0:  # both arms are constant, so the interval is a point
        return Difference(estimate, estimate, estimate, 0.0, math.inf, alpha)
    # Use shares of the variance, because squares of tiny variances would underflow to 0 / 0.
    base_share = base_error_sq / (base_error_sq + head_error_sq)
    df = 1 / (base_share**2 / (len(base) - 1) + (1 - base_share) ** 2 / (len(head) - 1))
    half_width = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(base_error_sq + head_error_sq)
    return Difference(estimate, estimate - half_width, estimate + half_width, sd, df, alpha)


def predict_head(base: Sequence[float], head: Sequence[float], alpha: float) -> PredictionInterval:
    """Return the interval of head's effect against base runs of separate sessions. ``base`` has one value per session.

    It is the prediction interval of one more session. It is widened so that it contains the differences between head
    and the slowest base run, and between head and the fastest base run. Reason: if a few base runs are slower by a
    fixed amount, a normal interval is too narrow, and the head run may be slow in the same way.

    Several head runs are replaced by their mean. The variance of this mean is at most that of one run, whether the head
    runs share a session or not, so the interval is never too narrow for the mean. Raises ValueError for fewer than two
    base runs or no head run.
    """
    if not head:
        raise ValueError("head needs at least one run")
    head_mean = math.fsum(head) / len(head)
    interval = prediction_interval(base, head_mean, alpha)
    slowest_base, fastest_base = max(base), min(base)
    return replace(
        interval, low=min(interval.low, head_mean - slowest_base), high=max(interval.high, head_mean - fastest_base)
    )


def sessions_needed(launch_sd: float, effect: float, alpha: float, eps: float) -> int | None:
    """Return how many base sessions, of one run each, are needed to prove that head is slower by more than ``eps``.

    ``effect`` is head's true slowdown. The proof must succeed with probability 0.8. ``launch_sd`` is the standard
    deviation of a run in a session of its own. ``effect`` and ``eps`` are log-ratios. Return None if ``MAX_SESSIONS``
    sessions are not enough.
    """
    for sessions in range(MIN_SESSIONS, MAX_SESSIONS + 1):
        if eps + detectable_excess(launch_sd, sessions, alpha) <= effect:
            return sessions
    return None


def detectable_excess(launch_sd: float, sessions: int, alpha: float) -> float:
    """Return by how much head's true slowdown must exceed a limit, so that a prediction interval excludes the limit
    with probability 0.8. ``sessions`` is the number of base sessions. Slowdown and limit are log-ratios."""
    reach = float(stdtrit(sessions - 1, 1 - alpha / 2)) + float(ndtri(POWER))
    return reach * launch_sd * math.sqrt(1 + 1 / sessions)


def tipping_sd(estimate: float, half_width: float, alpha: float, thresholds: Thresholds) -> float:
    """Return how large an unknown effect between the arms may be, as a standard deviation, so that the estimate still
    decides; 0 if it does not decide even without such an effect.

    For example, such an effect exists if the arms ran on different nodes. An effect with the standard deviation sd
    makes the half width sqrt(``half_width``^2 + (z sd)^2), where z is the normal quantile for ``alpha``. An estimate
    beyond eps decides as long as the interval excludes eps. A smaller estimate decides as long as the interval lies
    within delta.
    """
    excess_over_eps = abs(estimate) - thresholds.eps
    max_half_width = excess_over_eps if excess_over_eps > 0 else thresholds.delta - abs(estimate)
    return math.sqrt(max(max_half_width**2 - half_width**2, 0.0)) / float(ndtri(1 - alpha / 2))


def fisher(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Return the two-sided p-value of Fisher's exact test: ``hits`` of ``total`` runs against ``other_hits`` of
    ``other_total``.
    """
    from scipy.stats import fisher_exact  # imported late: it takes longer to import than all of regbot

    return float(fisher_exact(np.array([[hits, total - hits], [other_hits, other_total - other_hits]])).pvalue)


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the variance. Equal values have exactly the variance 0, without rounding errors."""
    mean = math.fsum(values) / len(values)
    if min(values) == max(values):
        return values[0], 0.0
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
