"""Find faults of the node in the health data of a run, and say for each whether the run itself may have caused it.

A fault comes from outside of the run only if code under test cannot produce it. Code can produce heat and power draw.
So a GPU that slows down while it computes is not judged here. ``regbot.judge.health`` judges it, over all runs of both
arms.
"""

from collections.abc import Iterator, Sequence

from regbot.records.health import Cause, CauseKind, ClockReason, GpuProcess, GpuSnapshot, GpuUsage, NodeUsage
from regbot.records.text.words import count, listed

HARDWARE_SLOWDOWNS: tuple[ClockReason, ...] = ("hw_thermal", "hw_power_brake", "hw_slowdown")
"""Slowdowns by the GPU's hardware, to half of the clock or less. ``hw_slowdown`` is reported together with either of
the other two. It is also reported for a moment when clocks change."""

SLOWDOWN_REASONS: tuple[ClockReason, ...] = (*HARDWARE_SLOWDOWNS, "sw_thermal")
"""Reasons that show a fault if a GPU has a low clock during the whole run."""
CLOCK_SETTINGS: tuple[ClockReason, ...] = ("application_clocks", "sw_power_cap")
"""Reasons that are settings of an operator: a fixed clock and a power limit."""

APPLICATION_XIDS = frozenset({8, 11, 13, 31, 32, 37, 43, 45, 68, 69, 109})
"""XID errors that NVIDIA's catalogue attributes to the application first. Examples are a bad address, an illegal
instruction, a channel that was closed because of one of these, and a kernel that does not end."""
FOLLOW_UP_XIDS = frozenset({154})
"""XIDs that only recommend an action after another error."""

LOW_CLOCK_SHARE = 0.7
"""Share of a GPU's highest clock. Even a GPU at its power limit, as in large matrix products, runs above this share. A
clock that never exceeds the share has another reason: a fault, or clocks that an operator has locked. With locked
clocks, the driver reports no slowdown, and all GPUs of the run have the same clock."""
MIN_LOCKED_CLOCK_SHARE = 0.5
"""Share of the highest clock. A clock below this share is a fault even if no reason is reported, because nobody locks
clocks so low. A clock above it may be locked."""
PEER_CLOCK_RATIO = 1.25
"""If the fastest GPU of a run has more than this many times the clock of another one, the slower GPU has a fault."""
WHOLE_RUN_SHARE = 0.5
"""A reason that is in at least this share of the samples explains the whole run."""

OTHER_PROCESS_BYTES = 2 * 2**30
"""If more memory is in use before a run, another process must be on the GPU, even if none is visible. In a container,
processes outside of it are not visible. A driver with its services uses less memory than this."""

NODE_ADVICE = "take the node out of service until it has been inspected"


def find_causes(before: Sequence[GpuSnapshot], during: NodeUsage) -> list[Cause]:
    """Return what went wrong on the node by the health data of a run. Causes from outside of the run come first."""
    gpus_before = {snapshot.index: snapshot for snapshot in before}
    causes: list[Cause] = []
    for gpu in during.gpus:
        causes += _find_errors(gpu)
        causes += _find_other_work(gpu, gpus_before.get(gpu.index))
        causes += _find_low_clock(gpu, during.gpus)
    return sorted(causes, key=lambda cause: not cause.outside)


def _find_errors(gpu: GpuUsage) -> Iterator[Cause]:
    """Yield causes for errors that the driver reported. An XID is the number of such an error."""
    if gpu.lost:
        yield _cause("lost", gpu, f"stopped answering; {NODE_ADVICE}")
    if gpu.uncorrected_ecc:
        number = f"{count(gpu.uncorrected_ecc, 'uncorrected memory error')} (ECC)"
        yield _cause("uncorrected_ecc", gpu, f"{number} during the run; {NODE_ADVICE}")
    xids = sorted(set(gpu.xids) - FOLLOW_UP_XIDS)
    node_xids = [xid for xid in xids if xid not in APPLICATION_XIDS]
    application_xids = [xid for xid in xids if xid in APPLICATION_XIDS]
    report = "the driver reported XID {} during the run"
    if node_xids:
        yield _cause("xid", gpu, f"{report.format(_join(node_xids))}; {NODE_ADVICE}")
    if application_xids:
        text = f"{report.format(_join(application_xids))}, usually an error of the code that runs"
        yield _cause("xid", gpu, text, outside=False)


