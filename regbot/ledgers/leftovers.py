"""Patterns of single collectives that changed their dtype, axis or layer, and generic findings for all remaining cells.

``cells`` explains the words cell, unit, open and claim. Each detector here handles both directions in one pass."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Cell, Claim, View, has_equal_totals, is_payload, list_issuers, sum_growth
from regbot.ledgers.dtypes import width
from regbot.ledgers.rows import Signature

MOVE_TOLERANCE = 0.001
"""Largest accepted difference between the bytes of a moved collective before and after, as a share of the larger bytes.
Padding depends on the number of ranks, so the bytes can differ slightly."""

GroupName = TypeVar("GroupName")
AxisGroup = tuple[str, int]


class VolumeChange(NamedTuple):
    """Change of the totals of a group of cells. Both numbers are absolute values."""

    calls: int
    size: float


def detect_other_dtype(view: View) -> Iterator[Claim]:
    """Detect collectives whose dtype changed to one of another width, with equal calls and elements. Only collectives
    of one layer, kind, axis, group size and phase are compared with each other."""
    for unit in view.units:
        # Cells by dtype, for each form: kind, axis, group size and phase.
        cells_by_form: dict[tuple[str, str, int, str], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
        widths: dict[str, int] = {}
        for cell in view.open_cells(unit):
            signature = cell.signature
            element_bytes = width(signature.dtype)
            if is_payload(cell) and element_bytes:
                widths[signature.dtype] = element_bytes
                form = (signature.kind, signature.axis, signature.group_size, signature.phase)
                cells_by_form[form][signature.dtype].append(cell)
        for (kind, axis, _, _), cells_by_dtype in cells_by_form.items():
            decreases, increases = _split_by_direction(cells_by_dtype, widths)
            for base_dtype, head_dtype in _match_changes(decreases, increases, tolerance=0):
                if widths[base_dtype] == widths[head_dtype]:
                    continue
                cells = (*cells_by_dtype[base_dtype], *cells_by_dtype[head_dtype])
                yield Claim(
                    pattern=names.WIDENED if widths[head_dtype] > widths[base_dtype] else names.NARROWED,
                    merge_key=(kind, axis, base_dtype, head_dtype),
                    axes=frozenset({axis}),
                    cells=cells,
                    changed_modules=list_issuers(cells),
                    detail=f"{base_dtype} to {head_dtype}",
                )


def detect_moved(view: View) -> Iterator[Claim]:
    """Detect collectives that moved to another axis or to groups of another size, with equal calls and bytes. Only
    collectives of one layer, kind, dtype and phase are compared with each other. Control exchanges that moved between
    the same two groups as payload belong to the same finding. If only control exchanges moved, the generic findings
    report them."""
    for unit in view.units:
        payload_moves: set[tuple[AxisGroup, AxisGroup]] = set()
        for role in ("payload", "control"):  # payload first: control exchanges count only if payload moved with them
            # Cells by process group, for each form: kind, dtype and phase.
            cells_by_form: dict[tuple[str, str, str], dict[AxisGroup, list[Cell]]]
            cells_by_form = defaultdict(lambda: defaultdict(list))
            for cell in view.open_cells(unit):
                signature = cell.signature
                if signature.role == role:
                    form = (signature.kind, signature.dtype, signature.phase)
                    cells_by_form[form][signature.group].append(cell)
            for cells_by_group in cells_by_form.values():
                decreases, increases = _split_by_direction(cells_by_group)
                for base_group, head_group in _match_changes(decreases, increases, MOVE_TOLERANCE):
                    if role == "payload":
                        payload_moves.add((base_group, head_group))
                    elif (base_group, head_group) not in payload_moves:
                        continue
                    cells = (*cells_by_group[base_group], *cells_by_group[head_group])
                    (base_axis, base_size), (head_axis, head_size) = base_group, head_group
                    yield Claim(
                        pattern=names.MOVED,
                        merge_key=(base_axis, str(base_size), head_axis, str(head_size)),
                        axes=frozenset({base_axis, head_axis}),
                        cells=cells,
                        changed_modules=list_issuers(cells),
                        detail=f"{base_axis} (groups of {base_size}) to {head_axis} (groups of {head_size})",
                    )


def detect_other_layer(view: View) -> Iterator[Claim]:
    """Detect signatures that some layers issue less often and other layers issue more often, with the same total. The
    cause is a module that moved or a wrong layer index. An earlier detector has already claimed lost gradient
    reductions, because a reduction in another layer does not replace a lost one."""
    for signature, cells in _group_open_cells(view).items():
        if has_equal_totals(cells):
            yield Claim(
                pattern=names.OTHER_LAYER,
                merge_key=(signature.axis,),
                axes=frozenset({signature.axis}),
                cells=tuple(cells),
                changed_modules=list_issuers(cells),
            )


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
    return Claim(
        pattern=pattern,
        merge_key=merge_key,
        axes=frozenset(cell.signature.axis for cell in cells),
        cells=tuple(cells),
        changed_modules=list_issuers(cell for cell in cells if cell.changed),
        detail=detail,
    )


def _split_by_direction(
    groups: Mapping[GroupName, list[Cell]], element_widths: Mapping[GroupName, int] | None = None
) -> tuple[dict[GroupName, VolumeChange], dict[GroupName, VolumeChange]]:
    """Return the groups whose calls fall, and the groups whose calls rise. A group whose volume changes in the opposite
    direction is in neither. The volume is counted in bytes. If ``element_widths`` is given, the volume is counted in
    elements. ``element_widths`` has the bytes per element of each group."""
    decreases: dict[GroupName, VolumeChange] = {}
    increases: dict[GroupName, VolumeChange] = {}
    for name, cells in groups.items():
        growth = sum_growth(cells)
        calls, size = growth.count, growth.bytes / (1 if element_widths is None else element_widths[name])
        if calls < 0 and size <= 0:
            decreases[name] = VolumeChange(-calls, -size)
        elif calls > 0 and size >= 0:
            increases[name] = VolumeChange(calls, size)
    return decreases, increases


def _match_changes(
    decreases: dict[GroupName, VolumeChange], increases: dict[GroupName, VolumeChange], tolerance: float
) -> Iterator[tuple[GroupName, GroupName]]:
    """Yield pairs of a decreasing and an increasing group with equal calls and with volumes equal up to ``tolerance``.
    The groups with equal calls are paired in ascending order of volume, so each group is in at most one pair. The
    result is symmetric: swapping ``decreases`` and ``increases`` swaps the names in each pair."""

    def sort_by_size(changes: dict[GroupName, VolumeChange]) -> dict[int, list[GroupName]]:
        names_by_calls: dict[int, list[GroupName]] = defaultdict(list)
        for name in sorted(changes, key=lambda name: (changes[name].size, str(name))):
            names_by_calls[changes[name].calls].append(name)
        return names_by_calls

    increasing_names = sort_by_size(increases)
    for calls, decreasing_names in sorted(sort_by_size(decreases).items()):
        for decreasing_name, increasing_name in zip(decreasing_names, increasing_names[calls], strict=False):
            decrease, increase = decreases[decreasing_name].size, increases[increasing_name].size
            if abs(decrease - increase) <= tolerance * max(decrease, increase):
                yield decreasing_name, increasing_name
