"""Tests of the secondary metrics, which explain a verdict but do not decide it.

There are many and they are correlated, so their p-values are adjusted after Benjamini and Yekutieli (2001): on average,
at most the share ``SECONDARY_Q`` of the metrics that are called significant is wrong, under any dependence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from regbot.stats.summary import mean_and_squares

SECONDARY_Q = 0.05
"""False discovery rate of the secondary metrics of one workload."""


@dataclass(frozen=True)
class SecondaryMetric:
    """Test result of one secondary metric."""

    name: str
    estimate: float
    """Mean log-ratio; positive means that the value of head is larger. 0 if there are no pairs."""
    p: float
    """p-value of the two-sided paired t test, in [0, 1]."""
    p_adjusted: float
    """p-value after the adjustment of Benjamini and Yekutieli, in [0, 1]."""
    significant: bool
    """Whether ``p_adjusted`` is at most ``SECONDARY_Q``."""


def analyse_secondary_metrics(log_ratios: Mapping[str, Sequence[float]]) -> list[SecondaryMetric]:
    """Test each metric's log-ratios (one per pair). Pass all metrics in one call, because the adjustment depends on
    their number. Raises ValueError for a value that is not finite."""
    if not log_ratios:
        return []
    # Imported late: scipy.stats takes longer to import than all of regbot.
    from scipy.stats import false_discovery_control

    tests = {name: _t_test(values) for name, values in log_ratios.items()}
    # "by" stands for Benjamini and Yekutieli.
    adjusted_p_values = false_discovery_control([p for _, p in tests.values()], method="by")
    return [
        SecondaryMetric(name, estimate, p, float(p_adjusted), significant=bool(p_adjusted <= SECONDARY_Q))
        for (name, (estimate, p)), p_adjusted in zip(tests.items(), adjusted_p_values, strict=True)
    ]


def _t_test(log_ratios: Sequence[float]) -> tuple[float, float]:
    """The p-value is 1 for fewer than two pairs. If all log-ratios are equal, it is 1 if they are 0, else 0."""
    pairs = len(log_ratios)
    mean, squares = mean_and_squares(log_ratios) if pairs else (0.0, 0.0)
    if pairs < 2 or squares == 0:
        return mean, 1.0 if pairs < 2 or mean == 0 else 0.0
    sd = math.sqrt(squares / (pairs - 1))
    t = mean / (sd / math.sqrt(pairs))
    return mean, min(1.0, 2 * float(stdtr(pairs - 1, -abs(t))))
