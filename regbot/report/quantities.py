"""Seconds and percentages as text, with three significant digits."""

from collections.abc import Iterable


def milliseconds(seconds: float, digits: int = 3) -> str:
    """Return a time as text: ``12.3 ms`` for ``0.0123``. Times from one second on are given in seconds.

    ``digits``: number of significant digits. Use 4 where runs are compared side by side.
    """
    if seconds < 0.9995:  # a longer time would be rounded to 1000 ms
        return f"{_round_to_digits(1000 * seconds, digits)} ms"
    return f"{_round_to_digits(seconds, digits)} s"


def percent(value: float, places: int | None = None) -> str:
    """Return ``46.72`` as ``+46.7%``. Without ``places``, the number of decimal places depends on the value."""
    return f"{signed(value, _count_decimal_places([value]) if places is None else places)}%"


def size(value: float) -> str:
    """Return ``-46.72`` as ``46.7%``. There is no sign, because the sentence names the direction in words."""
    return f"{_round_to_digits(abs(value))}%"


def interval(low: float, high: float) -> str:
    """Return an interval as text, ``[+38.2, +55.9]``. Both ends have the same number of decimal places."""
    places = _count_decimal_places([low, high])
    return f"[{signed(low, places)}, {signed(high, places)}]"


def with_interval(estimate: float, low: float, high: float) -> str:
    """Return an estimate with its interval as one text, ``+46.7% [+38.2, +55.9]``."""
    return " ".join(estimate_and_interval(estimate, low, high))


def estimate_and_interval(estimate: float, low: float, high: float) -> tuple[str, str]:
    """Return an estimate and its interval as two texts, ``+46.7%`` and ``[+38.2, +55.9]``. All numbers have the same
    number of decimal places."""
    places = _count_decimal_places([estimate, low, high])
    return percent(estimate, places), f"[{signed(low, places)}, {signed(high, places)}]"


def signed(value: float, places: int) -> str:
    """Return a number with its sign. A minus is U+2212, not a hyphen. A value that rounds to zero has no sign."""
    word = f"{abs(value):.{places}f}"
    if not float(word):
        return word
    return f"{'+' if value > 0 else '−'}{word}"


def _count_decimal_places(values: Iterable[float]) -> int:
    """Return the number of decimal places for percentages: 2 if the largest value is below 10, 1 below 100, else 0.
    This is enough to compare the end of an interval with a threshold."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest < 9.995:  # from here on, two decimal places would give 10.00
        return 2
    return 1 if largest < 99.95 else 0  # from here on, one decimal place would give 100.0


def _round_to_digits(value: float, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits. Larger numbers keep all digits before the decimal point."""
    # The format "g" would write large numbers with an exponent, such as 1e+03. With three digits, a number from 99.95
    # on has no decimals: 99.96 rounds to 100.
    has_no_decimals = value >= 10 ** (digits - 1) * 0.9995
    return f"{value:.0f}" if has_no_decimals else f"{value:.{digits}g}"
