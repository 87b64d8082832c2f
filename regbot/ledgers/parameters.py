"""Patterns of parameters and their gradients: FSDP's gathers, and whether every gradient is still summed by everyone.

A gradient is tracked as *elements* reduced over a *reach*: the product of the distinct groups that reduce them one
after the other. FSDP: E elements, reach n. HSDP reduce-scatters E elements over n ranks and all-reduces the E/n that
each rank keeps over m replicas: E elements, reach n x m. So a change of type, of kind or of the way is no loss, and a
smaller group is one even where not a byte less is sent.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from regbot.ledgers.catalogue import GRADIENT_LOST, RESHARDS
from regbot.ledgers.cells import Cell, Claim, View, is_payload, volumes
from regbot.ledgers.dtypes import width
from regbot.ledgers.expert import SUMS, Vanished, vanished
from regbot.ledgers.rows import unit as layer_of

PADDING = 0.001
"""Share of elements that padding to a multiple of the ranks may add or take without being a change."""
REWRAPPED = 0.01
"""Share of the elements in question by which re-wrapped gradients and parameters may differ: each new group of
parameters is padded anew."""
ASSUMED_WIDTH = 4
"""Bytes per element where a reader could not name the type; gradients are mostly reduced in float32."""


@dataclass
class Reduction:
    """Elements that are reduced over ``reach`` ranks; ``left`` elements stay on each rank afterwards."""

    elements: float
    reach: int
    left: float
    groups: set[tuple[str, int]]
    modules: frozenset[str]

    @property
    def group_names(self) -> frozenset[tuple[str, int]]:
        return frozenset(self.groups)


Reductions = Mapping[str, list[Reduction]]
"""By layer."""


def gradient_lost(view: View) -> Iterator[Claim]:
    """Layers where fewer elements are reduced over some reach, unless other layers now hold these parameters.

    Claims the reductions that changed there, and the parameter gathers that changed with them in the same place.
    """
    falling, rising = _falling_units(view), _falling_units(view.reverse)
    population = frozenset().union(*(c.issuers_before for c in view.cells if _reduces_gradients(view, c)))
    for unit in falling:
        sums = [c for c in view.opened(unit) if _reduces_gradients(view, c)]
        if unit in rising:  # a loss here and a gain there in one layer: each direction has its own half
            sums = [c for c in sums if c.shrinks]
        if not sums:
            continue
        shrunk = {(c.place, c.word.axis) for c in sums if c.shrinks}
        grown = {(c.place, c.word.axis) for c in sums if c.grows}
        gathers = [
            c
            for c in view.opened(unit)
            if _gathers_parameters(view, c) and (c.place, c.word.axis) in (shrunk if c.shrinks else grown)
        ]
        lost_on = [c for c in sums if c.shrinks] or sums
        hit = frozenset().union(*(c.issuers_before for c in lost_on)) or frozenset().union(*(c.issuers for c in sums))
        axes = frozenset(c.word.axis for c in lost_on)
        yield Claim(GRADIENT_LOST, (), axes, (*sums, *gathers), hit, population)


def reshards(view: View) -> Iterator[Claim]:
    """A gather of parameters in backward that was not there, the same as the unchanged one in forward.

    Only where gradients are reduced on the same axis: a gather without is of activations (sequence parallelism). Where
    fewer of them are reduced, ``gradient_lost`` has claimed the gather already.
    """
    population = frozenset().union(
        *(c.issuers for c in view.cells if c.word.phase == "forward" and _gathers_parameters(view, c))
    )
    for cells in view.units.values():
        for cell in cells:
            if cell.word.phase != "backward" or not view.is_open(cell) or not _gathers_parameters(view, cell):
                continue
            beside = [c for c in cells if c.place == cell.place and c.word[1:3] == cell.word[1:3]]
            once = [c for c in beside if c.word == cell.word._replace(phase="forward")]
            sums = [c for c in beside if _reduces_gradients(view, c)]
            regathered = not cell.before.count and bool(once) and not once[0].changed and cell.after == once[0].after
            if regathered and sums:
                yield Claim(RESHARDS, (), frozenset({cell.word.axis}), (cell,), cell.issuers_after, population)


def _gathers_parameters(view: View, cell: Cell) -> bool:
    return cell.word.kind == "all_gather" and is_payload(cell) and not view.moves_activations(cell)


def _reduces_gradients(view: View, cell: Cell) -> bool:
    return (
        cell.word.kind in SUMS
        and is_payload(cell)
        and cell.word.phase != "forward"
        and not view.moves_activations(cell)
        and cell.key not in view.claimed
    )


def _falling_units(view: View) -> set[str]:
    """Layers that reduce fewer elements over some reach after than before, padding and regrouping aside."""
    gained = {found.unit: found for found in vanished(view.reverse)}
    before = {unit: _expected(_reductions(view, unit), gained.get(unit)) for unit in view.units}
    after = {unit: _reductions(view.reverse, unit) for unit in view.units}
    reaches = {r.reach for found in (*before.values(), *after.values()) for r in found}
    falling: set[str] = set()
    for reach in reaches:
        totals = {unit: (_over(before[unit], reach), _over(after[unit], reach)) for unit in view.units}
        change = {unit: a - b for unit, (b, a) in totals.items() if abs(a - b) > PADDING * max(a, b)}
        falls = {unit for unit, size in change.items() if size < 0}
        if falls and not _rewrapped(view, before, after, change, reach):
            falling |= falls
    return falling


def _rewrapped(view: View, before: Reductions, after: Reductions, change: Mapping[str, float], reach: int) -> bool:
    """Whether parameters were only grouped into other FSDP units: layers that reduce more gather as many more over the
    same ranks, layers that reduce less as many less, and nothing is missing in all.

    Gathers tell because a reduction that merely runs in the wrong layer leaves them where they were.
    """
    if abs(sum(change.values())) > REWRAPPED * sum(size for size in change.values() if size > 0):
        return False
    allowed = REWRAPPED * max(change.values())
    for groups in {r.group_names for found in (*before.values(), *after.values()) for r in found if r.reach >= reach}:
        ours, theirs = (
            {unit: _over([r for r in of[unit] if r.group_names == groups], reach) for unit in view.units}
            for of in (before, after)
        )
        reduced = {unit: theirs[unit] - ours[unit] for unit in change}
        gathers = [c for c in view.cells if c.word[1:3] in groups and _gathers_parameters(view, c)]
        forward = [c for c in gathers if c.word.phase == "forward"]
        gathered = {unit: _growth([c for c in forward or gathers if layer_of(c.place) == unit]) for unit in change}
        if forward:  # as often per element as in the whole step: once, or once per micro-batch
            often = _elements(forward) / max(sum(ours.values()), 1)
        else:  # a source without phases counts the gathers of backward too, which not every layer has
            often = sum(map(abs, gathered.values())) / max(sum(map(abs, reduced.values())), 1)
        if any(abs(gathered[unit] - often * reduced[unit]) > often * allowed for unit in change):
            return False
        if not often and any(abs(size) > allowed for size in reduced.values()):
            return False
    return True


def _growth(cells: list[Cell]) -> float:
    """Elements more after than before."""
    return _elements([c.flipped() for c in cells]) - _elements(cells)


def _over(reductions: list[Reduction], reach: int) -> float:
    return sum(r.elements for r in reductions if r.reach >= reach)


def _expected(reductions: list[Reduction], gained: Vanished | None) -> list[Reduction]:
    """What must remain of ``reductions`` where an expert axis was gained: a rank then holds 1/n of the experts and
    shares them with 1/n of the ranks, perhaps with none, and then there is nothing to reduce."""
    if gained is None:
        return reductions
    kept = []
    for r in reductions:
        if not gained.contains(r.modules):
            kept.append(r)
        elif r.reach > gained.ranks:
            kept.append(Reduction(r.elements / gained.ranks, r.reach // gained.ranks, 0, r.groups, r.modules))
    return kept


def _reductions(view: View, unit: str) -> list[Reduction]:
    """The gradient reductions of one layer before, steps that work on the same elements chained."""
    places: dict[str, dict[tuple[bool, str, int], list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for c in view.units[unit]:
        if c.before.bytes and _reduces_gradients(view, c):
            places[c.place][c.word.kind == "all_reduce", c.word.axis, c.word.group_size].append(c)
    found: list[Reduction] = []
    for steps in places.values():
        # Reduce-scatters first, the largest first: the all-reduce of HSDP follows on what they leave.
        ordered = sorted(steps.items(), key=lambda step: (step[0][0], -_elements(step[1]), step[0]))
        chains: list[Reduction] = []
        for (whole, axis, ranks), cells in ordered:
            elements, modules = _elements(cells), frozenset().union(*(c.issuers_before for c in cells))
            chain = next((c for c in chains if _continues(c, elements, (axis, ranks))), None)
            if chain is None:
                chain = Reduction(elements, 1, elements, set(), modules)
                chains.append(chain)
            chain.reach *= ranks
            chain.groups.add((axis, ranks))
            chain.left /= 1 if whole else ranks
        found += chains
    return found


def _continues(chain: Reduction, elements: float, group: tuple[str, int]) -> bool:
    return group not in chain.groups and abs(chain.left - elements) <= PADDING * elements


def _elements(cells: list[Cell]) -> float:
    return sum(volumes([c])[0].bytes / (width(c.word.dtype) or ASSUMED_WIDTH) for c in cells)
