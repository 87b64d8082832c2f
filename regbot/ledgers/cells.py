"""Two ledgers as one table of cells, module by module, in which patterns are looked for and rows are claimed.

A cell is one word (kind, axis, group size, dtype, phase, role) at one place, with its volume before and after. Patterns
claim the cells they explain; what nobody claims stays open and ends in a generic finding. Only words whose total over
their *unit* (a layer, or what is outside of layers) changed are ever open: a module that was renamed inside its layer
is no finding, a reduction that another layer issues is one. Units that were renamed themselves are compared together.

A ``View`` looks at the table in one direction. Detectors are written once, for "before -> after", and run on both
views; that swapping base and head yields exactly the inverse patterns is then a property of the construction.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.rows import template, total, unit
from regbot.records.ledger import Entry, Kind, Ledger, Phase, Role
from regbot.records.verdict import Volume

ACTIVATION_BYTES = 16 * 1024
"""A forward sum of at least this many bytes a call is of activations; below it are losses and counters."""

EXPERT_AXIS = "ep"
_SEQUENCE_AXES = {"cp", "sp", "tp", "ulysses"}
"""Axes whose all-to-all exchanges attention heads or sequence pieces, never tokens for experts."""


class Word(NamedTuple):
    """What makes two collectives the same, apart from the module that issues them."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role


Key = tuple[str, Word]


@dataclass(frozen=True)
class Cell:
    """One word at one place. ``issuers_*`` are the module paths as the ledgers name them."""

    place: str
    word: Word
    before: Volume
    after: Volume
    issuers_before: frozenset[str]
    issuers_after: frozenset[str]

    @property
    def key(self) -> Key:
        return self.place, self.word

    @property
    def issuers(self) -> frozenset[str]:
        return self.issuers_before | self.issuers_after

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def grows(self) -> bool:
        """More bytes, or more calls for the same bytes."""
        return (self.after.bytes, self.after.count) > (self.before.bytes, self.before.count)

    @property
    def shrinks(self) -> bool:
        return self.changed and not self.grows

    def flipped(self) -> "Cell":
        return replace(
            self,
            before=self.after,
            after=self.before,
            issuers_before=self.issuers_after,
            issuers_after=self.issuers_before,
        )


@dataclass(frozen=True)
class Claim:
    """Cells that one pattern explains. Claims of one pattern and ``group`` become one finding.

    ``hit`` are the modules that changed, ``population`` all modules that could have; ``detail`` is for the wording.
    """

    pattern: str
    group: tuple[str, ...]
    axes: frozenset[str]
    cells: tuple[Cell, ...]
    hit: frozenset[str]
    population: frozenset[str] = frozenset()
    detail: str = ""
    noun: str = "MoE layer"
    """What ``hit`` and ``population`` are counted in."""


