"""Patterns of parameters and gradients: FSDP gathers, and gradients that are reduced over fewer or more ranks.

Gradients are tracked as *elements* that are reduced over a *reach*. The reach is the product of the sizes of the
distinct groups that reduce the same elements one after the other. FSDP reduces E elements with reach n. HSDP
reduce-scatters E elements over n ranks, and then all-reduces the E/n elements that each rank keeps over m replicas:
E elements with reach n x m. So a change of dtype, of kind or of the sequence of collectives is not a loss. A smaller
group is a loss, even if it sends the same bytes.

``cells`` explains the words cell, unit, open and claim. The detectors run from base to head and from head to base, so
"before" means the arm that the view compares from."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, product
from operator import itemgetter
from typing import NamedTuple

from regbot.ledgers import catalogue as names
from regbot.ledgers.cells import Cell, CellKey, Claim, View, is_payload, list_issuers
from regbot.ledgers.dtypes import width
from regbot.ledgers.expert import SUMS, LostExchange, find_lost_exchanges
from regbot.ledgers.leftovers import AxisGroup, match_moves
from regbot.ledgers.rows import find_unit

PADDING_TOLERANCE = 0.001
"""Tolerated difference in elements, as a share of the larger count. Padding to a multiple of the number of ranks adds
or removes elements."""
REWRAP_TOLERANCE = 0.01
"""Tolerated difference between the change in reduced elements and the change in gathered elements, as a share of the
elements that moved. The two changes differ because each new FSDP unit adds its own padding."""
MAX_REACHES = 16
"""Largest number of different reaches, and of different sets of groups, of the gradient reductions of a step. Real
steps have fewer than ten. If there are more, it is not examined whether parameters only moved to other FSDP units."""
MAX_CHAINS = 16
"""Largest number of chains at one place that a collective is compared with."""
ASSUMED_WIDTH = 4
"""Bytes per element that are assumed for an unknown dtype. Gradients are mostly reduced in float32."""


@dataclass
class Reduction:
    elements: float
    """Number of elements on each rank before the first collective."""
    reach: int
    """Number of ranks over which the elements are reduced in the end."""
    remaining: float
    """Number of elements that each rank keeps after the last collective."""
    groups: set[tuple[str, int]]
    """Axis and size of the process group of each collective."""
    modules: frozenset[str]

    @property
    def group_names(self) -> frozenset[tuple[str, int]]:
        return frozenset(self.groups)


Reductions = Mapping[str, list[Reduction]]


def detect_gradients_moved(view: View) -> Iterator[Claim]:
    """Detect gradients that moved to another process group and another unit, such as from a bucket of all parameters to
    the experts' layers. A smaller group is a loss, a larger one a gain, and an equal one a move."""
    reductions = [cell for cell in view.cells if view.is_open(cell) and _reduces_gradients(view, cell)]
    gradient_sizes, gather_moves = _list_gradient_sizes(view), _find_gather_moves(view)
    for old, new, cells in match_moves(reductions):
        (old_axis, old_size), (new_axis, new_size) = old, new
        # Those of one unit are judged with its other reductions. Other ranks do not replace the old ones.
        if old_size == new_size or len({find_unit(cell.place) for cell in cells}) == 1:
            continue
        cells = (*cells, *_take_moved_gathers(gather_moves, cells))
        is_lost = old_size > new_size
        pattern = names.OPTIMIZER_SUM_REMOVED if _sums_statistics(cells, gradient_sizes) else names.GRADIENT_LOST
        yield Claim(
            pattern=pattern if is_lost else names.INVERSE[pattern],
            merge_key=(),
            axes=frozenset((old_axis if is_lost else new_axis,)),
            cells=cells,
            changed_modules=list_issuers(cell for cell in cells if cell.shrinks == is_lost),
        )


GatherMoves = dict[tuple[AxisGroup, AxisGroup], list[Cell]]


