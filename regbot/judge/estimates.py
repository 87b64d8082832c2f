"""Estimates on the log scale, formatted as percentages of a ratio."""

import math
from typing import Protocol


class LogEstimate(Protocol):
    """An estimate with its interval and the standard deviation of what was averaged, on the log scale."""

    @property
    def estimate(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def sd(self) -> float: ...


def percent(log_ratio: float) -> float:
    """Return a log-ratio as 100 (ratio - 1). The log-ratio is capped at 20, so that the result stays finite."""
    return 100 * math.expm1(min(log_ratio, 20.0))


def format_estimate(estimate: LogEstimate) -> str:
    """Return an estimate with its interval: ``+46.70% (+38.20% to +55.90%)``."""
    return f"{percent(estimate.estimate):+.2f}% ({percent(estimate.low):+.2f}% to {percent(estimate.high):+.2f}%)"
