"""Reader of Kineto traces, which ``torch.profiler`` exports as JSON: collectives of one rank and their exposed time.

Calls are counted from the first of these sources that the trace has:

1. Host rows with the name ``record_param_comms``, if they name the collective (ledger source ``kineto:metadata``).
2. Annotations ``nccl:`` of older torch versions (``kineto:annotations``).
3. Rows ``c10d::`` of backends that write none of the above (``kineto:dispatcher``). Gloo's own annotations are not
   used, because they call a reduce-scatter an all-reduce.

Libraries for expert-parallel dispatch bypass process groups, so they are always counted by their payload kernels. The
names of all other kernels are only a cross-check. Communication that none of these sources explains is listed as
unclassified. The profiler marks only the backward phase, so forward is unknown."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regbot.ledgers.overlap import Intervals, Spans, overlap_devices, union
from regbot.ledgers.readers.groups import UNKNOWN
from regbot.ledgers.readers.kineto import calls
from regbot.ledgers.readers.kineto.calls import CallRow, KinetoCall
from regbot.ledgers.readers.kineto.process_groups import ProcessGroup, ProcessGroups
from regbot.ledgers.readers.kineto.record import KinetoKernel, TraceRecord, read_trace
from regbot.ledgers.readers.kineto.steps import (
    HostRows,
    HostTime,
    Phases,
    choose_window,
    find_launch_times,
    keep_outermost,
)
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import MAX_SECONDS, MAX_VOLUME, EntryKey, Unclassified
from regbot.records.ledger import Axis, CollectiveBackend, Entry, Ledger
from regbot.records.text.clip import clip, clip_message

NAME = "kineto"
TITLE = "Kineto trace"

_EVENTS_KEY = b'"traceEvents"'
_OTHER_KEYS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_PROCESS_GROUP_VIAS: tuple[CollectiveBackend, ...] = ("nccl", "gloo", "fake")
"""Backends of torch's process groups. The bytes of their calls are in the trace, if it has shapes."""
MAX_NAMES = 8


@dataclass
class _LoggedCall:
    call: KinetoCall
    host_time: HostTime | None
    """When the host issued the call; None if the trace does not tell."""
    kernels: list[KinetoKernel] = field(default_factory=list)


@dataclass
class _CallLog:
    origin: str = "kernels"
    """Where the calls come from: the part of the ledger's source after 'kineto:', such as 'metadata'. It stays
    'kernels' if no calls of the host are used."""
    calls: list[_LoggedCall] = field(default_factory=list)
    unclassified: Unclassified = field(default_factory=Unclassified)
    warnings: list[str] = field(default_factory=list)

    def add_call(self, call: KinetoCall, host_time: HostTime | None) -> _LoggedCall:
        self.calls.append(_LoggedCall(call, host_time))
        return self.calls[-1]

    def add_rows(self, rows: Sequence[tuple[CallRow, KinetoCall | str | None]]) -> None:
        for row, call in rows:
            if isinstance(call, str):  # the name of unknown communication
                self.unclassified.add(call)
            elif call is not None:
                self.add_call(call, HostTime(row.start_us, row.thread))


def recognises(head: bytes) -> bool:
    """Whether ``head``, the start of a file, is a JSON object with the keys of a trace. The key of the events can be
    missing from ``head``, because a long list of devices or groups may come before it. Two of the other keys are then
    enough."""
    has_keys = _EVENTS_KEY in head or sum(key in head for key in _OTHER_KEYS) > 1
    return head.lstrip().startswith(b"{") and has_keys


def read(source: Source, accepts_unlinked: bool = True) -> Ledger:
    """Return the ledger of the trace in ``source``, with the collectives of one rank. Raises ReadError. Some NCCL
    kernels are not linked to a call of the trace. If ``accepts_unlinked`` is False, all these kernels are unclassified.
    If it is True, a kernel that may belong to a counted call, or to a call before the trace, leads to a warning. The
    others are unclassified."""
    trace = read_trace(source)
    groups = ProcessGroups(source, trace.envelope)
    log = _CallLog()
    _add_host_calls(trace, groups, log)
    _assign_kernels(trace, groups, log, accepts_unlinked)
    _check_one_rank(source, trace, log)
    if not log.calls and not log.unclassified:
        raise source.error(
            "no collective was recorded: the trace has no record_param_comms, nccl: or c10d:: row and no kernel of a "
            "known library. This does not prove that the run had none; record CPU and GPU activity of a distributed run"
        )
    return _build_ledger(source, trace, groups, log)


