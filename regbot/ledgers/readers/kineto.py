"""Kineto traces, the JSON that ``torch.profiler`` exports: which collectives a rank issued, and how much was exposed.

Counts come from what the host wrote about each call, in this order of trust: ``record_param_comms`` rows that name the
collective (``kineto:metadata``), the same words on kernels where the host was not recorded
(``kineto:kernel-metadata``), ``nccl:`` annotations of older torch (``kineto:annotations``), ``c10d::`` rows of backends
that write neither (``kineto:dispatcher``; gloo's own names lie, a reduce-scatter appears there as an all-reduce).
Dispatch libraries that never pass through a process group are counted by their payload kernels, whichever source the
rest has. Kernel names are otherwise a cross-check; communication that none of this explains is listed as unclassified
and never counted as zero.

Not here: the bytes of dispatch libraries (kernels do not tell), the module that issued a call, forward (the profiler
marks backward only), and any other rank.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.overlap import Intervals, overlap, union
from regbot.ledgers.readers import kineto_calls
from regbot.ledgers.readers.kernels import Communication
from regbot.ledgers.readers.kineto_calls import Call, Row, Unknown
from regbot.ledgers.readers.kineto_groups import UNKNOWN, Group, Groups
from regbot.ledgers.readers.kineto_record import Kernel, Record, record
from regbot.ledgers.readers.kineto_steps import HostRows, Launches, Moment, Phases, choose_window, outermost
from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Axis, Entry, Kind, Ledger, Phase, Role, Unclassified, Via

NAME = "kineto"
TITLE = "Kineto trace"

_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_GROUPED: tuple[Via, ...] = ("nccl", "gloo", "fake")
MAX_SECONDS = 1e7
MAX_SHOWN = 8


class _Key(NamedTuple):
    """What collectives of one entry share."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: Via