def _find_gather_moves(view: View) -> GatherMoves:
    """Return the parameter gathers that moved, by the process groups before and after."""
    gather_moves: GatherMoves = defaultdict(list)
    gathers = [cell for cell in view.cells if view.is_open(cell) and _gathers_parameters(view, cell)]
    for old, new, cells in match_moves(gathers):
        gather_moves[old, new] += cells
    return gather_moves


def _take_moved_gathers(gather_moves: GatherMoves, reductions: Iterable[Cell]) -> list[Cell]:
    """Remove and return the gathers that moved between the same groups as ``reductions``."""
    losing = {cell.signature.group for cell in reductions if cell.shrinks}
    gaining = {cell.signature.group for cell in reductions if cell.grows}
    return [cell for groups in product(losing, gaining) for cell in gather_moves.pop(groups, [])]


def detect_gradient_lost(view: View) -> Iterator[Claim]:
    """Detect units that reduce fewer gradient elements than before. It is no loss if the parameters of a unit only
    moved to other units. The population of a claim is all modules that reduced gradients before. A claim contains the
    unit's changed reductions, and the parameter gathers that changed in the same place and on the same axis.
    All-reduces of the optimizer step that do not have the size of known gradients get a pattern of their own."""
    losing_units, gaining_units = _find_losing_units(view), _find_losing_units(view.reverse)
    gradient_sizes = _list_gradient_sizes(view)
    reducing_modules = frozenset().union(
        *(cell.issuers_before for cell in view.cells if _reduces_gradients(view, cell))
    )
    claimed_keys: set[CellKey] = set()
    gather_moves = _find_gather_moves(view)
    for unit in losing_units:
        reductions = [cell for cell in view.open_cells(unit) if _reduces_gradients(view, cell)]
        if unit in gaining_units:  # the unit has losses and gains; claim only the losses in this direction
            reductions = [cell for cell in reductions if cell.shrinks]
        if not reductions:
            continue
        # Parameter gathers that shrink or grow together with a reduction, in the same place and on the same axis.
        directions = {(cell.place, cell.signature.axis, cell.shrinks) for cell in reductions}
        gathers = [
            cell
            for cell in view.open_cells(unit)
            if _gathers_parameters(view, cell) and (cell.place, cell.signature.axis, cell.shrinks) in directions
        ]
        # The finding names the reductions that shrink. If none shrinks, it names all changed reductions.
        named_cells = [cell for cell in reductions if cell.shrinks] or reductions
        modules_before: frozenset[str] = frozenset().union(*(cell.issuers_before for cell in named_cells))
        gathers += _take_moved_gathers(gather_moves, reductions)
        cells_by_key = {cell.key: cell for cell in (*reductions, *gathers) if cell.key not in claimed_keys}
        cells = tuple(cells_by_key.values())
        claimed_keys |= cells_by_key.keys()
        yield Claim(
            pattern=names.OPTIMIZER_SUM_REMOVED if _sums_statistics(cells, gradient_sizes) else names.GRADIENT_LOST,
            merge_key=(),  # the claims of all units become one finding
            axes=frozenset(cell.signature.axis for cell in named_cells),
            cells=cells,
            changed_modules=modules_before or list_issuers(reductions),  # all, if no module issued these cells before
            population=reducing_modules,
        )


def detect_reshards(view: View) -> Iterator[Claim]:
    """Detect a new parameter gather in backward that has the same volume as the unchanged gather in forward. The same
    module must also reduce gradients on the same axis. A gather without such a reduction carries activations (sequence
    parallelism). If gradients are lost too, ``detect_gradient_lost`` has already claimed the gather."""
    gathering_modules = frozenset().union(
        *(cell.issuers for cell in view.cells if cell.signature.phase == "forward" and _gathers_parameters(view, cell))
    )
    cells_by_key = {cell.key: cell for cell in view.cells}
    reduced_groups = {(cell.place, cell.signature.group) for cell in view.cells if _reduces_gradients(view, cell)}
    for cell in view.cells:
        if cell.signature.phase != "backward" or not view.is_open(cell) or not _gathers_parameters(view, cell):
            continue
        forward_gather = cells_by_key.get((cell.place, cell.signature._replace(phase="forward")))
        is_new = not cell.before.count
        repeats_forward = (
            forward_gather is not None and not forward_gather.changed and cell.after == forward_gather.after
        )
        if is_new and repeats_forward and (cell.place, cell.signature.group) in reduced_groups:
            # Without a merge key, the claims of all units become one finding.
            yield Claim.create(names.RESHARDS, [cell], changed_modules=cell.issuers_after, population=gathering_modules)


