"""Sessions in which single launches are far slower than all others, for example after a fault of the node.

From 8 pairs on, the trimmed t interval (Yuen 1974) is used in such a session: it leaves out equally many of the largest
and of the smallest log-ratios, and takes the variance from the Winsorised log-ratios. It describes the usual launches.
If head has more slow launches than base, head may cause them, and a pass is withheld.

A log-ratio far above the others counts as a slow launch of head, and one far below as one of base. All values are on
the log scale. ``benchmarks/disturbed_sessions.py`` repeats the simulation behind the constants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from regbot.stats.summary import mean_and_squares

MAX_DEVIATION = 8.0
"""A pair has a slow launch if its log-ratio is farther than this from the median, in robust standard deviations. With
twelve normal pairs, 1 to 2% of sessions have such a pair by chance."""

SD_PER_MAD = 1.4826
"""Standard deviation of normal values, divided by their median absolute deviation."""

TRIMMED_SHARE = 6
"""One pair in this many is left out at each end."""

MIN_TRIMMED = 8
"""Minimum number of pairs for a trimmed interval."""

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


@dataclass(frozen=True)
class TrimmedMean:
    """Trimmed mean of log-ratios, with its standard error and the degrees of freedom of its t interval."""

    mean: float
    standard_error: float
    degrees_of_freedom: int


def find_pair_outliers(log_ratios: Mapping[str, Sequence[float]]) -> list[PairOutlier]:
    """Return the pairs with a slow launch, in order. ``log_ratios`` has the log-ratios of all pairs by summary. One
    summary, the median or the mean step time, is enough to show a slow launch."""
    outliers: dict[int, PairOutlier] = {}
    for values in log_ratios.values():
        for pair, deviation in find_outliers(values).items():
            outliers.setdefault(pair, PairOutlier(pair, "head" if deviation > 0 else "base", abs(deviation)))
    return [outliers[pair] for pair in sorted(outliers)]


def trimmed_pairs(pairs: int) -> int:
    """Return the number of pairs that the trimmed interval leaves out at each end, 0 if there are too few pairs."""
    return pairs // TRIMMED_SHARE if pairs >= MIN_TRIMMED else 0


def has_more_slow_launches(outliers: Sequence[PairOutlier], pairs: int) -> bool:
    """Return whether head must not pass by a trimmed interval (``WITHHOLDING_PAIRS``)."""
    head_launches = sum(outlier.arm == "head" for outlier in outliers)
    base_launches = len(outliers) - head_launches
    has_many = WITHHOLDING_PAIRS * head_launches > pairs
    has_more_than_base = WITHHOLDING_PAIRS * (head_launches - base_launches) >= pairs
    return has_many and has_more_than_base


def find_outliers(log_ratios: Sequence[float]) -> dict[int, float]:
    """Return the values that are far from the median (``MAX_DEVIATION``): their signed distance from it, by index. If
    more than half of the values are equal, there is no scale, and no value is returned."""
    centre = median(log_ratios)
    deviations = [value - centre for value in log_ratios]
    limit = MAX_DEVIATION * SD_PER_MAD * median(map(abs, deviations))
    return {index: value for index, value in enumerate(deviations) if 0 < limit < abs(value)}


def trimmed_mean(log_ratios: Sequence[float], trimmed: int) -> TrimmedMean:
    """Return the mean without the ``trimmed`` smallest and largest values. Its standard error is s sqrt((n - 1) / (h (h
    - 1))) for h of n values, with the standard deviation s of the Winsorised values. Raises ValueError if fewer than
    two are kept."""
    n, kept_count = len(log_ratios), len(log_ratios) - 2 * trimmed
    if kept_count < 2:
        raise ValueError(f"{n} log-ratios without {trimmed} at each end leave {kept_count}; an interval needs 2")
    kept = sorted(log_ratios)[trimmed : n - trimmed]
    winsorised = [kept[0]] * trimmed + kept + [kept[-1]] * trimmed
    _, squares = mean_and_squares(winsorised)
    standard_error = math.sqrt(squares / (kept_count * (kept_count - 1)))
    return TrimmedMean(math.fsum(kept) / kept_count, standard_error, degrees_of_freedom=kept_count - 1)
