"""Sequential paired test: is head slower than base, in pairs of runs on the same nodes?

A pair is a base run and a head run, launched one after the other. Its log-ratio is log(head) - log(base) of one
summary. Effects of node and session cancel in it. Pairs come in ABBA or BAAB blocks, so that a linear drift cancels
too. The test looks at the pairs after every block, and stops at the first look that decides.

The interval of a look is a moderated t interval (Smyth 2004): if stored pairs show the noise of the node class, their
standard deviation counts as ``PRIOR_DF`` more degrees of freedom. A session that is noisier than its class is judged by
its own pairs alone (``NOISE_CHANCE``), and so is a session without a known class. Neighbouring pairs may be correlated
by up to ``CORRELATION``. The caller leaves out void pairs.

All values are on the log scale; positive means slower. Constants come from simulation (``benchmarks/gate.py``); rules
that were tried and lost are in docs/statistics.md.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

from scipy.special import fdtri, nctdtrinc, ndtri, stdtrit

from regbot.records.calibration_summary import PairNoise
from regbot.records.verdict import Decision, SlowLaunch
from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck
from regbot.stats.slow_launches import find_pair_outliers, has_more_slow_launches, set_aside
from regbot.stats.summary import mean_and_squares

LOOKS = (4, 8, 12)
"""Number of pairs at each look, if the noise of the node class is not known. In four pairs (two ABBA blocks) drift
cancels twice, and a variance can be estimated."""

CLASS_LOOKS = (2, 4, 6, 8, 10, 12)
"""The same if the noise of the node class is known. The first block may pass a change, but never fail it."""

LAST_ALPHA = 0.066
"""Two-sided error of one interval at the last look, for a single test (``look_alpha``)."""

TESTS_EXPONENT = 2.0
"""The error of a look is divided by the number of primary tests to this power. If an interval is too narrow by a factor
of k, its true error is about its nominal one to the power of 1 / k^2, so dividing the nominal error by n^(k^2) divides
the true one by n. 2 is k^2 for intervals that are too narrow by a factor of 1.41."""

PRIOR_DF = 28
"""Degrees of freedom that the noise of the node class counts, at most those that it was estimated from."""

NOISE_CHANCE = 0.33
"""A session counts as noisier than its class if chance explains the variance of its runs with less than this
probability, divided by the number of pairs. Early looks depend most on the noise of the class."""

CORRELATION = 0.2
"""Correlation of neighbouring pairs up to which the intervals are valid (``benchmarks/error_rates.py``)."""

POWER = 0.8
"""Probability with which the pairs prove a slowdown of the size ``mde``, the minimum detectable effect."""

PASSING: tuple[Decision, ...] = ("no_change", "within_bound", "improved")
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

    @classmethod
    def from_percent(cls, threshold_pct: float, indifference_pct: float) -> "Thresholds":
        """Return the limits on the log scale. ``threshold_pct`` becomes delta, ``indifference_pct`` becomes eps."""
        return cls(delta=math.log1p(threshold_pct / 100), eps=math.log1p(indifference_pct / 100))


@dataclass(frozen=True)
class ClassNoise:
    """Noise of the node class, and what is needed to compare a session with it."""

    sds: Mapping[str, float]
    """Standard deviation of a pair's log-ratio by summary."""
    df: int
    """Degrees of freedom of ``sds``."""
    base: Mapping[str, Sequence[float]]
    """Levels of the session's base runs on the log scale by summary, one for each pair."""

    @classmethod
    def from_record(cls, noise: PairNoise, base: Mapping[str, Sequence[float]]) -> "ClassNoise":
        return cls({"median": noise.median_sd, "mean": noise.mean_sd}, noise.df, base)

    def select(self, pairs: Sequence[int]) -> "ClassNoise":
        """Return the noise for a selection of the session's pairs."""
        return replace(self, base={name: [levels[pair] for pair in pairs] for name, levels in self.base.items()})


@dataclass(frozen=True)
class Interval:
    """Two-sided interval of a log-ratio at level 1 - ``alpha``: of the mean of pairs, or of head against other runs."""

    estimate: float
    low: float
    high: float
    sd: float
    """Standard deviation of one pair's log-ratio, estimated or known. 0 means that all pairs agree to the last bit. For
    other runs: of one run of head minus one of base (Welch), or of the level of a stored session."""
    count: int
    """Number of pairs, or of the other samples that ``sd`` is from."""
    alpha: float
    prior_df: float = 0
    """Degrees of freedom of ``sd`` that the noise of the node class has given; inf if ``sd`` is known."""
    luck_sd: float = 0.0
    """Standard deviation that the luck of the arms adds to the estimate (``arm_luck``). ``sd`` does not include it."""
    draw_pairs: float = DRAW_PAIRS
    """Number of pairs that share a draw of luck; inf if all do."""


