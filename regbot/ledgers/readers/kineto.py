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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

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
from regbot.records.text.clip import clip, clip_label, clip_message

NAME = "kineto"
TITLE = "Kineto trace"

_EVENTS_KEY = b'"traceEvents"'
_OTHER_KEYS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_PROCESS_GROUP_VIAS: tuple[CollectiveBackend, ...] = ("nccl", "gloo", "fake")
"""Backends of torch's process groups. The bytes of their calls are in the trace, if it has shapes."""
MAX_SECONDS = 1e7
"""Largest plausible time of all kernels of an entry, about four months."""
MAX_NAMES = 8
"""Largest number of names in one message."""


class _EntryKey(NamedTuple):
    """Fields that are equal for all collectives of one entry."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: CollectiveBackend


class _KernelSpan(NamedTuple):
    """When and where one kernel ran."""

    device: str
    start_us: float
    end_us: float


@dataclass
class _CallLog:
    """Calls collected so far. ``calls``, ``host_times`` and ``spans`` have one item per call, in the same order."""

    origin: str = "kernels"
    """Where the calls come from: the part of the ledger's source after 'kineto:', such as 'metadata'. It stays
    'kernels' if no calls of the host are used.
    """
    calls: list[KinetoCall] = field(default_factory=list)
    host_times: list[HostTime | None] = field(default_factory=list)
    """When the host issued the call; None if the trace does not tell."""
    spans: list[list[_KernelSpan]] = field(default_factory=list)
    """The kernels of the call."""
    unclassified: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Number and seconds of communication kernels or rows that could not be classified, by name."""
    warnings: list[str] = field(default_factory=list)

    def add_call(self, call: KinetoCall, host_time: HostTime | None) -> int:
        """Add a call without kernels, and return its index."""
        self.calls.append(call)
        self.host_times.append(host_time)
        self.spans.append([])
        return len(self.calls) - 1

    def add_unclassified(self, name: str, seconds: float = 0.0, calls: int = 1) -> None:
        count, total_s = self.unclassified.get(name, (0, 0.0))
        self.unclassified[name] = (count + calls, total_s + seconds)

    def add_rows(self, rows: Sequence[tuple[CallRow, KinetoCall | UnknownCall | None]]) -> None:
        """Add the calls that host rows record. Unknown calls are added to ``unclassified``. A row with None is no call,
        and is skipped.
        """
        for row, call in rows:
            if isinstance(call, UnknownCall):
                self.add_unclassified(call.name)
            elif call is not None:
                self.add_call(call, HostTime(row.start_us, row.thread))


def recognises(head: bytes) -> bool:
    """Whether ``head``, the start of a file, is a list of trace events or a JSON object with the keys of a trace.

    The key of the events can be missing from ``head``, because a long list of devices or groups may come before it. Two
    of the other keys are then enough.
    """
    start = head.lstrip()
    if start.startswith(b"["):
        return b'"ph"' in head and b'"ts"' in head
    if not start.startswith(b"{"):
        return False
    return _EVENTS_KEY in head or sum(key in head for key in _OTHER_KEYS) > 1