def _gathers_parameters(view: View, cell: Cell) -> bool:
    return cell.signature.kind == "all_gather" and is_payload(cell) and not view.moves_activations(cell)


def _reduces_gradients(view: View, cell: Cell) -> bool:
    """Whether ``cell`` reduces gradients. Four things must hold: it is a payload reduction, it runs outside of forward,
    its module exchanges no activations on the same axis, and no detector has claimed it."""
    is_payload_sum = cell.signature.kind in SUMS and is_payload(cell)
    is_unclaimed = cell.key not in view.claimed_keys
    return is_payload_sum and cell.signature.phase != "forward" and not view.moves_activations(cell) and is_unclaimed


def _sums_statistics(cells: Sequence[Cell], gradient_sizes: Sequence[float]) -> bool:
    """Whether ``cells`` sum statistics, and not gradients. This is so if all of them are all-reduces of the optimizer
    step, and no call has the size of known gradients. torchtitan, for example, sums the number of tokens of every
    expert in the optimizer step. Known gradients are those that both arms reduce in backward, in ascending order of
    size. A call that is larger than all known gradients may sum the gradients themselves. The result is then False. It
    is also False if no gradients are known."""
    if any((cell.signature.kind, cell.signature.phase) != ("all_reduce", "optimizer") for cell in cells):
        return False
    largest_gradient = gradient_sizes[-1] if gradient_sizes else 0

    def is_gradient_size(size: float) -> bool:
        # The smallest of the sizes that are not too small.
        position = bisect_left(gradient_sizes, size / (1 + PADDING_TOLERANCE))
        return any(
            abs(size - gradient) <= PADDING_TOLERANCE * gradient for gradient in gradient_sizes[position : position + 1]
        )

    both_directions = [*cells, *(cell.flip() for cell in cells)]  # so that the elements before and after are counted
    call_sizes = [_count_elements([cell]) / cell.before.count for cell in both_directions if cell.before.count]
    return all(size < largest_gradient and not is_gradient_size(size) for size in call_sizes)


def _list_gradient_sizes(view: View) -> list[float]:
    """Return the numbers of elements of the gradient reductions in backward that did not change, in ascending order. A
    sum in the optimizer step may cover the gradients of one call or of all calls, before or after a reduce-scatter. So
    a reduce-scatter contributes four different numbers, and an all-reduce two."""
    sizes = []
    for cell in view.cells:
        if cell.changed or cell.signature.phase != "backward" or not _reduces_gradients(view, cell):
            continue
        elements_of_all_calls = _count_elements([cell])
        elements_per_call = elements_of_all_calls / cell.before.count
        kept_share = 1 / cell.signature.group_size if cell.signature.kind == "reduce_scatter" else 1
        for elements in (elements_of_all_calls, elements_per_call):
            sizes += [elements, elements * kept_share]
    return sorted(sizes)


