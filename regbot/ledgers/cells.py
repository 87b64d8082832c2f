"""Two ledgers as one table of cells. Pattern detectors search this table and claim the cells that they explain.

A cell is one signature (kind, axis, group size, dtype, phase, role) at one place, with its volume before and after. A
place is usually a module path. Where modules were renamed, a place is a whole layer or the whole model. A *unit* is a
layer, or a module outside of the layers.

A cell is open if two things hold: the total of its signature changed in its unit, and no pattern has claimed the cell
yet. Open cells that no pattern claims become generic findings. So a module that was renamed inside its layer is not a
finding, but a reduction that moved to another layer is one. All renamed units together are compared as one unit.

A ``View`` shows the table in one direction. Detectors are written for "before -> after" and run on the views of both
directions. So if base and head are swapped, the findings are exactly the inverse patterns.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.rows import find_unit, sum_entries, template
from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume

ACTIVATION_BYTES = 16 * 1024
"""A sum in forward with at least this many bytes per call counts as activations. Smaller sums are losses and
counters.
"""

EXPERT_AXIS = "ep"
_SEQUENCE_AXES = {"cp", "sp", "tp", "ulysses"}
"""Axes on which an all-to-all exchanges attention heads or parts of sequences. An all-to-all on these axes never
carries tokens to experts.
"""


class Signature(NamedTuple):
    """Properties of a collective except the module that issues it. Collectives with equal signatures are compared."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role

    @property
    def group(self) -> tuple[str, int]:
        """Axis and size of the process group."""
        return self.axis, self.group_size


CellKey = tuple[str, Signature]


@dataclass(frozen=True)
class Cell:
    """One signature at one place, with its volume on each side. ``issuers_before`` and ``issuers_after`` are the module
    paths in the ledgers.
    """

    place: str
    signature: Signature
    before: Volume
    after: Volume
    issuers_before: frozenset[str]
    issuers_after: frozenset[str]

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
        )


@dataclass(frozen=True)
class Claim:
    """Cells that one pattern explains. Claims with the same ``pattern`` and ``group`` become one finding.

    ``changed_modules`` are the modules that changed. ``population`` are all modules that could have changed in this
    way. ``detail`` is inserted into the finding's text.
    """

    pattern: str
    group: tuple[str, ...]
    axes: frozenset[str]
    cells: tuple[Cell, ...]
    changed_modules: frozenset[str]
    population: frozenset[str] = frozenset()
    detail: str = ""
    noun: str = "MoE layer"
    """What the finding's text calls the items of ``changed_modules`` and ``population`` when it counts them."""


