"""XLA optimized HLO text: the collectives that one execution of a compiled program issues on each device.

One program is taken as one step. The counts are exact for what was compiled (``count`` is executions, loops included,
``static_count`` lines) and say nothing of time. A compiled program is complete, so one without collectives is a
ledger of none, unlike a trace in which nothing was recorded; a text from before the optimizer has run is refused,
because the partitioner has not put its collectives in yet. What had to be assumed for a count (trips of a loop, the
branch of a conditional, the size of a ragged exchange, a group without device 0) stands in ``guesses``.

Written against jax 0.10 and 0.12 on CPU, and their ahead-of-time targets for GPU (H100) and TPU (v6e). The parts:
``hlo_text`` cuts the text, ``hlo_collectives`` reads a line, ``hlo_groups`` its devices, ``hlo_program`` weighs the
computations, ``hlo_fingerprint`` tells whether two programs are one.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from regbot.ledgers.readers.hlo_collectives import Collective, Unknown, phase, where
from regbot.ledgers.readers.hlo_fingerprint import ProgramFingerprint
from regbot.ledgers.readers.hlo_groups import BadGroup, Devices, Group, label
from regbot.ledgers.readers.hlo_program import BrokenProgram, Program, Runs
from regbot.ledgers.readers.hlo_text import BadShape, Header, module
from regbot.ledgers.readers.source import ReadError, Source
from regbot.ledgers.readers.tally import within_limits
from regbot.records.ledger import Axis, Entry, Ledger, Unclassified
from regbot.text import printable

NAME = "hlo"
TITLE = "XLA optimized HLO text"

MAX_UNCLASSIFIED = 1000
NAMED = 3
"""How many loops or conditionals a warning names."""

_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?://[^\n]*\n\s*)*(?:HloModule [^\s,]|module (?:@|\{|attributes))")
_TPU = re.compile(r"\{[0-9,]*:T\(")
_GPU = ("fingerprint_before_lhs", "operation_queue_id", "collective_backend_config", "__cublas", "__triton")


_BEFORE_PARTITIONING = re.compile(
    r'custom_call_target="(?:Sharding|SPMD|xla\.sdy)|xla\.sdy\.|(?<!parameter)\([^(]*\), sharding=\{'
)
_UNFINISHED = (
    "before XLA's passes have run, when collectives are not in yet; give the *after_optimizations.txt of the dump"
)


def recognises(head: bytes) -> bool:
    return _BEGIN.match(head) is not None


def read(source: Source) -> Ledger:
    """The ledger of the module in ``source``. Raises ReadError."""
    header, bodies = module(source)
    devices = Devices(header.replica_count, header.num_partitions)
    fingerprint = ProgramFingerprint(header.text)
    program = Program(devices)
    platform = "hlo:tpu" if _TPU.search(header.text) else _gpu(header.text)
    entry = ""
    for body in bodies:
        try:
            program.add(body)
        except (BadShape, BadGroup, BrokenProgram) as error:
            raise source.error(f"{body.name[:100]}: {error}; no count was made, please report it") from error
        if not header.scheduled and _BEFORE_PARTITIONING.search(body.text):
            raise source.error(f"is HLO from {_UNFINISHED}")
        fingerprint.add(body.name, body.entry, body.text)
        if body.entry:
            entry, platform = body.name, platform or _gpu(body.text)
    try:
        executed = program.runs(entry)
    except BrokenProgram as error:
        raise source.error(f"is broken: {error}; dump or copy it again") from error
    counted = _Counted.of(source, program, executed)
    if not header.scheduled and not counted.seen:
        raise source.error(f"has no collectives, and may be from {_UNFINISHED}")
    labels = _labels(one.group for one, _ in counted.seen)
    return Ledger(
        source=platform or "hlo:cpu",
        scope="step",
        steps=1,
        world_size=devices.all,
        axes=_axes((one.group for one, _ in counted.seen), labels),
        entries=_entries(source, counted.seen, labels),
        program=fingerprint.hexdigest(),
        unclassified=counted.unclassified,
        guesses=[*_assumptions(executed, counted)],
        warnings=[*_doubts(header, devices, counted)],
    )


def _axes(groups: Iterable[Group], labels: Mapping[int, str]) -> dict[str, Axis]:
    distinct = {id(group): group for group in groups}.values()
    return {labels[id(group)]: Axis(size=len(group.ranks), ranks=list(group.ranks)) for group in distinct}


def _gpu(text: str) -> str:
    return "hlo:gpu" if any(mark in text for mark in _GPU) else ""


class _Counted(NamedTuple):
    """Every collective with how often it runs."""

    seen: list[tuple[Collective, int]]
    unclassified: list[Unclassified]
    alone: int
    unreached: int

    @classmethod
    def of(cls, source: Source, program: Program, executed: Runs) -> "_Counted":
        seen: list[tuple[Collective, int]] = []
        unknown: dict[str, int] = defaultdict(int)
        alone = unreached = 0
        for this in program.computations.values():
            times = executed.times.get(this.name)
            for one in this.seen:
                if isinstance(one, Unknown):
                    unknown[printable(one.name)[:500]] += times or 0
                elif len(one.group.ranks) < 2:
                    alone += 1
                elif times:
                    seen.append((one, times))
                elif times is None:
                    unreached += 1
        if len(unknown) > MAX_UNCLASSIFIED:
            raise source.error(f"has more than {MAX_UNCLASSIFIED} kinds of unknown communication; is it an HLO dump?")
        unclassified = [Unclassified(name=name, count=count) for name, count in sorted(unknown.items()) if count]
        return cls(seen, unclassified, alone, unreached)


def _labels(groups: Iterable[Group]) -> dict[int, str]:
    """An axis for each group, by its ``id``: the names that the program has for these devices, else the devices. Equal
    groups are one object, and to look one up by its thousands of devices for every line takes longer than to read it.
    """
    distinct = {id(group): group for group in groups}
    names: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for group in distinct.values():
        names[group.ranks] |= {group.axis} - {""}
    holders: dict[str, int] = defaultdict(int)
    for theirs in names.values():
        for name in theirs:
            holders[name] += 1
    found = {
        ranks: printable(
            "|".join(sorted(name if holders[name] == 1 else name + label(ranks) for name in theirs)) or label(ranks)
        )[:500]
        for ranks, theirs in names.items()
    }
    return {number: found[group.ranks] for number, group in distinct.items()}


def _entries(source: Source, seen: Iterable[tuple[Collective, int]], labels: Mapping[int, str]) -> list[Entry]:
    """Equal collectives together, in a fixed order."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    firsts: dict[tuple[str, ...], Collective] = {}
    for one, times in seen:
        key = (one.kind, labels[id(one.group)], one.dtype, phase(one.op_name), one.role, where(one.op_name))
        total = sums[key]
        total[0], total[1], total[2] = total[0] + times, total[1] + 1, total[2] + times * one.bytes
        firsts.setdefault(key, one)
    within_limits(source, len(sums), max((max(count, size) for count, _, size in sums.values()), default=0))
    return [
        Entry(
            kind=one.kind,
            axis=labels[id(one.group)],
            group_size=len(one.group.ranks),
            dtype=one.dtype,
            phase=phase(one.op_name),
            role=one.role,
            where=where(one.op_name),
            via="xla",
            count=sums[key][0],
            static_count=sums[key][1],
            bytes=sums[key][2],
        )
        for key, one in sorted(firsts.items())
    ]