def read(source: Source, accepts_unlinked: bool = True) -> Ledger:
    """Return the ledger of the trace in ``source``, with the collectives of one rank. Raises ReadError.

    Some NCCL kernels are not linked to a call of the trace. If ``accepts_unlinked`` is False, all these kernels are
    unclassified. If it is True, a kernel that may belong to a counted call, or to a call before the trace, leads to a
    warning. The others are unclassified.
    """
    trace = read_trace(source)
    groups = ProcessGroups(source, trace.envelope)
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
    """Add the calls that the host recorded, from the first source of the module docstring that the trace has. Rows of
    gloo and of symmetric memory are added too, because the other sources do not contain them. ``log.origin`` notes the
    source.
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
    if log.origin != "kernel-metadata":  # with this origin, the trace has no rows of the host
        _add_dispatcher_calls(trace, groups, log)
    log.add_rows([(row, kineto_calls.from_symmetric(row, groups)) for row in keep_outermost(trace.symmetric_rows)])


def _add_dispatcher_calls(trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> None:
    """Add the calls of those rows ``c10d::`` that contain no row of a more trusted source. torch's operator dispatcher
    writes these rows, so they are called dispatcher rows. They have nothing to do with token dispatchers.

    Gloo and the fake backend write only dispatcher rows. If the trace has a more trusted source and no gloo, the
    backend of such a row is unknown, so the row is unclassified.
    """
    trusted_rows = HostRows((*trace.metadata, *trace.annotations))
    uncovered_rows = [row for row in keep_outermost(trace.dispatcher_rows) if not trusted_rows.has_row_inside(row)]
    has_other_source = log.origin != "kernels"  # 'kernels' is the value before any source of host calls was used
    if has_other_source and not trace.gloo_rows:
        for row in uncovered_rows:
            log.add_unclassified(f"{row.name} of a backend that wrote no row")
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
    log.add_rows([(row, kineto_calls.from_dispatcher(row, groups, via, dtype_by_shape)) for row in uncovered_rows])
    if not has_other_source:
        log.origin = "dispatcher"


def _assign_kernels(
    trace: TraceRecord, groups: ProcessGroups, launches: KernelLaunches, log: _CallLog, accepts_unlinked: bool
) -> None:
    """Assign each kernel to the host call that launched it. Each kernel of a dispatch library becomes a call of its
    own.

    The host call is found by the kernel's external id, or else by the time at which the host launched the kernel. An
    exchange of token counts is never assigned by time, because it is counted by itself. ``accepts_unlinked`` is as in
    ``read``.
    """
    host_rows = HostRows(call.row for call in log.calls)
    call_by_external_id = {
        call.row.external_id: index for index, call in enumerate(log.calls) if call.row.external_id is not None
    }
    kernel_calls: dict[int, int] = {}  # calls counted from kernel metadata, by external id
    name_conflicts: Counter[str] = Counter()
    early_kernels = 0
    unassigned: list[KinetoKernel] = []
    for kernel in trace.kernels:
        communication, external_id = kernel.communication, kernel.row.external_id
        category = communication.category if communication is not None else None
        if category == "sync":  # a barrier inside a dispatch library is no collective
            continue
        host_time = launches.find_host_time(kernel.correlation)
        index: int | None = None  # of the call in the log
        if kernel.has_metadata and external_id:  # 0 is no id
            index = call_by_external_id.get(external_id)
        if index is None and host_time is not None and category != "control":
            index = host_rows.find_row_at(host_time)
        if index is None:
            if kernel.has_metadata and log.origin == "kernel-metadata":
                index = _add_kernel_call(kernel, groups, host_time, log, kernel_calls)
            elif _is_counted_by_kernel(communication):
                index = log.add_call(_make_library_call(kernel, communication, groups), host_time)
            elif kernel.has_metadata and accepts_unlinked:  # the host issued the call before the trace started
                early_kernels += 1
            else:
                unassigned.append(kernel)
        if index is not None:
            log.spans[index].append(_KernelSpan(kernel.device, kernel.row.start_us, kernel.row.end_us))
            if conflict := _describe_name_conflict(kernel, log.calls[index]):
                name_conflicts[conflict] += 1
    if name_conflicts:
        conflict_text = "; ".join(f"{count}x {name}" for name, count in name_conflicts.most_common(MAX_NAMES))
        log.warnings.append(f"kernel names disagree with the metadata; the metadata was counted: {conflict_text}")
    if early_kernels:
        log.warnings.append(
            f"{early_kernels} kernels belong to calls before the start of the trace and are not counted"
        )
    _add_unassigned_kernels(unassigned, log, accepts_unlinked)


def _add_kernel_call(
    kernel: KinetoKernel,
    groups: ProcessGroups,
    host_time: HostTime | None,
    log: _CallLog,
    kernel_calls: dict[int, int],
) -> int | None:
    """Add the call that the metadata of a kernel describes, and return the index of the call.

    One call may launch several kernels, which have the same external id. ``kernel_calls`` maps the external ids of
    earlier kernels to the indices of their calls. Return None if the metadata describes no known collective.
    """
    external_id = kernel.row.external_id
    call = kineto_calls.from_metadata(kernel.row, groups)
    if isinstance(call, UnknownCall):
        log.add_unclassified(call.name, _duration_s(kernel))
    if not isinstance(call, KinetoCall):
        return None
    if external_id is None:
        return log.add_call(call, host_time)
    if external_id not in kernel_calls:
        kernel_calls[external_id] = log.add_call(call, host_time)
    return kernel_calls[external_id]


def _is_counted_by_kernel(communication: Communication | None) -> TypeGuard[Communication]:
    """Whether each kernel that communicates like this counts as a call: the kernels of a dispatch library."""
    if communication is None or communication.category not in ("payload", "control"):
        return False
    return communication.via is not None and communication.kind is not None


def _describe_name_conflict(kernel: KinetoKernel, call: KinetoCall) -> str:
    """Return how the kernel's name contradicts the call that launched it, or '' if the name fits."""
    communication, name = kernel.communication, repr(clip(kernel.row.name, 80))
    if communication is None or communication.category == "unknown":
        return f"{name}, which no table knows, runs a call of {call.kind}"
    if communication.possible_kinds and call.kind not in communication.possible_kinds:
        return f"{name} runs a call of {call.kind}"
    return ""


