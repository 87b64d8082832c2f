"""Calibration: error rates of the gate on one node class, from placebo sessions.

A placebo is a session whose base and head are the same commit. A verdict of a regression or an improvement is a false
flag. A few placebos prove little: 20 without a false flag still allow a rate of 14%. Therefore every rate has exact
bounds (Clopper and Pearson 1934), and the gate stops deciding only if placebos prove that its error is too high, or
that pairs depend on each other more than the paired test tolerates.
"""

import math
from collections.abc import Mapping, Sequence

from scipy.special import betaincinv, gammaincinv

from regbot.records.calibration_summary import ArmLuck, Correlation, PairNoise, Rate
from regbot.stats.arm_luck import MAX_LUCK
from regbot.stats.correlation import MAX_CORRELATION
from regbot.stats.slow_launches import find_outliers
from regbot.stats.summary import mean_and_squares

MAX_FALSE_FLAGS = 0.05
MIN_COVERAGE = 0.95
"""Rates that the gate promises for a session: the maximum rate of false alarms, and the minimum coverage."""

MIN_NOISE_DF = 8
"""Minimum degrees of freedom of the stored noise. With fewer, the 95% interval of the sd reaches to more than twice the
estimate."""


def estimate_rate(count: int, total: int) -> Rate:
    """Return the rate ``count`` / ``total``, such as false flags / placebo sessions, with its interval."""
    low, high = rate_bounds(count, total)
    return Rate(count=count, total=total, low=low, high=high)


def rate_bounds(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return Clopper and Pearson's two-sided interval for the rate ``count`` / ``total``; (0, 1) if ``total`` is 0. Its
    coverage is at least ``level``."""
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    return low, rate_upper_bound(count, total, 1 - tail)


def rate_upper_bound(count: int, total: int, level: float = 0.95) -> float:
    """Return Clopper and Pearson's one-sided upper bound for the rate ``count`` / ``total`` at ``level``."""
    return 1.0 if count == total else float(betaincinv(count + 1, total - count, level))


def estimate_pair_sd(placebo: Sequence[float]) -> tuple[float, float, float]:
    """Return the standard deviation of a pair and the ends of its 95% interval, for normal log-ratios. With 20 pairs it
    reaches from -24% to +46% of the estimate. At least two pairs are needed."""
    pairs = len(placebo)
    _, squares = mean_and_squares(placebo)
    # The chi-square quantile with f degrees of freedom is 2 gammaincinv(f / 2, p).
    high_quantile, low_quantile = (2 * float(gammaincinv((pairs - 1) / 2, p)) for p in (0.975, 0.025))
    return math.sqrt(squares / (pairs - 1)), math.sqrt(squares / high_quantile), math.sqrt(squares / low_quantile)


def contradiction(
    false_flags: Rate,
    covered: Rate,
    correlations: Mapping[str, Correlation | None] | None = None,
    luck: ArmLuck | None = None,
) -> str:
    """Return why the gate must not decide on this node class; '' if it may decide. A proof needs a whole 95% interval
    beyond the promised value.

    ``covered`` is the rate of sessions with a known effect (placebos, injected slowdowns) whose interval contains it.
    ``correlations`` is keyed by a phrase that names the pairs, such as "neighbouring pairs"."""
    if luck is not None and luck.low_pct > 100 * MAX_LUCK:
        return (
            f"part of the speed of one commit is drawn by chance: the luck of an arm has a standard "
            f"deviation of {luck.sd_pct:.2f}% (at least {luck.low_pct:.2f}%); the gate tolerates {MAX_LUCK:.1%}"
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