def _find_other_work(gpu: GpuUsage, before: GpuSnapshot | None) -> Iterator[Cause]:
    """Yield causes that the run cannot have brought. ``before`` is the state before it; None if unknown."""
    text = ""
    if gpu.others:
        text = f"{_name_processes(gpu.others)} used it during the run"
    elif before is not None and before.processes:
        text = f"{_name_processes(before.processes)} was on it before the run began"
    elif before is not None and (before.used_bytes or 0) > OTHER_PROCESS_BYTES:
        used = f"{(before.used_bytes or 0) / 2**30:.1f} GiB of its memory were in use before the run began"
        text = f"{used}, by processes that cannot be seen from here"
    if text:
        yield _cause("other_process", gpu, f"{text}; give the run GPUs of its own")
    reasons = [reason for reason in HARDWARE_SLOWDOWNS if before is not None and reason in before.reasons]
    if before is not None and reasons:
        heat = f", at {before.temperature_c} C" if before.temperature_c is not None else ""
        text = f"its hardware slowed it down ({_join(reasons)}) before the run began{heat}"
        yield _cause("hardware_slowdown", gpu, f"{text}; look at its cooling and its power supply")


def _find_low_clock(gpu: GpuUsage, all_gpus: list[GpuUsage]) -> Iterator[Cause]:
    """Yield a cause if the clock was far below the GPU's highest clock during the whole run: a fault if a slowdown or a
    much faster GPU of the same model shows it, else perhaps a setting. An idle GPU gives none."""
    is_idle = gpu.reasons.get("idle", 0.0) >= WHOLE_RUN_SHARE
    if gpu.sm_mhz is None or not gpu.sm_max_mhz or is_idle:
        return
    highest_mhz = gpu.sm_mhz.high
    clock_share = highest_mhz / gpu.sm_max_mhz
    if clock_share >= LOW_CLOCK_SHARE:
        return
    observation = f"never ran above {highest_mhz:.0f} of {gpu.sm_max_mhz:.0f} MHz"
    if gpu.temperature_max_c is not None:
        observation += f" at up to {gpu.temperature_max_c} C"
    lasting_reasons = {reason for reason, share in gpu.reasons.items() if share >= WHOLE_RUN_SHARE}
    slowdowns = [reason for reason in SLOWDOWN_REASONS if reason in lasting_reasons]
    settings = [reason for reason in CLOCK_SETTINGS if reason in lasting_reasons]
    same_model_mhz = [other.sm_mhz.high for other in all_gpus if other.sm_mhz and other.name == gpu.name]
    fastest_mhz = max(same_model_mhz, default=0.0)
    if slowdowns:
        yield _cause("low_clock", gpu, f"{observation} ({_join(slowdowns)}); {NODE_ADVICE}")
    elif fastest_mhz > PEER_CLOCK_RATIO * highest_mhz:
        text = f"{observation}, and another GPU of the run at {fastest_mhz:.0f} MHz; {NODE_ADVICE}"
        yield _cause("low_clock", gpu, text)
    elif settings or clock_share >= MIN_LOCKED_CLOCK_SHARE:
        explanation = _join(settings) or "no reason is reported: its clocks are probably locked"
        yield _cause("low_clock", gpu, f"{observation} ({explanation})", outside=False)
    else:
        yield _cause("low_clock", gpu, f"{observation}, and no reason is reported; {NODE_ADVICE}, or unlock its clocks")


def _cause(kind: CauseKind, gpu: GpuUsage, text: str, outside: bool = True) -> Cause:
    return Cause(kind=kind, text=f"GPU {gpu.index}: {text}", outside=outside, gpu=gpu.index)


def _name_processes(processes: list[GpuProcess]) -> str:
    named = [f"{process.name or 'a process'} (pid {process.pid})" for process in processes]
    return f"{listed(named, 3)}, not part of the run,"


def _join(words: Sequence[object]) -> str:
    return ", ".join(str(word) for word in words)
