"""Patterns of single collectives that changed their dtype, axis or layer, and the generic findings for all remaining
cells.

Each detector here handles both directions in one pass, so no cell is claimed twice.
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
from regbot.ledgers.cells import Cell, Claim, Signature, View, is_payload, sum_volumes
from regbot.ledgers.dtypes import width

MOVE_TOLERANCE = 0.001
"""Largest accepted difference between the bytes of a moved collective before and after, as a share of the larger bytes.
Padding depends on the number of ranks, so the bytes can differ slightly.
"""

GroupName = TypeVar("GroupName")
AxisGroup = tuple[str, int]
"""Name of a mesh axis and the size of its groups."""
VolumeChange = tuple[int, float, list[Cell]]
"""Absolute change in calls, absolute change in volume (bytes or elements), and the cells that both are summed over."""


def detect_other_dtype(view: View) -> Iterator[Claim]:
    """Detect collectives whose dtype changed to one of another width, with equal calls and elements.

    Only collectives of one layer, kind, axis, group size and phase are compared with each other.
    """
    for unit in view.units:
        forms: dict[tuple[str, str, int, str], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
        for cell in view.open_cells(unit):
            if is_payload(cell) and width(cell.signature.dtype):
                form = (cell.signature.kind, cell.signature.axis, cell.signature.group_size, cell.signature.phase)
                forms[form][cell.signature.dtype].append(cell)
        for (kind, axis, _, _), dtypes in forms.items():
            decreases, increases = _split_by_direction(
                {dtype: (cells, width(dtype) or 1) for dtype, cells in dtypes.items()}
            )
            for base_dtype, head_dtype in _match_changes(decreases, increases, 0):
                base_width, head_width = width(base_dtype) or 1, width(head_dtype) or 1
                if base_width == head_width:
                    continue
                cells = (*dtypes[base_dtype], *dtypes[head_dtype])
                pattern, detail = (WIDENED if head_width > base_width else NARROWED), f"{base_dtype} to {head_dtype}"
                yield Claim(
                    pattern,
                    (kind, axis, base_dtype, head_dtype),
                    frozenset({axis}),
                    cells,
                    _collect_issuers(cells),
                    detail=detail,
                )


def detect_moved(view: View) -> Iterator[Claim]:
    """Detect collectives that moved to another axis or to groups of another size, with equal calls and bytes.

    Only collectives of one layer, kind, dtype and phase are compared with each other. The claim includes control
    exchanges that moved between the same two groups as payload. If only control exchanges moved, the generic findings
    report them.
    """
    for unit in view.units:
        payload_moves: set[tuple[AxisGroup, AxisGroup]] = set()
        for role in ("payload", "control"):
            forms: dict[tuple[str, str, str], dict[AxisGroup, list[Cell]]] = defaultdict(lambda: defaultdict(list))
            for cell in view.open_cells(unit):
                if cell.signature.role == role:
                    forms[cell.signature.kind, cell.signature.dtype, cell.signature.phase][
                        cell.signature.axis, cell.signature.group_size
                    ].append(cell)
            for groups in forms.values():
                decreases, increases = _split_by_direction({group: (cells, 1) for group, cells in groups.items()})
                for base_group, head_group in _match_changes(decreases, increases, MOVE_TOLERANCE):
                    if role == "control" and (base_group, head_group) not in payload_moves:
                        continue
                    payload_moves.add((base_group, head_group))
                    cells = (*groups[base_group], *groups[head_group])
                    detail = (
                        f"{base_group[0]} (groups of {base_group[1]}) to {head_group[0]} (groups of {head_group[1]})"
                    )
                    axes = frozenset({base_group[0], head_group[0]})
                    yield Claim(
                        MOVED,
                        (*map(str, base_group + head_group),),
                        axes,
                        cells,
                        _collect_issuers(cells),
                        detail=detail,
                    )


def detect_other_layer(view: View) -> Iterator[Claim]:
    """Detect signatures that some layers issue less often and other layers issue more often, with the same total.

    The cause is a module that moved or a wrong layer index. An earlier detector has already claimed lost gradient
    reductions, because a reduction in another layer does not replace a lost one.
    """
    for signature, cells in _group_open_cells(view).items():
        if len(set(sum_volumes(cells))) == 1:
            yield Claim(
                OTHER_LAYER, (signature.axis,), frozenset({signature.axis}), tuple(cells), _collect_issuers(cells)
            )


def claim_unexplained(view: View) -> Iterator[Claim]:
    """Claim every open cell. Payload gets one claim per kind, axis and group size; control exchanges get one per axis.

    If the total bytes and calls of a group did not change, each signature of the group gets a claim of its own.
    """
    # This detector runs a second time, because other detectors have claimed cells since it ran first.
    yield from detect_other_layer(view)
    groups: dict[tuple[str, ...], dict[Signature, list[Cell]]] = defaultdict(dict)
    for signature, cells in _group_open_cells(view).items():
        if len(set(sum_volumes(cells))) > 1:
            kind = signature.kind if signature.role == "payload" else ""
            groups[signature.role, kind, signature.axis, str(signature.group_size) if kind else ""][signature] = cells
    for (role, *group), cells_by_signature in groups.items():
        group_cells = [cell for cells in cells_by_signature.values() for cell in cells]
        if role == "control":
            yield _make_generic_claim(CONTROL_CHANGED, tuple(group), group_cells)
        elif pattern := _choose_pattern(group_cells):
            yield _make_generic_claim(pattern, tuple(group), group_cells)
        else:  # the totals are equal, but the dtype (of the same width) or the phase changed
            for signature, cells in cells_by_signature.items():
                detail = f"{signature.dtype}, {signature.phase}"
                yield _make_generic_claim(_choose_pattern(cells) or COUNT_UP, (*group, detail), cells, detail)


def _group_open_cells(view: View) -> dict[Signature, list[Cell]]:
    cells_by_signature: dict[Signature, list[Cell]] = defaultdict(list)
    for cell in view.cells:
        if view.is_open(cell):
            cells_by_signature[cell.signature].append(cell)
    return cells_by_signature


def _choose_pattern(cells: Iterable[Cell]) -> str | None:
    before, after = sum_volumes(cells)
    if before.bytes != after.bytes:
        return BYTES_UP if after.bytes > before.bytes else BYTES_DOWN
    if before.count != after.count:
        return COUNT_UP if after.count > before.count else COUNT_DOWN
    return None


def _make_generic_claim(pattern: str, group: tuple[str, ...], cells: list[Cell], detail: str = "") -> Claim:
    axes = frozenset(cell.signature.axis for cell in cells)
    changed_modules = _collect_issuers(cell for cell in cells if cell.changed)
    return Claim(pattern, group, axes, tuple(cells), changed_modules, detail=detail)


def _split_by_direction(
    groups: dict[GroupName, tuple[list[Cell], int]],
) -> tuple[dict[GroupName, VolumeChange], dict[GroupName, VolumeChange]]:
    """Return the groups whose calls and volume both fall, and the groups whose calls and volume both rise.

    ``groups`` maps a group's name to its cells and to a divisor for their bytes. The divisor is the element width to
    compare elements, or 1 to compare bytes.
    """
    decreases: dict[GroupName, VolumeChange] = {}
    increases: dict[GroupName, VolumeChange] = {}
    for name, (cells, divisor) in groups.items():
        before, after = sum_volumes(cells)
        calls, size = after.count - before.count, (after.bytes - before.bytes) / divisor
        if calls < 0 and size <= 0:
            decreases[name] = (-calls, -size, cells)
        elif calls > 0 and size >= 0:
            increases[name] = (calls, size, cells)
    return decreases, increases


def _match_changes(
    decreases: dict[GroupName, VolumeChange], increases: dict[GroupName, VolumeChange], tolerance: float
) -> Iterator[tuple[GroupName, GroupName]]:
    """Yield pairs of a decreasing and an increasing group with equal calls and with volumes equal up to ``tolerance``.

    Each group is in at most one pair. Swapping the arguments ``decreases`` and ``increases`` swaps the names in each
    pair.
    """
    for calls in sorted({change[0] for change in decreases.values()}):
        decreasing, increasing = (
            sorted(
                (name for name, change in side.items() if change[0] == calls), key=lambda key: (side[key][1], str(key))
            )
            for side in (decreases, increases)
        )
        for before_name, after_name in zip(decreasing, increasing, strict=False):
            if abs(decreases[before_name][1] - increases[after_name][1]) <= tolerance * max(
                decreases[before_name][1], increases[after_name][1]
            ):
                yield before_name, after_name


def _collect_issuers(cells: Iterable[Cell]) -> frozenset[str]:
    return frozenset().union(*(cell.issuers for cell in cells))
