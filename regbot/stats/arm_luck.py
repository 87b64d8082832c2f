"""Luck of an arm: part of its speed is drawn once, for example by autotuning into a compiler cache.

All pairs that use the same caches share this luck, so their variance does not show it. Each new pair of caches is a
*draw*; a session draws anew for every look. The draws of placebo sessions scatter more than the pairs within a draw
explain, and this excess is the luck. It is given as the standard deviation of one arm on the log scale; for the
log-ratio of two arms it is sqrt(2) times as large. ``benchmarks/calibrations.py`` simulates the error rates.

Emptied caches do not draw all luck anew: a placement or a cache elsewhere may last for a whole *allocation*, the
sessions of one day on one node. If the allocations of placebo sessions scatter more than their pairs explain, the luck
counts as one draw of the session.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scipy.special import fdtri

from regbot.records.calibration_summary import ArmLuck
from regbot.stats.slow_launches import blank_outliers

DRAW_PAIRS = 4
"""Pairs of one draw: those between two looks."""

MIN_DRAWS = 4
"""Minimum number of draws for an estimate. With fewer, its upper bound is above twice the noise of a pair."""

MIN_ALLOCATIONS, ALLOCATION_PAIRS = 12, 8
"""Until so many allocations have so many placebo pairs each, intervals contain at least ``ASSUMED_LUCK``. With fewer, a
luck of 0.3% that lasts for an allocation is not detected often enough (``benchmarks/gate.py``)."""

SMALL_LUCK = 0.0007
"""Luck that does no harm. If calibration proves that the luck of an arm is at most this, caches are not drawn anew."""

MAX_LUCK = 0.005
"""Largest luck that the gate tolerates. If more is proven, the gate loses its vote."""

ASSUMED_LUCK = 0.004
"""Luck of an arm by which intervals are widened if no calibration has measured it. With this value, the error rates of
a session hold up to ``MAX_LUCK``, or 0.3% that emptied caches do not draw anew (``benchmarks/gate.py``)."""

DRAW_CHANCE, ALLOCATION_CHANCE = 0.005, 0.015
"""Significance levels of the F tests for luck of draws and of allocations. Luck that chance explains does not widen
intervals. The two tests find luck in 1.7% of classes without any, and lasting luck does more harm if it is missed."""

SHARED_NOISE = 0.25
"""If neighbouring placebo pairs are correlated by more than this, an estimate widens intervals even if chance may
explain it. Noise that lasts longer than one pair is shared by the pairs of a draw, as their luck is
(``benchmarks/calibrations.py``)."""


@dataclass(frozen=True)
class SharedLuck:
    """Luck of the arms in the pairs of a session."""

    sd: float
    """Standard deviation of the luck of one arm."""
    df: float
    """Degrees of freedom of ``sd``: the number of draws that it was estimated from; inf if ``sd`` is assumed."""
    draws: Sequence[Hashable]
    """For each pair, in session order: which compiler caches it used. Pairs with equal values share their luck."""
    lasts: bool = False
    """Whether all pairs share their luck."""

    @property
    def is_assumed(self) -> bool:
        return math.isinf(self.df)

    @property
    def draw_pairs(self) -> float:
        """Number of pairs that share a draw of luck; inf if all do."""
        return math.inf if self.lasts else DRAW_PAIRS

    def sd_of_mean(self, pairs: int) -> float:
        """Return the standard deviation that luck adds to the mean of the first ``pairs`` log-ratios. Both arms have
        luck."""
        pairs_by_draw = Counter([None] * pairs if self.lasts else self.draws[:pairs])
        return math.sqrt(2 * sum(count**2 for count in pairs_by_draw.values())) * self.sd / pairs


def estimate_luck(
    draws: Sequence[Sequence[float]], neighbour_correlation: float = 0.0, allocations: Sequence[Hashable] = ()
) -> ArmLuck | None:
    """Estimate the luck of an arm from the log-ratios of placebo pairs, one list for each draw.

    ``neighbour_correlation``: correlation of neighbouring pairs of a session, 0 if unknown. ``allocations`` has that of
    each draw; without them, no luck lasts. Returns None if there are fewer than ``MIN_DRAWS`` draws of two or more
    pairs, or no noise within them."""
    of_draws = _analyse_draws(draws, neighbour_correlation, DRAW_CHANCE)
    pairs_of_allocation: dict[Hashable, list[float]] = {}
    for allocation, draw in zip(allocations, draws, strict=False):
        pairs_of_allocation.setdefault(allocation, []).extend(draw)
    long_draws = [pairs for pairs in pairs_of_allocation.values() if len(pairs) >= ALLOCATION_PAIRS]
    lasting = _analyse_draws(long_draws, neighbour_correlation, ALLOCATION_CHANCE)
    if of_draws is None or lasting is None or not lasting.counted_pct:
        return of_draws and of_draws.model_copy(update={"allocations": len(long_draws)})
    counted_pct = max(lasting.counted_pct, of_draws.counted_pct)
    return lasting.model_copy(update={"counted_pct": counted_pct, "allocations": len(long_draws), "lasts": True})


def _analyse_draws(draws: Sequence[Sequence[float]], neighbour_correlation: float, chance: float) -> ArmLuck | None:
    """A one-way analysis of variance with the known mean 0. Pairs with a slow launch are left out."""
    usual = [[value for value in draw if value is not None] for draw in blank_outliers(draws)]
    kept_draws = [draw for draw in usual if len(draw) > 1]
    df_between, pairs = len(kept_draws), sum(map(len, kept_draws))
    df_within = pairs - df_between
    means = [math.fsum(draw) / len(draw) for draw in kept_draws]
    squares_within = math.fsum((x - mean) ** 2 for draw, mean in zip(kept_draws, means, strict=True) for x in draw)
    if df_between < MIN_DRAWS or squares_within == 0:
        return None
    mean_square_within = squares_within / df_within
    squares_between = math.fsum(len(draw) * mean**2 for draw, mean in zip(kept_draws, means, strict=True))
    mean_square_between = squares_between / df_between

    def luck_at(f_quantile: float) -> float:
        """Return the luck, in percent, with which the observed ratio of mean squares is the quantile ``f_quantile``."""
        excess = mean_square_between / f_quantile - mean_square_within
        return 100 * math.sqrt(max(0.0, excess) * df_between / pairs / 2)

    # ``fdtri`` returns a quantile of the F distribution. A larger quantile gives a smaller luck.
    low, high = (luck_at(float(fdtri(df_between, df_within, p))) for p in (0.975, 0.025))
    is_chance = mean_square_between <= mean_square_within * float(fdtri(df_between, df_within, 1 - chance))
    if neighbour_correlation > SHARED_NOISE:  # the pairs share noise that the F test may not detect
        is_chance = False
    # Without luck, both mean squares have the same expectation. So the estimate is the luck at the ratio 1.
    sd = luck_at(1.0)
    return ArmLuck(
        sd_pct=sd,
        low_pct=low,
        high_pct=high,
        counted_pct=0.0 if is_chance or high <= 100 * SMALL_LUCK else sd,
        draws=df_between,
        allocations=0,
        lasts=False,
    )
