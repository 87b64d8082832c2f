"""Percentages as text."""

import math


def round_up_percent(value: float) -> str:
    """Return ``value`` in percent, rounded up: ``0.7%`` for ``0.629``. Use it for bounds, because a bound that is
    rounded down would promise too much."""
    return f"{math.ceil(round(10 * value, 6)) / 10:.3g}%"