class View:
    """The table of cells in one direction. The views of both directions share ``open_keys`` and ``claimed``.

    ``is_compiled`` says whether the ledgers are of compiled programs.
    """

    def __init__(
        self, cells: Iterable[Cell], open_keys: set[CellKey], claimed: set[CellKey], is_compiled: bool = False
    ) -> None:
        self.cells = sorted(cells, key=lambda cell: cell.key)
        self.open_keys, self.claimed, self.is_compiled = open_keys, claimed, is_compiled
        self.units: dict[str, list[Cell]] = defaultdict(list)
        for cell in self.cells:
            self.units[find_unit(cell.place)].append(cell)

    @cached_property
    def reverse(self) -> "View":
        """The same table in the other direction: before and after are swapped."""
        reversed_view = View((cell.flip() for cell in self.cells), self.open_keys, self.claimed, self.is_compiled)
        reversed_view.__dict__["reverse"] = self
        return reversed_view

    @cached_property
    def expert_axes(self) -> frozenset[str]:
        """Axes that carry tokens to experts.

        These are the axes that are named after the expert axis, and the axes with an all-to-all of payload in one of
        the ledgers, except sequence axes.
        """
        axes = {cell.signature.axis for cell in self.cells}
        exchanging_axes = {
            cell.signature.axis for cell in self.cells if cell.signature.kind == "all_to_all" and is_payload(cell)
        }
        return frozenset(
            axis for axis in axes if _is_expert_axis(axis) or (axis in exchanging_axes and not _is_sequence_axis(axis))
        )

    @cached_property
    def _activation_places(self) -> frozenset[tuple[str, str]]:
        return frozenset((cell.signature.axis, template(cell.place)) for cell in self.cells if _sums_activations(cell))

    def is_open(self, cell: Cell) -> bool:
        return cell.key in self.open_keys

    def open_cells(self, unit_name: str) -> list[Cell]:
        """Return the open cells of the unit ``unit_name``."""
        return [cell for cell in self.units[unit_name] if self.is_open(cell)]

    def moves_activations(self, cell: Cell) -> bool:
        """Whether the module that issues ``cell`` exchanges activations on the cell's axis.

        If it does, the module's sums in backward are not sums of gradients, and its gathers are not gathers of
        parameters.
        """
        return (cell.signature.axis, template(cell.place)) in self._activation_places

    def claim(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            keys = {cell.key for cell in claim.cells}
            self.open_keys -= keys
            self.claimed |= keys


def build_view(base: Ledger, head: Ledger) -> View:
    """Return the table of both ledgers in the direction from base to head."""
    find_place, find_axis = _align_places(base, head), _align_axes(base, head)
    groups: dict[CellKey, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):
        for entry in ledger.entries:
            signature = Signature(
                entry.kind,
                find_axis(entry.axis, entry.group_size),
                entry.group_size,
                entry.dtype,
                entry.phase,
                entry.role,
            )
            groups[find_place(entry.where), signature][side].append(entry)
    cells = [
        Cell(
            place=place,
            signature=signature,
            before=sum_entries(base_entries),
            after=sum_entries(head_entries),
            issuers_before=frozenset(entry.where for entry in base_entries),
            issuers_after=frozenset(entry.where for entry in head_entries),
        )
        for (place, signature), (base_entries, head_entries) in groups.items()
    ]
    is_compiled = any(entry.via == "xla" for ledger in (base, head) for entry in ledger.entries)
    changed_signatures = _find_changed_signatures(cells, (lambda _: "") if is_compiled else find_unit)
    open_keys = {
        cell.key
        for cell in cells
        if cell.changed and ("" if is_compiled else find_unit(cell.place), cell.signature) in changed_signatures
    }
    return View(cells, open_keys, set(), is_compiled)


def is_payload(cell: Cell) -> bool:
    return cell.signature.role == "payload"


def sum_volumes(cells: Iterable[Cell]) -> tuple[Volume, Volume]:
    """Return the total volume of ``cells`` before and after."""
    cell_list = list(cells)
    return (
        Volume(count=sum(cell.before.count for cell in cell_list), bytes=sum(cell.before.bytes for cell in cell_list)),
        Volume(count=sum(cell.after.count for cell in cell_list), bytes=sum(cell.after.bytes for cell in cell_list)),
    )


def moves_tokens(entry: Entry) -> bool:
    """Whether ``entry`` by itself proves that tokens travel to experts.

    The entry must be payload, and one of these must hold: its axis has the name of the expert axis, or it exchanges
    activations on an axis that is not a sequence axis. FSDP traffic of expert parameters meets neither condition.
    """
    if entry.role != "payload":
        return False
    exchanges_activations = _exchanges_activations(entry.kind, entry.phase, entry.bytes / entry.count)
    return _is_expert_axis(entry.axis) or (exchanges_activations and not _is_sequence_axis(entry.axis))


def _sums_activations(cell: Cell) -> bool:
    call_bytes = max(volume.bytes / max(volume.count, 1) for volume in (cell.before, cell.after))
    return is_payload(cell) and _exchanges_activations(cell.signature.kind, cell.signature.phase, call_bytes)


def _exchanges_activations(kind: Kind, phase: Phase, call_bytes: float) -> bool:
    """Whether a collective carries activations.

    Parameters and gradients never use an all-to-all, or a sum in forward. So these collectives carry activations,
    except small all-reduces in forward, which are losses and counters.
    """
    if kind == "all_to_all" or (kind == "reduce_scatter" and phase == "forward"):
        return True
    return kind == "all_reduce" and phase == "forward" and call_bytes >= ACTIVATION_BYTES


def _is_expert_axis(axis: str) -> bool:
    return EXPERT_AXIS in _split_axis_label(axis)


def _is_sequence_axis(axis: str) -> bool:
    return _split_axis_label(axis) <= _SEQUENCE_AXES


def _split_axis_label(label: str) -> set[str]:
    """Return the axis names in a label. 'ep|dp' stands for one of the two axes, and 'fsdp+ep' spans both."""
    return set(label.replace("+", "|").split("|"))


def _find_changed_signatures(cells: Iterable[Cell], find_unit: Callable[[str], str]) -> set[tuple[str, Signature]]:
    """Return each pair of unit and signature whose total volume differs between before and after.

    For a compiled program, the caller treats the whole program as one unit. The reason is that a combiner merges the
    collectives of many ops into one, and names the result after any one of these ops.
    """
    cells_by_key: dict[tuple[str, Signature], list[Cell]] = defaultdict(list)
    for cell in cells:
        cells_by_key[find_unit(cell.place), cell.signature].append(cell)
    return {key for key, unit_cells in cells_by_key.items() if len(set(sum_volumes(unit_cells))) > 1}


def _align_places(base: Ledger, head: Ledger) -> Callable[[str], str]:
    """Return a function from a module path to its place: the module itself, its layer, or '' for the whole model.

    If each ledger has modules that the other lacks, they may have been renamed. Such modules are compared by layer, or
    as the whole model if the layers were renamed too. If only one ledger has extra modules, no module was renamed.
    """
    base_modules, head_modules = ({entry.where for entry in ledger.entries} for ledger in (base, head))
    base_units, head_units = (
        {find_unit(module_path) for module_path in base_modules},
        {find_unit(module_path) for module_path in head_modules},
    )
    modules_renamed = bool(base_modules - head_modules and head_modules - base_modules)
    units_renamed = bool(base_units - head_units and head_units - base_units)

    def find_place(module: str) -> str:
        if not modules_renamed or (module in base_modules and module in head_modules):
            return module
        layer = find_unit(module)
        return layer if not units_renamed or (layer in base_units and layer in head_units) else ""

    return find_place


def _align_axes(base: Ledger, head: Ledger) -> Callable[[str, int], str]:
    """Return a function from an axis label and group size to the label under which both ledgers are compared.

    The label 'ep|dp' means that a group could belong to either axis. If only one ledger uses this label, groups of the
    same size with the label 'ep' or 'dp' in the other ledger also get the label 'ep|dp'. So a difference in labels
    alone is never reported as a move.
    """
    base_groups, head_groups = ({(entry.axis, entry.group_size) for entry in ledger.entries} for ledger in (base, head))
    joint_labels = {
        (part, size): axis
        for axis, size in sorted(base_groups ^ head_groups)
        if "|" in axis
        for part in axis.split("|")
    }
    return lambda axis, size: joint_labels.get((axis, size), axis)
