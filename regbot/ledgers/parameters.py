"""Patterns of parameters and gradients: FSDP gathers, and gradients that are reduced over fewer or more ranks.

Gradients are tracked as *elements* that are reduced over a *reach*. The reach is the product of the sizes of the
distinct groups that reduce the same elements one after the other. Examples:

- FSDP reduces E elements with reach n.
- HSDP reduce-scatters E elements over n ranks, and then all-reduces the E/n elements that each rank keeps over m
  replicas. This counts as E elements with reach n x m.

So a change of dtype, of kind or of the sequence of collectives is not a loss. A smaller group is a loss, even if it
sends the same bytes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from regbot.ledgers.catalogue import GRADIENT_LOST, OPTIMIZER_SUM_REMOVED, RESHARDS
from regbot.ledgers.cells import Cell, Claim, View, is_payload, sum_volumes
from regbot.ledgers.dtypes import width
from regbot.ledgers.expert import SUMS, LostExchange, find_lost_exchanges
from regbot.ledgers.rows import find_unit

PADDING_TOLERANCE = 0.001
"""Tolerated difference in elements, as a share of the larger count. Padding to a multiple of the number of ranks adds
or removes elements.
"""
REWRAP_TOLERANCE = 0.01
"""Tolerated difference between the change in reduced elements and the change in gathered elements, as a share of the
elements that moved. The two changes differ because each new FSDP unit adds its own padding.
"""
ASSUMED_WIDTH = 4
"""Bytes per element that are assumed for an unknown dtype. Gradients are mostly reduced in float32."""


@dataclass
class Reduction:
    """``elements`` gradient elements that are reduced over ``reach`` ranks.

    ``groups`` are the axis and size of the process groups that reduce them. Each rank keeps ``remaining`` elements
    after the last reduction.
    """

    elements: float
    reach: int
    remaining: float
    groups: set[tuple[str, int]]
    modules: frozenset[str]

    @property
    def group_names(self) -> frozenset[tuple[str, int]]:
        return frozenset(self.groups)


Reductions = Mapping[str, list[Reduction]]
"""Reductions by the name of the unit that issues them."""


def detect_gradient_lost(view: View) -> Iterator[Claim]:
    """Detect units that reduce fewer gradient elements than before, unless other units now own their parameters.

    ``regbot.ledgers.cells`` explains units and cells. The population of a claim is all modules that reduced gradients
    before. A claim contains the unit's changed reductions, and the parameter gathers that changed in the same place and
    on the same axis. All-reduces of the optimizer step that do not have the size of known gradients get a pattern of
    their own.
    """
    losing_units, gaining_units = _find_losing_units(view), _find_losing_units(view.reverse)
    population = frozenset().union(*(cell.issuers_before for cell in view.cells if _reduces_gradients(view, cell)))
    for unit in losing_units:
        gradient_reductions = [cell for cell in view.open_cells(unit) if _reduces_gradients(view, cell)]
        if unit in gaining_units:  # the unit has losses and gains; claim only the losses in this direction
            gradient_reductions = [cell for cell in gradient_reductions if cell.shrinks]
        if not gradient_reductions:
            continue
        shrinking_groups = {(cell.place, cell.signature.axis) for cell in gradient_reductions if cell.shrinks}
        growing_groups = {(cell.place, cell.signature.axis) for cell in gradient_reductions if cell.grows}
        gathers = [
            cell
            for cell in view.open_cells(unit)
            if _gathers_parameters(view, cell)
            and (cell.place, cell.signature.axis) in (shrinking_groups if cell.shrinks else growing_groups)
        ]
        lossy_cells = [cell for cell in gradient_reductions if cell.shrinks] or gradient_reductions
        changed_modules = frozenset().union(*(cell.issuers_before for cell in lossy_cells)) or frozenset().union(
            *(cell.issuers for cell in gradient_reductions)
        )
        axes = frozenset(cell.signature.axis for cell in lossy_cells)
        pattern = OPTIMIZER_SUM_REMOVED if _sums_statistics(view, [*gradient_reductions, *gathers]) else GRADIENT_LOST
        yield Claim(pattern, (), axes, (*gradient_reductions, *gathers), changed_modules, population)


def detect_reshards(view: View) -> Iterator[Claim]:
    """Detect a new parameter gather in backward that has the same volume as the unchanged gather in forward.

    The same module must also reduce gradients on the same axis. A gather without such a reduction carries activations
    (sequence parallelism). If gradients are lost too, ``detect_gradient_lost`` has already claimed the gather.
    """
    population = frozenset().union(
        *(cell.issuers for cell in view.cells if cell.signature.phase == "forward" and _gathers_parameters(view, cell))
    )
    for cells in view.units.values():
        for cell in cells:
            if cell.signature.phase != "backward" or not view.is_open(cell) or not _gathers_parameters(view, cell):
                continue
            peers = [
                peer for peer in cells if peer.place == cell.place and peer.signature.group == cell.signature.group
            ]
            forward_gathers = [peer for peer in peers if peer.signature == cell.signature._replace(phase="forward")]
            gradient_reductions = [peer for peer in peers if _reduces_gradients(view, peer)]
            is_second_gather = (
                not cell.before.count
                and bool(forward_gathers)
                and not forward_gathers[0].changed
                and cell.after == forward_gathers[0].after
            )
            if is_second_gather and gradient_reductions:
                yield Claim(RESHARDS, (), frozenset({cell.signature.axis}), (cell,), cell.issuers_after, population)


def _gathers_parameters(view: View, cell: Cell) -> bool:
    return cell.signature.kind == "all_gather" and is_payload(cell) and not view.moves_activations(cell)


def _reduces_gradients(view: View, cell: Cell) -> bool:
    return (
        cell.signature.kind in SUMS
        and is_payload(cell)
        and cell.signature.phase != "forward"
        and not view.moves_activations(cell)
        and cell.key not in view.claimed
    )


def _sums_statistics(view: View, cells: list[Cell]) -> bool:
    """Return whether ``cells`` sum statistics, and not gradients: they are all-reduces of the optimizer step, and their
    sizes are not those of known gradients.

    torchtitan, for example, sums the number of tokens of every expert in the optimizer step. Known gradients are those
    that both arms reduce in backward. If no gradients are known, or all known gradients are smaller than one of
    ``cells``, that cell may sum the gradients themselves, and the result is False.
    """
    if any((cell.signature.kind, cell.signature.phase) != ("all_reduce", "optimizer") for cell in cells):
        return False
    sizes = _list_gradient_sizes(view)
    sides = [side for cell in cells for side in (cell, cell.flip()) if side.before.count]
    sums = [_count_elements([side]) / side.before.count for side in sides]
    return all(
        size < max(sizes, default=0) and not any(abs(size - known) <= PADDING_TOLERANCE * known for known in sizes)
        for size in sums
    )


def _list_gradient_sizes(view: View) -> list[float]:
    """Return the numbers of elements of the gradient reductions in backward that did not change.

    Each reduction contributes the elements of one call and of all calls. For a reduce-scatter, it contributes both
    numbers before and after the reduction.
    """
    sizes = []
    for cell in view.cells:
        if cell.changed or cell.signature.phase != "backward" or not _reduces_gradients(view, cell):
            continue
        elements = _count_elements([cell])
        kept_share = 1 / cell.signature.group_size if cell.signature.kind == "reduce_scatter" else 1
        sizes += [size * share for size in (elements, elements / cell.before.count) for share in (1, kept_share)]
    return sizes


def _find_losing_units(view: View) -> set[str]:
    """Return the units that, for at least one reach, now reduce fewer elements over at least this reach than before.

    Differences from padding are ignored, and so are parameters that only moved to other FSDP units.
    """
    gained_exchanges = {exchange.unit: exchange for exchange in find_lost_exchanges(view.reverse)}
    before = {unit: _scale_to_experts(_chain_reductions(view, unit), gained_exchanges.get(unit)) for unit in view.units}
    after = {unit: _chain_reductions(view.reverse, unit) for unit in view.units}
    reaches = {reduction.reach for reductions in (*before.values(), *after.values()) for reduction in reductions}
    losing_units: set[str] = set()
    for reach in reaches:
        totals = {
            unit: (_sum_elements_over(before[unit], reach), _sum_elements_over(after[unit], reach))
            for unit in view.units
        }
        change = {
            unit: after_elements - before_elements
            for unit, (before_elements, after_elements) in totals.items()
            if abs(after_elements - before_elements) > PADDING_TOLERANCE * max(after_elements, before_elements)
        }
        losing_at_reach = {unit for unit, size in change.items() if size < 0}
        if losing_at_reach and not _is_rewrapped(view, before, after, change, reach):
            losing_units |= losing_at_reach
    return losing_units


def _is_rewrapped(view: View, before: Reductions, after: Reductions, change: Mapping[str, float], reach: int) -> bool:
    """Whether parameters only moved to other FSDP units, so that no elements are missing in total.

    If parameters moved, the gathered elements of each unit over the same ranks change in proportion to its reduced
    elements. If a reduction merely runs in the wrong layer, the gathers do not change.
    """
    if abs(sum(change.values())) > REWRAP_TOLERANCE * sum(size for size in change.values() if size > 0):
        return False
    tolerance = REWRAP_TOLERANCE * max(change.values())
    for groups in {
        reduction.group_names
        for reductions in (*before.values(), *after.values())
        for reduction in reductions
        if reduction.reach >= reach
    }:
        before_elements, after_elements = (
            {
                unit: _sum_elements_over(
                    [reduction for reduction in by_unit[unit] if reduction.group_names == groups], reach
                )
                for unit in view.units
            }
            for by_unit in (before, after)
        )
        reduced_growth = {unit: after_elements[unit] - before_elements[unit] for unit in change}
        gathers = [cell for cell in view.cells if cell.signature.group in groups and _gathers_parameters(view, cell)]
        forward_gathers = [cell for cell in gathers if cell.signature.phase == "forward"]
        gathered_growth = {
            unit: _sum_growth([cell for cell in forward_gathers or gathers if find_unit(cell.place) == unit])
            for unit in change
        }
        if forward_gathers:  # the ratio in the whole step: 1, or the number of micro-batches
            gathers_per_element = _count_elements(forward_gathers) / max(sum(before_elements.values()), 1)
        else:  # without phases, the gathers include those of backward, and some layers have none in backward
            gathers_per_element = sum(map(abs, gathered_growth.values())) / max(
                sum(map(abs, reduced_growth.values())), 1
            )
        if any(
            abs(gathered_growth[unit] - gathers_per_element * reduced_growth[unit]) > gathers_per_element * tolerance
            for unit in change
        ):
            return False
        if not gathers_per_element and any(abs(size) > tolerance for size in reduced_growth.values()):
            return False
    return True


def _sum_growth(cells: list[Cell]) -> float:
    """Return the number of elements after minus the number of elements before."""
    return _count_elements([cell.flip() for cell in cells]) - _count_elements(cells)


def _sum_elements_over(reductions: list[Reduction], reach: int) -> float:
    """Return the number of elements that are reduced over at least ``reach`` ranks."""
    return sum(reduction.elements for reduction in reductions if reduction.reach >= reach)


def _scale_to_experts(reductions: list[Reduction], gained_exchange: LostExchange | None) -> list[Reduction]:
    """Return the reductions expected of a unit that gained an expert axis of n ranks. Without ``gained_exchange``,
    return ``reductions``.

    With an expert axis, a rank holds 1/n of the experts, and only 1/n as many ranks have the same experts. So elements
    and reach of the experts' reductions are divided by n. If the reach falls to 1, there is nothing to reduce.
    """
    if gained_exchange is None:
        return reductions
    expected = []
    for reduction in reductions:
        if not gained_exchange.contains(reduction.modules):
            expected.append(reduction)
        elif reduction.reach > gained_exchange.ranks:
            expected.append(
                Reduction(
                    reduction.elements / gained_exchange.ranks,
                    reduction.reach // gained_exchange.ranks,
                    0,
                    reduction.groups,
                    reduction.modules,
                )
            )
    return expected


def _chain_reductions(view: View, unit: str) -> list[Reduction]:
    """Return the gradient reductions that one unit makes on the "before" side.

    Successive collectives on the same elements form one ``Reduction``, a chain.
    """
    steps_by_place: dict[str, dict[tuple[bool, str, int], list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in view.units[unit]:
        if cell.before.bytes and _reduces_gradients(view, cell):
            steps_by_place[cell.place][
                cell.signature.kind == "all_reduce", cell.signature.axis, cell.signature.group_size
            ].append(cell)
    reductions: list[Reduction] = []
    for steps in steps_by_place.values():
        # Reduce-scatters come first, in descending order of elements. The all-reduce of HSDP reduces only the elements
        # that each rank keeps after the reduce-scatters.
        ordered = sorted(steps.items(), key=lambda step: (step[0][0], -_count_elements(step[1]), step[0]))
        chains: list[Reduction] = []
        for (keeps_all, axis, ranks), cells in ordered:
            elements, modules = _count_elements(cells), frozenset().union(*(cell.issuers_before for cell in cells))
            chain = next((candidate for candidate in chains if _can_continue(candidate, elements, (axis, ranks))), None)
            if chain is None:
                chain = Reduction(elements, 1, elements, set(), modules)
                chains.append(chain)
            chain.reach *= ranks
            chain.groups.add((axis, ranks))
            chain.remaining /= 1 if keeps_all else ranks
        reductions += chains
    return reductions


def _can_continue(chain: Reduction, elements: float, group: tuple[str, int]) -> bool:
    return group not in chain.groups and abs(chain.remaining - elements) <= PADDING_TOLERANCE * elements


def _count_elements(cells: list[Cell]) -> float:
    return sum(sum_volumes([cell])[0].bytes / (width(cell.signature.dtype) or ASSUMED_WIDTH) for cell in cells)