def _add_unassigned_kernels(kernels: Sequence[KinetoKernel], log: _CallLog, accepts_unlinked: bool) -> None:
    """Add warnings or unclassified communication for kernels that were not assigned to a call.

    With ``accepts_unlinked``, an NCCL kernel that could belong to a call without kernels, such as a coalesced call,
    leads to a warning. All other kernels become unclassified. A call in a group of one rank needs no kernel, so no
    kernel is taken to belong to it.
    """
    kinds_without_kernels = {
        call.kind
        for call, spans in zip(log.calls, log.spans, strict=True)
        if accepts_unlinked and not spans and call.group.size != 1
    }
    unlinked_kernels = 0
    for kernel in kernels:
        if kinds_without_kernels & _list_nccl_kinds(kernel):
            unlinked_kernels += 1
        else:
            log.add_unclassified(kernel.row.name, _duration_s(kernel))
    if unlinked_kernels:
        log.warnings.append(
            f"{unlinked_kernels} NCCL kernels could not be linked to the call that launched them; their times are not "
            "in the exposed communication"
        )


def _list_nccl_kinds(kernel: KinetoKernel) -> frozenset[Kind]:
    """Return the collectives that an NCCL kernel can run. The set is empty for all other kernels."""
    communication = kernel.communication
    if communication is None or communication.category != "nccl":
        return frozenset()
    return communication.possible_kinds


def _make_library_call(kernel: KinetoKernel, communication: Communication, groups: ProcessGroups) -> KinetoCall:
    """Return the call of one kernel of a dispatch library. Its bytes and element type are unknown."""
    assert communication.kind is not None
    assert communication.via is not None
    if communication.kind == "all_to_all":  # dispatch libraries exchange tokens on the expert axis
        group = groups.find_expert_group()
    else:
        group = ProcessGroup(UNKNOWN, groups.world_size)
    return KinetoCall(
        communication.kind,
        group,
        dtype="unknown",
        bytes=None,
        role="control" if communication.category == "control" else "payload",
        via=communication.via,
        row=kernel.row,
    )


def _duration_s(kernel: KinetoKernel) -> float:
    return (kernel.row.end_us - kernel.row.start_us) / 1e6


def _check_one_rank(source: Source, trace: TraceRecord, log: _CallLog) -> None:
    """Raise ReadError if the calls, kernels and steps come from more than one process or device."""
    threads = [host_time.thread for host_time in log.host_times if host_time is not None]
    threads += [step.thread for step in trace.steps]
    processes = {process for process, _ in threads}
    devices = {kernel.device for kernel in trace.kernels}
    for noun, ids in (("processes", processes), ("devices", devices)):
        if len(ids) > 1:
            names = ", ".join(clip(name, 80) for name in sorted(ids)[:MAX_NAMES])
            raise source.error(f"mixes the communication of {len(ids)} {noun} ({names}); give the trace of one rank")


def _build_ledger(source: Source, trace: TraceRecord, groups: ProcessGroups, log: _CallLog) -> Ledger:
    """Return the ledger of the calls in ``log``: per step if the steps are equal, otherwise of the whole trace."""
    phases = Phases(trace)
    # Calls are named by their index in the log. Groups of one rank exchange nothing, so their calls are left out.
    candidates = [index for index, call in enumerate(log.calls) if call.group.size != 1]
    keys = [_make_key(log.calls[index], log.host_times[index], groups, phases) for index in candidates]
    window = choose_window(trace.steps, [log.host_times[index] for index in candidates], keys)
    warnings = [*log.warnings, *window.warnings]
    steps = [[candidates[position] for position in positions] for positions in window.steps]
    key_by_index = dict(zip(candidates, keys, strict=True))
    indices_by_key: dict[_EntryKey, list[int]] = defaultdict(list)
    for indices in steps:
        for index in indices:
            indices_by_key[key_by_index[index]].append(index)
    compute = {
        device.strip(b'"').decode("utf-8", "replace"): union(spans.starts, spans.ends)
        for device, spans in trace.times.compute.items()
    }
    entries = [
        _make_entry(source, log, key, indices, len(steps), compute) for key, indices in sorted(indices_by_key.items())
    ]
    counted_calls = [log.calls[index] for indices in indices_by_key.values() for index in indices]
    groups_by_label = {groups.find_label(call.group): call.group for call in counted_calls if call.group.ranks}
    warnings += _list_warnings(trace, log, groups, counted_calls)
    if varying_labels := _find_varying_bytes(steps, key_by_index, log):
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
        unclassified=[
            UnclassifiedCommunication(
                name=clip_label(name), count=count, seconds=min(seconds, MAX_SECONDS) if seconds else None
            )
            for name, (count, seconds) in sorted(log.unclassified.items())[:1000]
        ],
        warnings=[clip_message(warning) for warning in warnings],
    )


