"""Sequential paired test: is head slower than base, in pairs of runs on the same nodes?

A pair is a base run and a head run, launched one after the other. Its log-ratio is log(head) - log(base) of one
summary. Effects of node and session cancel in it. Pairs come in ABBA or BAAB blocks, so that a linear drift cancels
too. The test looks at the pairs up to three times and stops at the first look that decides.

The test assumes that the mean of four log-ratios is roughly normal. Neighbouring pairs may be correlated by up to 0.2
(``widening``). The variance comes from the pairs themselves: in a session that is noisier than earlier ones, a stored
variance would cause too many errors. The caller leaves out void pairs.

All values are on the log scale; positive means slower. Constants come from simulation (``benchmarks/decision.py``).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from scipy.special import nctdtrinc, ndtri, stdtrit

from regbot.records.verdict import Decision
from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck
from regbot.stats.slow_launches import (
    PairOutlier,
    find_outliers,
    find_pair_outliers,
    has_more_slow_launches,
    trimmed_mean,
    trimmed_pairs,
)
from regbot.stats.summary import mean_and_squares

LOOKS = (4, 8, 12)
"""Number of pairs at each look. In four pairs (two ABBA blocks) drift cancels twice, and a variance can be estimated.
"""

LOOK_ALPHA = 0.0204
"""Two-sided error of one interval at one look. With looks at 4, 8 and 12 pairs, the error of the whole session is 5%.
"""

WIDENINGS = {4: 1.3, 8: 1.2, 12: 1.05}
"""Factor of the half width of the t interval, by the number of pairs at the look. If neighbouring pairs are correlated
by 0.2, the t interval is too narrow by a factor of 1.23. Together the factors keep the error of a session below 3.5%
(``benchmarks/error_rates.py``)."""

POWER = 0.8
"""Probability with which the pairs prove a slowdown of the size ``mde``, the minimum detectable effect."""

PASSING: tuple[Decision, ...] = ("no_change", "improved")
"""Decisions by which head passes."""

MAX_PAIRS = 1000
"""More pairs than any session has. If more pairs would be needed, ``pairs_needed`` returns None."""


@dataclass(frozen=True)
class Thresholds:
    """Positive limits of log-ratios."""

    delta: float
    """An interval within +-``delta`` proves that the step time has not changed by ``delta`` or more."""
    eps: float
    """An interval above ``eps`` proves a regression, an interval below -``eps`` an improvement."""

    def __post_init__(self) -> None:
        for name, value in (("delta", self.delta), ("eps", self.eps)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; a threshold must be positive and finite")

    @classmethod
    def from_percent(cls, threshold_pct: float, indifference_pct: float) -> "Thresholds":
        """Return the limits on the log scale. ``threshold_pct`` becomes delta, ``indifference_pct`` becomes eps."""
        return cls(delta=math.log1p(threshold_pct / 100), eps=math.log1p(indifference_pct / 100))


class Bounds(Protocol):
    """Anything with a confidence interval on the log scale."""

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Interval:
    """Two-sided confidence interval of the mean log-ratio at level 1 - ``alpha``."""

    estimate: float
    low: float
    high: float
    sd: float
    """Standard deviation of one pair's log-ratio, estimated or known. If slow launches were left out, it is the
    standard error times sqrt(pairs). 0 means that all pairs agree to the last bit."""
    pairs: int
    alpha: float
    trimmed: int = 0
    """Number of pairs that are left out at each end, because some launches are far slower than the others."""
    luck_sd: float = 0.0
    """Standard deviation that the luck of the arms adds to the estimate (``arm_luck``). ``sd`` does not include it."""


@dataclass(frozen=True)
class SequentialTest:
    """Result of the looks so far."""

    decision: Decision
    pairs: int
    """Number of pairs that the last look used."""
    look: int
    """Number of the last look, from 1. It is 0 for look 0, and outside of the planned looks."""
    alpha: float
    """Alpha of one interval at one look, after division by the number of primary tests of the check."""
    tests: dict[str, tuple[Decision, Interval]]
    """Decision and interval by summary ("median" and "mean" step time), at the last look."""
    unused: int
    """Pairs measured after the last look."""
    outliers: tuple[PairOutlier, ...] = ()
    """Pairs with a slow launch, at the last look. A look at 4 pairs has none."""
    withheld: bool = False
    """Whether a pass is withheld: only the trimmed intervals would pass head, and head has more slow launches."""

    @property
    def final(self) -> bool:
        """Whether the decision is final, because the test has decided or the last look is used."""
        return self.decision != "undecided" or self.pairs == LOOKS[-1]


def interval(log_ratios: Sequence[float], alpha: float, known_sd: float | None = None) -> Interval:
    """Return the interval of the mean: Student's t interval, or a normal interval if the sd of a pair is known. Raises
    ValueError for fewer than two pairs (one if the sd is known), or a log-ratio that is not finite."""
    pairs = len(log_ratios)
    min_pairs = 2 if known_sd is None else 1
    if pairs < min_pairs:
        raise ValueError(f"an interval needs {min_pairs} pairs; there are {pairs}")
    estimate, squares = mean_and_squares(log_ratios)
    sd = known_sd if known_sd is not None else math.sqrt(squares / (pairs - 1))
    degrees_of_freedom = None if known_sd is not None else pairs - 1  # None: a normal quantile
    half_width = _quantile(1 - alpha / 2, degrees_of_freedom) * sd / math.sqrt(pairs)
    return Interval(estimate, estimate - half_width, estimate + half_width, sd, pairs, alpha)


def widening(pairs: int) -> float:
    """Return the factor of ``WIDENINGS`` of the last look that needs at most ``pairs`` pairs, else of the first."""
    look_pairs = max((look for look in LOOKS if look <= pairs), default=LOOKS[0])
    return WIDENINGS[look_pairs]


def look_interval(log_ratios: Sequence[float], alpha: float) -> Interval:
    """Return the interval of one look, widened. If there are at least 8 pairs and one of them is far from the others,
    it is the trimmed t interval, else Student's. ``Interval.sd`` does not contain the factor."""
    pairs = len(log_ratios)
    trimmed = trimmed_pairs(pairs)  # pairs to leave out at each end; 0 for fewer than 8 pairs
    if not trimmed or not find_outliers(log_ratios):
        plain_interval = interval(log_ratios, alpha)
        half_width = widening(pairs) * (plain_interval.high - plain_interval.estimate)
        return replace(
            plain_interval, low=plain_interval.estimate - half_width, high=plain_interval.estimate + half_width
        )
    result = trimmed_mean(log_ratios, trimmed)
    half_width = widening(pairs) * _quantile(1 - alpha / 2, result.degrees_of_freedom) * result.standard_error
    low, high = result.mean - half_width, result.mean + half_width
    return Interval(result.mean, low, high, result.standard_error * math.sqrt(pairs), pairs, alpha, trimmed)


