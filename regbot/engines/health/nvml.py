"""Query the state of a run's GPUs through NVML. The queries only read; no setting is changed.

The queries use nvidia-ml-py (the module ``pynvml``). Consumer cards and MIG slices do not support every query. The
result of an unsupported query is None, and never an error.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

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
REASONS: dict[int, ClockReason] = {1 << bit: reason for bit, reason in enumerate(get_args(ClockReason))}
"""Clock event reason by bit, as in nvmlClocksEventReasons of nvml.h."""

SERVICES = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
"""Name prefixes of processes that serve or monitor a GPU and do not compute on it."""

MAX_GENERATIONS = 64
"""Largest number of ancestors of a process that are followed."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""Name of the initial process id namespace of a machine (PROC_PID_INIT_INO in the kernel)."""


class NoNvmlError(UserError):
    """NVML does not work on this machine. The message says why and what to do."""


def find_nvml() -> Any:
    """Import pynvml. Raises NoNvmlError. Whether NVML works is known only when it is opened."""
    try:
        return importlib.import_module("pynvml")
    except Exception as error:  # another package named pynvml may raise any error when it is imported
        raise NoNvmlError(
            f"nvidia-ml-py cannot be used ({type(error).__name__}: {error})", "pip install nvidia-ml-py"
        ) from error


@dataclass(frozen=True)
class GpuDevice:
    """Constant properties of one GPU; None where unknown."""

    index: int
    """Number of the GPU in NVML, which CUDA_VISIBLE_DEVICES does not change."""
    handle: Any
    name: str
    uuid: str
    sm_max_mhz: int | None


class NvmlSession:
    """An open NVML session for the GPUs of one run. Not thread-safe. Raises NoNvmlError if it cannot be opened."""

    def __init__(self, nvml: Any, entries: Sequence[str] | None, first: int | None = None) -> None:
        """``entries`` of CUDA_VISIBLE_DEVICES; None for all. ``first`` is the number of these GPUs that the run uses.
        If fewer are visible, the run uses the CPU, and no GPU is queried."""
        self._nvml = nvml
        self.lost: set[int] = set()
        """Indices of the GPUs that stopped answering."""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoNvmlError(f"NVML does not work: {error}") from error
        count = min(int(self._query(None, nvml.nvmlDeviceGetCount) or 0), MAX_GPUS)
        visible_gpus = select_visible([gpu for index in range(count) if (gpu := self._open(index))], entries)
        self.gpus = visible_gpus[:first] if first is None or len(visible_gpus) >= first else []
        self._events = self._query(None, nvml.nvmlEventSetCreate)
        for gpu in self.gpus if self._events is not None else []:
            self._query(None, nvml.nvmlDeviceRegisterEvents, gpu.handle, XID_EVENT, self._events)

    def close(self) -> None:
        if self._events is not None:
            self._query(None, self._nvml.nvmlEventSetFree, self._events)
        self._query(None, self._nvml.nvmlShutdown)

    def snapshot(self, gpu: GpuDevice, with_processes: bool = True) -> GpuSnapshot:
        """Without ``with_processes``, processes and memory are not queried."""
        query, nvml = self._query, self._nvml
        bits = query(gpu, nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu.handle) or 0
        memory, processes = None, []
        if with_processes:
            memory = query(gpu, nvml.nvmlDeviceGetMemoryInfo, gpu.handle, MEMORY_V2)
            pids = [int(entry.pid) for entry in query(gpu, nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []]
            processes = [GpuProcess(pid=pid, name=_process_name(pid)) for pid in pids]
        return GpuSnapshot(
            index=gpu.index,
            sm_mhz=query(gpu, nvml.nvmlDeviceGetClockInfo, gpu.handle, CLOCK_SM),
            reasons=[reason for bit, reason in REASONS.items() if bits & bit],
            temperature_c=query(gpu, nvml.nvmlDeviceGetTemperature, gpu.handle, TEMPERATURE_GPU),
            used_bytes=None if memory is None else int(memory.used),
            processes=[process for process in processes if not process.name.startswith(SERVICES)][:MAX_PROCESSES],
        )

    def uncorrected_ecc(self, gpu: GpuDevice) -> int | None:
        """Return the number of uncorrected memory errors since the driver was loaded; None if unknown."""
        function = self._nvml.nvmlDeviceGetTotalEccErrors
        return cast(int | None, self._query(gpu, function, gpu.handle, UNCORRECTED, VOLATILE))

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

    def _open(self, index: int) -> GpuDevice | None:
        query, nvml = self._query, self._nvml
        handle = query(None, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return None
        return GpuDevice(
            index=index,
            handle=handle,
            name=_clean_text(query(None, nvml.nvmlDeviceGetName, handle)),
            uuid=_clean_text(query(None, nvml.nvmlDeviceGetUUID, handle)),
            sm_max_mhz=query(None, nvml.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM),
        )

    def _query(self, gpu: GpuDevice | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` and return its result; None if it fails. ``gpu`` is None for calls that are not about one
        GPU. A GPU that is lost joins ``lost``."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if gpu is not None and getattr(error, "value", None) in (GPU_IS_LOST, RESET_REQUIRED):
                self.lost.add(gpu.index)
            return None


def snapshot_gpus(nvml: Callable[[], Any] = find_nvml) -> list[tuple[GpuDevice, GpuSnapshot]]:
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
        is_uuid = entry.startswith("GPU-")
        matches = [gpu for gpu in gpus if (gpu.uuid.startswith(entry) if is_uuid else entry == str(gpu.index))]
        if len(matches) != 1:
            break
        selected += matches
    return selected


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
            _, _, fields_after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
            pid = int(fields_after_name.split()[1])  # its parent
        except (OSError, IndexError, ValueError):
            return None
    return False


def has_host_pids() -> bool:
    """Whether NVML and /proc use the same process ids. In some containers they use different ones."""
    return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE  # noqa: PTH115


def _process_name(pid: int) -> str:
    try:
        return clip(printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()), 100)
    except OSError:
        return ""


def _clean_text(value: str | bytes | None) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    return clip_label(printable(text))
