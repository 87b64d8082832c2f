"""Several metrics at once: which of those that only explain have changed?

Step times decide and share one error (``paired``: alpha divided by the primary tests). Everything else that a pair of
runs measures (memory, waiting, CPU time, ...) is secondary: it explains a verdict and cannot make one. There are many
of them and they hang together, so their p-values are adjusted after Benjamini and Yekutieli (2001): of those called
significant at most ``SECONDARY_Q`` are wrong in the mean, whatever depends on what. Counts of collectives are exact and
are no part of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from regbot.stats.paired import interval

SECONDARY_Q = 0.05
"""False discovery rate of the secondary metrics of one workload."""


@dataclass(frozen=True)
class Secondary:
    """One metric that explains."""

    name: str
    estimate: float
    """Mean log-ratio; positive means that head has more. 0 where there are no pairs."""
    p: float
    """Two-sided paired t test, in [0, 1]. 1 for fewer than two pairs; 0 where all pairs show the same change."""
    p_adjusted: float
    """After Benjamini and Yekutieli, in [0, 1]."""
    significant: bool
    """``p_adjusted`` is at most ``SECONDARY_Q``."""


def secondary(log_ratios: Mapping[str, Sequence[float]]) -> list[Secondary]:
    """Test each metric's log-ratios (one for each pair), in the order given.

    All metrics that were looked at belong in one call, those that show nothing too: the adjustment counts them. Their
    pairs may differ in number. Metrics with a value that is not finite are left out by the caller; ValueError here.
    """
    if not log_ratios:
        return []
    # Not at the top: scipy.stats takes longer to import than all of regbot.
    from scipy.stats import false_discovery_control

    found = {name: _t_test(values) for name, values in log_ratios.items()}
    adjusted = false_discovery_control([p for _, p in found.values()], method="by")
    return [
        Secondary(name, estimate, p, float(after), bool(after <= SECONDARY_Q))
        for (name, (estimate, p)), after in zip(found.items(), adjusted, strict=True)
    ]


def _t_test(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Mean, and two-sided p of Student's t against 0."""
    pairs = len(log_ratios)
    if pairs < 2:
        estimate = log_ratios[0] if pairs else 0.0
        if not math.isfinite(estimate):
            raise ValueError("a log-ratio is not finite")
        return estimate, 1.0
    moments = interval(log_ratios, SECONDARY_Q)
    if moments.sd == 0:
        return moments.estimate, float(log_ratios[0] == 0)
    t = moments.estimate / (moments.sd / math.sqrt(pairs))
    return moments.estimate, min(1.0, 2 * float(stdtr(pairs - 1, -abs(t))))
