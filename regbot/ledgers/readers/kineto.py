"""Reader of Kineto traces, which ``torch.profiler`` exports as JSON: collectives of one rank and their exposed time.

Calls are counted from the first of these sources that the trace has:

1. Host rows with the name ``record_param_comms``, if they name the collective (ledger source ``kineto:metadata``).
2. The same metadata on kernels, if the host was not recorded (``kineto:kernel-metadata``).
3. Annotations ``nccl:`` of older torch versions (``kineto:annotations``).
4. Rows ``c10d::`` of backends that write none of the above (``kineto:dispatcher``). Gloo's own annotations are not
   used, because they call a reduce-scatter an all-reduce.

Libraries for expert-parallel dispatch bypass process groups, so they are always counted by their payload kernels. The
names of all other kernels are only a cross-check. Communication that none of these sources explains is listed as
unclassified. It is never silently left out.

A trace does not contain the bytes of dispatch libraries, the module that issued a call, or anything about other ranks.
The profiler marks only the backward phase, so forward is unknown.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.overlap import Intervals, overlap, union
from regbot.ledgers.readers import kineto_calls
from regbot.ledgers.readers.kernels import Communication
from regbot.ledgers.readers.kineto_calls import CallRow, KinetoCall, UnknownCall
from regbot.ledgers.readers.kineto_groups import UNKNOWN, ProcessGroup, ProcessGroups
from regbot.ledgers.readers.kineto_record import KinetoKernel, TraceRecord, read_trace
from regbot.ledgers.readers.kineto_steps import (
    HostRows,
    HostTime,
    KernelLaunches,
    Phases,
    choose_window,
    keep_outermost,
)
from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Axis, CollectiveBackend, Entry, Kind, Ledger, Phase, Role, UnclassifiedCommunication
from regbot.text.clip import clip, clip_label, clip_message

NAME = "kineto"
TITLE = "Kineto trace"

_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_PROCESS_GROUP_VIAS: tuple[CollectiveBackend, ...] = ("nccl", "gloo", "fake")
MAX_SECONDS = 1e7
MAX_NAMES = 8


class _EntryKey(NamedTuple):
    """Fields that are equal for all collectives of one entry."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: CollectiveBackend


