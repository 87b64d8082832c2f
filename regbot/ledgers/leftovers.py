"""Patterns of single collectives that changed their dtype, axis or layer, and generic findings for all remaining cells.

``cells`` explains the words cell, unit, open and claim. Each detector here handles both directions in one pass."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Cell, Claim, View, has_equal_totals, is_payload, list_issuers, sum_growth
from regbot.ledgers.dtypes import width
from regbot.ledgers.rows import Signature

MOVE_TOLERANCE = 0.001
"""Largest accepted difference between the bytes of a moved collective before and after, as a share of the larger bytes.
Padding depends on the number of ranks, so the bytes can differ slightly."""

GroupName = TypeVar("GroupName")
AxisGroup = tuple[str, int]


def detect_other_dtype(view: View) -> Iterator[Claim]:
    """Detect collectives whose dtype changed to one of another width, with equal calls and elements. Only collectives
    of one layer, kind, axis, group size and phase are compared with each other."""
    for unit in view.units:
        # Cells by dtype, for each form: kind, axis, group size and phase.
        cells_by_form: dict[tuple[str, str, int, str], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
        for cell in view.open_cells(unit):
            signature = cell.signature
            if is_payload(cell) and width(signature.dtype):
                form = (signature.kind, signature.axis, signature.group_size, signature.phase)
                cells_by_form[form][signature.dtype].append(cell)
        for (kind, axis, _, _), cells_by_dtype in cells_by_form.items():
            widths = {dtype: width(dtype) or 1 for dtype in cells_by_dtype}
            for base_dtype, head_dtype, cells in _match_changes(cells_by_dtype, tolerance=0, element_widths=widths):
                if widths[base_dtype] == widths[head_dtype]:
                    continue
                pattern = names.WIDENED if widths[head_dtype] > widths[base_dtype] else names.NARROWED
                merge_key = (kind, axis, base_dtype, head_dtype)
                yield Claim.create(pattern, cells, merge_key, detail=f"{base_dtype} to {head_dtype}")


def detect_moved(view: View) -> Iterator[Claim]:
    """Detect collectives that moved to another axis or to groups of another size, with equal calls and bytes. Only
    collectives of one layer, kind, dtype and phase are compared with each other. Control exchanges that moved between
    the same two groups as payload belong to the same finding. If only control exchanges moved, the generic findings
    report them."""
    for unit in view.units:
        # Cells by process group, for each form: role, kind, dtype and phase.
        cells_by_form: dict[tuple[str, str, str, str], dict[AxisGroup, list[Cell]]]
        cells_by_form = defaultdict(lambda: defaultdict(list))
        for cell in view.open_cells(unit):
            signature = cell.signature
            form = (signature.role, signature.kind, signature.dtype, signature.phase)
            cells_by_form[form][signature.group].append(cell)
        payload_moves: set[tuple[AxisGroup, AxisGroup]] = set()
        # Payload first, because control exchanges count only if payload moved with them.
        for (role, *_), cells_by_group in sorted(cells_by_form.items(), key=lambda item: item[0][0] == "control"):
            for base_group, head_group, cells in _match_changes(cells_by_group, MOVE_TOLERANCE):
                if role == "payload":
                    payload_moves.add((base_group, head_group))
                elif (base_group, head_group) not in payload_moves:
                    continue
                (base_axis, base_size), (head_axis, head_size) = base_group, head_group
                merge_key = (base_axis, str(base_size), head_axis, str(head_size))
                detail = f"{base_axis} (groups of {base_size}) to {head_axis} (groups of {head_size})"
                yield Claim.create(names.MOVED, cells, merge_key, detail=detail)


def detect_other_layer(view: View) -> Iterator[Claim]:
    """Detect signatures that some layers issue less often and other layers issue more often, with the same total. The
    cause is a module that moved or a wrong layer index. An earlier detector has already claimed lost gradient
    reductions, because a reduction in another layer does not replace a lost one."""
    for signature, cells in _group_open_cells(view).items():
        if has_equal_totals(cells):
            yield Claim.create(names.OTHER_LAYER, cells, (signature.axis,))


def claim_unexplained(view: View) -> Iterator[Claim]:
    """Claim every open cell. Payload gets one claim per kind, axis and group size; control exchanges get one per axis.
    Signatures that only moved to other layers get the claims of ``detect_other_layer`` instead. If the total bytes and
    calls of a payload claim would be the same before and after, each of its signatures gets a claim of its own."""
    # This detector runs a second time, because other detectors have claimed cells since it ran first.
    yield from detect_other_layer(view)
    groups: dict[tuple[str, ...], dict[Signature, list[Cell]]] = defaultdict(dict)
    for signature, cells in _group_open_cells(view).items():
        if has_equal_totals(cells):  # the claims of detect_other_layer, which are not marked in the view yet
            continue
        is_of_payload = signature.role == "payload"
        # The empty texts put the control exchanges of all kinds and group sizes of an axis into one group.
        kind, group_size = (signature.kind, str(signature.group_size)) if is_of_payload else ("", "")
        groups[signature.role, kind, signature.axis, group_size][signature] = cells
    for (role, *merge_key), cells_by_signature in groups.items():  # ``merge_key``: kind, axis and group size
        group_cells = [cell for cells in cells_by_signature.values() for cell in cells]
        if role == "control":
            yield _make_generic_claim(names.CONTROL_CHANGED, tuple(merge_key), group_cells)
        elif pattern := _choose_pattern(group_cells):
            yield _make_generic_claim(pattern, tuple(merge_key), group_cells)
        else:  # the totals are equal, but the dtype (of the same width) or the phase changed
            for signature, cells in cells_by_signature.items():
                detail = f"{signature.dtype}, {signature.phase}"
                pattern = _choose_pattern(cells)
                assert pattern is not None, "signatures with equal totals were left out above"
                yield _make_generic_claim(pattern, (*merge_key, detail), cells, detail)


def _group_open_cells(view: View) -> dict[Signature, list[Cell]]:
    cells_by_signature: dict[Signature, list[Cell]] = defaultdict(list)
    for cell in view.cells:
        if view.is_open(cell):
            cells_by_signature[cell.signature].append(cell)
    return cells_by_signature


def _choose_pattern(cells: Iterable[Cell]) -> str | None:
    growth = sum_growth(cells)
    if growth.bytes:
        return names.BYTES_UP if growth.bytes > 0 else names.BYTES_DOWN
    if growth.count:
        return names.COUNT_UP if growth.count > 0 else names.COUNT_DOWN
    return None


def _make_generic_claim(pattern: str, merge_key: tuple[str, ...], cells: list[Cell], detail: str = "") -> Claim:
    changed_modules = list_issuers(cell for cell in cells if cell.changed)
    return Claim.create(pattern, cells, merge_key, changed_modules=changed_modules, detail=detail)


def _match_changes(
    groups: Mapping[GroupName, list[Cell]], tolerance: float, element_widths: Mapping[GroupName, int] | None = None
) -> Iterator[tuple[GroupName, GroupName, tuple[Cell, ...]]]:
    """Yield pairs of a decreasing and an increasing group, with the cells of both. The calls are equal, and the volumes
    are equal up to ``tolerance``. A group whose calls and volume change in opposite directions is in no pair. The
    volume is counted in bytes, or with ``element_widths``, the bytes per element of each group, in elements. The groups
    with equal calls are paired in ascending order of volume, so each group is in at most one pair. The result is
    symmetric: swapping before and after swaps the names in each pair."""
    decreases: dict[int, list[tuple[float, GroupName]]] = defaultdict(list)  # volume and name, by the number of calls
    increases: dict[int, list[tuple[float, GroupName]]] = defaultdict(list)
    for name, cells in groups.items():
        growth = sum_growth(cells)
        calls, size = growth.count, growth.bytes / (1 if element_widths is None else element_widths[name])
        if calls < 0 and size <= 0:
            decreases[-calls].append((-size, name))
        elif calls > 0 and size >= 0:
            increases[calls].append((size, name))
    for calls, falling in sorted(decreases.items()):
        for (decrease, old), (increase, new) in zip(sorted(falling), sorted(increases[calls]), strict=False):
            if abs(decrease - increase) <= tolerance * max(decrease, increase):
                yield old, new, (*groups[old], *groups[new])
