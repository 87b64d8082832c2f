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
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from regbot.ledgers.readers.hlo_collectives import HloCollective, UnknownInstruction, find_module, find_phase
from regbot.ledgers.readers.hlo_fingerprint import ProgramFingerprint
from regbot.ledgers.readers.hlo_groups import BadGroup, Devices, ReplicaGroup, format_group
from regbot.ledgers.readers.hlo_program import BrokenProgram, ExecutionCounts, Program
from regbot.ledgers.readers.hlo_text import BadShape, Header, read_module
from regbot.ledgers.readers.source import ReadError, Source
from regbot.ledgers.readers.tally import check_limits
from regbot.records.ledger import Axis, Entry, Ledger, UnclassifiedCommunication
from regbot.text.clip import clip, clip_label
from regbot.text.printable import printable
from regbot.text.words import count, listed

NAME = "hlo"
TITLE = "XLA optimized HLO text"

MAX_UNCLASSIFIED = 1000
MAX_NAMES = 3
"""Largest number of loops, conditionals or unknown operations that one message names."""

_MODULE_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?://[^\n]*\n\s*)*(?:HloModule [^\s,]|module (?:@|\{|attributes))")
_TPU_LAYOUT = re.compile(r"\{[0-9,]*:T\(")
_GPU_MARKS = ("fingerprint_before_lhs", "operation_queue_id", "collective_backend_config", "__cublas", "__triton")


_BEFORE_PARTITIONING = re.compile(
    r'custom_call_target="(?:Sharding|SPMD|xla\.sdy)|xla\.sdy\.|(?<!parameter)\([^(]*\), sharding=\{'
)
_BEFORE_PASSES = "before XLA's passes, which insert the collectives; give the *after_optimizations.txt of the dump"


def recognises(head: bytes) -> bool:
    return _MODULE_START.match(head) is not None


def read(source: Source) -> Ledger:
    """Return the ledger of the HLO module in ``source``. Raises ReadError."""
    header, bodies = read_module(source)
    devices = Devices(header.replica_count, header.num_partitions)
    fingerprint = ProgramFingerprint(header.text)
    program = Program(devices)
    platform = "hlo:tpu" if _TPU_LAYOUT.search(header.text) else _find_gpu_platform(header.text)
    entry = ""
    for body in bodies:
        try:
            program.add(body)
        except (BadShape, BadGroup, BrokenProgram) as error:
            raise source.error(f"{clip(body.name, 100)}: {error}; no count was made, please report it") from error
        if not header.is_scheduled and _BEFORE_PARTITIONING.search(body.text):
            raise source.error(f"is HLO from {_BEFORE_PASSES}")
        fingerprint.add(body.name, body.is_entry, body.text)
        if body.is_entry:
            entry, platform = body.name, platform or _find_gpu_platform(body.text)
    try:
        counts = program.count_executions(entry)
    except BrokenProgram as error:
        raise source.error(f"is broken: {error}; dump or copy it again") from error
    counted = _CountedCollectives.collect(source, program, counts)
    if not header.is_scheduled and not counted.collectives:
        raise source.error(f"has no collectives, and may be from {_BEFORE_PASSES}")
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
    distinct = {id(group): group for group in groups}.values()
    return {labels[id(group)]: Axis(size=len(group.ranks), ranks=list(group.ranks)) for group in distinct}


def _find_gpu_platform(text: str) -> str:
    return "hlo:gpu" if any(mark in text for mark in _GPU_MARKS) else ""