@dataclass(frozen=True)
class SequentialTest:
    """Result of the looks so far."""

    decision: Decision
    pairs: int
    """Number of pairs that the last look used."""
    alpha: float
    """Alpha of one interval at one look, after division by the number of primary tests of the check."""
    tests: dict[str, tuple[Decision, Interval]]
    """Decision and interval by summary ("median" and "mean" step time), at the last look."""
    unused: int
    """Pairs measured after the last look."""
    outliers: tuple[SlowLaunch, ...] = ()
    """Pairs with a slow launch, at the last look."""
    withheld: bool = False
    """Whether a pass is withheld: head passes only without the slow launches, and has more of them."""
    barred: str = ""
    """Why the runs of the last look must not decide, '' if they may."""

    @property
    def final(self) -> bool:
        """Whether the decision is final, because the test has decided or the last look is used."""
        return self.decision != "undecided" or self.pairs == LOOKS[-1]


def interval(
    log_ratios: Sequence[float], alpha: float, prior_sd: float = 0.0, prior_df: float = 0, factor: float = 1.0
) -> Interval:
    """Return the moderated t interval of the mean, wider by ``factor``. ``prior_sd`` is the sd of a pair that earlier
    pairs show with ``prior_df`` degrees of freedom: 0 gives Student's interval, inf a normal one. Raises ValueError for
    fewer than two pairs (one if the sd is known), or a log-ratio that is not finite."""
    pairs, is_known = len(log_ratios), math.isinf(prior_df)
    min_pairs = 1 if is_known else 2
    if pairs < min_pairs:
        raise ValueError(f"an interval needs {min_pairs} pairs; there are {pairs}")
    estimate, squares = mean_and_squares(log_ratios)
    df = prior_df + pairs - 1
    sd = prior_sd if is_known else math.sqrt((prior_df * prior_sd**2 + squares) / df)
    half_width = factor * _quantile(1 - alpha / 2, df) * sd / math.sqrt(pairs)
    return Interval(estimate, estimate - half_width, estimate + half_width, sd, pairs, alpha, prior_df)


def look_alpha(pairs: int, primary_tests: int) -> float:
    """Return the two-sided error of one interval at the look after ``pairs`` pairs. It grows with the pairs, so that an
    early look decides only what is clear."""
    return LAST_ALPHA * pairs / LOOKS[-1] / math.pow(primary_tests, TESTS_EXPONENT)


@lru_cache(maxsize=4096)
def correlation_factor(pairs: int) -> float:
    """Return the standard error of a mean of ``pairs`` values with the autocorrelation ``CORRELATION`` (AR(1)), over
    that of independent ones."""
    terms = [(1 - lag / pairs) * math.pow(CORRELATION, lag) for lag in range(1, pairs)]
    return math.sqrt(1 + 2 * math.fsum(terms))


def is_noisier(log_ratios: Mapping[str, Sequence[float]], noise: ClassNoise) -> bool:
    """Return whether the runs of a session scatter more than those of its node class, in any summary. A session has
    twice as many runs as pairs, so its runs show its noise earlier. Noise that both runs of a pair share makes a
    session look noisier; it is then judged by its own pairs."""
    for name, ratios in log_ratios.items():
        base = noise.base[name]
        head = [level + log_ratio for level, log_ratio in zip(base, ratios, strict=True)]
        squares = sum(mean_and_squares(levels)[1] for levels in (base, head))
        run_df = 2 * (len(base) - 1)
        limit = float(fdtri(run_df, noise.df, 1 - NOISE_CHANCE / len(base))) * noise.sds[name] ** 2
        if 2 * squares / run_df > limit:  # the variance of a pair is twice that of a run
            return True
    return False


def add_luck(interval: Interval, luck: SharedLuck | None) -> Interval:
    """Return ``interval``, widened by the luck of the arms. The new half width is the root of the sum of two squares:
    that of ``interval``, and that of an interval of the luck alone."""
    if luck is None or luck.sd == 0:
        return interval
    luck_sd = luck.sd_of_mean(interval.count)
    luck_half_width = _quantile(1 - interval.alpha / 2, luck.df) * luck_sd
    half_width = math.hypot(interval.high - interval.estimate, luck_half_width)
    low, high = interval.estimate - half_width, interval.estimate + half_width
    return replace(interval, low=low, high=high, luck_sd=luck_sd, draw_pairs=luck.draw_pairs)