class View:
    """The table in one direction. ``open`` and ``claimed`` are shared by both directions."""

    def __init__(self, cells: Iterable[Cell], open_keys: set[Key], claimed: set[Key], compiled: bool = False) -> None:
        self.cells = sorted(cells, key=lambda cell: cell.key)
        self.open_keys, self.claimed, self.compiled = open_keys, claimed, compiled
        self.units: dict[str, list[Cell]] = defaultdict(list)
        for cell in self.cells:
            self.units[unit(cell.place)].append(cell)

    @cached_property
    def reverse(self) -> "View":
        """The same table seen from head to base."""
        other = View((cell.flipped() for cell in self.cells), self.open_keys, self.claimed, self.compiled)
        other.__dict__["reverse"] = self
        return other

    @cached_property
    def expert_axes(self) -> frozenset[str]:
        """Axes that carry tokens to experts: by an all-to-all in either ledger, or by their name."""
        names = {cell.word.axis for cell in self.cells}
        exchanging = {cell.word.axis for cell in self.cells if cell.word.kind == "all_to_all" and is_payload(cell)}
        return frozenset(
            axis for axis in names if _names_experts(axis) or (axis in exchanging and not _is_of_sequences(axis))
        )

    @cached_property
    def _activation_places(self) -> frozenset[tuple[str, str]]:
        return frozenset((c.word.axis, template(c.place)) for c in self.cells if _sums_activations(c))

    def is_open(self, cell: Cell) -> bool:
        return cell.key in self.open_keys

    def opened(self, unit_name: str) -> list[Cell]:
        """The cells of one unit that changed and that nothing explains yet."""
        return [cell for cell in self.units[unit_name] if self.is_open(cell)]

    def moves_activations(self, cell: Cell) -> bool:
        """Whether the issuing module exchanges activations on this axis; then its sums in backward are no gradients
        of parameters, and its gathers no parameters."""
        return (cell.word.axis, template(cell.place)) in self._activation_places

    def claim(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            keys = {cell.key for cell in claim.cells}
            self.open_keys -= keys
            self.claimed |= keys


def compare(base: Ledger, head: Ledger) -> View:
    """Both ledgers as a table, seen from base to head."""
    place, axis = _aligned_places(base, head), _aligned_axes(base, head)
    groups: dict[Key, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, ledger in enumerate((base, head)):
        for e in ledger.entries:
            word = Word(e.kind, axis(e.axis, e.group_size), e.group_size, e.dtype, e.phase, e.role)
            groups[place(e.where), word][side].append(e)
    cells = [
        Cell(
            place=where,
            word=word,
            before=total(ours),
            after=total(theirs),
            issuers_before=frozenset(e.where for e in ours),
            issuers_after=frozenset(e.where for e in theirs),
        )
        for (where, word), (ours, theirs) in groups.items()
    ]
    compiled = any(e.via == "xla" for ledger in (base, head) for e in ledger.entries)
    changed = _changed_in_their_unit(cells, (lambda _: "") if compiled else unit)
    opened = {
        cell.key for cell in cells if cell.changed and ("" if compiled else unit(cell.place), cell.word) in changed
    }
    return View(cells, opened, set(), compiled)


def is_payload(cell: Cell) -> bool:
    return cell.word.role == "payload"


def volumes(cells: Iterable[Cell]) -> tuple[Volume, Volume]:
    """Volume before and after of all ``cells`` together."""
    chosen = list(cells)
    return (
        Volume(count=sum(c.before.count for c in chosen), bytes=sum(c.before.bytes for c in chosen)),
        Volume(count=sum(c.after.count for c in chosen), bytes=sum(c.after.bytes for c in chosen)),
    )


def moves_tokens(entry: Entry) -> bool:
    """Whether ``entry`` alone shows that tokens travel to experts: payload on an axis that names them, or an exchange
    of activations on one that is not of sequences. FSDP around the experts is neither."""
    if entry.role != "payload":
        return False
    exchange = _exchanges_activations(entry.kind, entry.phase, entry.bytes / entry.count)
    return _names_experts(entry.axis) or (exchange and not _is_of_sequences(entry.axis))


def _sums_activations(cell: Cell) -> bool:
    largest = max(volume.bytes / max(volume.count, 1) for volume in (cell.before, cell.after))
    return is_payload(cell) and _exchanges_activations(cell.word.kind, cell.word.phase, largest)


def _exchanges_activations(kind: Kind, phase: Phase, call_bytes: float) -> bool:
    """Parameters and gradients are never exchanged all-to-all, and never summed in forward."""
    if kind == "all_to_all" or (kind == "reduce_scatter" and phase == "forward"):
        return True
    return kind == "all_reduce" and phase == "forward" and call_bytes >= ACTIVATION_BYTES


def _names_experts(axis: str) -> bool:
    return EXPERT_AXIS in _axes(axis)


def _is_of_sequences(axis: str) -> bool:
    return _axes(axis) <= _SEQUENCE_AXES


def _axes(label: str) -> set[str]:
    """The axes in a label: 'ep|dp' is one of the two, 'fsdp+ep' spans both."""
    return set(label.replace("+", "|").split("|"))


def _changed_in_their_unit(cells: Iterable[Cell], unit_of: Callable[[str], str]) -> set[tuple[str, Word]]:
    """Unit and word of everything that is not the same before and after. In a compiled program the unit is all of it:
    a combiner merges collectives of many ops into one, and gives it the name of any."""
    words: dict[tuple[str, Word], list[Cell]] = defaultdict(list)
    for cell in cells:
        words[unit_of(cell.place), cell.word].append(cell)
    return {key for key, theirs in words.items() if len(set(volumes(theirs))) > 1}


def _aligned_places(base: Ledger, head: Ledger) -> Callable[[str], str]:
    """Module path -> the place it is compared at.

    Where each side has modules that the other lacks, they may be the same ones under new names: such modules are
    compared by their layer, and layers that were renamed as well by the whole model. Where only one side has more,
    nothing was renamed.
    """
    ours, theirs = ({e.where for e in ledger.entries} for ledger in (base, head))
    our_units, their_units = {unit(w) for w in ours}, {unit(w) for w in theirs}
    modules_renamed = bool(ours - theirs and theirs - ours)
    units_renamed = bool(our_units - their_units and their_units - our_units)

    def place(where: str) -> str:
        if not modules_renamed or (where in ours and where in theirs):
            return where
        layer = unit(where)
        return layer if not units_renamed or (layer in our_units and layer in their_units) else ""

    return place


def _aligned_axes(base: Ledger, head: Ledger) -> Callable[[str, int], str]:
    """Axis label -> the label it is compared under.

    'ep|dp' is a group that could be either axis. Where only one ledger has such a label, the other's 'ep' and 'dp' of
    that size are taken for it, so that labelling is never read as a move.
    """
    ours, theirs = ({(e.axis, e.group_size) for e in ledger.entries} for ledger in (base, head))
    joint = {(part, size): axis for axis, size in sorted(ours ^ theirs) if "|" in axis for part in axis.split("|")}
    return lambda axis, size: joint.get((axis, size), axis)