class _CountedCollectives(NamedTuple):
    """The program's collectives with their numbers of executions, and the collectives that are not counted.

    ``single_device`` is the number of collectives in groups of one device. ``unreachable`` is the number of collectives
    in computations that never run.
    """

    collectives: list[tuple[HloCollective, int]]
    unclassified: list[UnclassifiedCommunication]
    single_device: int
    unreachable: int

    @classmethod
    def collect(cls, source: Source, program: Program, counts: ExecutionCounts) -> "_CountedCollectives":
        collectives: list[tuple[HloCollective, int]] = []
        unknown_counts: dict[str, int] = defaultdict(int)
        single_device = unreachable = 0
        for computation in program.computations.values():
            executions = counts.executions.get(computation.name)
            for communication in computation.communications:
                if isinstance(communication, UnknownInstruction):
                    unknown_counts[clip_label(printable(communication.name))] += executions or 0
                elif len(communication.group.ranks) < 2:
                    single_device += 1
                elif executions:
                    collectives.append((communication, executions))
                elif executions is None:
                    unreachable += 1
        if len(unknown_counts) > MAX_UNCLASSIFIED:
            raise source.error(f"has more than {MAX_UNCLASSIFIED} kinds of unknown communication; is it an HLO dump?")
        unclassified = [
            UnclassifiedCommunication(name=name, count=count) for name, count in sorted(unknown_counts.items()) if count
        ]
        return cls(collectives, unclassified, single_device, unreachable)


def _label_groups(groups: Iterable[ReplicaGroup]) -> dict[int, str]:
    """Return an axis label for each group: the axis names that the program gives to the group's devices, or else the
    devices.

    The keys are the ``id`` of the group objects, because equal groups are the same object, and hashing a tuple of
    thousands of devices is slow.
    """
    distinct = {id(group): group for group in groups}
    names: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for group in distinct.values():
        names[group.ranks] |= {group.axis} - {""}
    groups_by_name: dict[str, int] = defaultdict(int)
    for group_names in names.values():
        for name in group_names:
            groups_by_name[name] += 1
    label_by_ranks = {
        ranks: clip_label(
            printable(
                "|".join(
                    sorted(name if groups_by_name[name] == 1 else name + format_group(ranks) for name in group_names)
                )
                or format_group(ranks)
            )
        )
        for ranks, group_names in names.items()
    }
    return {group_id: label_by_ranks[group.ranks] for group_id, group in distinct.items()}


def _sum_entries(
    source: Source, collectives: Iterable[tuple[HloCollective, int]], labels: Mapping[int, str]
) -> list[Entry]:
    """Sum collectives with equal properties into entries, and return the entries in a fixed order."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    first_collectives: dict[tuple[str, ...], HloCollective] = {}
    for collective, executions in collectives:
        key = (
            collective.kind,
            labels[id(collective.group)],
            collective.dtype,
            find_phase(collective.op_name),
            collective.role,
            find_module(collective.op_name),
        )
        totals = sums[key]
        totals[0], totals[1], totals[2] = (
            totals[0] + executions,
            totals[1] + 1,
            totals[2] + executions * collective.bytes,
        )
        first_collectives.setdefault(key, collective)
    check_limits(source, len(sums), max((max(count, size) for count, _, size in sums.values()), default=0))
    return [
        Entry(
            kind=collective.kind,
            axis=labels[id(collective.group)],
            group_size=len(collective.group.ranks),
            dtype=collective.dtype,
            phase=find_phase(collective.op_name),
            role=collective.role,
            where=find_module(collective.op_name),
            via="xla",
            count=sums[key][0],
            static_count=sums[key][1],
            bytes=sums[key][2],
        )
        for key, collective in sorted(first_collectives.items())
    ]


def _list_warnings(header: Header, devices: Devices, counted: _CountedCollectives) -> Iterable[str]:
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
            yield (
                f"the program is compiled for one device, so it has no collectives"
                f"{f' ({counted.single_device} in groups of one device)' if counted.single_device else ''}; compile it "
                "for the mesh"
            )
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
    text = listed([clip(printable(name), 200) for name in names], MAX_NAMES)
    return f"{count(len(names), noun)} ({text})"


__all__ = ["NAME", "TITLE", "ReadError", "read", "recognises"]
