"""Look 0: may a session pass after its first block, because the noise of its node class is known?

It takes the larger of both standard deviations, with the degrees of freedom of the stored pairs. It passes a change or
leaves the decision to more pairs; it never fails a change. Stored sessions give the noise only: the effect comes from
pairs of base and head on one node. Look 0 does not pass if the variance of the session's own pairs is above the
quantile ``NOISE_LEVEL``; in a session twice as noisy as its class, 2.5% of true 2% slowdowns pass
(``benchmarks/gate.py``).
"""

import math
from collections.abc import Mapping, Sequence

from scipy.special import fdtri, stdtrit

from regbot.records.calibration_summary import PairNoise
from regbot.records.verdict import Decision
from regbot.stats.arm_luck import SharedLuck
from regbot.stats.paired import LOOK_ALPHA, Interval, SequentialTest, Thresholds, add_luck, interval
from regbot.stats.summary import mean_and_squares

LOOK0_PAIRS = 2
"""Pairs of the first block, in which a linear drift cancels."""

NOISE_LEVEL = 0.8
"""If a session is as noisy as its node class, the variance of its own pairs is below the limit of one summary
(``max_own_variance``) with this probability."""

MIN_NOISE_DF = 8
"""Minimum degrees of freedom of the stored noise. With fewer, the 95% interval of the sd reaches to more than twice the
estimate."""


def pool_noise(groups: Sequence[Mapping[str, Sequence[float]]]) -> PairNoise | None:
    """Return the noise of a pair from the log-ratios of stored pairs; None for fewer than ``MIN_NOISE_DF`` degrees of
    freedom. ``groups`` has the log-ratios by summary, for each group of pairs with the same true effect. The deviations
    from the mean of each group are pooled."""
    groups = [group for group in groups if group.get("median")]  # without groups that have no pair
    df = sum(len(group["median"]) - 1 for group in groups)
    if df < MIN_NOISE_DF:
        return None
    return PairNoise(df=df, median_sd=_pooled_sd(groups, "median", df), mean_sd=_pooled_sd(groups, "mean", df))


def look0(
    log_ratios: Mapping[str, Sequence[float]],
    noise: PairNoise,
    primary_tests: int,
    thresholds: Thresholds,
    luck: SharedLuck | None = None,
) -> SequentialTest:
    """Judge the ``LOOK0_PAIRS`` pairs of a first block. The decision is ``within_bound`` or ``undecided``.

    It is ``within_bound`` if three conditions hold for every summary:

    - The interval contains 0. Otherwise the session goes on, so that more pairs decide whether the change is a small
      slowdown or an improvement.
    - The upper end of the interval is below delta.
    - The variance of the session's own pairs is at most ``max_own_variance``.

    ``noise`` is the noise of stored pairs of the node class. Each interval has the alpha of a look, ``LOOK_ALPHA`` /
    ``primary_tests``, and is widened by ``luck``. Raises ValueError for another number of pairs.
    """
    if {len(values) for values in log_ratios.values()} != {LOOK0_PAIRS}:
        raise ValueError(f"look 0 needs {LOOK0_PAIRS} pairs of each summary")
    alpha = LOOK_ALPHA / primary_tests
    class_sds = {"median": noise.median_sd, "mean": noise.mean_sd}
    tests: dict[str, tuple[Decision, Interval]] = {}
    for name, values in log_ratios.items():
        own_interval = interval(values, alpha)  # with the variance of the two pairs themselves
        estimate, sd = own_interval.estimate, max(own_interval.sd, class_sds[name])
        half_width = float(stdtrit(noise.df, 1 - alpha / 2)) * sd / math.sqrt(LOOK0_PAIRS)
        bounds = add_luck(
            Interval(estimate, estimate - half_width, estimate + half_width, sd, own_interval.pairs, alpha), luck
        )
        # Quiet: no noisier than the node class predicts. Inside: the interval contains 0 and ends below delta.
        is_quiet = own_interval.sd**2 <= max_own_variance(class_sds[name], noise.df)
        is_inside = bounds.low <= 0 <= bounds.high < thresholds.delta
        tests[name] = ("within_bound" if is_quiet and is_inside else "undecided", bounds)
    has_passed = all(decision == "within_bound" for decision, _ in tests.values())
    decision: Decision = "within_bound" if has_passed else "undecided"
    return SequentialTest(decision, pairs=LOOK0_PAIRS, look=0, alpha=alpha, tests=tests, unused=0)


def max_own_variance(class_sd: float, df: int) -> float:
    """Return the largest variance of the session's own pairs with which look 0 may pass: that of the node class times
    the quantile of F with 1 and ``df`` degrees of freedom at ``NOISE_LEVEL``."""
    return float(fdtri(LOOK0_PAIRS - 1, df, NOISE_LEVEL)) * class_sd**2


def _pooled_sd(groups: Sequence[Mapping[str, Sequence[float]]], name: str, df: int) -> float:
    squares = math.fsum(mean_and_squares(group[name])[1] for group in groups)
    return math.sqrt(squares / df)