@dataclass
class _Found:
    """What is being put together. ``spans``: kernels of each call, as device, begin and end."""

    origin: str = "kernels"
    calls: list[Call] = field(default_factory=list)
    moments: list[Moment | None] = field(default_factory=list)
    spans: list[list[tuple[str, float, float]]] = field(default_factory=list)
    unclassified: dict[str, tuple[int, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, call: Call, moment: Moment | None) -> int:
        self.calls.append(call)
        self.moments.append(moment)
        self.spans.append([])
        return len(self.calls) - 1

    def reject(self, name: str, seconds: float = 0.0, times: int = 1) -> None:
        count, total = self.unclassified.get(name, (0, 0.0))
        self.unclassified[name] = (count + times, total + seconds)

    def take(self, rows: Sequence[tuple[Row, Call | Unknown | None]]) -> None:
        """Host calls; what no table knows is unclassified."""
        for row, call in rows:
            if isinstance(call, Unknown):
                self.reject(call.name)
            elif call is not None:
                self.add(call, Moment(row.start_us, row.thread))


def recognises(head: bytes) -> bool:
    start = head.lstrip()
    if start[:1] == b"[":
        return b'"ph"' in head and b'"ts"' in head
    return start[:1] == b"{" and (any(mark in head for mark in _MARKS[:1]) or sum(m in head for m in _MARKS) > 1)


def read(source: Source) -> Ledger:
    """The collectives of one rank. Raises ReadError."""
    trace = record(source)
    groups = Groups(trace.envelope)
    found = _Found()
    _host_calls(trace, groups, found)
    launches = Launches(trace, (kernel.correlation for kernel in trace.kernels))
    _kernels(trace, groups, launches, found)
    _one_rank(source, trace, found)
    if not found.calls and not found.unclassified:
        raise source.error(
            "no collective was recorded: no record_param_comms, nccl: or c10d:: row and no kernel of a known library "
            "was seen by this counter. That is no proof that there was none, regbot cannot tell; record CPU and GPU "
            "activity of a distributed run"
        )
    return _ledger(source, trace, groups, found)


def _host_calls(trace: Record, groups: Groups, found: _Found) -> None:
    """Calls that the host wrote down, from the most trusted rows there are, and those of gloo beside them."""
    if trace.metadata:
        found.origin = "metadata"
        found.take([(row, kineto_calls.from_metadata(row, groups)) for row in trace.metadata])
    elif any(kernel.named for kernel in trace.kernels):
        found.origin = "kernel-metadata"
        found.warnings.append("the host's rows are missing; calls are those that kernels name")
    elif trace.annotations:
        found.origin = "annotations"
        found.take([(row, kineto_calls.from_annotation(row, groups)) for row in trace.annotations])
    elif trace.nameless:
        found.reject("record_param_comms without the name of a collective", times=trace.nameless)
    if found.origin != "kernel-metadata":
        _dispatched(trace, groups, found)
    found.take([(row, kineto_calls.from_symmetric(row, groups)) for row in outermost(trace.symmetric)])


def _dispatched(trace: Record, groups: Groups, found: _Found) -> None:
    """Dispatcher rows in which no better row lies: gloo's and the fake backend's."""
    covering = HostRows((*trace.metadata, *trace.annotations))
    alone = [row for row in outermost(trace.dispatched) if not covering.contains_one(row)]
    if alone and (found.origin == "kernels" or trace.gloo_rows):
        types = {shapes: next(iter(known)) for shapes, known in trace.gloo_types.items() if len(known) == 1}
        via: Via = "gloo" if trace.gloo_rows or "gloo" in groups.backend else "nccl"
        via = "fake" if groups.backend == "fake" else via
        found.take([(row, kineto_calls.from_dispatcher(row, groups, via, types)) for row in alone])
        found.origin = "dispatcher" if found.origin == "kernels" else found.origin
        return
    for row in alone:
        found.reject(f"{row.name} of a backend that wrote no row")


def _kernels(trace: Record, groups: Groups, launches: Launches, found: _Found) -> None:
    """Give every kernel its call: the host's that launched it, one of its own for libraries, none."""
    host = HostRows(call.row for call in found.calls)
    by_id = {call.row.external: index for index, call in enumerate(found.calls) if call.row.external is not None}
    by_kernel: dict[int, int] = {}
    names: Counter[str] = Counter()
    early = 0
    loose: list[Kernel] = []
    for kernel in trace.kernels:
        use, moment = kernel.use, launches.of(kernel.correlation)
        if use is not None and use.what == "sync":
            continue
        index = by_id.get(kernel.row.external or -1) if kernel.named else None
        if index is None and moment is not None and not (use is not None and use.what == "control"):
            index = host.under_way(moment)
        if index is None and kernel.named and found.origin == "kernel-metadata":
            call = kineto_calls.from_metadata(kernel.row, groups)
            if isinstance(call, Unknown):
                found.reject(call.name, _seconds(kernel))
            if not isinstance(call, Call):
                continue
            known = None if kernel.row.external is None else by_kernel.get(kernel.row.external)
            index = found.add(call, moment) if known is None else known
            if kernel.row.external is not None:
                by_kernel[kernel.row.external] = index  # a call may launch several kernels
        elif index is None and use is not None and use.what in ("payload", "control") and use.via and use.kind:
            index = found.add(_library_call(kernel, use, groups), moment)
        elif index is None and kernel.named:
            early += 1
        elif index is None:
            loose.append(kernel)
        if index is not None:
            found.spans[index].append((kernel.device, kernel.row.start_us, kernel.row.end_us))
            call = found.calls[index]
            if use is None or use.what == "unknown":
                names[f"{kernel.row.name[:80]!r}, which no table knows, runs a call of {call.kind}"] += 1
            elif use.may_be and call.kind not in use.may_be:
                names[f"{kernel.row.name[:80]!r} runs a call of {call.kind}"] += 1
    if names:
        shown = "; ".join(f"{count}x {name}" for name, count in names.most_common(MAX_SHOWN))
        found.warnings.append(f"kernel names disagree with the metadata, which is what was counted: {shown}")
    if early:
        found.warnings.append(f"{early} kernels belong to calls that the host made before the trace began: not counted")
    _loose_kernels(loose, found)


def _loose_kernels(loose: Sequence[Kernel], found: _Found) -> None:
    """Kernels that no call explains: of a coalesced call launched after its rows, else unclassified."""
    waiting = {call.kind for call, spans in zip(found.calls, found.spans, strict=True) if not spans}
    coalesced = 0
    for kernel in loose:
        if kernel.use is not None and kernel.use.what == "nccl" and waiting & kernel.use.may_be:
            coalesced += 1
        else:
            found.reject(kernel.row.name, _seconds(kernel))
    if coalesced:
        found.warnings.append(f"{coalesced} NCCL kernels could not be linked to the call that launched them; their "
                              "times are not in the exposed communication")  # fmt: skip


def _library_call(kernel: Kernel, use: Communication, groups: Groups) -> Call:
    assert use.kind is not None
    assert use.via is not None
    role: Role = "control" if use.what == "control" else "payload"
    group = groups.experts() if use.kind == "all_to_all" else Group(UNKNOWN, groups.world_size)
    return Call(use.kind, group, "unknown", None, role, use.via, kernel.row)


def _seconds(kernel: Kernel) -> float:
    return (kernel.row.end_us - kernel.row.start_us) / 1e6


def _one_rank(source: Source, trace: Record, found: _Found) -> None:
    hosts = {moment.thread[0] for moment in found.moments if moment is not None}
    devices = {kernel.device for kernel in trace.kernels}
    for what, seen in (("processes", hosts | {step.thread[0] for step in trace.steps}), ("devices", devices)):
        if len(seen) > 1:
            shown = ", ".join(sorted(seen)[:MAX_SHOWN])
            raise source.error(f"mixes the communication of {len(seen)} {what} ({shown}); give the trace of one rank")


def _ledger(source: Source, trace: Record, groups: Groups, found: _Found) -> Ledger:
    phases = Phases(trace)
    kept = [index for index, call in enumerate(found.calls) if call.group.size != 1]
    keys = [_key(found.calls[index], found.moments[index], groups, phases) for index in kept]
    window = choose_window(trace.steps, [found.moments[index] for index in kept], keys)
    warnings = [*found.warnings, *window.warnings]
    steps = [[kept[place] for place in places] for places in window.steps]
    key_of = dict(zip(kept, keys, strict=True))
    members: dict[_Key, list[int]] = defaultdict(list)
    for index in (index for indices in steps for index in indices):
        members[key_of[index]].append(index)
    compute = {
        device.strip(b'"').decode("utf-8", "replace"): union(spans.starts, spans.ends)
        for device, spans in trace.times.compute.items()
    }
    entries = [_entry(source, found, key, indices, len(steps), compute) for key, indices in sorted(members.items())]
    counted = [found.calls[index] for indices in members.values() for index in indices]
    warnings += _doubts(trace, found, groups, counted)
    volumes: list[Counter[str]] = [Counter() for _ in steps]
    for volume, indices in zip(volumes, steps, strict=True):
        for index in indices:
            volume[f"{key_of[index].kind} over {key_of[index].axis}"] += found.calls[index].bytes or 0
    if varying := sorted(what for what in volumes[0] if len({volume[what] for volume in volumes}) > 1):
        warnings.append(f"the bytes of {', '.join(varying)} differ from step to step; their mean is shown")
    if not entries and not found.unclassified:
        warnings.append(
            f"no collective over more than one rank was seen by this counter, and {len(found.calls)} over one"
        )
    return Ledger(
        source=f"kineto:{found.origin}",
        scope="step" if window.per_step else "whole",
        steps=window.covered,
        world_size=groups.world_size or None,
        rank=groups.rank,
        axes={
            groups.label(call.group): Axis(size=len(call.group.ranks), ranks=list(call.group.ranks))
            for call in counted
            if call.group.ranks
        },
        entries=entries,
        unclassified=[
            Unclassified(name=name[:500], count=count, seconds=min(seconds, MAX_SECONDS) if seconds else None)
            for name, (count, seconds) in sorted(found.unclassified.items())[:1000]
        ],
        warnings=[warning[:4000] for warning in warnings],
    )


def _key(call: Call, moment: Moment | None, groups: Groups, phases: Phases) -> _Key:
    phase = phases.of(moment) if moment is not None else "unknown"
    size = max(call.group.size or groups.world_size, 2)
    return _Key(call.kind, groups.label(call.group)[:500], size, call.dtype, phase, call.role, call.via)


def _entry(
    source: Source, found: _Found, key: _Key, indices: list[int], steps: int, compute: dict[str, Intervals]
) -> Entry:
    total = sum(found.calls[index].bytes or 0 for index in indices)
    if total > kineto_calls.MAX_VOLUME:
        raise source.error(f"its calls of {key.kind} add up to {total:,} bytes, which no trace can hold")
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for index in indices:
        for device, start, end in found.spans[index]:
            spans[device].append((start, end))
    exposed = hidden = 0.0
    for device, times in spans.items():
        part = overlap(union(*zip(*times, strict=True)), compute.get(device, union([], [])))
        exposed, hidden = exposed + part.exposed / 1e6 / steps, hidden + part.hidden / 1e6 / steps
    if exposed + hidden > MAX_SECONDS:
        raise source.error(f"its kernels of {key.kind} run for {exposed + hidden:.0f} s; its times are wrong")
    return Entry(
        **key._asdict(),
        where="",
        count=len(indices) // steps,
        bytes=round(total / steps),
        exposed_s=exposed if spans else None,
        hidden_s=hidden if spans else None,
    )


def _doubts(trace: Record, found: _Found, groups: Groups, counted: list[Call]) -> list[str]:
    """What is not known of the collectives that were counted, and what was not counted."""
    doubts = []
    unsized = [call for call in counted if call.bytes is None]
    if libraries := sorted({call.via for call in unsized if call.via not in _GROUPED}):
        doubts.append(f"kernels of {', '.join(libraries)} do not tell their bytes, which are shown as 0")
    if shapeless := Counter(call.kind for call in unsized if call.via in _GROUPED):
        shown = ", ".join(f"{kind} ({count})" for kind, count in sorted(shapeless.items()))
        doubts.append(f"the bytes of {shown} are unknown and shown as 0, and control is not told from payload there; "
                      "record with record_shapes=True")  # fmt: skip
    if any(groups.label(call.group) == UNKNOWN for call in counted):
        size = f"{groups.world_size}, the size of the world" if groups.world_size > 1 else "2, as nothing is known"
        doubts.append(f"the trace does not tell the groups of some collectives; their axis is '{UNKNOWN}' and their "
                      f"size, where it is not told, is shown as {size}")  # fmt: skip
    silent = Counter(
        call.kind
        for call, spans in zip(found.calls, found.spans, strict=True)
        if not spans and call.via == "nccl" and call.kind != "send_recv" and call.group.size != 1
    )
    if silent and trace.kernels:
        shown = ", ".join(f"{kind} ({count})" for kind, count in sorted(silent.items()))
        doubts.append(f"calls without a kernel, because the trace ended or copy engines moved the data: {shown}")
    if found.unclassified:
        total = sum(count for count, _ in found.unclassified.values())
        names = ", ".join(repr(name[:80]) for name in sorted(found.unclassified)[:MAX_SHOWN])
        doubts.append(f"{total} communication kernels or rows in the trace could not be classified and are in no "
                      f"count: {names}")  # fmt: skip
    return doubts
