"""Seconds and percentages as people read them: three significant digits, never a digit that nobody can use."""

import math
from collections.abc import Iterable


def milliseconds(seconds: float, digits: int = 3) -> str:
    """``0.0123`` -> ``12.3 ms``; a second and more in seconds. Runs beside each other need a fourth digit."""
    if seconds < 0.9995:
        return f"{_digits(1000 * seconds, digits)} ms"
    return f"{_digits(seconds, digits)} s"


def percent(value: float, places: int | None = None) -> str:
    """``46.72`` -> ``+46.7%``: always with its sign, a real minus, and no sign where nothing is left of it."""
    return f"{signed(value, _places([value]) if places is None else places)}%"


def size(value: float) -> str:
    """``-46.72`` -> ``46.7%``: how much, for a sentence that says which way; a threshold as it was set."""
    return f"{_digits(abs(value))}%"


def at_most(value: float) -> str:
    """``0.629`` -> ``0.7%``: a bound, rounded up, because rounded down it would promise more than was shown."""
    return f"{math.ceil(round(10 * value, 6)) / 10:.3g}%"


def interval(low: float, high: float) -> str:
    """``[+38.2, +55.9]``: both ends with as many places as the finer one needs."""
    places = _places([low, high])
    return f"[{signed(low, places)}, {signed(high, places)}]"


def with_interval(estimate: float, low: float, high: float) -> str:
    """``+46.7% [+38.2, +55.9]``: the three numbers with equally many places."""
    places = _places([estimate, low, high])
    return f"{percent(estimate, places)} [{signed(low, places)}, {signed(high, places)}]"


def signed(value: float, places: int) -> str:
    """``-0.41`` -> ``−0.41``."""
    word = f"{abs(value):.{places}f}"
    if not float(word):
        return word
    return f"{'+' if value > 0 else '−'}{word}"


def count(number: int, noun: str) -> str:
    """``1 pair``, ``4 pairs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _places(values: Iterable[float]) -> int:
    """Two places below 10%, one below 100%: enough to see on which side of a threshold an end lies."""
    largest = max((abs(value) for value in values), default=0.0)
    return 2 if largest < 9.995 else 1 if largest < 99.95 else 0


def _digits(value: float, digits: int = 3) -> str:
    """So many significant digits, and all digits of what is larger."""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) * 0.9995 else f"{value:.{digits}g}"
