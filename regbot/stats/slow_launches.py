"""Sessions in which single launches are far slower than all others, for example after a fault of the node.

The pairs of such launches are set aside, so that the others can decide; the result describes the usual launch. If head
has more slow launches than base, head may cause them, and a pass is withheld.

A log-ratio far above the others counts as a slow launch of head, and one far below as one of base. All values are on
the log scale. ``benchmarks/gate.py`` has sessions with slow launches.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from statistics import median

from regbot.records.verdict import SlowLaunch
from regbot.stats.summary import percent

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


def find_pair_outliers(log_ratios: Mapping[str, Sequence[float]], class_sds: Mapping[str, float]) -> list[SlowLaunch]:
    """Return the pairs with a slow launch, in order. ``log_ratios`` has the log-ratios of all pairs by summary. One
    summary, the median or the mean step time, is enough to show a slow launch. ``class_sds`` are the standard
    deviations of a pair on the node class, {} if they are unknown. Too few pairs have no outlier."""
    pairs = min(map(len, log_ratios.values()))
    if pairs < (MIN_CLASS_PAIRS if class_sds else MIN_PAIRS):
        return []
    outliers: dict[int, float] = {}  # signed distance from the median of all pairs
    for name, values in log_ratios.items():
        for pair, deviation in find_outliers(values, class_sds.get(name, 0.0)).items():
            outliers.setdefault(pair, deviation)
    return [
        SlowLaunch(pair=pair + 1, arm="head" if deviation > 0 else "base", slower_pct=percent(abs(deviation)))
        for pair, deviation in sorted(outliers.items())
    ]


def set_aside(outliers: Sequence[SlowLaunch], pairs: int) -> list[int]:
    """Return the indices of the pairs that count: all of ``pairs`` but those with a slow launch, if these are few."""
    slow = {outlier.pair - 1 for outlier in outliers} if SET_ASIDE_SHARE * len(outliers) <= pairs else set()
    return [pair for pair in range(pairs) if pair not in slow]


def has_more_slow_launches(outliers: Sequence[SlowLaunch], pairs: int) -> bool:
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


def blank_outliers(groups: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return groups of log-ratios with None in place of the values that ``find_outliers`` finds among all of them."""
    values = [value for group in groups for value in group]
    outliers = find_outliers(values) if values else {}
    index = count()
    return [[None if next(index) in outliers else value for value in group] for group in groups]
