"""Query the state of a run's GPUs through NVML. The queries only read; no setting is changed.

The queries use those functions of nvidia-ml-py (the module ``pynvml``) that ``Nvml`` lists. Consumer cards and MIG
slices do not support every query. The result of an unsupported query is None, and never an error.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from regbot.errors import UserError
from regbot.records.health import MAX_GPUS, MAX_PROCESSES, MAX_XIDS, ClockReason, GpuProcess, GpuSnapshot
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable

CLOCK_SM, TEMPERATURE_GPU, UNCORRECTED, VOLATILE = 1, 0, 1, 0
"""Values of NVML's enums that the queries take as arguments."""
XID_EVENT = 0x8
"""Bit of the events that report an XID error."""
MEMORY_V2 = 0x02000028
"""Number of version 2 of the memory query. Only this version reports memory that the driver reserves separately."""
GPU_IS_LOST, RESET_REQUIRED = 15, 16
"""NVML's error codes for a GPU that no longer answers."""
REASONS: dict[int, ClockReason] = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Clock event reason by bit, as in nvmlClocksEventReasons of nvml.h."""

SERVICES = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
"""Name prefixes of processes that serve or monitor a GPU and do not compute on it."""

MAX_GENERATIONS = 64
"""Largest number of ancestors of a process that are followed."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""Name of the initial process id namespace of a machine (PROC_PID_INIT_INO in the kernel)."""


class Nvml(Protocol):
    """The functions of nvidia-ml-py that regbot uses. They raise ``NVMLError``, whose ``value`` is NVML's error
    code."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetIndex(self, handle: Any) -> int: ...
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetClockInfo(self, handle: Any, type: int) -> int: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, type: int) -> int: ...
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: Any, errorType: int, counterType: int) -> int: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[Any]: ...
    def nvmlEventSetCreate(self) -> Any: ...
    def nvmlDeviceRegisterEvents(self, handle: Any, eventTypes: int, eventSet: Any) -> None: ...
    def nvmlEventSetWait(self, eventSet: Any, timeoutms: int) -> Any: ...
    def nvmlEventSetFree(self, eventSet: Any) -> None: ...


class NoNvmlError(UserError):
    """NVML does not work on this machine. The message says why and what to do."""


def find_nvml() -> Nvml:
    """Import pynvml. Raises NoNvmlError if it cannot be imported. Whether NVML works is known only when it is
    opened."""
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except Exception as error:  # another package named pynvml may raise any error when it is imported
        raise NoNvmlError(
            f"nvidia-ml-py cannot be used ({type(error).__name__}: {error})", "pip install nvidia-ml-py"
        ) from error


@dataclass(frozen=True)
class GpuDevice:
    """Constant properties of one GPU."""

    index: int
    """Number of the GPU in NVML, which CUDA_VISIBLE_DEVICES does not change."""
    handle: Any
    """NVML's own object for the GPU."""
    name: str
    uuid: str
    sm_max_mhz: int | None
    """The highest clock that can be set; None if it is unknown."""
    power_limit_w: float | None
    """None if it is unknown."""


