"""Two ledgers as one table of cells. Pattern detectors search this table and claim the cells that they explain.

A cell is one signature (kind, axis, group size, dtype, phase, role) at one place, with its volume before and after. A
place is usually a module path. Where modules were renamed, a place is a whole layer or the whole model. A *unit* is a
layer, or a module outside of the layers.

A cell is open if two things hold: the total of its signature changed in its unit, and no pattern has claimed the cell
yet. Open cells that no pattern claims become generic findings. So a module that was renamed inside its layer is not a
finding, but a reduction that moved to another layer is one. All renamed units together are compared as one unit.

A ``View`` shows the table in one direction. In the direction from base to head, "before" is base and "after" is head.
Detectors are written for "before -> after" and run on the views of both directions. So if base and head are swapped,
the findings are exactly the inverse patterns."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from regbot.ledgers.rows import Signature, find_unit, sum_entries, template
from regbot.ledgers.source_lines import Calls, count_calls
from regbot.records.ledger import Entry, Kind, Ledger, Phase
from regbot.records.verdict import Volume

ACTIVATION_BYTES = 16 * 1024
"""A sum in forward with at least this many bytes per call counts as activations. Smaller sums are losses and
counters.
"""

EXPERT_AXIS = "ep"
_SEQUENCE_AXES = {"cp", "sp", "tp", "ulysses"}
"""Axes on which an all-to-all exchanges attention heads or parts of sequences. An all-to-all on these axes never
carries tokens to experts."""


CellKey = tuple[str, Signature]


@dataclass(frozen=True)
class Cell:
    """One signature at one place, with its calls and bytes before and after."""

    place: str
    """The module path, or a layer or '' (the whole model) where modules were renamed."""
    signature: Signature
    before: Volume
    after: Volume
    issuers_before: frozenset[str]
    """Module paths that issue these collectives in the ledger that ``before`` comes from."""
    issuers_after: frozenset[str]
    calls_before: Calls
    """Calls by source line in the ledger that ``before`` comes from."""
    calls_after: Calls

    @property
    def key(self) -> CellKey:
        return self.place, self.signature

    @property
    def issuers(self) -> frozenset[str]:
        return self.issuers_before | self.issuers_after

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def grows(self) -> bool:
        """Whether the bytes rise, or the bytes are equal and the calls rise."""
        return (self.after.bytes, self.after.count) > (self.before.bytes, self.before.count)

    @property
    def shrinks(self) -> bool:
        return self.changed and not self.grows

    def flip(self) -> "Cell":
        return replace(
            self,
            before=self.after,
            after=self.before,
            issuers_before=self.issuers_after,
            issuers_after=self.issuers_before,
            calls_before=self.calls_after,
            calls_after=self.calls_before,
        )


@dataclass(frozen=True)
class Claim:
    """Cells that one pattern explains, usually of one unit. Claims with the same ``pattern`` and ``merge_key`` become
    one finding."""

    pattern: str
    merge_key: tuple[str, ...]
    """What distinguishes the findings of one pattern, such as the axis: ``("ep",)``. It is () if the pattern has at
    most one finding."""
    axes: frozenset[str]
    cells: tuple[Cell, ...]
    changed_modules: frozenset[str]
    population: frozenset[str] = frozenset()
    """All modules in which the pattern could occur, for texts such as '1 of 48 MoE layers'. It is empty if they are not
    known."""
    detail: str = ""
    """Words that the finding's text inserts, such as the axes of the replacement."""
    noun: str = "MoE layer"
    """What the finding's text calls the items of ``changed_modules`` and ``population`` when it counts them."""

    @classmethod
    def create(
        cls,
        pattern: str,
        cells: Iterable[Cell],
        merge_key: tuple[str, ...] = (),
        *,
        changed_modules: frozenset[str] | None = None,
        population: frozenset[str] = frozenset(),
        detail: str = "",
    ) -> "Claim":
        """Return a claim on all axes of ``cells``. By default, all modules that issue them have changed."""
        cells = tuple(cells)
        axes = frozenset(cell.signature.axis for cell in cells)
        modules = list_issuers(cells) if changed_modules is None else changed_modules
        return cls(pattern, merge_key, axes, cells, modules, population, detail)


