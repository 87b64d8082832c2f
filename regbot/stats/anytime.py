"""The always-valid interval: for pairs that somebody asked for after seeing a verdict.

The looks of the paired test are paid for: three, and no more. Whoever asks for more runs because the answer was not
the one hoped for, and looks again, and asks again, would be wrong at last, however small the error of one look. This
interval may be looked at after every pair, for ever: with probability 1 - alpha it holds the truth at all of them.

It is a confidence sequence (Lai 1976; Wang and Ramdas 2023). The evidence against a mean m after n pairs is a mixture
of likelihood ratios, of mean / sd over a normal law around 0 with variance 1 / ``PRIOR_PAIRS``, of sd over the scale-
invariant law d(sd) / sd. Under m it is a martingale that begins at 1, so it ever reaches 1 / alpha with probability at
most alpha (Ville). The interval is all m against which it has not. The price: at 20 pairs it is 1.4 times as wide as
the t interval of one look of the same alpha.

It assumes what the paired test does, and normal log-ratios at every number of pairs: that pairs of several sessions
are alike is assumed too. ``benchmarks/error_rates.py`` checks it on nodes that are not normal.
"""

import math
from collections.abc import Mapping, Sequence

from regbot.records.verdict import Decision
from regbot.stats.paired import Interval, Thresholds, combine, decide, interval

ANYTIME_ALPHA = 0.01
"""Two-sided error of all answers to requests for more runs together, shared among the primary tests of the check."""

PRIOR_PAIRS = 1.0
"""The mixture's scale: the prior on mean / sd weighs as much as this many pairs. With alpha 0.005 (one workload) the
interval is narrowest, among all scales, at 20 pairs: a full session of 12 and eight more. It is within 3% of the
narrowest from 12 to 60 pairs. It is finite from 8 pairs on (6 at alpha 0.01)."""


def anytime(log_ratios: Sequence[float], alpha: float) -> Interval:
    """The interval of the mean log-ratio after these pairs, valid at level 1 - ``alpha`` whenever it is looked at.

    With xbar the mean, V the sum of squares around it, c = ``PRIOR_PAIRS``: the evidence against a mean m is
    sqrt(c / (n + c)) ((1 + R) / (1 + R c / (n + c)))^(n/2), R = n (xbar - m)^2 / V, and it is solved for 1 / alpha.
    However large R is, few pairs cannot reach that: low and high are then -inf and inf. Raises ValueError for fewer
    than two pairs, or a log-ratio that is not finite.
    """
    moments = interval(log_ratios, alpha)
    pairs, reach = moments.pairs, _reach(moments.pairs, alpha)
    # Not a product where there is no scatter: 0 * inf is no number, and few pairs prove nothing even if they agree.
    half = reach * moments.sd if math.isfinite(reach) else math.inf
    return Interval(moments.estimate, moments.estimate - half, moments.estimate + half, moments.sd, pairs, alpha)


def decide_anytime(
    log_ratios: Mapping[str, Sequence[float]], primary_tests: int, thresholds: Thresholds
) -> tuple[Decision, float, dict[str, tuple[Decision, Interval]]]:
    """Judge all pairs there are: the decision, the alpha of one interval, and each summary's decision and interval.

    Arguments are those of ``paired.sequential``; there are no looks, so all pairs are used. An infinite interval is
    undecided. Raises ValueError for fewer than two pairs, or summaries of unequal length.
    """
    if len({len(values) for values in log_ratios.values()}) != 1:
        raise ValueError("the summaries must have the same number of pairs, and there must be one")
    if primary_tests < len(log_ratios):
        raise ValueError(f"{primary_tests} primary tests are fewer than the {len(log_ratios)} summaries given")
    alpha = ANYTIME_ALPHA / primary_tests
    intervals = {name: anytime(values, alpha) for name, values in log_ratios.items()}
    tests = {name: (decide(found, thresholds), found) for name, found in intervals.items()}
    return combine(tests.values(), thresholds), alpha, tests


def _reach(pairs: int, alpha: float) -> float:
    """Half the width, in standard deviations of a pair."""
    c = PRIOR_PAIRS
    # (1 + R) = needed (1 + R share); V = (pairs - 1) sd^2.
    share = c / (pairs + c)
    needed = (1 / (alpha * math.sqrt(share))) ** (2 / pairs)
    if needed * share >= 1:
        return math.inf
    return math.sqrt((needed - 1) / (1 - needed * share) * (pairs - 1) / pairs)