def _doubts(header: Header, devices: Devices, counted: _Counted) -> Iterable[str]:
    if counted.unclassified:
        names = ", ".join(f"{one.count} x {one.name}" for one in counted.unclassified[:NAMED])
        yield f"communication of unknown kind is not counted: {names}"
    if counted.unreached:
        yield f"{counted.unreached} collectives stand in computations that nothing runs; they are not counted"
    if not header.scheduled:
        yield "the text is from before the end of XLA's passes; give the *after_optimizations.txt of the dump"
    if not counted.seen and not counted.unclassified:
        if devices.all == 1:
            yield (
                f"the program is compiled for one device, so it has no collectives"
                f"{f' ({counted.alone} in groups of one device)' if counted.alone else ''}; compile it for the mesh"
            )
        else:
            yield f"the program has no collectives on {devices.all} devices"


def _assumptions(executed: Runs, counted: _Counted) -> Iterable[str]:
    """What the counts take for granted."""
    if executed.unknown_loops:
        yield (
            f"{_few(executed.unknown_loops)} without a known trip count: what "
            f"{'they hold' if len(executed.unknown_loops) > 1 else 'it holds'} is counted once"
        )
    if executed.assumed_loops:
        yield (
            f"{_few(executed.assumed_loops)} without a recorded trip count: taken from the constant in the loop "
            "condition, as if counting from 0 by 1"
        )
    if executed.unequal_conditionals:
        yield (
            f"{_few(executed.unequal_conditionals, 'conditional')} with branches that communicate differently: the "
            "branch that moves most is counted"
        )
    if ragged := sum(times for one, times in counted.seen if one.ragged):
        yield (
            f"{ragged} ragged all-to-alls are counted at the size of their input buffer, an upper bound: what they "
            "send depends on the routing"
        )
    if elsewhere := [one for one, _ in counted.seen if one.group.elsewhere]:
        kinds = ", ".join(sorted({one.kind for one in elsewhere}))
        yield (
            f"{len(elsewhere)} collectives ({kinds}) leave device 0 out and are counted as the largest group of other "
            "devices runs them"
        )


def _few(names: list[str], noun: str = "loop") -> str:
    shown = ", ".join(printable(name)[:200] for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} ({shown}{more})"


__all__ = ["NAME", "TITLE", "ReadError", "read", "recognises"]