def decide(interval: Interval, thresholds: Thresholds) -> Decision:
    """Return what one interval proves. An interval between eps and delta proves a regression, although it would also
    prove that the change is small. ``within_bound``: no slowdown of delta or more, and perhaps a gain. An interval
    below 0 that is too wide for a decision is undecided, because more pairs may prove an improvement."""
    if interval.low > thresholds.eps:
        return "regressed"
    if interval.high < -thresholds.eps:
        return "improved"
    if -thresholds.delta < interval.low and interval.high < thresholds.delta:
        return "no_change"
    if interval.low <= 0 <= interval.high < thresholds.delta:
        return "within_bound"
    return "undecided"


def combine(tests: Collection[tuple[Decision, Interval]], thresholds: Thresholds) -> Decision:
    """Return one decision from the tests of one workload's summaries. One improvement makes it "improved" if the
    intervals of all summaries exclude a slowdown of delta or more: a faster median is no improvement while the mean,
    which includes stalls, may still be slower."""
    decisions = {decision for decision, _ in tests}
    if "regressed" in decisions:
        return "regressed"
    if "improved" in decisions and all(bounded.high < thresholds.delta for _, bounded in tests):
        return "improved"
    if decisions == {"no_change"}:
        return "no_change"
    return "within_bound" if decisions <= {"no_change", "within_bound"} else "undecided"


def sequential_test(
    log_ratios: Mapping[str, Sequence[float]],
    primary_tests: int,
    thresholds: Thresholds,
    known_sd: float | None = None,
    luck: SharedLuck | None = None,
    noise: ClassNoise | None = None,
    offset: float = 0.0,
    reason_to_go_on: Callable[[int, Decision], str] | None = None,
) -> SequentialTest | None:
    """Take the looks for which there are enough pairs, and stop at the first look that decides. None before the first
    look.

    ``log_ratios`` has the log-ratios of the valid pairs by summary, in session order. ``primary_tests`` is the number
    of primary tests of the whole check, not of this workload. With ``known_sd``, one pair suffices, and the intervals
    are normal. ``offset`` is how far all log-ratios may be shifted alike.
    ``reason_to_go_on`` returns why the runs of so many pairs must not give a decision, '' if they may."""
    available_pairs = min(map(len, log_ratios.values()))
    looks: tuple[int, ...] = LOOKS if noise is None else CLASS_LOOKS
    if known_sd is not None and 0 < available_pairs < LOOKS[0]:
        looks = (available_pairs,)
    interval_of = None if known_sd is None else partial(interval, prior_sd=known_sd, prior_df=math.inf)
    result = None
    for pairs in looks:
        if pairs > available_pairs:
            break
        alpha = look_alpha(pairs if noise is not None else max(pairs, LOOKS[0]), primary_tests)
        used_ratios = {name: values[:pairs] for name, values in log_ratios.items()}
        result = judge_pairs(used_ratios, alpha, thresholds, noise, luck, interval_of, offset)
        is_first_block = noise is not None and pairs < LOOKS[0]
        barred = reason_to_go_on(pairs, result.decision) if reason_to_go_on is not None else ""
        if barred or (is_first_block and result.decision not in PASSING):
            result = replace(result, decision="undecided")
        result = replace(result, unused=available_pairs - pairs, barred=barred)
        if result.final:
            break
    return result


