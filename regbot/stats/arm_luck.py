"""Luck of an arm: part of its speed is drawn once, for example by autotuning into a compiler cache.

All pairs that use the same caches share this luck, so their variance does not show it. Each new pair of caches is a
*draw*. A session draws anew for every look, so a full session has three draws. Placebo sessions do the same, with
separate caches for both arms. Their draws therefore scatter more than the pairs within a draw explain, and this excess
is the luck. If no calibration has measured the luck, ``ASSUMED_LUCK`` takes its place.

The luck is the standard deviation of one arm on the log scale. For the log-ratio of two arms it is sqrt(2) times as
large.
``benchmarks/arm_luck.py`` simulates the error rates.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from scipy.special import fdtri

from regbot.stats.slow_launches import find_outliers

DRAW_PAIRS = 4
"""Pairs of one draw: those between two looks."""

MIN_DRAWS = 4
"""Minimum number of draws for an estimate. With fewer, its upper bound is above twice the noise of a pair."""

SMALL_LUCK = 0.0007
"""Luck that does no harm. If calibration proves that the luck of an arm is at most this, caches are not drawn anew."""

MAX_LUCK = 0.005
"""Largest luck that the gate tolerates. If more is proven, the gate loses its vote."""

ASSUMED_LUCK = 0.004
"""Luck of an arm by which intervals are widened if no calibration has measured it. With this value, the error rates of
a session hold up to a luck of ``MAX_LUCK``, because the error of an interval is a fraction of the error of a session.
With 0.0035 they do not hold (``benchmarks/arm_luck.py``).
"""

CHANCE = 0.03
"""An estimate widens intervals only if, without any luck, fewer than this share of calibrations would show so much
scatter between draws. Smaller luck is covered by the factors that widen the intervals of all looks."""

SHARED_NOISE = 0.25
"""Correlation of neighbouring placebo pairs above which an estimate widens intervals even if chance may explain it.
Pairs are correlated by noise that lasts longer than one pair. Such noise is common to the pairs of a draw, just as luck
is, so the estimate of luck includes it. Without this limit, calibrations of 20 pairs miss too much of a correlation of
0.5 (``benchmarks/disturbed_sessions.py``)."""


@dataclass(frozen=True)
class LuckEstimate:
    """Luck of an arm, with its 95% interval. ``counted`` is the luck by which intervals must be widened; 0 if chance
    explains the estimate, or if the luck is proven to be small."""

    sd: float
    low: float
    high: float
    counted: float
    draws: int

    @property
    def is_small(self) -> bool:
        """Whether the luck is proven to do no harm."""
        return self.high <= SMALL_LUCK


@dataclass(frozen=True)
class SharedLuck:
    """Luck in the pairs of a session. ``draws`` has the draw of each pair, in session order."""

    sd: float
    """Standard deviation of the luck of one arm."""
    df: int | None
    """Degrees of freedom of ``sd``: the number of draws that it was estimated from. None if ``sd`` is assumed."""
    draws: Sequence[Hashable]

    @property
    def is_assumed(self) -> bool:
        """Whether no calibration has measured the luck, so that ``sd`` is ``ASSUMED_LUCK``."""
        return self.df is None

    @classmethod
    def assume(cls, draws: Sequence[Hashable]) -> "SharedLuck":
        """Return the luck to assume if no calibration has measured it."""
        return cls(ASSUMED_LUCK, None, draws)

    def sd_of_mean(self, pairs: int) -> float:
        """Return the standard deviation that luck adds to the mean of the first ``pairs`` log-ratios."""
        sizes = Counter(self.draws[:pairs]).values()
        return math.sqrt(2 * sum(size**2 for size in sizes)) * self.sd / pairs


def estimate_luck(draws: Sequence[Sequence[float]], neighbour_correlation: float = 0.0) -> LuckEstimate | None:
    """Estimate the luck of an arm from the log-ratios of placebo pairs, one list for each draw.

    ``neighbour_correlation``: correlation of neighbouring pairs of a session, 0 if unknown.

    This is a one-way analysis of variance with the known mean 0. If there is no luck, the mean square between draws
    divided by the mean square within draws has an F distribution. The interval follows from it. Pairs with a slow
    launch are left out. Returns None if there are fewer than ``MIN_DRAWS`` draws of two or more pairs, or if there is
    no noise within the draws.
    """
    values = [value for draw in draws for value in draw]
    outliers = set(find_outliers(values)) if values else set()
    kept: list[list[float]] = []
    start = 0
    for draw in draws:
        kept.append([value for index, value in enumerate(draw, start) if index not in outliers])
        start += len(draw)
    kept = [draw for draw in kept if len(draw) > 1]
    df_between, pairs = len(kept), sum(map(len, kept))
    df_within = pairs - df_between
    means = [math.fsum(draw) / len(draw) for draw in kept]
    squares = math.fsum((x - mean) ** 2 for draw, mean in zip(kept, means, strict=True) for x in draw)
    if df_between < MIN_DRAWS or squares == 0:
        return None
    within = squares / df_within
    between = math.fsum(len(draw) * mean**2 for draw, mean in zip(kept, means, strict=True)) / df_between

    def luck(quantile: float) -> float:
        excess = between / quantile - within
        return math.sqrt(max(0.0, excess) * df_between / pairs / 2)

    low, high = (luck(float(fdtri(df_between, df_within, p))) for p in (0.975, 0.025))
    estimate = LuckEstimate(luck(1.0), low, high, 0.0, df_between)
    is_chance = between <= within * float(fdtri(df_between, df_within, 1 - CHANCE))
    if neighbour_correlation > SHARED_NOISE:
        is_chance = False
    return estimate if is_chance or estimate.is_small else replace(estimate, counted=estimate.sd)
