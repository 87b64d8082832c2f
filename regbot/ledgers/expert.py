"""Patterns of the expert axis: how tokens travel to their experts, whether twice, and who exchanges counts.

All detectors look from before to after; ``patterns`` runs the directed ones in both directions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from regbot.ledgers.catalogue import (
    AXIS_LOST,
    COUNTS_ADDED,
    COUNTS_REMOVED,
    DISPATCHER_OFF,
    MAPPED_TWICE,
    RECOMPUTES,
)
from regbot.ledgers.cells import Cell, Claim, View, is_payload, volumes
from regbot.ledgers.rows import template
from regbot.records.ledger import Kind
from regbot.records.verdict import Volume

SUMS: frozenset[Kind] = frozenset({"reduce_scatter", "all_reduce"})
GATHERS_AND_SUMS = SUMS | {"all_gather"}


@dataclass(frozen=True)
class DispatcherChange:
    """Evidence of the runs, not of the ledgers: one request, executed in one arm and silently replaced in the other.

    ``pattern`` is DISPATCHER_OFF where head replaced it, DISPATCHER_ON where base did.
    """

    pattern: str
    requested: str
    base_executed: str
    head_executed: str


class Vanished(NamedTuple):
    """One layer whose payload all-to-all on the expert axes dropped to nothing."""

    unit: str
    axes: frozenset[str]
    cells: tuple[Cell, ...]

    @property
    def modules(self) -> frozenset[str]:
        return frozenset().union(*(cell.issuers_before for cell in self.cells))

    def contains(self, modules: Iterable[str]) -> bool:
        """Whether all ``modules`` are, or lie inside, modules that issued the all-to-all. Layer numbers may differ."""
        mine = {template(module) for module in self.modules}
        return all(any(f"{template(m)}.".startswith(f"{own}.") or not own for own in mine) for m in modules)

    @property
    def ranks(self) -> int:
        """Size of the group that the tokens were exchanged in."""
        return max(cell.word.group_size for cell in self.cells)


def vanished(view: View) -> list[Vanished]:
    """Layers without payload all-to-all after; one that only moved to another axis has not vanished, and in a compiled
    program, where ops stand for layers, one that was merged with another's has not."""
    if view.compiled and not _mostly_gone(view):
        return []
    found = []
    for unit, cells in view.units.items():
        exchanges = [c for c in cells if _is_token_exchange(view, c)]
        gone = tuple(c for c in exchanges if c.before.count)
        if gone and not any(c.after.count for c in exchanges) and all(view.is_open(c) for c in gone):
            found.append(Vanished(unit, frozenset(c.word.axis for c in gone), gone))
    return found


def _mostly_gone(view: View) -> bool:
    """Whether the program exchanges less than half of the tokens' bytes that it did."""
    before, after = volumes([c for c in view.cells if _is_token_exchange(view, c)])
    return 2 * after.bytes < before.bytes


def mapped_twice(view: View) -> Iterator[Claim]:
    """All-to-all replaced by gathering all tokens and summing the results, on whatever axis."""
    population = _exchanging_modules(view)
    for lost in vanished(view):
        replacement = _replacement(view, lost)
        if replacement:
            axes = ", ".join(sorted({cell.word.axis for cell in replacement}))
            cells = (*_exchange_cells(view, lost), *replacement)
            yield Claim(
                MAPPED_TWICE, tuple(sorted(lost.axes)), lost.axes, _unique(cells), lost.modules, population, axes
            )


def axis_lost(view: View) -> Iterator[Claim]:
    """All-to-all gone for nothing. Experts that are now whole or sharded otherwise change the traffic of their
    parameters and gradients too; that has the same cause and is claimed with it."""
    population = _exchanging_modules(view)
    for lost in vanished(view):
        followers = [
            cell
            for cell in view.opened(lost.unit)
            if is_payload(cell) and cell.word.kind in GATHERS_AND_SUMS and lost.contains(cell.issuers)
        ]
        cells = _unique((*_exchange_cells(view, lost), *followers))
        moved_with_it = ", ".join(sorted({cell.word.axis for cell in followers}))
        yield Claim(AXIS_LOST, tuple(sorted(lost.axes)), lost.axes, cells, lost.modules, population, moved_with_it)


def dispatcher_off(view: View) -> Iterator[Claim]:
    """Everything that changed in the token exchange, in either direction: the evidence that the dispatcher was replaced
    is not in the ledger, so nothing is asked of the rows but that they belong to it."""
    cells = [
        cell
        for cell in view.cells
        if view.is_open(cell)
        and cell.word.axis in view.expert_axes
        and (view.moves_activations(cell) or not is_payload(cell))
    ]
    for direction in (view, view.reverse):
        for claim in (*mapped_twice(direction), *axis_lost(direction)):
            keys = {cell.key for cell in claim.cells}
            cells += [cell for cell in view.cells if cell.key in keys]
    chosen = _unique(cells)
    axes = frozenset(c.word.axis for c in chosen if c.word.axis in view.expert_axes) or view.expert_axes
    hit = frozenset().union(*(c.issuers for c in chosen)) if chosen else frozenset[str]()
    yield Claim(DISPATCHER_OFF, (), axes, chosen, hit)