def judge_pairs(
    log_ratios: Mapping[str, Sequence[float]],
    alpha: float,
    thresholds: Thresholds,
    noise: ClassNoise | None,
    luck: SharedLuck | None,
    interval_of: Callable[[Sequence[float], float], Interval] | None = None,
    offset: float = 0.0,
) -> SequentialTest:
    """Judge all pairs in one look, by the moderated t interval, or by that of ``interval_of`` (log-ratios, alpha).

    Pairs with a slow launch are set aside. If head has more of them than base, a pass is withheld, unless all pairs
    together pass too.
    """

    def test(kept: Sequence[int]) -> tuple[Decision, dict[str, tuple[Decision, Interval]]]:
        ratios = {name: [values[pair] for pair in kept] for name, values in log_ratios.items()}
        kept_luck = luck and replace(luck, draws=[luck.draws[pair] for pair in kept])
        prior_df = 0
        if noise is not None and not is_noisier(ratios, noise.select(kept)):
            prior_df = min(noise.df, PRIOR_DF)
        tests = {}
        for name, values in ratios.items():
            if interval_of is not None:
                bounds = interval_of(values, alpha)
            else:
                class_sd, factor = noise.sds[name] if noise is not None else 0.0, correlation_factor(len(values))
                bounds = interval(values, alpha, class_sd, prior_df, factor)
            wide = add_luck(bounds, kept_luck)
            wide = replace(wide, low=wide.low - offset, high=wide.high + offset)
            tests[name] = (decide(wide, thresholds), wide)
        return combine(tests.values(), thresholds), tests

    pairs = min(map(len, log_ratios.values()))
    outliers = find_pair_outliers(log_ratios, noise.sds if noise is not None else {})
    decision, tests = test(set_aside(outliers, pairs))
    may_be_withheld = decision in PASSING and has_more_slow_launches(outliers, pairs)
    withheld = may_be_withheld and test(range(pairs))[0] not in PASSING
    return SequentialTest("undecided" if withheld else decision, pairs, alpha, tests, 0, tuple(outliers), withheld)


class DrawLuck(NamedTuple):
    """Luck of one draw, for planning."""

    sd: float = 0.0
    """Standard deviation of the offset that its pairs have in common."""
    pairs: float = DRAW_PAIRS
    """Number of its pairs; inf if all pairs share a draw."""


NO_LUCK = DrawLuck()


def mde(sd: float, pairs: int, alpha: float, eps: float, prior_df: float = 0, luck: DrawLuck = NO_LUCK) -> float:
    """Return the minimum detectable effect: the slowdown that ``pairs`` pairs prove to exceed ``eps`` with power 0.8.

    ``sd`` is the standard deviation of one pair, estimated with ``prior_df`` further degrees of freedom; inf: known.
    Without luck, the effect is eps + c sd / sqrt(pairs), where c is the sum of two normal quantiles if the sd is known,
    else a noncentrality of t. Infinite for one pair with an estimated sd."""
    # A reach is the detectable effect beyond ``eps``, in standard errors of the mean.
    known_sd_reach = _quantile(1 - alpha / 2, math.inf) + _quantile(POWER, math.inf)
    luck_effect = known_sd_reach * luck.sd / math.sqrt(max(1, pairs / luck.pairs))
    if sd == 0:
        return eps + luck_effect
    is_known = math.isinf(prior_df)
    if pairs < (1 if is_known else 2):
        return math.inf
    reach = known_sd_reach if is_known else _reach(alpha, prior_df + pairs - 1, correlation_factor(pairs))
    return eps + math.hypot(reach * sd / math.sqrt(pairs), luck_effect)


def session_mde(intervals: Collection[Interval], pairs: int, eps: float) -> float:
    """Return the ``mde`` of an imagined session of ``pairs`` pairs that is as noisy as a measured session.
    ``intervals`` are those of the measured session, and the noisiest counts."""
    noisiest = max(intervals, key=lambda bounds: bounds.sd)
    alpha = noisiest.alpha * pairs / noisiest.count  # see ``look_alpha``
    return mde(noisiest.sd, pairs, alpha, eps, noisiest.prior_df, luck_of_draw(noisiest))


def luck_of_draw(bounds: Interval) -> DrawLuck:
    return DrawLuck(bounds.luck_sd * math.sqrt(max(1, bounds.count / bounds.draw_pairs)), bounds.draw_pairs)


def pairs_needed(
    sd: float, alpha: float, thresholds: Thresholds, prior_df: float = 0, luck: DrawLuck = NO_LUCK
) -> int | None:
    """Return the smallest number of pairs, at least those of the first look, whose ``mde`` is at most delta. None above
    ``MAX_PAIRS``."""

    def suffices(pairs: int) -> bool:
        return mde(sd, pairs, alpha, thresholds.eps, prior_df, luck) <= thresholds.delta

    # The mde decreases with every pair.
    needed = bisect_left(range(MAX_PAIRS + 1), True, lo=LOOKS[0], key=suffices)
    return needed if needed <= MAX_PAIRS else None


@lru_cache(maxsize=4096)
def _quantile(probability: float, df: float) -> float:
    return float(ndtri(probability) if math.isinf(df) else stdtrit(df, probability))


@lru_cache(maxsize=4096)
def _reach(alpha: float, df: float, factor: float) -> float:
    """Effect, in standard errors, that a t interval widened by ``factor`` proves with power 0.8."""
    return float(nctdtrinc(df, 1 - POWER, factor * _quantile(1 - alpha / 2, df)))