def _find_varying_bytes(steps: Sequence[list[int]], keys: Mapping[int, _EntryKey], log: _CallLog) -> list[str]:
    """Return the labels of collectives whose bytes differ between steps, such as 'all_to_all over ep'.

    ``steps`` has the indices of the calls of each step, and ``keys`` maps these indices to the entries.
    """
    bytes_by_step: list[Counter[str]] = [Counter() for _ in steps]
    for step_bytes, indices in zip(bytes_by_step, steps, strict=True):
        for index in indices:
            step_bytes[f"{keys[index].kind} over {keys[index].axis}"] += log.calls[index].bytes or 0
    first_step = bytes_by_step[0]
    return sorted(
        label for label in first_step if any(step_bytes[label] != first_step[label] for step_bytes in bytes_by_step)
    )


def _make_key(call: KinetoCall, host_time: HostTime | None, groups: ProcessGroups, phases: Phases) -> _EntryKey:
    """Return the entry that a call belongs to. A group of unknown size counts as the whole world, and at least as two
    ranks.
    """
    phase = phases.phase_at(host_time) if host_time is not None else "unknown"
    size = max(call.group.size or groups.world_size, 2)
    return _EntryKey(call.kind, groups.find_label(call.group), size, call.dtype, phase, call.role, call.via)


def _make_entry(
    source: Source, log: _CallLog, key: _EntryKey, indices: list[int], step_count: int, compute: dict[str, Intervals]
) -> Entry:
    """Return the entry of the calls with these indices: calls, bytes and seconds per step.

    ``compute`` has the times of compute kernels by device, in microseconds.
    """
    total_bytes = sum(log.calls[index].bytes or 0 for index in indices)
    if total_bytes > kineto_calls.MAX_VOLUME:
        raise source.error(f"its calls of {key.kind} add up to {total_bytes:,} bytes, which no trace can hold")
    spans_by_device: dict[str, list[_KernelSpan]] = defaultdict(list)
    for index in indices:
        for span in log.spans[index]:
            spans_by_device[span.device].append(span)
    exposed_s = hidden_s = 0.0
    for device, spans in spans_by_device.items():
        communication = union([span.start_us for span in spans], [span.end_us for span in spans])
        on_device = overlap(communication, compute.get(device, union([], [])))
        exposed_s += on_device.exposed / 1e6 / step_count
        hidden_s += on_device.hidden / 1e6 / step_count
    if exposed_s + hidden_s > MAX_SECONDS:
        raise source.error(f"its kernels of {key.kind} run for {exposed_s + hidden_s:.0f} s; its times are wrong")
    return Entry(
        **key._asdict(),
        where="",  # a trace does not name the module that issued a call
        count=len(indices) // step_count,
        bytes=round(total_bytes / step_count),
        # Without an assigned kernel, the times are unknown.
        exposed_s=exposed_s if spans_by_device else None,
        hidden_s=hidden_s if spans_by_device else None,
    )


def _list_warnings(
    trace: TraceRecord, log: _CallLog, groups: ProcessGroups, counted_calls: list[KinetoCall]
) -> list[str]:
    """Return warnings about unknown properties of counted collectives and about communication that was not counted."""
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
    without_kernel = Counter(
        call.kind for call, spans in zip(log.calls, log.spans, strict=True) if not spans and _needs_own_kernel(call)
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


def _needs_own_kernel(call: KinetoCall) -> bool:
    """Whether a call launches a kernel of its own. NCCL groups sends and receives, so several share one kernel."""
    return call.via == "nccl" and call.kind != "send_recv" and call.group.size != 1
