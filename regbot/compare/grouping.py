"""Merging of equal warnings from several files."""

import re
from collections.abc import Iterable, Iterator, Sequence

_FIGURE = re.compile(r"\d[\d.]*")


def merge_warnings(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Merge ``(file name, warning)`` pairs into sentences. Warnings that differ only in their numbers become one
    sentence.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, warning in warnings:
        groups.setdefault(_FIGURE.sub("", warning), []).append((name, warning))
    for group in groups.values():
        first, names = group[0][1], [name for name, _ in group]
        if len({warning for _, warning in group}) == 1:
            yield f"{join_names(names)}: {first}"
        else:
            yield f"{names[0]}: {first}; {len(group) - 1} more files have the same warning"


def join_names(names: Sequence[str]) -> str:
    """Join file names as ``a.csv`` or ``a.csv and 3 more``."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
