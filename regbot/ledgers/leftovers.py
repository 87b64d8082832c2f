"""Patterns of single collectives (another type, another axis), and what no pattern explains.

Each detector here names both directions in one pass, so a cell is never claimed twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from regbot.ledgers.catalogue import (
    BYTES_DOWN,
    BYTES_UP,
    CONTROL_CHANGED,
    COUNT_DOWN,
    COUNT_UP,
    MOVED,
    NARROWED,
    OTHER_LAYER,
    WIDENED,
)
from regbot.ledgers.cells import Cell, Claim, View, Word, is_payload, volumes
from regbot.ledgers.dtypes import width

SAME_BYTES = 0.001
"""Padding to another number of ranks may change the bytes of a collective that moved by this share."""

T = TypeVar("T")
Group = tuple[str, int]
"""Axis and group size."""
Change = tuple[int, float, list[Cell]]
"""Calls and volume that went or came, always positive, and the cells they are made of."""


def other_dtype(view: View) -> Iterator[Claim]:
    """The same number of calls and elements in a type of another width, in one layer, kind, axis and phase."""
    for unit in view.units:
        forms: dict[tuple[str, str, int, str], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
        for c in view.opened(unit):
            if is_payload(c) and width(c.word.dtype):
                form = (c.word.kind, c.word.axis, c.word.group_size, c.word.phase)
                forms[form][c.word.dtype].append(c)
        for (kind, axis, _, _), dtypes in forms.items():
            went, came = _went_and_came({dtype: (cells, width(dtype) or 1) for dtype, cells in dtypes.items()})
            for old, new in _pairs(went, came, 0):
                old_width, new_width = width(old) or 1, width(new) or 1
                if old_width == new_width:
                    continue
                cells = (*dtypes[old], *dtypes[new])
                name, detail = (WIDENED if new_width > old_width else NARROWED), f"{old} to {new}"
                yield Claim(name, (kind, axis, old, new), frozenset({axis}), cells, _issuers(cells), detail=detail)


def moved(view: View) -> Iterator[Claim]:
    """The same calls and bytes on another axis or in groups of another size, in one layer and phase. Exchanges of
    counts that moved the same way go with them; alone they are merely changed."""
    for unit in view.units:
        routes: set[tuple[Group, Group]] = set()
        for role in ("payload", "control"):
            forms: dict[tuple[str, str, str], dict[Group, list[Cell]]] = defaultdict(lambda: defaultdict(list))
            for c in view.opened(unit):
                if c.word.role == role:
                    forms[c.word.kind, c.word.dtype, c.word.phase][c.word.axis, c.word.group_size].append(c)
            for groups in forms.values():
                went, came = _went_and_came({group: (cells, 1) for group, cells in groups.items()})
                for old, new in _pairs(went, came, SAME_BYTES):
                    if role == "control" and (old, new) not in routes:
                        continue
                    routes.add((old, new))
                    cells = (*groups[old], *groups[new])
                    detail = f"{old[0]} (groups of {old[1]}) to {new[0]} (groups of {new[1]})"
                    axes = frozenset({old[0], new[0]})
                    yield Claim(MOVED, (*map(str, old + new),), axes, cells, _issuers(cells), detail=detail)


def other_layer(view: View) -> Iterator[Claim]:
    """Words that some layers issue less and others more, the same in total: a module that moved, or an index that is
    wrong. Lost reductions of gradients are claimed before, they are not made good by others."""
    for word, cells in _open_words(view).items():
        if len(set(volumes(cells))) == 1:
            yield Claim(OTHER_LAYER, (word.axis,), frozenset({word.axis}), tuple(cells), _issuers(cells))


def unexplained(view: View) -> Iterator[Claim]:
    """Everything that is still open, as one claim per kind and group of ranks."""
    yield from other_layer(view)  # of what other claims have left
    groups: dict[tuple[str, ...], dict[Word, list[Cell]]] = defaultdict(dict)
    for word, cells in _open_words(view).items():
        if len(set(volumes(cells))) > 1:
            kind = word.kind if word.role == "payload" else ""
            groups[word.role, kind, word.axis, str(word.group_size) if kind else ""][word] = cells
    for (role, *group), theirs in groups.items():
        everything = [cell for cells in theirs.values() for cell in cells]
        if role == "control":
            yield _generic(CONTROL_CHANGED, tuple(group), everything)
        elif name := _direction(everything):
            yield _generic(name, tuple(group), everything)
        else:  # no more and no less, but another type of the same width or another phase: each with its own direction
            for word, cells in theirs.items():
                detail = f"{word.dtype}, {word.phase}"
                yield _generic(_direction(cells) or COUNT_UP, (*group, detail), cells, detail)


def _open_words(view: View) -> dict[Word, list[Cell]]:
    words: dict[Word, list[Cell]] = defaultdict(list)
    for cell in view.cells:
        if view.is_open(cell):
            words[cell.word].append(cell)
    return words


def _direction(cells: Iterable[Cell]) -> str | None:
    before, after = volumes(cells)
    if before.bytes != after.bytes:
        return BYTES_UP if after.bytes > before.bytes else BYTES_DOWN
    if before.count != after.count:
        return COUNT_UP if after.count > before.count else COUNT_DOWN
    return None


def _generic(name: str, group: tuple[str, ...], cells: list[Cell], detail: str = "") -> Claim:
    axes = frozenset(c.word.axis for c in cells)
    hit = _issuers(c for c in cells if c.changed)
    return Claim(name, group, axes, tuple(cells), hit, detail=detail)


def _went_and_came(groups: dict[T, tuple[list[Cell], int]]) -> tuple[dict[T, Change], dict[T, Change]]:
    """Groups with fewer calls and volume, and groups with more; volume in units of the width given."""
    went: dict[T, Change] = {}
    came: dict[T, Change] = {}
    for name, (cells, unit_bytes) in groups.items():
        before, after = volumes(cells)
        calls, size = after.count - before.count, (after.bytes - before.bytes) / unit_bytes
        if calls < 0 and size <= 0:
            went[name] = (-calls, -size, cells)
        elif calls > 0 and size >= 0:
            came[name] = (calls, size, cells)
    return went, came


def _pairs(went: dict[T, Change], came: dict[T, Change], tolerance: float) -> Iterator[tuple[T, T]]:
    """What went and came with equally many calls and the same volume, each at most once; swapping both sides gives the
    same pairs swapped."""
    for calls in sorted({change[0] for change in went.values()}):
        old, new = (
            sorted((name for name, change in side.items() if change[0] == calls), key=lambda n: (side[n][1], str(n)))
            for side in (went, came)
        )
        for a, b in zip(old, new, strict=False):
            if abs(went[a][1] - came[b][1]) <= tolerance * max(went[a][1], came[b][1]):
                yield a, b


def _issuers(cells: Iterable[Cell]) -> frozenset[str]:
    return frozenset().union(*(c.issuers for c in cells))
