"""Reader of XLA optimized HLO text: the collectives that one execution of a compiled program issues on each device.

One execution of the program counts as one step. The counts are exact for the compiled program: ``count`` is the number
of executions, including repetitions in loops, and ``static_count`` is the number of lines. HLO text contains no times.
A compiled program is complete, so a program without collectives gives an empty ledger. (In a trace, no collectives mean
that nothing was recorded.) A text that XLA dumped before its passes is refused, because the partitioner inserts the
collectives later. ``guesses`` lists what the counts assume: the trip count of a loop, the branch of a conditional, the
size of a ragged exchange, or a group without device 0.

Tested with jax 0.10 and 0.12 on CPU, and with the ahead-of-time targets of these versions for GPU (H100) and TPU (v6e).

The work is divided among modules. ``hlo_text`` parses the text, ``hlo_collectives`` reads one instruction, and
``hlo_groups`` reads the devices of an instruction. ``hlo_program`` counts the executions of computations, and
``hlo_fingerprint`` identifies equal programs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from regbot.ledgers.readers.hlo_collectives import HloCollective, UnknownInstruction, find_module, find_phase
from regbot.ledgers.readers.hlo_fingerprint import ProgramFingerprint
from regbot.ledgers.readers.hlo_groups import BadGroup, Devices, ReplicaGroup, ReplicaGroups, format_group
from regbot.ledgers.readers.hlo_program import BrokenProgram, ExecutionCounts, Program
from regbot.ledgers.readers.hlo_text import BadShape, Header, read_module
from regbot.ledgers.readers.source import ReadError, Source
from regbot.ledgers.readers.tally import check_limits
from regbot.records.ledger import Axis, Entry, Ledger, UnclassifiedCommunication
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable
from regbot.records.text.words import count, listed

NAME = "hlo"
TITLE = "XLA optimized HLO text"

MAX_UNCLASSIFIED = 1000
MAX_NAMES = 3
"""Largest number of loops, conditionals or unknown operations that one message names."""

_MODULE_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?://[^\n]*\n\s*)*(?:HloModule [^\s,]|module (?:@|\{|attributes))")
_TPU_LAYOUT = re.compile(r"\{[0-9,]*:T\(")
"""A tiled layout, which only programs for TPU have."""
_GPU_MARKS = ("fingerprint_before_lhs", "operation_queue_id", "collective_backend_config", "__cublas", "__triton")
"""Words that only programs for GPU contain."""
_BEFORE_PARTITIONING = re.compile(
    r'custom_call_target="(?:Sharding|SPMD|xla\.sdy)|xla\.sdy\.|(?<!parameter)\([^(]*\), sharding=\{'
)
"""Sharding annotations that the partitioner removes. Parameters keep them."""
_BEFORE_PASSES = "before XLA's passes, which insert the collectives; give the *after_optimizations.txt of the dump"


def recognises(head: bytes) -> bool:
    return _MODULE_START.match(head) is not None


def read(source: Source) -> Ledger:
    """Return the ledger of the HLO module in ``source``. Raises ReadError. ``header.is_scheduled`` says whether XLA has
    run all its passes."""
    header, bodies = read_module(source)
    devices = Devices(header.replica_count, header.num_partitions)
    fingerprint = ProgramFingerprint(header.text)
    program = Program(ReplicaGroups(devices, source))
    platform = "hlo:tpu" if _TPU_LAYOUT.search(header.text) else _find_gpu_platform(header.text)  # '' if unknown
    entry_name = ""  # name of the ENTRY computation
    for body in bodies:
        try:
            program.add(body)
        except (BadShape, BadGroup, BrokenProgram) as error:
            raise source.error(f"{clip(body.name, 100)}: {error}; no count was made, please report it") from error
        if not header.is_scheduled and _BEFORE_PARTITIONING.search(body.text):
            raise source.error(f"is HLO from {_BEFORE_PASSES}")
        fingerprint.add(body.name, body.is_entry, body.text)
        if body.is_entry:  # the program starts with this computation
            entry_name, platform = body.name, platform or _find_gpu_platform(body.text)
    try:
        counts = program.count_executions(entry_name)
    except BrokenProgram as error:
        raise source.error(f"is broken: {error}; dump or copy it again") from error
    counted = _CountedCollectives.collect(source, program, counts)
    if not header.is_scheduled and not counted.collectives:
        raise source.error(f"has no collectives, and may be from {_BEFORE_PASSES}")
    # Axis labels by the ``id`` of the group objects.
    labels = _label_groups(collective.group for collective, _ in counted.collectives)
    return Ledger(
        source=platform or "hlo:cpu",
        scope="step",
        steps=1,
        world_size=devices.total,
        axes=_build_axes((collective.group for collective, _ in counted.collectives), labels),
        entries=_sum_entries(source, counted.collectives, labels),
        program=fingerprint.hexdigest(),
        unclassified=counted.unclassified,
        guesses=[*_list_guesses(counts, counted)],
        warnings=[*_list_warnings(header, devices, counted)],
    )


def _build_axes(groups: Iterable[ReplicaGroup], labels: Mapping[int, str]) -> dict[str, Axis]:
    """Return the axes of the ledger. ``labels`` is the result of ``_label_groups``."""
    distinct_groups = {id(group): group for group in groups}
    return {
        labels[group_id]: Axis(size=len(group.ranks), ranks=list(group.ranks))
        for group_id, group in distinct_groups.items()
    }


def _find_gpu_platform(text: str) -> str:
    """Return 'hlo:gpu' if the text is of a program for GPU, else ''."""
    return "hlo:gpu" if any(mark in text for mark in _GPU_MARKS) else ""


class _CountedCollectives(NamedTuple):
    """The program's collectives, counted and not counted."""

    collectives: list[tuple[HloCollective, int]]
    """Each counted collective with its number of executions."""
    unclassified: list[UnclassifiedCommunication]
    single_device: int
    """Number of collectives in groups of one device. They are not counted."""
    unreachable: int
    """Number of collectives in computations that the program never calls. They are not counted."""

    @classmethod
    def collect(cls, source: Source, program: Program, counts: ExecutionCounts) -> "_CountedCollectives":
        """Return the collectives of ``program``. Those in a called computation that runs 0 times are left out.

        Raises ReadError if the program has too many kinds of unknown communication.
        """
        collectives: list[tuple[HloCollective, int]] = []
        unknown_counts: dict[str, int] = defaultdict(int)
        single_device = unreachable = 0
        for computation in program.computations.values():
            is_called = computation.name in counts.executions  # a called computation can still run 0 times
            executions = counts.executions.get(computation.name, 0)
            for communication in computation.communications:
                if isinstance(communication, UnknownInstruction):
                    unknown_counts[clip_label(printable(communication.name))] += executions
                elif len(communication.group.ranks) < 2:
                    single_device += 1
                elif not is_called:
                    unreachable += 1
                elif executions:
                    collectives.append((communication, executions))
        if len(unknown_counts) > MAX_UNCLASSIFIED:
            raise source.error(f"has more than {MAX_UNCLASSIFIED} kinds of unknown communication; is it an HLO dump?")
        unclassified = [
            UnclassifiedCommunication(name=name, count=count) for name, count in sorted(unknown_counts.items()) if count
        ]
        return cls(collectives, unclassified, single_device, unreachable)