@dataclass
class _CallLog:
    """Calls collected so far.

    ``origin`` is the end of the ledger's source, such as 'metadata'. ``host_times`` and ``spans`` have one item per
    call. An item of ``spans`` lists the kernels of the call as (device, start, end) in microseconds. ``unclassified``
    maps a name to the number of calls and their seconds.
    """

    origin: str = "kernels"
    calls: list[KinetoCall] = field(default_factory=list)
    host_times: list[HostTime | None] = field(default_factory=list)
    spans: list[list[tuple[str, float, float]]] = field(default_factory=list)
    unclassified: dict[str, tuple[int, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add_call(self, call: KinetoCall, host_time: HostTime | None) -> int:
        self.calls.append(call)
        self.host_times.append(host_time)
        self.spans.append([])
        return len(self.calls) - 1

    def add_unclassified(self, name: str, seconds: float = 0.0, calls: int = 1) -> None:
        count, total_s = self.unclassified.get(name, (0, 0.0))
        self.unclassified[name] = (count + calls, total_s + seconds)

    def add_rows(self, rows: Sequence[tuple[CallRow, KinetoCall | UnknownCall | None]]) -> None:
        """Add the calls that host rows record. Unknown calls are added to ``unclassified``."""
        for row, call in rows:
            if isinstance(call, UnknownCall):
                self.add_unclassified(call.name)
            elif call is not None:
                self.add_call(call, HostTime(row.start_us, row.thread))


def recognises(head: bytes) -> bool:
    start = head.lstrip()
    if start[:1] == b"[":
        return b'"ph"' in head and b'"ts"' in head
    return start[:1] == b"{" and (
        any(key in head for key in _TRACE_KEYS[:1]) or sum(key in head for key in _TRACE_KEYS) > 1
    )


def read(source: Source, accepts_unlinked: bool = True) -> Ledger:
    """Return the ledger of the trace in ``source``, with the collectives of one rank. Raises ReadError.

    Without ``accepts_unlinked``, all NCCL kernels that are not linked to a call of the trace are unclassified.
    Otherwise a kernel that may belong to a counted call, or to a call before the trace, only leads to a warning.
    """
    trace = read_trace(source)
    groups = ProcessGroups(trace.envelope)
    log = _CallLog()
    _add_host_calls(trace, groups, log)
    launches = KernelLaunches(trace, (kernel.correlation for kernel in trace.kernels))
    _assign_kernels(trace, groups, launches, log, accepts_unlinked)
    _check_one_rank(source, trace, log)
    if not log.calls and not log.unclassified:
        raise source.error(
            "no collective was recorded: the trace has no record_param_comms, nccl: or c10d:: row and no kernel of a "
            "known library. This does not prove that the run had none; record CPU and GPU activity of a distributed run"
        )
    return _build_ledger(source, trace, groups, log)


def _add_host_calls(trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> None:
    """Add the calls that the host recorded: from the most trusted source, and from rows of gloo and of symmetric
    memory.
    """
    if trace.metadata:
        log.origin = "metadata"
        log.add_rows([(row, kineto_calls.from_metadata(row, groups)) for row in trace.metadata])
    elif any(kernel.has_metadata for kernel in trace.kernels):
        log.origin = "kernel-metadata"
        log.warnings.append("the trace has no rows of the host; calls are counted from the metadata of kernels")
    elif trace.annotations:
        log.origin = "annotations"
        log.add_rows([(row, kineto_calls.from_annotation(row, groups)) for row in trace.annotations])
    elif trace.nameless_rows:
        log.add_unclassified("record_param_comms without the name of a collective", calls=trace.nameless_rows)
    if log.origin != "kernel-metadata":
        _add_dispatcher_calls(trace, groups, log)
    log.add_rows([(row, kineto_calls.from_symmetric(row, groups)) for row in keep_outermost(trace.symmetric_rows)])


def _add_dispatcher_calls(trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> None:
    """Add the calls of those dispatcher rows that contain no row of a more trusted source.

    Gloo and the fake backend write only dispatcher rows.
    """
    trusted_rows = HostRows((*trace.metadata, *trace.annotations))
    uncovered_rows = [row for row in keep_outermost(trace.dispatcher_rows) if not trusted_rows.has_row_inside(row)]
    if uncovered_rows and (log.origin == "kernels" or trace.gloo_rows):
        dtype_by_shape = {shapes: next(iter(dtypes)) for shapes, dtypes in trace.gloo_types.items() if len(dtypes) == 1}
        via: CollectiveBackend = "gloo" if trace.gloo_rows or "gloo" in groups.backend else "nccl"
        via = "fake" if groups.backend == "fake" else via
        log.add_rows([(row, kineto_calls.from_dispatcher(row, groups, via, dtype_by_shape)) for row in uncovered_rows])
        log.origin = "dispatcher" if log.origin == "kernels" else log.origin
        return
    for row in uncovered_rows:
        log.add_unclassified(f"{row.name} of a backend that wrote no row")


def _assign_kernels(
    trace: TraceRecord, groups: ProcessGroups, launches: KernelLaunches, log: _CallLog, accepts_unlinked: bool
) -> None:
    """Assign each kernel to the host call that launched it. Each kernel of a dispatch library becomes a call of its
    own.
    """
    host_rows = HostRows(call.row for call in log.calls)
    call_by_external_id = {
        call.row.external_id: index for index, call in enumerate(log.calls) if call.row.external_id is not None
    }
    call_by_kernel_id: dict[int, int] = {}
    name_conflicts: Counter[str] = Counter()
    early_kernels = 0
    unassigned: list[KinetoKernel] = []
    for kernel in trace.kernels:
        communication, host_time = kernel.communication, launches.find_host_time(kernel.correlation)
        if communication is not None and communication.category == "sync":
            continue
        index = call_by_external_id.get(kernel.row.external_id or -1) if kernel.has_metadata else None
        if (
            index is None
            and host_time is not None
            and not (communication is not None and communication.category == "control")
        ):
            index = host_rows.find_row_at(host_time)
        if index is None and kernel.has_metadata and log.origin == "kernel-metadata":
            call = kineto_calls.from_metadata(kernel.row, groups)
            if isinstance(call, UnknownCall):
                log.add_unclassified(call.name, _duration_s(kernel))
            if not isinstance(call, KinetoCall):
                continue
            known_index = None if kernel.row.external_id is None else call_by_kernel_id.get(kernel.row.external_id)
            index = log.add_call(call, host_time) if known_index is None else known_index
            if kernel.row.external_id is not None:
                call_by_kernel_id[kernel.row.external_id] = index  # one call may launch several kernels
        elif (
            index is None
            and communication is not None
            and communication.category in ("payload", "control")
            and communication.via
            and communication.kind
        ):
            index = log.add_call(_make_library_call(kernel, communication, groups), host_time)
        elif index is None and kernel.has_metadata and accepts_unlinked:
            early_kernels += 1
        elif index is None:
            unassigned.append(kernel)
        if index is not None:
            log.spans[index].append((kernel.device, kernel.row.start_us, kernel.row.end_us))
            call = log.calls[index]
            if communication is None or communication.category == "unknown":
                name_conflicts[f"{clip(kernel.row.name, 80)!r}, which no table knows, runs a call of {call.kind}"] += 1
            elif communication.possible_kinds and call.kind not in communication.possible_kinds:
                name_conflicts[f"{clip(kernel.row.name, 80)!r} runs a call of {call.kind}"] += 1
    if name_conflicts:
        conflict_text = "; ".join(f"{count}x {name}" for name, count in name_conflicts.most_common(MAX_NAMES))
        log.warnings.append(f"kernel names disagree with the metadata; the metadata was counted: {conflict_text}")
    if early_kernels:
        log.warnings.append(
            f"{early_kernels} kernels belong to calls before the start of the trace and are not counted"
        )
    _add_unassigned_kernels(unassigned, log, accepts_unlinked)


def _add_unassigned_kernels(kernels: Sequence[KinetoKernel], log: _CallLog, accepts_unlinked: bool) -> None:
    """Handle kernels that were not assigned to a call.

    With ``accepts_unlinked``, an NCCL kernel that could belong to a call without kernels, such as a coalesced call,
    leads to a warning. A call in a group of one rank needs no kernel. All other kernels become unclassified.
    """
    kinds_without_kernels = {
        call.kind
        for call, spans in zip(log.calls, log.spans, strict=True)
        if accepts_unlinked and not spans and call.group.size != 1
    }
    unlinked_kernels = 0
    for kernel in kernels:
        if (
            kernel.communication is not None
            and kernel.communication.category == "nccl"
            and kinds_without_kernels & kernel.communication.possible_kinds
        ):
            unlinked_kernels += 1
        else:
            log.add_unclassified(kernel.row.name, _duration_s(kernel))
    if unlinked_kernels:
        log.warnings.append(
            f"{unlinked_kernels} NCCL kernels could not be linked to the call that launched them; their times are not "
            "in the exposed communication"
        )


def _make_library_call(kernel: KinetoKernel, communication: Communication, groups: ProcessGroups) -> KinetoCall:
    assert communication.kind is not None
    assert communication.via is not None
    role: Role = "control" if communication.category == "control" else "payload"
    group = (
        groups.find_expert_group() if communication.kind == "all_to_all" else ProcessGroup(UNKNOWN, groups.world_size)
    )
    return KinetoCall(communication.kind, group, "unknown", None, role, communication.via, kernel.row)


def _duration_s(kernel: KinetoKernel) -> float:
    return (kernel.row.end_us - kernel.row.start_us) / 1e6


def _check_one_rank(source: Source, trace: TraceRecord, log: _CallLog) -> None:
    processes = {host_time.thread[0] for host_time in log.host_times if host_time is not None}
    devices = {kernel.device for kernel in trace.kernels}
    processes |= {step.thread[0] for step in trace.steps}
    for noun, origins in (("processes", processes), ("devices", devices)):
        if len(origins) > 1:
            names = ", ".join(sorted(origins)[:MAX_NAMES])
            raise source.error(
                f"mixes the communication of {len(origins)} {noun} ({names}); give the trace of one rank"
            )


def _build_ledger(source: Source, trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> Ledger:
    phases = Phases(trace)
    counted_indices = [index for index, call in enumerate(log.calls) if call.group.size != 1]
    keys = [_make_key(log.calls[index], log.host_times[index], groups, phases) for index in counted_indices]
    window = choose_window(trace.steps, [log.host_times[index] for index in counted_indices], keys)
    warnings = [*log.warnings, *window.warnings]
    steps = [[counted_indices[position] for position in positions] for positions in window.steps]
    key_by_index = dict(zip(counted_indices, keys, strict=True))
    indices_by_key: dict[_EntryKey, list[int]] = defaultdict(list)
    for index in (index for indices in steps for index in indices):
        indices_by_key[key_by_index[index]].append(index)
    compute = {
        device.strip(b'"').decode("utf-8", "replace"): union(spans.starts, spans.ends)
        for device, spans in trace.times.compute.items()
    }
    entries = [
        _make_entry(source, log, key, indices, len(steps), compute) for key, indices in sorted(indices_by_key.items())
    ]
    counted_calls = [log.calls[index] for indices in indices_by_key.values() for index in indices]
    warnings += _list_warnings(trace, log, groups, counted_calls)
    volumes: list[Counter[str]] = [Counter() for _ in steps]
    for volume, indices in zip(volumes, steps, strict=True):
        for index in indices:
            volume[f"{key_by_index[index].kind} over {key_by_index[index].axis}"] += log.calls[index].bytes or 0
    if varying_kinds := sorted(kind for kind in volumes[0] if len({volume[kind] for volume in volumes}) > 1):
        warnings.append(f"the bytes of {', '.join(varying_kinds)} differ from step to step; their mean is shown")
    if not entries and not log.unclassified:
        warnings.append(f"the trace records no collective over more than one rank, and {len(log.calls)} over one")
    return Ledger(
        source=f"kineto:{log.origin}",
        scope="step" if window.is_per_step else "whole",
        steps=window.step_count,
        world_size=groups.world_size or None,
        rank=groups.rank,
        axes={
            groups.find_label(call.group): Axis(size=len(call.group.ranks), ranks=list(call.group.ranks))
            for call in counted_calls
            if call.group.ranks
        },
        entries=entries,
        unclassified=[
            UnclassifiedCommunication(
                name=clip_label(name), count=count, seconds=min(seconds, MAX_SECONDS) if seconds else None
            )
            for name, (count, seconds) in sorted(log.unclassified.items())[:1000]
        ],
        warnings=[clip_message(warning) for warning in warnings],
    )


def _make_key(call: KinetoCall, host_time: HostTime | None, groups: ProcessGroups, phases: Phases) -> _EntryKey:
    phase = phases.phase_at(host_time) if host_time is not None else "unknown"
    size = max(call.group.size or groups.world_size, 2)
    return _EntryKey(call.kind, clip_label(groups.find_label(call.group)), size, call.dtype, phase, call.role, call.via)


def _make_entry(
    source: Source, log: _CallLog, key: _EntryKey, indices: list[int], steps: int, compute: dict[str, Intervals]
) -> Entry:
    total_bytes = sum(log.calls[index].bytes or 0 for index in indices)
    if total_bytes > kineto_calls.MAX_VOLUME:
        raise source.error(f"its calls of {key.kind} add up to {total_bytes:,} bytes, which no trace can hold")
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for index in indices:
        for device, start, end in log.spans[index]:
            spans[device].append((start, end))
    exposed = hidden = 0.0
    for device, device_spans in spans.items():
        device_overlap = overlap(union(*zip(*device_spans, strict=True)), compute.get(device, union([], [])))
        exposed, hidden = exposed + device_overlap.exposed / 1e6 / steps, hidden + device_overlap.hidden / 1e6 / steps
    if exposed + hidden > MAX_SECONDS:
        raise source.error(f"its kernels of {key.kind} run for {exposed + hidden:.0f} s; its times are wrong")
    return Entry(
        **key._asdict(),
        where="",
        count=len(indices) // steps,
        bytes=round(total_bytes / steps),
        exposed_s=exposed if spans else None,
        hidden_s=hidden if spans else None,
    )


def _list_warnings(
    trace: TraceRecord, log: _CallLog, groups: ProcessGroups, counted_calls: list[KinetoCall]
) -> list[str]:
    """Return warnings about unknown properties of counted collectives and about communication that was not counted."""
    warnings = []
    unsized = [call for call in counted_calls if call.bytes is None]
    if libraries := sorted({call.via for call in unsized if call.via not in _PROCESS_GROUP_VIAS}):
        warnings.append(f"the bytes of {', '.join(libraries)} kernels are unknown and shown as 0")
    if unsized_by_kind := Counter(call.kind for call in unsized if call.via in _PROCESS_GROUP_VIAS):
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(unsized_by_kind.items()))
        warnings.append(f"the bytes of {kinds} are unknown and shown as 0, and all of them count as payload; "
                      "record with record_shapes=True")  # fmt: skip
    if any(groups.find_label(call.group) == UNKNOWN for call in counted_calls):
        size = f"{groups.world_size}, the size of the world" if groups.world_size > 1 else "2, as nothing is known"
        warnings.append(f"the groups of some collectives are unknown; their axis is '{UNKNOWN}', and an unknown size "
                      f"is shown as {size}")  # fmt: skip
    without_kernel = Counter(
        call.kind
        for call, spans in zip(log.calls, log.spans, strict=True)
        if not spans and call.via == "nccl" and call.kind != "send_recv" and call.group.size != 1
    )
    if without_kernel and trace.kernels:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(without_kernel.items()))
        warnings.append(
            f"calls without a kernel: {kinds}; the trace ended before their kernels ran, or copy engines moved the data"
        )
    if log.unclassified:
        total = sum(count for count, _ in log.unclassified.values())
        names = ", ".join(repr(clip(name, 80)) for name in sorted(log.unclassified)[:MAX_NAMES])
        warnings.append(f"{total} communication kernels or rows in the trace could not be classified and are not "
                      f"counted: {names}")  # fmt: skip
    return warnings