class View:
    """The table of cells in one direction. ``open_keys`` has the keys of the open cells, and ``claimed_keys`` those of
    the cells that a pattern has claimed. The views of both directions share these two sets. ``is_compiled`` says
    whether the ledgers are of compiled programs."""

    def __init__(
        self, cells: Iterable[Cell], open_keys: set[CellKey], claimed_keys: set[CellKey], is_compiled: bool = False
    ) -> None:
        self.cells = sorted(cells, key=lambda cell: cell.key)
        self.open_keys, self.claimed_keys, self.is_compiled = open_keys, claimed_keys, is_compiled
        self.units: dict[str, list[Cell]] = defaultdict(list)  # cells by the name of their unit, such as 'layers.3'
        for cell in self.cells:
            self.units[find_unit(cell.place)].append(cell)

    @cached_property
    def reverse(self) -> "View":
        """The same table in the other direction: before and after are swapped."""
        flipped_cells = (cell.flip() for cell in self.cells)
        reversed_view = View(flipped_cells, self.open_keys, self.claimed_keys, self.is_compiled)
        reversed_view.__dict__["reverse"] = self  # fills the cache of its property ``reverse``
        return reversed_view

    @cached_property
    def expert_axes(self) -> frozenset[str]:
        """Axes that carry tokens to experts. There are two kinds: axes whose label contains 'ep', and axes with an
        all-to-all of payload in one of the ledgers. Sequence axes are never of the second kind."""
        axes = {cell.signature.axis for cell in self.cells}
        exchanges = [cell.signature for cell in self.cells if cell.signature.kind == "all_to_all" and is_payload(cell)]
        exchange_axes = {signature.axis for signature in exchanges}
        named_axes = {axis for axis in axes if _is_expert_axis(axis)}
        return frozenset(named_axes | {axis for axis in exchange_axes if not _is_sequence_axis(axis)})

    @cached_property
    def _activation_places(self) -> frozenset[tuple[str, str]]:
        """Pairs of an axis and a place template, in which a collective certainly carries activations. A template is a
        place with '*' in place of layer numbers."""
        places = set()
        for cell in filter(is_payload, self.cells):
            call_bytes = max(volume.bytes / max(volume.count, 1) for volume in (cell.before, cell.after))
            if _is_activation_collective(cell.signature.kind, cell.signature.phase, call_bytes):
                places.add((cell.signature.axis, template(cell.place)))
        return frozenset(places)

    @cached_property
    def phases_by_row(self) -> dict[tuple[str, str], set[Phase]]:
        """The phases of the collectives of each kind and axis."""
        phases: dict[tuple[str, str], set[Phase]] = defaultdict(set)
        for cell in self.cells:
            phases[cell.signature[:2]].add(cell.signature.phase)
        return phases

    def is_open(self, cell: Cell) -> bool:
        return cell.key in self.open_keys

    def open_cells(self, unit_name: str) -> list[Cell]:
        return [cell for cell in self.units[unit_name] if self.is_open(cell)]

    def moves_activations(self, cell: Cell) -> bool:
        """Whether the module that issues ``cell`` exchanges activations on the cell's axis. If it does, the module's
        reductions in backward do not reduce gradients, and its all-gathers do not gather parameters. Such a module
        dispatches tokens, or is parallel over sequences."""
        return (cell.signature.axis, template(cell.place)) in self._activation_places

    def claim(self, claims: Iterable[Claim]) -> None:
        """Mark the cells of ``claims`` as claimed, so that no later detector explains them again."""
        for claim in claims:
            keys = {cell.key for cell in claim.cells}
            self.open_keys -= keys
            self.claimed_keys |= keys


def build_view(base: Ledger, head: Ledger) -> View:
    """Return the table of both ledgers in the direction from base to head. ``entry.where`` is the path of the module
    that issued the collective. Modules and axes that differ only in name between the ledgers get a common name here."""
    find_place, find_axis = _align_places(base, head), _align_axes(base, head)
    entries_by_key: dict[CellKey, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):  # index 0 has the entries of base, index 1 those of head
        for entry in ledger.entries:
            signature = Signature.create(entry, find_axis(entry.axis, entry.group_size))
            entries_by_key[find_place(entry.where), signature][side].append(entry)
    cells = [
        Cell(
            place=place,
            signature=signature,
            before=sum_entries(base_entries),
            after=sum_entries(head_entries),
            issuers_before=frozenset(entry.where for entry in base_entries),
            issuers_after=frozenset(entry.where for entry in head_entries),
            calls_before=count_calls(base_entries),
            calls_after=count_calls(head_entries),
        )
        for (place, signature), (base_entries, head_entries) in entries_by_key.items()
    ]
    # The reader of compiled programs gives all entries the backend "xla".
    is_compiled = any(entry.via == "xla" for entry in (*base.entries, *head.entries))
    return View(cells, _find_open_keys(cells, is_compiled), claimed_keys=set(), is_compiled=is_compiled)


def is_payload(cell: Cell) -> bool:
    return cell.signature.role == "payload"


def list_issuers(cells: Iterable[Cell]) -> frozenset[str]:
    return frozenset().union(*(cell.issuers for cell in cells))


def sum_volumes(cells: Iterable[Cell]) -> tuple[Volume, Volume]:
    cell_list = list(cells)
    return sum_entries(cell.before for cell in cell_list), sum_entries(cell.after for cell in cell_list)