def _label_groups(groups: Iterable[ReplicaGroup]) -> dict[int, str]:
    """Return an axis label for each group: the axis names that the program gives to the group's devices, or else the
    devices.

    If the program uses a name for groups of different devices, the devices are added to the name. For example,
    'expert[0-3]' and 'expert[0-7]' are two axes. The keys of the result are the ``id`` of the group objects, because
    equal groups are the same object, and hashing a tuple of thousands of devices is slow.
    """
    distinct_groups = {id(group): group for group in groups}
    names_by_ranks: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for group in distinct_groups.values():
        names_by_ranks[group.ranks] |= {group.axis} - {""}
    name_uses = Counter(name for names in names_by_ranks.values() for name in names)

    def make_label(ranks: tuple[int, ...], names: set[str]) -> str:
        unique_names = [name if name_uses[name] == 1 else name + format_group(ranks) for name in names]
        return clip_label(printable("|".join(sorted(unique_names)) or format_group(ranks)))

    label_by_ranks = {ranks: make_label(ranks, names) for ranks, names in names_by_ranks.items()}
    return {group_id: label_by_ranks[group.ranks] for group_id, group in distinct_groups.items()}


@dataclass
class _EntrySum:
    """Sums over collectives that have everything in common except their bytes."""

    example: HloCollective
    """One of these collectives, for the properties of the entry."""
    executions: int = 0
    lines: int = 0
    """Number of lines of the program."""
    bytes: int = 0
    """Bytes of all executions."""