def add_luck(interval: Interval, luck: SharedLuck | None) -> Interval:
    """Return ``interval``, widened by the luck of the arms. The new half width is the root of the sum of two squares:
    that of ``interval``, and that of an interval of the luck alone."""
    if luck is None or luck.sd == 0:
        return interval
    luck_sd = luck.sd_of_mean(interval.pairs)
    luck_half_width = _quantile(1 - interval.alpha / 2, luck.df) * luck_sd
    half_width = math.hypot(interval.high - interval.estimate, luck_half_width)
    low, high = interval.estimate - half_width, interval.estimate + half_width
    return replace(interval, low=low, high=high, luck_sd=luck_sd)


def decide(interval: Bounds, thresholds: Thresholds) -> Decision:
    """Return what one interval proves. An interval between eps and delta proves a regression, although it would also
    prove that the change is small."""
    if interval.low > thresholds.eps:
        return "regressed"
    if interval.high < -thresholds.eps:
        return "improved"
    if -thresholds.delta < interval.low and interval.high < thresholds.delta:
        return "no_change"
    return "undecided"


def combine(tests: Collection[tuple[Decision, Bounds]], thresholds: Thresholds) -> Decision:
    """Return one decision from the tests of one workload's summaries. One improvement makes it "improved" if the
    intervals of all summaries exclude a slowdown of delta or more: a faster median is no improvement while the mean,
    which includes stalls, may still be slower."""
    decisions = {decision for decision, _ in tests}
    if "regressed" in decisions:
        return "regressed"
    if "improved" in decisions and all(bounded.high < thresholds.delta for _, bounded in tests):
        return "improved"
    return "no_change" if decisions == {"no_change"} else "undecided"