class NvmlSession:
    """An open NVML session for the GPUs of one run. Not thread-safe. Raises NoNvmlError if it cannot be opened."""

    def __init__(self, nvml: Nvml, entries: Sequence[str] | None, first: int | None = None) -> None:
        """``entries`` are the entries of CUDA_VISIBLE_DEVICES; None means that all GPUs are visible.

        ``first`` is a count: the number of visible GPUs that the run uses, from the first one on; None for all. If
        fewer are visible, the run uses the CPU, and no GPU is queried.
        """
        self._nvml = nvml
        self.lost: set[int] = set()
        """Indices of the GPUs that stopped answering."""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoNvmlError(f"NVML does not work: {error}") from error
        devices = [self._open(index) for index in range(min(self._count(), MAX_GPUS))]
        visible_gpus = select_visible([gpu for gpu in devices if gpu is not None], entries)
        if first is None:
            self.gpus = visible_gpus
        else:
            self.gpus = visible_gpus[:first] if len(visible_gpus) >= first else []
        self._events = self._register_errors()

    def close(self) -> None:
        """Close the session."""
        if self._events is not None:
            self._query(None, self._nvml.nvmlEventSetFree, self._events)
        self._query(None, self._nvml.nvmlShutdown)

    def snapshot(self, gpu: GpuDevice, with_processes: bool = True) -> GpuSnapshot:
        """Return the current state of one GPU. Without ``with_processes``, its processes and its memory are not
        queried.
        """
        query, nvml = self._query, self._nvml
        power_mw = query(gpu, nvml.nvmlDeviceGetPowerUsage, gpu.handle)
        return GpuSnapshot(
            index=gpu.index,
            sm_mhz=query(gpu, nvml.nvmlDeviceGetClockInfo, gpu.handle, CLOCK_SM),
            reasons=self._reasons(gpu),
            temperature_c=query(gpu, nvml.nvmlDeviceGetTemperature, gpu.handle, TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            used_bytes=self._used_bytes(gpu) if with_processes else None,
            processes=self._processes(gpu) if with_processes else [],
        )

    def uncorrected_ecc(self, gpu: GpuDevice) -> int | None:
        """Return the number of uncorrected memory errors since the driver was loaded; None if unknown."""
        count: int | None = self._query(gpu, self._nvml.nvmlDeviceGetTotalEccErrors, gpu.handle, UNCORRECTED, VOLATILE)
        return count

    def new_xids(self) -> list[tuple[int, int]]:
        """Return GPU index and XID of each error that was reported since the last call."""
        xids: list[tuple[int, int]] = []
        while self._events is not None and len(xids) < MAX_XIDS:
            event = self._query(None, self._nvml.nvmlEventSetWait, self._events, 0)  # with a timeout of 0 ms
            if event is None:  # the query timed out, so there are no more events
                break
            index = self._query(None, self._nvml.nvmlDeviceGetIndex, event.device)
            if index is not None:
                xids.append((index, int(event.eventData)))
        return xids

    def _count(self) -> int:
        return int(self._query(None, self._nvml.nvmlDeviceGetCount) or 0)

    def _open(self, index: int) -> GpuDevice | None:
        """Return the GPU with this index, or None if NVML cannot open it."""
        query, nvml = self._query, self._nvml
        handle = query(None, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return None
        limit_mw = query(None, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)  # of the power that the GPU may draw
        return GpuDevice(
            index=index,
            handle=handle,
            name=_clean_text(query(None, nvml.nvmlDeviceGetName, handle)),
            uuid=_clean_text(query(None, nvml.nvmlDeviceGetUUID, handle)),
            sm_max_mhz=query(None, nvml.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM),
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
        )

    def _register_errors(self) -> Any | None:
        """Ask NVML to report XID errors of the GPUs. Return its set of events, or None if NVML cannot report them."""
        events = self._query(None, self._nvml.nvmlEventSetCreate)
        for gpu in self.gpus if events is not None else []:
            self._query(None, self._nvml.nvmlDeviceRegisterEvents, gpu.handle, XID_EVENT, events)
        return events

    def _reasons(self, gpu: GpuDevice) -> list[ClockReason]:
        """Return why the GPU does not run at its highest clock; [] if no reason applies or the reasons are unknown.

        Drivers before 535 have only the older query, which new versions of pynvml may lack.
        """
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            function = getattr(self._nvml, name, None)
            bits = None if function is None else self._query(gpu, function, gpu.handle)
            if bits is not None:
                return [reason for bit, reason in REASONS.items() if bits & bit]
        return []

    def _used_bytes(self, gpu: GpuDevice) -> int | None:
        """Return the memory in use on a GPU, or None if it is unknown."""
        query = self._query
        memory = query(gpu, self._nvml.nvmlDeviceGetMemoryInfo, gpu.handle, MEMORY_V2)
        if memory is None:  # the driver supports only version 1
            memory = query(gpu, self._nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
        return None if memory is None else int(memory.used)

    def _processes(self, gpu: GpuDevice) -> list[GpuProcess]:
        """Return the processes that compute on a GPU, without services of the node."""
        entries = self._query(gpu, self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []
        processes = (GpuProcess(pid=int(entry.pid), name=_process_name(int(entry.pid))) for entry in entries)
        return [process for process in processes if not process.name.startswith(SERVICES)][:MAX_PROCESSES]

    def _query(self, gpu: GpuDevice | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` and return its result; None if it fails. Add ``gpu`` to ``lost`` if the error says that it
        is lost. ``gpu`` is None for calls that are not about one GPU.
        """
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if gpu is not None and getattr(error, "value", None) in (GPU_IS_LOST, RESET_REQUIRED):
                self.lost.add(gpu.index)
            return None


def snapshot_gpus(nvml: Callable[[], Nvml] = find_nvml) -> list[tuple[GpuDevice, GpuSnapshot]]:
    """Return all GPUs of this machine with their current state. Raises NoNvmlError."""
    session = NvmlSession(nvml(), None)
    try:
        return [(gpu, session.snapshot(gpu)) for gpu in session.gpus]
    finally:
        session.close()


def select_visible(gpus: Sequence[GpuDevice], entries: Sequence[str] | None) -> list[GpuDevice]:
    """Return the GPUs that the entries of CUDA_VISIBLE_DEVICES name, in the order of the entries.

    The list ends at the first unknown entry, as in CUDA. If an entry is a MIG slice, return all GPUs, because slices
    cannot be resolved.
    """
    if entries is None:
        return list(gpus)
    selected: list[GpuDevice] = []
    for entry in entries:
        if entry.startswith("MIG"):
            return list(gpus)
        matches = [gpu for gpu in gpus if _is_named_by(gpu, entry)]
        if len(matches) != 1:
            break
        selected += matches
    return selected


def _is_named_by(gpu: GpuDevice, entry: str) -> bool:
    """Whether ``entry`` is the index of the GPU, or the start of its UUID with the prefix 'GPU-'."""
    if entry.isdecimal():
        return gpu.index == int(entry)
    return entry.startswith("GPU-") and gpu.uuid.startswith(entry)


def is_descendant(pid: int, ancestor: int) -> bool | None:
    """Whether process ``pid`` is ``ancestor`` or one of its descendants.

    None means unknown: the process has ended, or its id belongs to another namespace.
    """
    for _ in range(MAX_GENERATIONS):
        if pid == ancestor:
            return True
        if pid == 1:  # the first process has no parent
            return False
        if pid <= 0:  # the process has no id in this process's namespace
            return None
        try:
            pid = _read_parent(pid)
        except (OSError, IndexError, ValueError):
            # If the process exists although /proc hides it, it belongs to another user and not to the run.
            return False if _has_process(pid) else None
    return False


def _read_parent(pid: int) -> int:
    """Return the parent of a process from /proc. Raises OSError, IndexError or ValueError."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    _, _, fields_after_name = stat.rpartition(b")")  # the name is in parentheses, and can contain anything
    _state, parent = fields_after_name.split()[:2]
    return int(parent)


def has_host_pids() -> bool:
    """Whether NVML and /proc use the same process ids. In some containers they use different ones."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE  # noqa: PTH115
    except OSError:
        return False


def _has_process(pid: int) -> bool:
    """Whether a process with this id exists, even if /proc does not show it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _process_name(pid: int) -> str:
    """Return the name of a process, or '' if /proc does not show it."""
    try:
        return clip(printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()), 100)
    except OSError:
        return ""


def _clean_text(value: str | bytes | None) -> str:
    """Return a text of NVML as a printable label; '' if NVML gave none."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    return clip_label(printable(text))
