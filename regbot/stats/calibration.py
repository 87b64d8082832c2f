"""Calibration: error rates of the gate on one node class, from placebo sessions.

A placebo is a session whose base and head are the same commit. A verdict of a regression or an improvement is a false
flag. A few placebos prove little: 20 without a false flag still allow a rate of 14%. Therefore every rate has exact
bounds (Clopper and Pearson 1934), and the gate stops deciding only if placebos prove that its error is too high, or
that pairs depend on each other more than the paired test tolerates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, gammaincinv

from regbot.records.calibration_summary import PairNoise
from regbot.records.verdict import Decision
from regbot.stats.arm_luck import MAX_LUCK, LuckEstimate
from regbot.stats.correlation import MAX_CORRELATION, CorrelationEstimate
from regbot.stats.paired import LOOKS, Thresholds, count_pairs, sequential_test
from regbot.stats.slow_launches import find_outliers
from regbot.stats.summary import mean_and_squares

MAX_FALSE_FLAGS = 0.05
MIN_COVERAGE = 0.95
"""Rates that the gate promises for a session: the maximum rate of false alarms, and the minimum coverage."""

MIN_NOISE_DF = 8
"""Minimum degrees of freedom of the stored noise. With fewer, the 95% interval of the sd reaches to more than twice the
estimate."""

RESAMPLED_SESSIONS = 2000
RESAMPLING_SEED = 20260803
BLOCK_PAIRS = 2
"""Pairs of one block. They are resampled together, because a drift cancels within the block."""


@dataclass(frozen=True)
class RateEstimate:
    """The rate ``count`` / ``total``, such as false flags / placebo sessions."""

    count: int
    total: int
    low: float
    high: float
    """Ends of the exact two-sided 95% interval of the rate, in [0, 1]."""

    @classmethod
    def from_counts(cls, count: int, total: int) -> "RateEstimate":
        """Return the rate with its interval."""
        low, high = rate_bounds(count, total)
        return cls(count, total, low, high)


@dataclass(frozen=True)
class ResampledSessions:
    """Outcomes of sessions resampled from a pool of placebo pairs."""

    decisions: dict[Decision, float]
    """Share of sessions for each decision, in [0, 1]. Decisions that did not occur have 0."""
    coverage: float
    """Share of sessions in which all intervals contain the effect, at the look that ends the session."""
    pairs: float
    """Mean number of pairs that a session uses."""
    sessions: int
    """Number of simulated sessions."""


def rate_bounds(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return Clopper and Pearson's two-sided interval for the rate ``count`` / ``total``; (0, 1) if ``total`` is 0. Its
    coverage is at least ``level``."""
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    return low, rate_upper_bound(count, total, 1 - tail)


def rate_upper_bound(count: int, total: int, level: float = 0.95) -> float:
    """Return Clopper and Pearson's one-sided upper bound for the rate ``count`` / ``total`` at ``level``."""
    return 1.0 if count == total else float(betaincinv(count + 1, total - count, level))


def resample_sessions(
    placebo: Mapping[str, Sequence[float]],
    effect: float,
    primary_tests: int,
    thresholds: Thresholds,
    sessions: int = RESAMPLED_SESSIONS,
    seed: int = RESAMPLING_SEED,
) -> ResampledSessions:
    """Simulate full sessions with a true ``effect``, a log-ratio, from whole blocks of a pool of placebo pairs, and
    judge them.

    The result is for planning. It is optimistic, because the pool contains only the days that happened to be measured:
    do not pass it to ``contradiction``. From 20 pairs, the estimated coverage varies from 0.90 to 1.00 on nodes whose
    coverage is 0.98. ``placebo`` has the log-ratios by summary, in session order. The pool is centred, because base and
    head are the same commit, and its deviations are multiplied by sqrt(m / (m - 1)) for m blocks. Raises ValueError for
    fewer than two whole blocks, or summaries of unequal length."""
    pool_blocks = count_pairs(placebo, primary_tests) // BLOCK_PAIRS
    if pool_blocks < 2:
        raise ValueError(f"resampling needs 2 whole blocks of {BLOCK_PAIRS} placebo pairs; there are {pool_blocks}")
    stretch = math.sqrt(pool_blocks / (pool_blocks - 1))  # restores the scatter that centring removes
    pools = {}
    for name, values in placebo.items():
        log_ratios = np.asarray(values[: pool_blocks * BLOCK_PAIRS], dtype=float)
        shifted = effect + stretch * (log_ratios - log_ratios.mean())
        pools[name] = shifted.reshape(pool_blocks, BLOCK_PAIRS)
    session_blocks = LOOKS[-1] // BLOCK_PAIRS  # blocks of a full session, which ends at the last look
    # Array of shape (sessions, session_blocks): row i has the blocks of the pool that make simulated session i.
    drawn_blocks = np.random.default_rng(seed).integers(0, pool_blocks, (sessions, session_blocks))
    counts: dict[Decision, int] = {"regressed": 0, "improved": 0, "no_change": 0, "within_bound": 0, "undecided": 0}
    covered_sessions = used_pairs = 0
    for blocks_of_session in drawn_blocks:
        session = {name: pool[blocks_of_session].ravel().tolist() for name, pool in pools.items()}
        outcome = sequential_test(session, primary_tests, thresholds)
        if outcome is None:
            raise AssertionError("a session with all pairs has at least one look")
        counts[outcome.decision] += 1
        covered_sessions += all(bounds.low <= effect <= bounds.high for _, bounds in outcome.tests.values())
        used_pairs += outcome.pairs
    decisions = {decision: count / sessions for decision, count in counts.items()}
    return ResampledSessions(decisions, covered_sessions / sessions, used_pairs / sessions, sessions)


