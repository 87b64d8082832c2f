"""Always-valid confidence interval, for pairs that somebody requests after seeing a verdict.

With probability 1 - alpha, the intervals after every pair, without limit, all contain the true mean. The interval is a
confidence sequence (Lai 1976; Wang and Ramdas 2023): a mixture of likelihood ratios over mean / sd, normal around 0
with variance 1 / ``PRIOR_PAIRS``, and over sd, with density 1 / sd. By Ville's inequality, the evidence against the
true mean reaches 1 / alpha with probability alpha at most. At 20 pairs the interval is 1.4 times as wide as the t
interval of one look at the same alpha. If slow launches are left out, the evidence is no martingale;
``benchmarks/error_rates.py`` measures the error.
"""

import math
from collections.abc import Mapping, Sequence

from regbot.stats.arm_luck import SharedLuck
from regbot.stats.paired import Interval, SequentialTest, Thresholds, interval, judge_pairs

ANYTIME_ALPHA = 0.01
"""Two-sided error over all requests for more runs. It is divided among the primary tests of the check."""

PRIOR_PAIRS = 1.0
"""Scale of the mixture: the prior on mean / sd has the weight of this many pairs. From 12 to 60 pairs the interval is
at most 3% wider than with the best scale. It is finite from 8 pairs on at alpha 0.005 (one workload)."""


def anytime_interval(log_ratios: Sequence[float], alpha: float) -> Interval:
    """Return the interval of the mean log-ratio after these pairs, valid at level 1 - ``alpha`` at every look. With few
    pairs, low and high are -inf and inf. Raises ValueError for fewer than two pairs, or a log-ratio that is not finite.
    """
    t_interval = interval(log_ratios, alpha)  # for its mean and standard deviation
    estimate, sd, pairs = t_interval.estimate, t_interval.sd, t_interval.count
    width_in_sds = _half_width(pairs, alpha)
    # With too few pairs the width is infinite, even if all pairs are equal. Multiplying would give inf * 0 = NaN.
    half_width = width_in_sds * sd if math.isfinite(width_in_sds) else math.inf
    return Interval(estimate, estimate - half_width, estimate + half_width, sd, pairs, alpha)


def decide_anytime(
    log_ratios: Mapping[str, Sequence[float]],
    primary_tests: int,
    thresholds: Thresholds,
    luck: SharedLuck | None = None,
) -> SequentialTest:
    """Judge all pairs by always-valid intervals. The arguments have the same meaning as in ``paired.sequential_test``.
    An infinite interval is undecided."""
    return judge_pairs(log_ratios, ANYTIME_ALPHA / primary_tests, thresholds, None, luck, anytime_interval)


def _half_width(pairs: int, alpha: float) -> float:
    """Return half the width of the interval, in standard deviations of a pair; inf if there are too few pairs.

    With n pairs, mean xbar, sum of squared deviations V, ``share`` = c / (n + c) and c = ``PRIOR_PAIRS``, the evidence
    against a mean m is sqrt(share) ((1 + R) / (1 + R share))^(n/2), where R = n (xbar - m)^2 / V. At the ends it is 1 /
    alpha."""
    share = PRIOR_PAIRS / (pairs + PRIOR_PAIRS)
    max_ratio = (1 / (alpha * math.sqrt(share))) ** (2 / pairs)
    if max_ratio * share >= 1:  # no R solves the equation
        return math.inf
    return math.sqrt((max_ratio - 1) / (1 - max_ratio * share) * (pairs - 1) / pairs)
