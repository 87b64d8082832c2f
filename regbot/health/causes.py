"""What the facts of one run show to be wrong with it, and whether that is the node's doing or may be the run's own.

Only what cannot come from the code under test is a cause from outside. Heat and power draw can: a GPU that is slowed
down while it computes is judged over all runs of both arms, not here.
"""

from collections.abc import Iterator, Sequence

from regbot.records.health import Cause, CauseKind, During, GpuDuring, GpuMoment, GpuProcess, Moment, Reason

HARDWARE: tuple[Reason, ...] = ("hw_thermal", "hw_power_brake", "hw_slowdown")
"""Slowdowns that the GPU's hardware imposes: clocks halved or worse. ``hw_slowdown`` stands for either of the others,
and is shown for a moment when clocks change."""

SLOWED: tuple[Reason, ...] = (*HARDWARE, "sw_thermal")

APPLICATION_XIDS = frozenset({8, 11, 13, 31, 32, 37, 43, 45, 68, 69, 109})
"""Errors that NVIDIA's catalogue lays at the application's door first: a bad address, an illegal instruction, a channel
that was ended because of one, a kernel that does not end."""
FOLLOW_UP_XIDS = frozenset({154})
"""Say what to do about another error, and are none."""

LOW_CLOCK = 0.7
"""Of a GPU's highest clock: the power limit of a large matrix product stays above it. Clocks that are locked on purpose
may lie below it; then no slowdown is shown and all GPUs of the run are alike."""
FAR_TOO_LOW = 0.5
"""Nobody locks clocks this low, whatever reason is shown or not."""
UNLIKE = 1.25
"""How much faster another GPU of the run is clocked, for the slow one to be the odd one out."""
MOSTLY = 0.5
"""Share of the samples from which on a reason explains a whole run."""

OTHERS_BYTES = 2 * 2**30
"""Memory in use before a run, beyond which somebody else is there even if no process can be seen: in a container the
processes of others have no number. A driver with its services stays below."""

SEE_NODE = "take the node out of service until it has been looked at"


def find_causes(before: Moment, during: During) -> list[Cause]:
    """Everything that is wrong with a run, worst first."""
    idle = {moment.index: moment for moment in before.gpus}
    found = [
        cause
        for gpu in during.gpus
        for cause in (
            *_errors(gpu),
            *_tenants(gpu, idle.get(gpu.index)),
            *_slowed_before(gpu, idle.get(gpu.index)),
            *_low_clock(gpu, during.gpus),
        )
    ]
    return sorted(found, key=lambda cause: not cause.outside)


def not_answering() -> Cause:
    """NVML was asked and never came back."""
    return Cause(kind="lost", outside=True, text=f"the GPU driver does not answer; {SEE_NODE}")


def _errors(gpu: GpuDuring) -> Iterator[Cause]:
    if gpu.lost:
        yield _cause("lost", gpu, f"stopped answering; {SEE_NODE}")
    if gpu.uncorrected_ecc:
        number = f"{gpu.uncorrected_ecc} uncorrected memory error{'s' * (gpu.uncorrected_ecc > 1)} (ECC)"
        yield _cause("uncorrected_ecc", gpu, f"{number} during the run; {SEE_NODE}")
    told = sorted(set(gpu.xids) - FOLLOW_UP_XIDS)
    if fatal := [xid for xid in told if xid not in APPLICATION_XIDS]:
        yield _cause("xid", gpu, f"the driver reported XID {_list(fatal)} during the run; {SEE_NODE}")
    if own := [xid for xid in told if xid in APPLICATION_XIDS]:
        why = "which the code that runs causes, as a rule"
        yield _cause("xid", gpu, f"the driver reported XID {_list(own)} during the run, {why}", outside=False)


def _tenants(gpu: GpuDuring, idle: GpuMoment | None) -> Iterator[Cause]:
    fix = "give the run GPUs of its own"
    if gpu.others:
        yield _cause("other_process", gpu, f"{_who(gpu.others)} used it during the run; {fix}")
    elif idle is not None and idle.processes:
        yield _cause("other_process", gpu, f"{_who(idle.processes)} was on it before the run began; {fix}")
    elif idle is not None and (idle.used_bytes or 0) > OTHERS_BYTES:
        used = f"{(idle.used_bytes or 0) / 2**30:.1f} GiB of its memory were in use before the run began"
        yield _cause("other_process", gpu, f"{used}, by processes that cannot be seen from here; {fix}")


def _slowed_before(gpu: GpuDuring, idle: GpuMoment | None) -> Iterator[Cause]:
    if idle is not None and (shown := [reason for reason in HARDWARE if reason in idle.reasons]):
        why = f"its hardware slowed it down ({_list(shown)}) before the run began"
        heat = f", at {idle.temperature_c} C" if idle.temperature_c is not None else ""
        yield _cause("hardware_slowdown", gpu, f"{why}{heat}; look at its cooling and its power supply")


def _low_clock(gpu: GpuDuring, all_gpus: list[GpuDuring]) -> Iterator[Cause]:
    """A clock that was far below the highest all the time: a fault, or a setting, as far as that can be told."""
    if gpu.sm_mhz is None or not gpu.sm_max_mhz or gpu.reasons.get("idle", 0.0) >= MOSTLY:
        return
    share = gpu.sm_mhz.high / gpu.sm_max_mhz
    if share >= LOW_CLOCK:
        return
    said = f"never ran above {gpu.sm_mhz.high:.0f} of {gpu.sm_max_mhz:.0f} MHz"
    if gpu.temperature_max_c is not None:
        said += f" at up to {gpu.temperature_max_c} C"
    slowed = [reason for reason in SLOWED if gpu.reasons.get(reason, 0.0) >= MOSTLY]
    set_so = [r for r in ("application_clocks", "sw_power_cap") if gpu.reasons.get(r, 0.0) >= MOSTLY]
    fastest = max((other.sm_mhz.high for other in all_gpus if other.sm_mhz and other.name == gpu.name), default=0.0)
    if slowed:
        yield _cause("low_clock", gpu, f"{said} ({_list(slowed)}); {SEE_NODE}")
    elif fastest > UNLIKE * gpu.sm_mhz.high:
        yield _cause("low_clock", gpu, f"{said}, and another of the run at {fastest:.0f}; {SEE_NODE}")
    elif set_so or share >= FAR_TOO_LOW:
        why = _list(set_so) or "no reason is shown: clocks that are locked, it seems"
        yield _cause("low_clock", gpu, f"{said} ({why})", outside=False)
    else:
        yield _cause("low_clock", gpu, f"{said}, and no reason is shown; {SEE_NODE}, or unlock its clocks")


def _cause(kind: CauseKind, gpu: GpuDuring, text: str, outside: bool = True) -> Cause:
    return Cause(kind=kind, text=f"GPU {gpu.index}: {text}", outside=outside, gpu=gpu.index)


def _who(processes: list[GpuProcess]) -> str:
    named = [f"{process.name or 'a process'} (pid {process.pid})" for process in processes[:3]]
    more = f" and {len(processes) - 3} more" if len(processes) > 3 else ""
    return f"{', '.join(named)}{more}, of somebody else,"


def _list(words: Sequence[object]) -> str:
    return ", ".join(str(word) for word in words)