def _find_losing_units(view: View) -> set[str]:
    """Return the units that, for some reach r, now reduce fewer elements over at least r ranks than before. Differences
    from padding are ignored, and so are parameters that only moved to other FSDP units."""
    # Units that gained an expert axis need fewer reductions of the experts' gradients.
    gained_exchanges = {exchange.unit: exchange for exchange in find_lost_exchanges(view.reverse)}
    before = {unit: _scale_to_experts(_chain_reductions(view, unit), gained_exchanges.get(unit)) for unit in view.units}
    after = {unit: _chain_reductions(view.reverse, unit) for unit in view.units}  # "before" in the reverse view
    reductions = [*chain.from_iterable(before.values()), *chain.from_iterable(after.values())]
    reaches = {reduction.reach for reduction in reductions}
    group_sets = {reduction.group_names for reduction in reductions}
    if len(reaches) > MAX_REACHES or len(group_sets) > MAX_REACHES:
        return {unit for unit in view.units if _loses_elements(before[unit], after[unit])}
    losing_units: set[str] = set()
    for reach in reaches:
        changes: dict[str, float] = {}
        for unit in view.units:
            elements_before = _sum_elements_over(before[unit], reach)
            elements_after = _sum_elements_over(after[unit], reach)
            padding = PADDING_TOLERANCE * max(elements_after, elements_before)
            if abs(elements_after - elements_before) > padding:
                changes[unit] = elements_after - elements_before
        losing_at_reach = {unit for unit, change in changes.items() if change < 0}
        if losing_at_reach and not _is_rewrapped(view, before, after, changes, reach):
            losing_units |= losing_at_reach
    return losing_units


def _loses_elements(before: Iterable[Reduction], after: Iterable[Reduction]) -> bool:
    steps = [(reduction.reach, reduction.elements, 0.0) for reduction in before]
    steps += [(reduction.reach, 0.0, reduction.elements) for reduction in after]
    elements_before = elements_after = 0.0
    for _, steps_of_reach in groupby(sorted(steps, reverse=True), key=itemgetter(0)):
        for _, more_before, more_after in steps_of_reach:
            elements_before += more_before
            elements_after += more_after
        if elements_before - elements_after > PADDING_TOLERANCE * max(elements_before, elements_after):
            return True
    return False


def _is_rewrapped(view: View, before: Reductions, after: Reductions, changes: Mapping[str, float], reach: int) -> bool:
    """Whether parameters only moved to other FSDP units, so that no elements are missing in total. ``changes`` maps
    each changed unit to the change of its elements that are reduced over at least ``reach`` ranks. If parameters moved,
    the gathered elements of each unit over the same ranks change in proportion to its reduced elements. If a reduction
    merely runs in the wrong layer, the gathers do not change."""
    gained_elements = sum(change for change in changes.values() if change > 0)
    if abs(sum(changes.values())) > REWRAP_TOLERANCE * gained_elements:
        return False
    tolerance = REWRAP_TOLERANCE * max(changes.values())
    reductions = chain(chain.from_iterable(before.values()), chain.from_iterable(after.values()))
    group_sets = {reduction.group_names for reduction in reductions if reduction.reach >= reach}
    for groups in group_sets:
        elements_before, elements_after = (
            {
                unit: _sum_elements_over([part for part in unit_parts if part.group_names == groups], reach)
                for unit, unit_parts in parts.items()
            }
            for parts in (before, after)
        )
        growth = {unit: elements_after[unit] - elements_before[unit] for unit in changes}
        if not _gathers_follow_reductions(view, groups, growth, sum(elements_before.values()), tolerance):
            return False
    return True


def _gathers_follow_reductions(
    view: View,
    groups: frozenset[tuple[str, int]],
    reduced_growth: Mapping[str, float],
    reduced_before: float,
    tolerance: float,
) -> bool:
    """Whether the gathered elements of each unit change in proportion to its reduced elements. ``reduced_growth`` and
    ``reduced_before`` are of the same process groups. Only the gathers of these groups count. ``tolerance`` is in
    reduced elements."""
    gathers = [cell for cell in view.cells if cell.signature.group in groups and _gathers_parameters(view, cell)]
    forward_gathers = [cell for cell in gathers if cell.signature.phase == "forward"]
    gathers_by_unit: dict[str, list[Cell]] = defaultdict(list)
    for cell in forward_gathers or gathers:
        gathers_by_unit[find_unit(cell.place)].append(cell)
    gathered_growth = {
        unit: _count_elements(cell.flip() for cell in gathers_by_unit[unit]) - _count_elements(gathers_by_unit[unit])
        for unit in reduced_growth
    }
    # How often a step gathers an element that it reduces: once, or once per micro-batch.
    if forward_gathers:
        gathers_per_element = _count_elements(forward_gathers) / max(reduced_before, 1)
    else:  # without phases, the gathers include those of backward, and some layers have none in backward
        total_gathered = sum(map(abs, gathered_growth.values()))
        gathers_per_element = total_gathered / max(sum(map(abs, reduced_growth.values())), 1)
    if not gathers_per_element:  # no gather shows that parameters moved, so the reductions must be unchanged
        return all(abs(growth) <= tolerance for growth in reduced_growth.values()) and not any(gathered_growth.values())
    return all(
        abs(gathered_growth[unit] - gathers_per_element * growth) <= gathers_per_element * tolerance
        for unit, growth in reduced_growth.items()
    )