def sum_growth(cells: Iterable[Cell]) -> Volume:
    """Return the total after minus the total before. Both numbers can be negative."""
    before, after = sum_volumes(cells)
    return Volume(count=after.count - before.count, bytes=after.bytes - before.bytes)


def has_equal_totals(cells: Iterable[Cell]) -> bool:
    growth = sum_growth(cells)
    return not growth.count and not growth.bytes


def moves_tokens(entry: Entry) -> bool:
    """Whether ``entry`` by itself proves that tokens travel to experts. Two kinds of payload prove it: payload on an
    axis whose label contains 'ep', and payload that carries activations on any axis except a sequence axis. FSDP
    traffic of expert parameters is of neither kind."""
    if entry.role != "payload":
        return False
    is_activation = _is_activation_collective(entry.kind, entry.phase, entry.bytes / entry.count)
    return _is_expert_axis(entry.axis) or (is_activation and not _is_sequence_axis(entry.axis))


def _is_activation_collective(kind: Kind, phase: Phase, call_bytes: float) -> bool:
    """Whether a payload collective of this kind, phase and size per call certainly carries activations. Parameters and
    gradients never use an all-to-all, and they are never reduced in forward. So an all-to-all and a reduction in
    forward carry activations. Small all-reduces in forward are losses and counters instead."""
    if kind == "all_to_all":
        return True
    if phase != "forward":
        return False
    return kind == "reduce_scatter" or (kind == "all_reduce" and call_bytes >= ACTIVATION_BYTES)


def _is_expert_axis(axis: str) -> bool:
    return EXPERT_AXIS in _split_axis_label(axis)


def _is_sequence_axis(axis: str) -> bool:
    """Whether every axis that the label names is a sequence axis. For example, 'cp+tp' is one, and 'tp|ep' is not."""
    return _split_axis_label(axis) <= _SEQUENCE_AXES


def _split_axis_label(label: str) -> set[str]:
    """Return the axis names in a label. 'ep|dp' stands for one of the two axes, and 'fsdp+ep' spans both."""
    return set(label.replace("+", "|").split("|"))


def _find_open_keys(cells: Iterable[Cell], is_compiled: bool) -> set[CellKey]:
    """Return the keys of the changed cells that are open at first: the total of their signature in their unit changed.
    In a compiled program, the whole program is one unit. The reason is that a combiner merges the collectives of many
    ops into one, and names the result after any one of these ops."""
    cells_by_unit: dict[tuple[str, Signature], list[Cell]] = defaultdict(list)
    for cell in cells:
        unit = "" if is_compiled else find_unit(cell.place)
        cells_by_unit[unit, cell.signature].append(cell)
    open_keys: set[CellKey] = set()
    for unit_cells in cells_by_unit.values():
        if not has_equal_totals(unit_cells):
            open_keys |= {cell.key for cell in unit_cells if cell.changed}
    return open_keys


def _align_places(base: Ledger, head: Ledger) -> Callable[[str], str]:
    """Return a function from a module path to its place: the module itself, its layer, or '' for the whole model. If
    each ledger has modules that the other lacks, they may have been renamed. Such modules are compared by layer, or as
    the whole model if the layers were renamed too. If only one ledger has extra modules, no module was renamed."""
    base_modules, head_modules = ({entry.where for entry in ledger.entries} for ledger in (base, head))
    base_units = {find_unit(module) for module in base_modules}
    head_units = {find_unit(module) for module in head_modules}
    modules_renamed = bool(base_modules - head_modules and head_modules - base_modules)
    units_renamed = bool(base_units - head_units and head_units - base_units)
    common_modules, common_units = base_modules & head_modules, base_units & head_units

    def find_place(module: str) -> str:
        if not modules_renamed or module in common_modules:
            return module
        unit = find_unit(module)
        if not units_renamed or unit in common_units:
            return unit
        return ""

    return find_place


def _align_axes(base: Ledger, head: Ledger) -> Callable[[str, int], str]:
    """Return a function from an axis label and group size to the label under which both ledgers are compared. The label
    'ep|dp' means that a group could belong to either axis. If only one ledger uses this label, groups of the same size
    with the label 'ep' or 'dp' in the other ledger also get the label 'ep|dp'. So a difference in labels alone is never
    reported as a move."""
    base_groups, head_groups = ({(entry.axis, entry.group_size) for entry in ledger.entries} for ledger in (base, head))
    joint_labels: dict[tuple[str, int], str] = {}
    for label, size in sorted(base_groups ^ head_groups):  # groups that only one of the ledgers has
        if "|" in label:
            joint_labels |= {(axis, size): label for axis in label.split("|")}
    return lambda axis, size: joint_labels.get((axis, size), axis)