def sequential_test(
    log_ratios: Mapping[str, Sequence[float]],
    primary_tests: int,
    thresholds: Thresholds,
    known_sd: float | None = None,
    luck: SharedLuck | None = None,
) -> SequentialTest | None:
    """Take the looks for which there are enough pairs, and stop at the first look that decides. None before the first
    look.

    ``log_ratios`` has the log-ratios of the valid pairs by summary, in session order. ``primary_tests`` is the number
    of primary tests of the whole check, not of this workload: alpha is divided by it. With ``known_sd``, one pair
    suffices, the intervals are normal, and the caller has to look for slow launches. Raises ValueError for summaries of
    unequal length."""
    available_pairs = count_pairs(log_ratios, primary_tests)
    alpha = LOOK_ALPHA / primary_tests
    is_below_first_look = known_sd is not None and 0 < available_pairs < LOOKS[0]
    numbered_looks = [(0, available_pairs)] if is_below_first_look else list(enumerate(LOOKS, start=1))
    result = None
    for look, pairs in numbered_looks:
        if pairs > available_pairs:
            break
        used_ratios = {name: values[:pairs] for name, values in log_ratios.items()}
        if known_sd is None:
            result = judge_pairs(
                used_ratios,
                alpha,
                thresholds,
                lambda values: add_luck(look_interval(values, alpha), luck),
                lambda values: add_luck(interval(values, alpha), luck),
            )
        else:
            result = judge_pairs(
                used_ratios, alpha, thresholds, lambda values: add_luck(interval(values, alpha, known_sd), luck)
            )
        result = replace(result, look=look, unused=available_pairs - pairs)
        if result.final:
            break
    return result


def count_pairs(log_ratios: Mapping[str, Sequence[float]], primary_tests: int) -> int:
    """Return the number of pairs. Raises ValueError for summaries of unequal length, or too few ``primary_tests``."""
    lengths = {len(values) for values in log_ratios.values()}
    if len(lengths) != 1:
        raise ValueError("give at least one summary, and the same number of pairs for each summary")
    if primary_tests < len(log_ratios):
        raise ValueError(f"primary_tests is {primary_tests}, but there are {len(log_ratios)} summaries")
    return lengths.pop()


def judge_pairs(
    log_ratios: Mapping[str, Sequence[float]],
    alpha: float,
    thresholds: Thresholds,
    interval_of: Callable[[Sequence[float]], Interval],
    untrimmed_interval_of: Callable[[Sequence[float]], Interval] | None = None,
) -> SequentialTest:
    """Judge all pairs in one look, by the interval of each summary.

    ``untrimmed_interval_of`` returns the interval of all pairs, slow launches included. With it, a pass is withheld if
    head has more slow launches than base, and these intervals would not pass head.
    """

    def test(
        interval_of: Callable[[Sequence[float]], Interval],
    ) -> tuple[Decision, dict[str, tuple[Decision, Interval]]]:
        intervals = {name: interval_of(values) for name, values in log_ratios.items()}
        tests = {name: (decide(bounds, thresholds), bounds) for name, bounds in intervals.items()}
        return combine(tests.values(), thresholds), tests

    decision, tests = test(interval_of)
    pairs = min(map(len, log_ratios.values()))
    outliers: tuple[PairOutlier, ...] = ()
    withheld = False
    if untrimmed_interval_of is not None and trimmed_pairs(pairs):
        outliers = tuple(find_pair_outliers(log_ratios))
        may_be_withheld = decision in PASSING and has_more_slow_launches(outliers, pairs)
        withheld = may_be_withheld and test(untrimmed_interval_of)[0] not in PASSING
    return SequentialTest("undecided" if withheld else decision, pairs, 0, alpha, tests, 0, outliers, withheld)


