"""Patterns of single collectives that changed their dtype, axis or layer, and generic findings for all remaining cells.

``cells`` explains the words cell, unit, open and claim. Each detector here handles both directions in one pass."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Cell, Claim, View, has_equal_totals, is_payload, list_issuers, sum_growth
from regbot.ledgers.dtypes import width
from regbot.ledgers.rows import Signature, find_unit, template

MOVE_TOLERANCE = 0.001
"""Largest accepted difference between the bytes of a moved collective before and after, as a share of the larger bytes.
Padding depends on the number of ranks, so the bytes can differ slightly."""

GroupName = TypeVar("GroupName")
AxisGroup = tuple[str, int]
Move = tuple[AxisGroup, AxisGroup, tuple[Cell, ...]]


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
    """Detect collectives that moved to another axis or to groups of another size (``match_moves``). Control exchanges
    that moved between the same two groups as payload, with equal calls and bytes, belong to the same finding. If only
    control exchanges moved, the generic findings report them."""
    open_cells = [cell for cell in view.cells if view.is_open(cell)]
    moves = list(match_moves(filter(is_payload, open_cells)))
    payload_moves = {(base_group, head_group) for base_group, head_group, _ in moves}
    control_cells = _group_by_unit(cell for cell in open_cells if not is_payload(cell))
    for groups in (groups for cells in control_cells for groups in _group_by_form(cells)):
        moves += [move for move in _match_changes(groups, MOVE_TOLERANCE) if move[:2] in payload_moves]
    for base_group, head_group, cells in moves:
        yield make_move_claim(base_group, head_group, cells)


def make_move_claim(base_group: AxisGroup, head_group: AxisGroup, cells: Iterable[Cell]) -> Claim:
    (base_axis, base_size), (head_axis, head_size) = base_group, head_group
    merge_key = (base_axis, str(base_size), head_axis, str(head_size))
    detail = f"{base_axis} (groups of {base_size}) to {head_axis} (groups of {head_size})"
    return Claim.create(names.MOVED, cells, merge_key, detail=detail)


def match_moves(cells: Iterable[Cell]) -> Iterator[Move]:
    """Yield what moved from one process group to another: the groups before and after, and the cells of both. Only
    cells of one layer, role, kind, dtype and phase are matched with each other, first those with equal calls and bytes,
    then those with equal bytes, which may be cut into other buckets. In the end, cells of the whole model are matched
    by bytes, if those of one group are all outside of the layers: a bucket of gradients belongs to no layer."""
    remaining: list[Cell] = []
    for unit_cells in _group_by_unit(cells):
        for groups in _group_by_form(unit_cells):
            for equal_calls in (True, False):
                for move in [*_match_changes(groups, MOVE_TOLERANCE, equal_calls=equal_calls)]:
                    yield move
                    del groups[move[0]], groups[move[1]]
            remaining += [cell for group_cells in groups.values() for cell in group_cells]
    for groups in _group_by_form(remaining):
        for old, new, moved_cells in _match_changes(groups, MOVE_TOLERANCE, equal_calls=False):
            is_one_way = all(cell.shrinks for cell in groups[old]) and all(cell.grows for cell in groups[new])
            outside = (all("*" not in template(cell.place) for cell in groups[group]) for group in (old, new))
            if is_one_way and any(outside):
                yield old, new, moved_cells


def _group_by_unit(cells: Iterable[Cell]) -> Iterable[list[Cell]]:
    cells_by_unit: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        cells_by_unit[find_unit(cell.place)].append(cell)
    return cells_by_unit.values()


def _group_by_form(cells: Iterable[Cell]) -> Iterable[dict[AxisGroup, list[Cell]]]:
    """Return the cells by process group, for each form: role, kind, dtype and phase."""
    cells_by_form: dict[tuple[str, ...], dict[AxisGroup, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        signature = cell.signature
        form = (signature.role, signature.kind, signature.dtype, signature.phase)
        cells_by_form[form][signature.group].append(cell)
    return cells_by_form.values()


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
    groups: Mapping[GroupName, list[Cell]],
    tolerance: float,
    element_widths: Mapping[GroupName, int] | None = None,
    equal_calls: bool = True,
) -> Iterator[tuple[GroupName, GroupName, tuple[Cell, ...]]]:
    """Yield pairs of a decreasing and an increasing group, with the cells of both. The volumes are equal up to
    ``tolerance``, and so are the calls if ``equal_calls``; a group whose calls and volume change in opposite directions
    is then in no pair. The volume is counted in bytes, or with ``element_widths``, the bytes per element of each group,
    in elements. The groups are paired in ascending order of volume, so each group is in at most one pair. The result is
    symmetric: swapping before and after swaps the names in each pair."""
    decreases: dict[int, list[tuple[float, GroupName]]] = defaultdict(list)  # volume and name, by the number of calls
    increases: dict[int, list[tuple[float, GroupName]]] = defaultdict(list)
    for name, cells in groups.items():
        growth = sum_growth(cells)
        calls, size = growth.count, growth.bytes / (1 if element_widths is None else element_widths[name])
        if not equal_calls:  # then the sign of the volume decides
            calls = (size > 0) - (size < 0)
        if calls < 0 and size <= 0:
            decreases[-calls].append((-size, name))
        elif calls > 0 and size >= 0:
            increases[calls].append((size, name))
    for calls, falling in decreases.items():
        old_groups, new_groups = (sorted(named, reverse=True) for named in (falling, increases[calls]))
        while old_groups and new_groups:  # the smallest are at the ends
            (decrease, old), (increase, new) = old_groups[-1], new_groups[-1]
            is_pair = abs(decrease - increase) <= tolerance * max(decrease, increase)
            if is_pair or decrease < increase:
                old_groups.pop()
            if is_pair or increase < decrease:
                new_groups.pop()
            if is_pair:
                yield old, new, (*groups[old], *groups[new])
