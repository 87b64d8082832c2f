"""Phrases for counted nouns and for lists of names."""

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """Return ``number`` and ``noun`` in the fitting form: ``1 pair``, ``4 pairs``."""
    return f"{number} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """Return ``noun`` in the singular for 1, else in the plural."""
    return noun if number == 1 else f"{noun}s"


def listed(names: Sequence[object], limit: int, separator: str = ", ") -> str:
    """Return the first ``limit`` of ``names`` and the number of further names: ``a, b and 3 more``."""
    remainder = f" and {len(names) - limit} more" if len(names) > limit else ""
    return separator.join(map(str, names[:limit])) + remainder