def mde(
    sd: float, pairs: int, alpha: float, eps: float, known: bool = False, trimmed: int = 0, *, luck: float = 0.0
) -> float:
    """Return the minimum detectable effect: the slowdown that ``pairs`` pairs prove to exceed ``eps`` with power 0.8.

    ``sd`` is the standard deviation of one pair. ``trimmed`` pairs are left out at each end. ``luck`` is the standard
    deviation of the offset that the pairs of one draw have in common. Without luck, the effect is eps + c sd /
    sqrt(pairs), where c is the sum of two normal quantiles if the sd is known, else a noncentrality of t. Infinite for
    one pair with an estimated sd."""
    # A reach is the detectable effect beyond ``eps``, in standard errors of the mean.
    known_sd_reach = _quantile(1 - alpha / 2, df=None) + _quantile(POWER, df=None)
    luck_effect = known_sd_reach * luck / math.sqrt(max(1, pairs / DRAW_PAIRS))
    if sd == 0:
        return eps + luck_effect
    min_pairs = 1 if known else 2
    if pairs < min_pairs:
        return math.inf
    reach = known_sd_reach if known else _reach(alpha, pairs - 2 * trimmed - 1, widening(pairs))
    return eps + math.hypot(reach * sd / math.sqrt(pairs), luck_effect)


def session_mde(intervals: Collection[Interval], pairs: int, eps: float, known: bool = False) -> float:
    """Return the ``mde`` of an imagined session of ``pairs`` pairs that is as noisy as a measured session, with slow
    launches if that had them. ``intervals`` are those of the measured session, and the noisiest counts."""
    had_slow_launches = any(bounds.trimmed for bounds in intervals)  # pairs were left out because of them
    trimmed = trimmed_pairs(pairs) if had_slow_launches else 0
    noisiest = max(intervals, key=lambda bounds: bounds.sd)
    return mde(noisiest.sd, pairs, noisiest.alpha, eps, known=known, trimmed=trimmed, luck=luck_of_draw(noisiest))


def luck_of_draw(bounds: Interval) -> float:
    """Return the standard deviation of the offset that the pairs of one draw of compiler caches have in common."""
    return bounds.luck_sd * math.sqrt(max(1, bounds.pairs / DRAW_PAIRS))


def pairs_needed(sd: float, alpha: float, thresholds: Thresholds, known: bool = False, luck: float = 0.0) -> int | None:
    """Return the smallest number of pairs, at least those of the first look, whose ``mde`` is at most delta. None above
    ``MAX_PAIRS``."""
    if mde(sd, MAX_PAIRS, alpha, thresholds.eps, known, luck=luck) > thresholds.delta:
        return None
    low, high = LOOKS[0], MAX_PAIRS
    while low < high:  # the mde decreases with every pair
        middle = (low + high) // 2
        if mde(sd, middle, alpha, thresholds.eps, known, luck=luck) <= thresholds.delta:
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=4096)
def _quantile(probability: float, df: float | None) -> float:
    return float(ndtri(probability) if df is None else stdtrit(df, probability))


@lru_cache(maxsize=4096)
def _reach(alpha: float, df: float, factor: float) -> float:
    """Effect, in standard errors, that a t interval widened by ``factor`` proves with power 0.8."""
    return float(nctdtrinc(df, 1 - POWER, factor * _quantile(1 - alpha / 2, df)))
