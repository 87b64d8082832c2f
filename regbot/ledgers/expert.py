"""Patterns of the expert axis: how tokens travel to their experts, how often, and exchanges of token counts or
indices.

Most detectors here find a change in only one direction. ``patterns`` runs these detectors from base to head and from
head to base.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from regbot.ledgers.catalogue import (
    ALL_TO_ALL_REPLACED,
    AXIS_LOST,
    COUNTS_ADDED,
    COUNTS_REMOVED,
    DISPATCHER_OFF,
    RECOMPUTES,
)
from regbot.ledgers.cells import Cell, Claim, View, is_payload, sum_volumes
from regbot.ledgers.rows import template
from regbot.records.ledger import Kind, Phase
from regbot.records.verdict import Volume

SUMS: frozenset[Kind] = frozenset({"reduce_scatter", "all_reduce"})
GATHERS_AND_SUMS = SUMS | {"all_gather"}


@dataclass(frozen=True)
class DispatcherChange:
    """Both arms requested the same dispatcher, but only one arm executed it. The runs show this; the ledgers do not.

    ``pattern`` is DISPATCHER_OFF if head replaced the dispatcher, and DISPATCHER_ON if base replaced it.
    """

    pattern: str
    requested: str
    base_executed: str
    head_executed: str


class LostExchange(NamedTuple):
    """One unit that has lost all its payload all-to-alls on the expert axes. ``cells`` are the lost all-to-alls."""

    unit: str
    axes: frozenset[str]
    cells: tuple[Cell, ...]

    @property
    def modules(self) -> frozenset[str]:
        return frozenset().union(*(cell.issuers_before for cell in self.cells))

    def contains(self, modules: Iterable[str]) -> bool:
        """Whether each of ``modules`` issued the lost all-to-all or lies inside a module that issued it. Layer numbers
        are ignored.
        """
        issuer_templates = {template(module) for module in self.modules}
        return all(
            any(f"{template(path)}.".startswith(f"{issuer}.") or not issuer for issuer in issuer_templates)
            for path in modules
        )

    @property
    def ranks(self) -> int:
        """Size of the largest group that exchanged the tokens."""
        return max(cell.signature.group_size for cell in self.cells)


def find_lost_exchanges(view: View) -> list[LostExchange]:
    """Return the units whose payload all-to-alls are all gone.

    An all-to-all that only moved to another expert axis is not lost. In a compiled program, a combiner may merge the
    all-to-alls of several ops. So in such a program, all-to-alls count as lost only if more than half of the exchanged
    bytes of the whole program are gone.
    """
    if view.is_compiled and not _is_mostly_gone(view):
        return []
    lost_exchanges = []
    for unit, cells in view.units.items():
        exchanges = [cell for cell in cells if _is_token_exchange(view, cell)]
        lost_cells = tuple(cell for cell in exchanges if cell.before.count)
        if (
            lost_cells
            and not any(cell.after.count for cell in exchanges)
            and all(view.is_open(cell) for cell in lost_cells)
        ):
            lost_exchanges.append(LostExchange(unit, frozenset(cell.signature.axis for cell in lost_cells), lost_cells))
    return lost_exchanges


def _is_mostly_gone(view: View) -> bool:
    """Whether the program exchanges less than half as many token bytes as before."""
    before, after = sum_volumes([cell for cell in view.cells if _is_token_exchange(view, cell)])
    return 2 * after.bytes < before.bytes


def detect_exchange_replaced(view: View) -> Iterator[Claim]:
    """Detect an all-to-all that was replaced by a gather of all tokens and a sum of the results, on any axis."""
    population = _list_exchanging_modules(view)
    for lost_exchange in find_lost_exchanges(view):
        replacement = _find_replacement(view, lost_exchange)
        if replacement:
            axes = ", ".join(sorted({cell.signature.axis for cell in replacement}))
            cells = (*_list_exchange_cells(view, lost_exchange), *replacement)
            yield Claim(
                ALL_TO_ALL_REPLACED,
                tuple(sorted(lost_exchange.axes)),
                lost_exchange.axes,
                _drop_duplicates(cells),
                lost_exchange.modules,
                population,
                axes,
            )


def detect_axis_lost(view: View) -> Iterator[Claim]:
    """Detect an all-to-all that is gone without a replacement.

    Experts that are now replicated or sharded differently also change the traffic of their parameters and gradients.
    This traffic changes for the same reason, so the claim includes it.
    """
    population = _list_exchanging_modules(view)
    for lost_exchange in find_lost_exchanges(view):
        followers = [
            cell
            for cell in view.open_cells(lost_exchange.unit)
            if is_payload(cell) and cell.signature.kind in GATHERS_AND_SUMS and lost_exchange.contains(cell.issuers)
        ]
        cells = _drop_duplicates((*_list_exchange_cells(view, lost_exchange), *followers))
        follower_axes = ", ".join(sorted({cell.signature.axis for cell in followers}))
        yield Claim(
            AXIS_LOST,
            tuple(sorted(lost_exchange.axes)),
            lost_exchange.axes,
            cells,
            lost_exchange.modules,
            population,
            follower_axes,
        )


def detect_dispatcher_off(view: View) -> Iterator[Claim]:
    """Claim all changed cells of the token exchange, in both directions of the table.

    The evidence that the dispatcher was replaced comes from the runs. So a changed cell is claimed as soon as it
    belongs to the token exchange.
    """
    cells = [
        cell
        for cell in view.cells
        if view.is_open(cell)
        and cell.signature.axis in view.expert_axes
        and (view.moves_activations(cell) or not is_payload(cell))
    ]
    for direction in (view, view.reverse):
        for claim in (*detect_exchange_replaced(direction), *detect_axis_lost(direction)):
            keys = {cell.key for cell in claim.cells}
            cells += [cell for cell in view.cells if cell.key in keys]
    changed_cells = _drop_duplicates(cells)
    axes = (
        frozenset(cell.signature.axis for cell in changed_cells if cell.signature.axis in view.expert_axes)
        or view.expert_axes
    )
    changed_modules = (
        frozenset().union(*(cell.issuers for cell in changed_cells)) if changed_cells else frozenset[str]()
    )
    yield Claim(DISPATCHER_OFF, (), axes, changed_cells, changed_modules)


def detect_recompute(view: View) -> Iterator[Claim]:
    """Detect a backward pass that repeats the token exchange of forward.

    The payload of backward must grow by exactly the calls and bytes of the payload of forward. The claim includes the
    exchanges of token counts in backward, if these grew by exactly those of forward. If a profile labels only the
    backward phase, everything else is taken as forward. If a profile has no phases, the all-to-alls of forward and
    backward cannot be separated, and their sum must grow by half.
    """
    population = _list_exchanging_modules(view)
    for cells in view.units.values():
        for axis in sorted(view.expert_axes):
            axis_cells = [cell for cell in cells if cell.signature.axis == axis and view.moves_activations(cell)]
            if {cell.signature.phase for cell in axis_cells} == {"unknown"}:
                claimed = _find_growth_by_half(view, axis_cells)
            else:
                claimed = _find_repeats_in_backward(view, axis_cells)
            if claimed:
                changed_modules = frozenset().union(*(cell.issuers_after for cell in claimed))
                yield Claim(RECOMPUTES, (axis,), frozenset({axis}), tuple(claimed), changed_modules, population)


def _find_repeats_in_backward(view: View, axis_cells: list[Cell]) -> list[Cell]:
    forward_label: Phase = "forward" if any(cell.signature.phase == "forward" for cell in axis_cells) else "unknown"
    payload = [cell for cell in axis_cells if is_payload(cell)]
    forward, backward = _group_by_form(payload, forward_label), _group_by_form(payload, "backward")
    if not forward or any(cell.changed for cell in payload if cell.signature.phase == forward_label):
        return []
    if any(
        _sum_growth(backward.get(form, [])) != sum_volumes(forward_cells)[1] for form, forward_cells in forward.items()
    ):
        return []
    claimed = [cell for form in forward for cell in backward[form] if view.is_open(cell)]
    exchanged_gradients = any(cell.before.count for cells_of_form in backward.values() for cell in cells_of_form)
    # If backward exchanged nothing before, the new exchange carries gradients and repeats nothing.
    if not claimed or not exchanged_gradients:
        return []
    counts = [cell for cell in axis_cells if not is_payload(cell)]
    forward_counts, backward_counts = _group_by_form(counts, forward_label), _group_by_form(counts, "backward")
    for form, forward_cells in forward_counts.items():
        repeated = backward_counts.get(form, [])
        if _sum_growth(repeated) == sum_volumes(forward_cells)[1]:
            claimed += [cell for cell in repeated if view.is_open(cell)]
    return claimed


def _find_growth_by_half(view: View, axis_cells: list[Cell]) -> list[Cell]:
    """Return the cells of an exchange that grew by half, or [] if it did not.

    The exchange contains forward and backward, which send equal bytes. So a repeated forward adds half of the sum.
    """
    payload = [cell for cell in axis_cells if is_payload(cell) and cell.signature.kind == "all_to_all"]
    before, growth = sum_volumes(payload)[0], _sum_growth(payload)
    if not growth.count or (2 * growth.count, 2 * growth.bytes) != (before.count, before.bytes):
        return []
    counts = [cell for cell in axis_cells if not is_payload(cell) and _sum_growth([cell]) == cell.before]
    return [cell for cell in (*payload, *counts) if view.is_open(cell)]


def detect_count_exchanges(view: View) -> Iterator[Claim]:
    """Detect units with more or fewer control exchanges on the expert axis. This detector handles both directions.

    ``regbot.ledgers.cells`` explains units, cells and open cells. A claim says how many modules of its population
    changed. Here the population is all modules that exchange tokens.
    """
    population = _list_exchanging_modules(view) | _list_exchanging_modules(view.reverse)
    for unit in view.units:
        cells = [cell for cell in view.open_cells(unit) if not is_payload(cell) and cell.signature.kind != "barrier"]
        for axis in sorted({cell.signature.axis for cell in cells} & view.expert_axes):
            axis_cells = tuple(cell for cell in cells if cell.signature.axis == axis)
            before, after = sum_volumes(axis_cells)
            if before.count == after.count:
                continue
            pattern = COUNTS_ADDED if after.count > before.count else COUNTS_REMOVED
            changed_modules = frozenset().union(*(cell.issuers for cell in axis_cells))
            yield Claim(pattern, (axis,), frozenset({axis}), axis_cells, changed_modules, population)


def _is_token_exchange(view: View, cell: Cell) -> bool:
    return cell.signature.kind == "all_to_all" and is_payload(cell) and cell.signature.axis in view.expert_axes


def _list_exchanging_modules(view: View) -> frozenset[str]:
    """Return the modules that exchanged tokens in the arm that ``view`` compares from: by an all-to-all, or by gathers
    and sums, on an expert axis."""
    return frozenset().union(
        *(
            cell.issuers_before
            for cell in view.cells
            if is_payload(cell) and cell.signature.axis in view.expert_axes and view.moves_activations(cell)
        )
    )


def _find_replacement(view: View, lost_exchange: LostExchange) -> list[Cell]:
    """Return the cells that gather and sum tokens instead of ``lost_exchange``, or [] if the gather or the sum is
    missing.

    The gather and the sum must be in forward. FSDP gathers parameters in forward but sums gradients only in backward,
    so FSDP of experts is not taken for a replacement. If the ledger has no phases, any sum counts.
    """
    phase = "forward" if any(cell.signature.phase == "forward" for cell in lost_exchange.cells) else None
    open_cells = view.open_cells(lost_exchange.unit)
    rising = [cell for cell in open_cells if cell.grows and cell.signature.kind in GATHERS_AND_SUMS]
    phase_cells = [cell for cell in rising if is_payload(cell) and phase in (None, cell.signature.phase)]
    sums = [
        cell for cell in phase_cells if cell.signature.kind in SUMS and (phase is None or view.moves_activations(cell))
    ]
    if not sums or not any(cell.signature.kind == "all_gather" for cell in phase_cells):
        return []
    issuing_groups = {(cell.place, cell.signature.axis) for cell in phase_cells}
    return [cell for cell in rising if (cell.place, cell.signature.axis) in issuing_groups]


def _list_exchange_cells(view: View, lost_exchange: LostExchange) -> list[Cell]:
    """Return the cells of the lost all-to-all and of the changed control exchanges on its axes."""
    counts = [
        cell
        for cell in view.open_cells(lost_exchange.unit)
        if not is_payload(cell) and cell.signature.axis in lost_exchange.axes
    ]
    return [*lost_exchange.cells, *counts]


def _group_by_form(cells: Iterable[Cell], phase: str) -> dict[tuple[str, int, str], list[Cell]]:
    """Return the cells of one phase by kind, group size and dtype."""
    forms: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells:
        if cell.signature.phase == phase:
            forms.setdefault((cell.signature.kind, cell.signature.group_size, cell.signature.dtype), []).append(cell)
    return forms


def _sum_growth(cells: Iterable[Cell]) -> Volume:
    before, after = sum_volumes(cells)
    return Volume(count=after.count - before.count, bytes=after.bytes - before.bytes)


def _drop_duplicates(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple({cell.key: cell for cell in cells}.values())
