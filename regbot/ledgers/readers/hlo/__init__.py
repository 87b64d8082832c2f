"""Reader of XLA optimized HLO text: the collectives that one execution of a compiled program issues on each device.

One execution counts as one step. The counts are exact for the program: ``count`` is the number of executions, including
repetitions in loops, and ``static_count`` is the number of lines. A program without collectives gives an empty ledger.
A text that XLA dumped before its passes is refused, because the partitioner inserts the collectives later. ``guesses``
lists what the counts assume: the trip count of a loop, the branch of a conditional, the size of a ragged exchange, or a
group without device 0. Tested with jax 0.10 and 0.12 on CPU, and with their ahead-of-time targets for GPU (H100) and
TPU (v6e)."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from regbot.ledgers.readers.call_stacks import CallStacks
from regbot.ledgers.readers.groups import format_ranks
from regbot.ledgers.readers.hlo.collectives import HloCollective, find_module, find_phase
from regbot.ledgers.readers.hlo.fingerprint import ProgramFingerprint
from regbot.ledgers.readers.hlo.groups import Devices, ReplicaGroup, ReplicaGroups
from regbot.ledgers.readers.hlo.program import Computation, Program
from regbot.ledgers.readers.hlo.source_lines import SourceTables
from regbot.ledgers.readers.hlo.text import BrokenProgram, Header, read_module
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import CallTally, EntryKey, Unclassified
from regbot.records.ledger import Axis, Ledger
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable
from regbot.records.text.words import count, listed

NAME = "hlo"
TITLE = "XLA optimized HLO text"

MAX_NAMES = 3

_MODULE_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?://[^\n]*\n\s*)*(?:HloModule [^\s,]|module (?:@|\{|attributes))")
_TPU_LAYOUT = re.compile(r"\{[0-9,]*:T\(")
_GPU_MARKS = ("fingerprint_before_lhs", "operation_queue_id", "collective_backend_config", "__cublas", "__triton")
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
        except BrokenProgram as error:
            raise source.error(f"{clip(body.name, 100)}: {error}; dump or copy it again, or report it") from error
        if not header.is_scheduled and _BEFORE_PARTITIONING.search(body.text):
            raise source.error(f"is HLO from {_BEFORE_PASSES}")
        fingerprint.add(body.name, body.is_entry, body.text)
        if body.is_entry:  # the program starts with this computation
            entry_name, platform = body.name, platform or _find_gpu_platform(body.text)
    executions = program.count_executions(entry_name)
    called = [computation for name, computation in program.computations.items() if name in executions]
    counted = _CountedCollectives(program, executions)
    if not header.is_scheduled and not counted.collectives:
        raise source.error(f"has no collectives, and may be from {_BEFORE_PASSES}")
    # Equal groups are the same object. Its ``id`` is the key, because hashing a tuple of thousands of devices is slow.
    groups = {id(collective.group): collective.group for collective, _ in counted.collectives}
    labels = _label_groups(groups)
    tally, tables, stacks = CallTally(source), SourceTables(header.tables), CallStacks()
    for collective, times in counted.collectives:
        key = EntryKey(
            collective.kind,
            labels[id(collective.group)],
            len(collective.group.ranks),
            collective.dtype,
            find_phase(collective.op_name),
            collective.role,
            via="xla",
            where=find_module(collective.op_name),
            line=stacks.add(tables.find_calls(collective.metadata)),
        )
        tally.add(key, times * collective.bytes, times)
    return Ledger(
        source=platform or "hlo:cpu",
        scope="step",
        steps=1,
        world_size=devices.total,
        axes={labels[key]: Axis(size=len(group.ranks), ranks=list(group.ranks)) for key, group in groups.items()},
        entries=tally.entries(is_program=True),
        frames=stacks.frames(),
        fingerprint=fingerprint.hexdigest(),
        unclassified=counted.unclassified.records(),
        guesses=[*_list_guesses(called, counted)],
        warnings=[*_list_warnings(header, devices, counted)],
    )


def _find_gpu_platform(text: str) -> str:
    return "hlo:gpu" if any(mark in text for mark in _GPU_MARKS) else ""


class _CountedCollectives:
    def __init__(self, program: Program, executions_by_name: Mapping[str, int]) -> None:
        self.collectives: list[tuple[HloCollective, int]] = []
        self.unclassified = Unclassified()
        for name, computation in program.computations.items():
            executions = executions_by_name.get(name, 0)
            for communication in computation.communications if executions else ():
                if isinstance(communication, str):
                    self.unclassified.add(communication, executions)
                elif len(communication.group.ranks) > 1:
                    self.collectives.append((communication, executions))


def _label_groups(groups: Mapping[int, ReplicaGroup]) -> dict[int, str]:
    """Return an axis label for each group: the axis names that the program gives to the group's devices, or else the
    devices. If the program uses a name for groups of different devices, the devices are added to the name. For example,
    'expert[0-3]' and 'expert[0-7]' are two axes."""
    names_by_ranks: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for group in groups.values():
        names_by_ranks[group.ranks] |= {group.axis} - {""}
    name_uses = Counter(name for names in names_by_ranks.values() for name in names)

    def make_label(ranks: tuple[int, ...], names: set[str]) -> str:
        unique_names = [name if name_uses[name] == 1 else name + format_ranks(ranks) for name in names]
        return clip_label(printable("|".join(sorted(unique_names)) or format_ranks(ranks)))

    label_by_ranks = {ranks: make_label(ranks, names) for ranks, names in names_by_ranks.items()}
    return {key: label_by_ranks[group.ranks] for key, group in groups.items()}


def _list_warnings(header: Header, devices: Devices, counted: _CountedCollectives) -> Iterator[str]:
    yield from counted.unclassified.warnings()
    if not header.is_scheduled:
        yield "the text is from before the end of XLA's passes; give the *after_optimizations.txt of the dump"
    if not counted.collectives and not counted.unclassified:
        if devices.total == 1:
            yield "the program is compiled for one device, so it has no collectives; compile it for the mesh"
        else:
            yield f"the program has no collectives on {devices.total} devices"


def _list_guesses(called: Sequence[Computation], counted: _CountedCollectives) -> Iterator[str]:
    if unknown_loops := [name for computation in called for name in computation.unknown_loops]:
        yield (
            f"{_list_names(unknown_loops)} without a known trip count: "
            f"{'their' if len(unknown_loops) > 1 else 'its'} collectives are counted once"
        )
    if unequal_conditionals := [name for computation in called for name in computation.unequal_conditionals]:
        yield (
            f"{_list_names(unequal_conditionals, 'conditional')} with branches that communicate differently: "
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
