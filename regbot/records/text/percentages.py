"""Percentages as text."""

import math


def round_up_percent(value: float) -> str:
    """Return percent rounded up to a tenth, ``0.7%`` for ``0.629``: a bound rounded down would promise too much."""
    tenths = math.ceil(round(10 * value, 6))  # round() removes floating-point noise, which ceil() would round up
    return f"{tenths / 10:.3g}%"