def _sum_entries(
    source: Source, collectives: Iterable[tuple[HloCollective, int]], labels: Mapping[int, str]
) -> list[Entry]:
    """Sum collectives with equal properties into entries, and return the entries in a fixed order.

    ``collectives`` has each collective with its number of executions. ``labels`` is the result of ``_label_groups``.
    """
    sums: dict[tuple[str, ...], _EntrySum] = {}
    for collective, executions in collectives:
        key = (
            collective.kind,
            labels[id(collective.group)],
            collective.dtype,
            find_phase(collective.op_name),
            collective.role,
            find_module(collective.op_name),
        )
        entry_sum = sums.setdefault(key, _EntrySum(collective))
        entry_sum.executions += executions
        entry_sum.lines += 1
        entry_sum.bytes += executions * collective.bytes
    largest = max((max(entry_sum.executions, entry_sum.bytes) for entry_sum in sums.values()), default=0)
    check_limits(source, len(sums), largest)
    return [
        Entry(
            kind=entry_sum.example.kind,
            axis=labels[id(entry_sum.example.group)],
            group_size=len(entry_sum.example.group.ranks),
            dtype=entry_sum.example.dtype,
            phase=find_phase(entry_sum.example.op_name),
            role=entry_sum.example.role,
            where=find_module(entry_sum.example.op_name),
            via="xla",
            count=entry_sum.executions,
            static_count=entry_sum.lines,
            bytes=entry_sum.bytes,
        )
        for entry_sum in (sums[key] for key in sorted(sums))
    ]


def _list_warnings(header: Header, devices: Devices, counted: _CountedCollectives) -> Iterable[str]:
    """Yield one sentence for everything that is not counted, and for a program that may be the wrong one."""
    if counted.unclassified:
        names = ", ".join(
            f"{unclassified.count} x {unclassified.name}" for unclassified in counted.unclassified[:MAX_NAMES]
        )
        yield f"communication of unknown kind is not counted: {names}"
    if counted.unreachable:
        yield f"{counted.unreachable} collectives are in computations that never run; they are not counted"
    if not header.is_scheduled:
        yield "the text is from before the end of XLA's passes; give the *after_optimizations.txt of the dump"
    if not counted.collectives and not counted.unclassified:
        if devices.total == 1:
            left_out = f" ({counted.single_device} in groups of one device)" if counted.single_device else ""
            yield f"the program is compiled for one device, so it has no collectives{left_out}; compile it for the mesh"
        else:
            yield f"the program has no collectives on {devices.total} devices"


def _list_guesses(counts: ExecutionCounts, counted: _CountedCollectives) -> Iterable[str]:
    """Yield one sentence for each assumption behind the counts."""
    if counts.unknown_loops:
        yield (
            f"{_list_names(counts.unknown_loops)} without a known trip count: "
            f"{'their' if len(counts.unknown_loops) > 1 else 'its'} collectives are counted once"
        )
    if counts.assumed_loops:
        yield (
            f"{_list_names(counts.assumed_loops)} without a recorded trip count: taken from the constant in the loop "
            "condition, with start 0 and step 1 where they are unknown"
        )
    if counts.unequal_conditionals:
        yield (
            f"{_list_names(counts.unequal_conditionals, 'conditional')} with branches that communicate differently: "
            "the branch that moves most is counted"
        )
    if ragged := sum(executions for collective, executions in counted.collectives if collective.is_ragged):
        yield (
            f"{ragged} ragged all-to-alls are counted with the size of their input buffer, an upper bound: the bytes "
            "that they send depend on the routing"
        )
    if without_device_0 := [collective for collective, _ in counted.collectives if collective.group.without_device_0]:
        kinds = ", ".join(sorted({collective.kind for collective in without_device_0}))
        yield (
            f"{len(without_device_0)} collectives ({kinds}) leave device 0 out; they are counted for the largest group "
            "of other devices"
        )


def _list_names(names: list[str], noun: str = "loop") -> str:
    """Return text such as '2 loops (layers/while, decode/while)'."""
    text = listed([clip(printable(name), 200) for name in names], MAX_NAMES)
    return f"{count(len(names), noun)} ({text})"


__all__ = ["NAME", "TITLE", "ReadError", "read", "recognises"]