def estimate_pair_sd(placebo: Sequence[float]) -> tuple[float, float, float]:
    """Return the standard deviation of a pair and the ends of its 95% interval, for normal log-ratios. With 20 pairs it
    reaches from -24% to +46% of the estimate. Raises ValueError for fewer than two pairs."""
    pairs = len(placebo)
    if pairs < 2:
        raise ValueError(f"a standard deviation needs 2 placebo pairs; there are {pairs}")
    _, squares = mean_and_squares(placebo)
    # The chi-square quantile with f degrees of freedom is 2 gammaincinv(f / 2, p).
    high_quantile, low_quantile = (2 * float(gammaincinv((pairs - 1) / 2, p)) for p in (0.975, 0.025))
    return math.sqrt(squares / (pairs - 1)), math.sqrt(squares / high_quantile), math.sqrt(squares / low_quantile)


def contradiction(
    false_flags: RateEstimate,
    covered: RateEstimate,
    correlations: Mapping[str, CorrelationEstimate | None] | None = None,
    luck: LuckEstimate | None = None,
) -> str:
    """Return why the gate must not decide on this node class; '' if it may decide. A proof needs a whole 95% interval
    beyond the promised value.

    ``covered`` is the rate of sessions with a known effect (placebos, injected slowdowns) whose interval contains it.
    ``correlations`` is keyed by a phrase that names the pairs, such as "neighbouring pairs"."""
    if luck is not None and luck.low > MAX_LUCK:
        return (
            f"part of the speed of one commit is drawn by chance: the luck of an arm has a standard "
            f"deviation of {luck.sd:.2%} (at least {luck.low:.2%}); the gate tolerates {MAX_LUCK:.1%}"
        )
    if false_flags.low > MAX_FALSE_FLAGS:
        return (
            f"{false_flags.count} of {false_flags.total} comparisons of a commit with itself raised a false alarm "
            f"({false_flags.count / false_flags.total:.0%}; the true rate is {false_flags.low:.1%} to "
            f"{false_flags.high:.1%}); at most {MAX_FALSE_FLAGS:.0%} are allowed"
        )
    if covered.high < MIN_COVERAGE:
        return (
            f"the interval contained the true effect in {covered.count} of {covered.total} comparisons "
            f"(a coverage of at most {covered.high:.1%}); the gate promises at least {MIN_COVERAGE:.0%}"
        )
    for pairs_name, correlation in (correlations or {}).items():
        if correlation is not None and correlation.low > MAX_CORRELATION:
            return (
                f"{pairs_name} depend on each other: their correlation is {correlation.value:.2f} (at least "
                f"{correlation.low:.2f}); the intervals hold up to {MAX_CORRELATION:g}"
            )
    return ""


def _without_slow_launches(group: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    slow = {pair for values in group.values() for pair in find_outliers(values)}
    return {name: [value for pair, value in enumerate(values) if pair not in slow] for name, values in group.items()}


def pool_noise(groups: Sequence[Mapping[str, Sequence[float]]]) -> PairNoise | None:
    """Return the noise of a pair from the log-ratios of stored pairs; None for fewer than ``MIN_NOISE_DF`` degrees of
    freedom. ``groups`` has the log-ratios by summary, for each group of pairs with the same true effect. The deviations
    from the mean of each group are pooled. Pairs with a slow launch are left out, as they are in a session."""
    groups = [_without_slow_launches(group) for group in groups if group.get("median")]  # some groups have no pair
    df = sum(len(group["median"]) - 1 for group in groups)
    if df < MIN_NOISE_DF:
        return None
    median_sd, mean_sd = (
        math.sqrt(math.fsum(mean_and_squares(group[name])[1] for group in groups) / df) for name in ("median", "mean")
    )
    return PairNoise(df=df, median_sd=median_sd, mean_sd=mean_sd)