def _sum_elements_over(reductions: list[Reduction], reach: int) -> float:
    return sum(reduction.elements for reduction in reductions if reduction.reach >= reach)


def _scale_to_experts(reductions: list[Reduction], gained_exchange: LostExchange | None) -> list[Reduction]:
    """Return the reductions that a unit must make after it gained an expert axis of n ranks.

    ``reductions`` are those that the unit made before. ``gained_exchange`` is the all-to-all on the new expert axis, or
    None if the unit gained no axis. With an expert axis, a rank holds 1/n of the experts, and only 1/n as many ranks
    have the same experts. So elements and reach of the experts' reductions are divided by n. If the reach falls to 1,
    there is nothing to reduce.
    """
    if gained_exchange is None:
        return reductions
    ranks = gained_exchange.ranks
    expected = []
    for reduction in reductions:
        if not gained_exchange.contains(reduction.modules):
            expected.append(reduction)
        elif reduction.reach > ranks:
            expected.append(replace(reduction, elements=reduction.elements / ranks, reach=reduction.reach // ranks))
    return expected


def _chain_reductions(view: View, unit: str) -> list[Reduction]:
    """Return the gradient reductions that one unit made before. Successive collectives on the same elements form one
    ``Reduction``, a chain. A collective continues a chain if it reduces as many elements as each rank keeps after the
    chain."""
    stages_by_place: dict[str, dict[_Stage, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in view.units[unit]:
        if cell.before.bytes and _reduces_gradients(view, cell):
            stage = _Stage(cell.signature.kind == "all_reduce", cell.signature.axis, cell.signature.group_size)
            stages_by_place[cell.place][stage].append(cell)
    reductions: list[Reduction] = []
    for cells_by_stage in stages_by_place.values():
        elements_by_stage = {stage: _count_elements(cells) for stage, cells in cells_by_stage.items()}
        # Reduce-scatters come first, in descending order of elements. The all-reduce of HSDP reduces only the elements
        # that each rank keeps after the reduce-scatters.
        ordered_stages = sorted(
            cells_by_stage, key=lambda stage: (stage.is_all_reduce, -elements_by_stage[stage], stage)
        )
        first = len(reductions)  # chains of earlier places are not continued
        for stage in ordered_stages:
            elements, group = elements_by_stage[stage], (stage.axis, stage.ranks)
            for reduction in reductions[first : first + MAX_CHAINS]:
                is_continued = abs(reduction.remaining - elements) <= PADDING_TOLERANCE * elements
                if is_continued and group not in reduction.groups:
                    break
            else:
                modules = frozenset().union(*(cell.issuers_before for cell in cells_by_stage[stage]))
                reduction = Reduction(elements, reach=1, remaining=elements, groups=set(), modules=modules)
                reductions.append(reduction)
            reduction.reach *= stage.ranks
            reduction.groups.add(group)
            if not stage.is_all_reduce:  # after a reduce-scatter, each rank keeps its share of the elements
                reduction.remaining /= stage.ranks
    return reductions


class _Stage(NamedTuple):
    """One step of a chain of reductions: an all-reduce or a reduce-scatter in a process group."""

    is_all_reduce: bool
    axis: str
    ranks: int


def _count_elements(cells: Iterable[Cell]) -> float:
    """Return the number of elements of ``cells`` before: bytes divided by the width of the dtype."""
    return sum(cell.before.bytes / (width(cell.signature.dtype) or ASSUMED_WIDTH) for cell in cells)
