"""Percentages that are upper bounds, as text."""

import math


def at_most(value: float) -> str:
    """Return an upper bound as text: ``0.7%`` for ``0.629``. A bound is rounded up, because rounding down would promise
    too much."""
    return f"{math.ceil(round(10 * value, 6)) / 10:.3g}%"