def recompute(view: View) -> Iterator[Claim]:
    """Backward grew by exactly what forward exchanges: payload to the byte, counts too where they are repeated.

    A profile may know backward alone, and then the rest is forward; or no phase at all, and then an all-to-all whose
    gradients go the same way must have grown by half.
    """
    population = _exchanging_modules(view)
    for cells in view.units.values():
        for axis in sorted(view.expert_axes):
            here = [c for c in cells if c.word.axis == axis and view.moves_activations(c)]
            if {c.word.phase for c in here} == {"unknown"}:
                claimed = _grown_by_half(view, here)
            else:
                claimed = _repeated_in_backward(view, here)
            if claimed:
                hit = frozenset().union(*(c.issuers_after for c in claimed))
                yield Claim(RECOMPUTES, (axis,), frozenset({axis}), tuple(claimed), hit, population)


def _repeated_in_backward(view: View, here: list[Cell]) -> list[Cell]:
    first = "forward" if any(c.word.phase == "forward" for c in here) else "unknown"
    payload = [c for c in here if is_payload(c)]
    forward, grown = _by_form(payload, first), _by_form(payload, "backward")
    if not forward or any(c.changed for c in payload if c.word.phase == first):
        return []
    if any(_growth(grown.get(form, [])) != volumes(once)[1] for form, once in forward.items()):
        return []
    claimed = [c for form in forward for c in grown[form] if view.is_open(c)]
    exchanged_gradients = any(c.before.count for cells_of_form in grown.values() for c in cells_of_form)
    if not claimed or not exchanged_gradients:  # the first exchange in backward is that of the gradients
        return []
    counts = [c for c in here if not is_payload(c)]
    count_forward, count_grown = _by_form(counts, first), _by_form(counts, "backward")
    for form, once in count_forward.items():
        repeated = count_grown.get(form, [])
        if _growth(repeated) == volumes(once)[1]:
            claimed += [c for c in repeated if view.is_open(c)]
    return claimed


def _grown_by_half(view: View, here: list[Cell]) -> list[Cell]:
    """Forward and gradients exchange as much as each other, so forward again is half as much on top."""
    payload = [c for c in here if is_payload(c) and c.word.kind == "all_to_all"]
    before, grown = volumes(payload)[0], _growth(payload)
    if not grown.count or (2 * grown.count, 2 * grown.bytes) != (before.count, before.bytes):
        return []
    counts = [c for c in here if not is_payload(c) and _growth([c]) == c.before]
    return [c for c in (*payload, *counts) if view.is_open(c)]


def count_exchanges(view: View) -> Iterator[Claim]:
    """Control exchanges of one layer on the expert axis, more or fewer of them. Named for both directions at once."""
    population = _exchanging_modules(view) | _exchanging_modules(view.reverse)
    for unit in view.units:
        cells = [c for c in view.opened(unit) if not is_payload(c) and c.word.kind != "barrier"]
        for axis in sorted({c.word.axis for c in cells} & view.expert_axes):
            here = tuple(c for c in cells if c.word.axis == axis)
            before, after = volumes(here)
            if before.count == after.count:
                continue
            name = COUNTS_ADDED if after.count > before.count else COUNTS_REMOVED
            hit = frozenset().union(*(c.issuers for c in here))
            yield Claim(name, (axis,), frozenset({axis}), here, hit, population)


def _is_token_exchange(view: View, cell: Cell) -> bool:
    return cell.word.kind == "all_to_all" and is_payload(cell) and cell.word.axis in view.expert_axes


def _exchanging_modules(view: View) -> frozenset[str]:
    """Modules that exchange tokens before: by all-to-all, or by gathering and summing them on an expert axis."""
    return frozenset().union(
        *(
            cell.issuers_before
            for cell in view.cells
            if is_payload(cell) and cell.word.axis in view.expert_axes and view.moves_activations(cell)
        )
    )


def _replacement(view: View, lost: Vanished) -> list[Cell]:
    """The cells that gather and sum tokens in the place of ``lost``; none where either half is missing.

    Only forward tells: there FSDP gathers parameters but never sums, so experts that are merely sharded over more
    ranks (gathers in forward, sums in backward) are no replacement. Where the source knows no phases, any sum counts.
    """
    phase = "forward" if any(c.word.phase == "forward" for c in lost.cells) else None
    opened = view.opened(lost.unit)
    rising = [c for c in opened if c.grows and c.word.kind in GATHERS_AND_SUMS]
    telling = [c for c in rising if is_payload(c) and phase in (None, c.word.phase)]
    sums = [c for c in telling if c.word.kind in SUMS and (phase is None or view.moves_activations(c))]
    if not sums or not any(c.word.kind == "all_gather" for c in telling):
        return []
    issued_by = {(c.place, c.word.axis) for c in telling}
    return [c for c in rising if (c.place, c.word.axis) in issued_by]


def _exchange_cells(view: View, lost: Vanished) -> list[Cell]:
    """The all-to-all itself and the exchange of counts that went with it."""
    counts = [c for c in view.opened(lost.unit) if not is_payload(c) and c.word.axis in lost.axes]
    return [*lost.cells, *counts]


def _by_form(cells: Iterable[Cell], phase: str) -> dict[tuple[str, int, str], list[Cell]]:
    """Cells of one phase that differ in nothing but their place."""
    forms: dict[tuple[str, int, str], list[Cell]] = {}
    for c in cells:
        if c.word.phase == phase:
            forms.setdefault((c.word.kind, c.word.group_size, c.word.dtype), []).append(c)
    return forms


def _growth(cells: Iterable[Cell]) -> Volume:
    before, after = volumes(cells)
    return Volume(count=after.count - before.count, bytes=after.bytes - before.bytes)


def _unique(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple({cell.key: cell for cell in cells}.values())
