"""Estimates on the log scale as people read them: percentages of a ratio."""

import math
from typing import Protocol


class Estimate(Protocol):
    """An estimate with its interval, on the log scale."""

    @property
    def estimate(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def sd(self) -> float: ...


def percent(log_ratio: float) -> float:
    """A log-ratio as 100 (ratio - 1); what passes all bounds stays finite."""
    return 100 * math.expm1(min(log_ratio, 20.0))


def span(each: Estimate) -> str:
    """``+46.7% (38.2% to 55.9%)``."""
    return f"{percent(each.estimate):+.2f}% ({percent(each.low):+.2f}% to {percent(each.high):+.2f}%)"