def _add_host_calls(trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> None:
    """Add the calls that the host recorded, from the first source of the module docstring that the trace has. Rows of
    gloo and of symmetric memory are added too, because the other sources do not contain them. ``log.origin`` notes the
    source."""
    if trace.metadata:
        log.origin = "metadata"
        log.add_rows([(row, calls.from_metadata(row, groups)) for row in trace.metadata])
    elif trace.annotations:
        log.origin = "annotations"
        log.add_rows([(row, calls.from_annotation(row, groups)) for row in trace.annotations])
    _add_dispatcher_calls(trace, groups, log)
    log.add_rows([(row, calls.from_symmetric(row, groups)) for row in keep_outermost(trace.symmetric_rows)])


def _add_dispatcher_calls(trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> None:
    """Add the calls of those rows ``c10d::`` that contain no row of a more trusted source. torch's operator dispatcher
    writes these rows, so they are called dispatcher rows. They have nothing to do with token dispatchers. Gloo and the
    fake backend write only dispatcher rows. If the trace has a more trusted source and no gloo, the backend of such a
    row is unknown, so the row is unclassified."""
    trusted_rows = HostRows((*trace.metadata, *trace.annotations))
    uncovered_rows = [row for row in keep_outermost(trace.dispatcher_rows) if not trusted_rows.has_row_inside(row)]
    has_other_source = log.origin != "kernels"  # 'kernels' is the value before any source of host calls was used
    if has_other_source and not trace.gloo_rows:
        for row in uncovered_rows:
            log.unclassified.add(f"{row.name} of a backend that wrote no row")
        return
    if not uncovered_rows:
        return
    # Gloo's annotations name the element types. A shape that occurs with two types is ambiguous.
    dtype_by_shape = {shapes: min(dtypes) for shapes, dtypes in trace.gloo_types.items() if len(dtypes) == 1}
    via: CollectiveBackend = "nccl"
    if groups.backend == "fake":
        via = "fake"
    elif trace.gloo_rows or "gloo" in groups.backend:
        via = "gloo"
    log.add_rows([(row, calls.from_dispatcher(row, groups, via, dtype_by_shape)) for row in uncovered_rows])
    if not has_other_source:
        log.origin = "dispatcher"


def _assign_kernels(trace: TraceRecord, groups: ProcessGroups, log: _CallLog, accepts_unlinked: bool) -> None:
    """Assign each kernel to the host call that launched it. Each kernel of a dispatch library becomes a call of its
    own. The host call is found by the kernel's external id, or else by the time at which the host launched the kernel.
    An exchange of token counts is never assigned by time, because it is counted by itself. ``accepts_unlinked`` is as
    in ``read``."""
    host_calls, launch_times = list(log.calls), find_launch_times(trace)
    host_rows = HostRows(logged.call.row for logged in host_calls)
    by_external_id = {logged.call.row.external_id: logged for logged in host_calls}
    name_conflicts: Counter[str] = Counter()
    early_kernels = 0
    unassigned: list[KinetoKernel] = []
    for kernel in trace.kernels:
        communication, external_id = kernel.communication, kernel.row.external_id
        category = communication.category if communication is not None else None
        if category == "sync":  # a barrier inside a dispatch library is no collective
            continue
        host_time = launch_times.get(kernel.correlation) if kernel.correlation is not None else None
        logged: _LoggedCall | None = None
        if kernel.has_metadata and external_id:  # 0 is no id
            logged = by_external_id.get(external_id)
        if logged is None and host_time is not None and category != "control":
            index = host_rows.find_row_at(host_time)
            logged = host_calls[index] if index is not None else None
        if logged is None:
            if call := _make_library_call(kernel, groups):
                logged = log.add_call(call, host_time)
            elif kernel.has_metadata and accepts_unlinked:  # the host issued the call before the trace started
                early_kernels += 1
            else:
                unassigned.append(kernel)
        if logged is not None:
            logged.kernels.append(kernel)
            if conflict := _describe_name_conflict(kernel, logged.call):
                name_conflicts[conflict] += 1
    if name_conflicts:
        conflict_text = "; ".join(f"{count}x {name}" for name, count in name_conflicts.most_common(MAX_NAMES))
        log.warnings.append(f"kernel names disagree with the metadata; the metadata was counted: {conflict_text}")
    if early_kernels:
        log.warnings.append(
            f"{early_kernels} kernels belong to calls before the start of the trace and are not counted"
        )
    _add_unassigned_kernels(unassigned, log, accepts_unlinked)


def _describe_name_conflict(kernel: KinetoKernel, call: KinetoCall) -> str:
    communication, name = kernel.communication, repr(clip(kernel.row.name, 80))
    if communication is None or communication.category == "unknown":
        return f"{name}, which no table knows, runs a call of {call.kind}"
    if communication.possible_kinds and call.kind not in communication.possible_kinds:
        return f"{name} runs a call of {call.kind}"
    return ""


def _add_unassigned_kernels(kernels: Sequence[KinetoKernel], log: _CallLog, accepts_unlinked: bool) -> None:
    """Add warnings or unclassified communication for kernels that were not assigned to a call. With
    ``accepts_unlinked``, an NCCL kernel that could belong to a call without kernels, such as a coalesced call, leads to
    a warning. All other kernels become unclassified. A call in a group of one rank needs no kernel, so no kernel is
    taken to belong to it."""
    kinds_without_kernels = {
        logged.call.kind
        for logged in log.calls
        if accepts_unlinked and not logged.kernels and logged.call.group.size != 1
    }
    unlinked_kernels = 0
    for kernel in kernels:
        if kernel.communication is not None and kinds_without_kernels & kernel.communication.possible_kinds:
            unlinked_kernels += 1
        else:
            log.unclassified.add(kernel.row.name, seconds=_duration_s(kernel))
    if unlinked_kernels:
        log.warnings.append(
            f"{unlinked_kernels} NCCL kernels could not be linked to the call that launched them; their times are not "
            "in the exposed communication"
        )


def _make_library_call(kernel: KinetoKernel, groups: ProcessGroups) -> KinetoCall | None:
    key = kernel.communication.make_key(UNKNOWN, 0) if kernel.communication is not None else None
    if key is None:
        return None
    if key.kind == "all_to_all":  # dispatch libraries exchange tokens on the expert axis
        group = groups.find_expert_group()
    else:
        group = ProcessGroup(UNKNOWN, groups.world_size)
    return KinetoCall(key.kind, group, key.dtype, bytes=None, role=key.role, via=key.via, row=kernel.row)


def _duration_s(kernel: KinetoKernel) -> float:
    return (kernel.row.end_us - kernel.row.start_us) / 1e6


def _check_one_rank(source: Source, trace: TraceRecord, log: _CallLog) -> None:
    threads = [logged.host_time.thread for logged in log.calls if logged.host_time is not None]
    threads += [step.thread for step in trace.steps]
    processes = {process for process, _ in threads}
    devices = {kernel.device for kernel in trace.kernels}
    for noun, ids in (("processes", processes), ("devices", devices)):
        if len(ids) > 1:
            names = ", ".join(clip(name, 80) for name in sorted(ids)[:MAX_NAMES])
            raise source.error(f"mixes the communication of {len(ids)} {noun} ({names}); give the trace of one rank")


def _build_ledger(source: Source, trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> Ledger:
    phases = Phases(trace)
    # Groups of one rank exchange nothing, so their calls are left out.
    counted = [logged for logged in log.calls if logged.call.group.size != 1]
    keys = [_make_key(logged, groups, phases) for logged in counted]
    window = choose_window(trace.steps, [logged.host_time for logged in counted], keys)
    warnings = [*log.warnings, *window.warnings]
    calls_by_key: dict[EntryKey, list[_LoggedCall]] = defaultdict(list)
    for indices in window.steps:
        for index in indices:
            calls_by_key[keys[index]].append(counted[index])
    compute = {
        device.strip(b'"').decode("utf-8", "replace"): union(spans.starts, spans.ends)
        for device, spans in trace.times.compute.items()
    }
    step_count = len(window.steps)
    entries = [_make_entry(source, key, group, step_count, compute) for key, group in sorted(calls_by_key.items())]
    counted_calls = [logged.call for group in calls_by_key.values() for logged in group]
    groups_by_label = {groups.find_label(call.group): call.group for call in counted_calls if call.group.ranks}
    warnings += _list_warnings(log, groups, counted_calls)
    bytes_by_step = [Counter[str]() for _ in window.steps]
    for step_bytes, indices in zip(bytes_by_step, window.steps, strict=True):
        for index in indices:
            step_bytes[f"{keys[index].kind} over {keys[index].axis}"] += counted[index].call.bytes or 0
    first = bytes_by_step[0]
    varying_labels = sorted(label for label in first if any(step[label] != first[label] for step in bytes_by_step))
    if varying_labels:
        warnings.append(f"the bytes of {', '.join(varying_labels)} differ from step to step; their mean is shown")
    if not entries and not log.unclassified:
        warnings.append(f"the trace records no collective over more than one rank, and {len(log.calls)} over one")
    return Ledger(
        source=f"kineto:{log.origin}",
        scope="step" if window.is_per_step else "whole",
        steps=window.step_count,
        world_size=groups.world_size or None,
        rank=groups.rank,
        axes={label: Axis(size=len(group.ranks), ranks=list(group.ranks)) for label, group in groups_by_label.items()},
        entries=entries,
        unclassified=log.unclassified.records(),
        warnings=[clip_message(warning) for warning in warnings],
    )


def _make_key(logged: _LoggedCall, groups: ProcessGroups, phases: Phases) -> EntryKey:
    """Return the entry that a call belongs to. A group of unknown size counts as the whole world, and at least as two
    ranks."""
    call, host_time = logged.call, logged.host_time
    phase = phases.phase_at(host_time) if host_time is not None else "unknown"
    size = max(call.group.size or groups.world_size, 2)
    return EntryKey(call.kind, groups.find_label(call.group), size, call.dtype, phase, call.role, call.via)


def _make_entry(
    source: Source, key: EntryKey, logged_calls: list[_LoggedCall], step_count: int, compute: Mapping[str, Intervals]
) -> Entry:
    """Return the entry of these calls: calls, bytes and seconds per step. ``compute`` has the times of compute kernels
    by device, in microseconds."""
    total_bytes = sum(logged.call.bytes or 0 for logged in logged_calls)
    if total_bytes > MAX_VOLUME:
        raise source.error(f"its calls of {key.kind} add up to {total_bytes:,} bytes, which no trace can hold")
    spans_by_device: dict[str, Spans] = defaultdict(Spans)
    for logged in logged_calls:
        for kernel in logged.kernels:
            spans_by_device[kernel.device].add(kernel.row.start_us, kernel.row.end_us)
    on_devices = overlap_devices(spans_by_device, compute)
    exposed_s, hidden_s = on_devices.exposed / 1e6 / step_count, on_devices.hidden / 1e6 / step_count
    if exposed_s + hidden_s > MAX_SECONDS:
        raise source.error(f"its kernels of {key.kind} run for {exposed_s + hidden_s:.0f} s; its times are wrong")
    return Entry(
        **key._asdict(),
        count=len(logged_calls) // step_count,
        bytes=round(total_bytes / step_count),
        # Without an assigned kernel, the times are unknown.
        exposed_s=exposed_s if spans_by_device else None,
        hidden_s=hidden_s if spans_by_device else None,
    )


def _list_warnings(log: _CallLog, groups: ProcessGroups, counted_calls: list[KinetoCall]) -> list[str]:
    warnings = []
    unsized = [call for call in counted_calls if call.bytes is None]
    if libraries := sorted({call.via for call in unsized} - {*_PROCESS_GROUP_VIAS}):
        warnings.append(f"the bytes of {', '.join(libraries)} kernels are unknown and shown as 0")
    if unsized_by_kind := Counter(call.kind for call in unsized if call.via in _PROCESS_GROUP_VIAS):
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(unsized_by_kind.items()))
        warnings.append(f"the bytes of {kinds} are unknown and shown as 0, and all of them count as payload; "
                      "record with record_shapes=True")  # fmt: skip
    if any(groups.find_label(call.group) == UNKNOWN for call in counted_calls):
        size = f"{groups.world_size}, the size of the world" if groups.world_size > 1 else "2, as nothing is known"
        warnings.append(f"the groups of some collectives are unknown; their axis is '{UNKNOWN}', and an unknown size "
                      f"is shown as {size}")  # fmt: skip
    return [*warnings, *log.unclassified.warnings()]
