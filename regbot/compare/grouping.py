"""Merging of equal warnings from several files."""

import re
from collections.abc import Iterable, Iterator, Sequence

_NUMBER = re.compile(r"\d[\d.]*")


def merge_warnings(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield sentences from pairs of a file name and a warning. Warnings that differ only in their numbers become one
    sentence, which shows the numbers of the first file.
    """
    groups: dict[str, list[tuple[str, str]]] = {}  # warning without its numbers -> file names and warnings
    for name, warning in warnings:
        groups.setdefault(_NUMBER.sub("", warning), []).append((name, warning))
    for group in groups.values():
        names = [name for name, _ in group]
        _, first_warning = group[0]
        if len({warning for _, warning in group}) == 1:
            yield f"{join_names(names)}: {first_warning}"
        else:
            yield f"{names[0]}: {first_warning}; {len(group) - 1} more files have the same warning"


def join_names(names: Sequence[str]) -> str:
    """Join file names as ``a.csv`` or ``a.csv and 3 more``."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
