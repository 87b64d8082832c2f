"""Sessions in which single launches are far slower than all others, for example after a fault of the node.

The pairs of such launches are set aside, so that the others can decide; the result describes the usual launch. If head
has more slow launches than base, head may cause them, and a pass is withheld.

A log-ratio far above the others counts as a slow launch of head, and one far below as one of base. All values are on
the log scale. ``benchmarks/gate.py`` has sessions with slow launches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

MAX_DEVIATION = 8.0
"""A pair has a slow launch if its log-ratio is farther than this from the median, in robust standard deviations. With
twelve normal pairs, 1 to 2% of sessions have such a pair by chance."""

SD_PER_MAD = 1.4826
"""Standard deviation of normal values, divided by their median absolute deviation."""

MIN_PAIRS = 8
"""Minimum number of pairs in which slow launches are looked for, if the noise of the node class is not known."""

MIN_CLASS_PAIRS = 4
"""The same if it is known."""

SET_ASIDE_SHARE = 4
"""At most one pair in this many is set aside. If more launches are slow, none is an exception."""

WITHHOLDING_PAIRS = 12
"""A pass is withheld if head has more than one slow launch per 12 pairs, and at least one more than base per 12 pairs.
If one launch in 20 is slow by chance, a pass is withheld in at most 6% of sessions."""


@dataclass(frozen=True)
class PairOutlier:
    """A pair with a slow launch."""

    pair: int
    """Index of the pair, from 0."""
    arm: Literal["base", "head"]
    """Arm of the slow launch."""
    excess: float
    """Distance of the pair's log-ratio from the median of all pairs. It shows how much slower the launch is."""


def find_pair_outliers(log_ratios: Mapping[str, Sequence[float]], class_sds: Mapping[str, float]) -> list[PairOutlier]:
    """Return the pairs with a slow launch, in order. ``log_ratios`` has the log-ratios of all pairs by summary. One
    summary, the median or the mean step time, is enough to show a slow launch. ``class_sds`` are the standard
    deviations of a pair on the node class, {} if they are unknown. Too few pairs have no outlier."""
    pairs = min(map(len, log_ratios.values()))
    if pairs < (MIN_CLASS_PAIRS if class_sds else MIN_PAIRS):
        return []
    outliers: dict[int, PairOutlier] = {}
    for name, values in log_ratios.items():
        for pair, deviation in find_outliers(values, class_sds.get(name, 0.0)).items():
            outliers.setdefault(pair, PairOutlier(pair, "head" if deviation > 0 else "base", abs(deviation)))
    return [outliers[pair] for pair in sorted(outliers)]


def set_aside(outliers: Sequence[PairOutlier], pairs: int) -> list[int]:
    """Return the indices of the pairs that count: all of ``pairs`` but those with a slow launch, if these are few."""
    slow = {outlier.pair for outlier in outliers} if SET_ASIDE_SHARE * len(outliers) <= pairs else set()
    return [pair for pair in range(pairs) if pair not in slow]


def has_more_slow_launches(outliers: Sequence[PairOutlier], pairs: int) -> bool:
    """Return whether head must not pass without its slow launches (``WITHHOLDING_PAIRS``)."""
    head_launches = sum(outlier.arm == "head" for outlier in outliers)
    base_launches = len(outliers) - head_launches
    has_many = WITHHOLDING_PAIRS * head_launches > pairs
    has_more_than_base = WITHHOLDING_PAIRS * (head_launches - base_launches) >= pairs
    return has_many and has_more_than_base


def find_outliers(log_ratios: Sequence[float], class_sd: float = 0.0) -> dict[int, float]:
    """Return the values that are far from the median (``MAX_DEVIATION``): their signed distance from it, by index. The
    scale is that of the values, and at least ``class_sd``. Without a scale (more than half of the values are equal),
    no value is returned."""
    centre = median(log_ratios)
    deviations = [value - centre for value in log_ratios]
    limit = MAX_DEVIATION * max(SD_PER_MAD * median(map(abs, deviations)), class_sd)
    return {index: value for index, value in enumerate(deviations) if 0 < limit < abs(value)}
