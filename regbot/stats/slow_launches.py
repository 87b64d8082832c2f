"""Sessions in which single launches are far slower than all others, for example after a fault of the node.

One such launch makes the variance of the pairs so large that Student's interval decides nothing. From 8 pairs on, the
trimmed t interval (Yuen 1974) is used instead: it leaves out the largest and the smallest log-ratios, as many at each
end, and takes the variance from the Winsorised log-ratios. Fewer pairs are too few for that.

A trimmed interval describes the usual launches. If head has more slow launches than base, head may cause them, and the
usual launches do not show whether it does. A pass is then withheld (``has_more_slow_launches``).

The rule only uses the log-ratios of the pairs. A log-ratio far above the others counts as a slow launch of head, and
one far below them as a slow launch of base. All values are on the log scale. ``benchmarks/disturbed_sessions.py``
repeats the simulation behind the constants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

MAX_DEVIATION = 8.0
"""Largest distance of a usual pair from the median of the pairs, in units of ``SD_PER_MAD`` x MAD. With twelve normal
pairs, 1 to 2% of sessions have a pair beyond it."""

SD_PER_MAD = 1.4826
"""Standard deviation of normal values, divided by their median absolute deviation."""

TRIMMED_SHARE = 6
"""One pair in this many is left out at each end."""

MIN_TRIMMED = 8
"""Minimum number of pairs for a trimmed interval."""

WITHHOLDING_PAIRS = 12
"""A pass is withheld if head has more than one slow launch per this many pairs, and at least one more than base per
this many pairs. If one launch in 20 is slow by chance, a pass is withheld in at most 6% of sessions."""


@dataclass(frozen=True)
class PairOutlier:
    """A pair with a slow launch."""

    pair: int
    """Index of the pair, from 0."""
    arm: Literal["base", "head"]
    """Arm of the slow launch."""
    excess: float
    """Distance of the pair's log-ratio from the median of all pairs. It is how much slower the launch is."""


@dataclass(frozen=True)
class TrimmedMean:
    """Trimmed mean of log-ratios, with its standard error and the degrees of freedom of its t interval."""

    mean: float
    standard_error: float
    degrees_of_freedom: int


def find_pair_outliers(log_ratios: Mapping[str, Sequence[float]]) -> list[PairOutlier]:
    """Return the pairs with a slow launch by any summary, in order. ``log_ratios`` has the pairs' values by summary."""
    slow: dict[int, PairOutlier] = {}
    for values in log_ratios.values():
        for pair, deviation in find_outliers(values).items():
            slow.setdefault(pair, PairOutlier(pair, "head" if deviation > 0 else "base", abs(deviation)))
    return [slow[pair] for pair in sorted(slow)]


def trimmed_pairs(pairs: int) -> int:
    """Return the number of pairs that the trimmed interval leaves out at each end, 0 if there are too few pairs."""
    return pairs // TRIMMED_SHARE if pairs >= MIN_TRIMMED else 0


def has_more_slow_launches(outliers: Sequence[PairOutlier], pairs: int) -> bool:
    """Return whether head has so many slow launches in ``pairs`` pairs that it must not pass by a trimmed interval.

    The condition is that of ``WITHHOLDING_PAIRS``. At 8 pairs, a single slow launch of head is enough, if base has
    none. Four more pairs then show whether head has more slow launches.
    """
    head = sum(outlier.arm == "head" for outlier in outliers)
    base = len(outliers) - head
    return WITHHOLDING_PAIRS * head > pairs and WITHHOLDING_PAIRS * (head - base) >= pairs


def find_outliers(log_ratios: Sequence[float]) -> dict[int, float]:
    """Return the distance from the median, by index, of each value that is farther away than ``MAX_DEVIATION``.

    If more than half of the values are equal, there is no scale to compare with and no value is returned.
    """
    centre = median(log_ratios)
    deviations = [value - centre for value in log_ratios]
    limit = MAX_DEVIATION * SD_PER_MAD * median(map(abs, deviations))
    return {index: value for index, value in enumerate(deviations) if 0 < limit < abs(value)}


def trimmed_mean(log_ratios: Sequence[float], trimmed: int) -> TrimmedMean:
    """Return the mean without the ``trimmed`` smallest and largest values.

    With n values of which h are left, the standard error is s sqrt((n - 1) / (h (h - 1))). s is the standard deviation
    of the Winsorised values: each value that is left out is replaced by the nearest value that is left. Raises
    ValueError if fewer than two values are left.
    """
    n, left = len(log_ratios), len(log_ratios) - 2 * trimmed
    if left < 2:
        raise ValueError(f"{n} log-ratios without {trimmed} at each end leave {left}; an interval needs 2")
    kept = sorted(log_ratios)[trimmed : n - trimmed]
    winsorised = [kept[0]] * trimmed + kept + [kept[-1]] * trimmed
    centre = math.fsum(winsorised) / n
    squares = 0.0 if kept[0] == kept[-1] else math.fsum((value - centre) ** 2 for value in winsorised)
    return TrimmedMean(math.fsum(kept) / left, math.sqrt(squares / (left * (left - 1))), left - 1)
