"""The GPUs of a run, by NVML: what each is doing at one moment. Questions only: nothing is set.

Written against the part of nvidia-ml-py (the module ``pynvml``) that ``Nvml`` lists. A question that a GPU does not
answer, as many are on consumer cards and on MIG slices, is a value that is not known, never an error.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from regbot.records.health import MAX_GPUS, MAX_PROCESSES, MAX_XIDS, GpuMoment, GpuProcess, Reason
from regbot.text import printable

CLOCK_SM, TEMPERATURE_GPU, UNCORRECTED, VOLATILE = 1, 0, 1, 0
XID_EVENT = 0x8
MEMORY_V2 = 0x02000028
"""Of the second form of the memory question, which keeps apart what the driver reserves."""
GPU_IS_LOST, RESET_REQUIRED = 15, 16
REASONS: dict[int, Reason] = {
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
"""nvmlClocksEventReasons of nvml.h, by bit."""

SERVICES = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
"""How the names of processes begin that serve or watch a GPU and compute nothing."""

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's name for the namespace of process numbers that a machine starts with (PROC_PID_INIT_INO)."""


class Nvml(Protocol):
    """What is used of nvidia-ml-py, under its names. Functions raise ``NVMLError``, which has ``value``."""

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


class NoNvmlError(Exception):
    """NVML cannot be asked here. The message says why and what to do."""


def find_nvml() -> Nvml:
    """The module. Raises NoNvmlError where it is not installed; whether it works shows when it is opened."""
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except Exception as error:  # whatever a package of that name does when it is imported
        raise NoNvmlError(
            f"nvidia-ml-py cannot be used ({type(error).__name__}: {error}); pip install nvidia-ml-py"
        ) from error


@dataclass(frozen=True)
class Gpu:
    """One GPU and what of it does not change."""

    index: int
    handle: Any
    name: str
    uuid: str
    sm_max_mhz: int | None
    power_limit_w: float | None


class Gpus:
    """The GPUs of one run, opened. Raises NoNvmlError where they cannot be. Not for several threads at a time."""

    def __init__(self, nvml: Nvml, wanted: Sequence[str] | None, first: int | None = None) -> None:
        """``wanted``: entries of CUDA_VISIBLE_DEVICES, None for all. ``first``: of those the first so many; none where
        there are fewer, because such a run falls back to the CPU."""
        self._nvml = nvml
        self.lost: set[int] = set()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoNvmlError(f"NVML cannot be asked: {error}") from error
        found = [gpu for index in range(min(self._count(), MAX_GPUS)) if (gpu := self._open(index)) is not None]
        chosen = visible(found, wanted)
        self.gpus = chosen if first is None else chosen[:first] if len(chosen) >= first else []
        self._events = self._watch_errors()

    def close(self) -> None:
        """Give NVML back."""
        if self._events is not None:
            self._ask(None, self._nvml.nvmlEventSetFree, self._events)
        self._ask(None, self._nvml.nvmlShutdown)

    def moment(self, gpu: Gpu, with_processes: bool = True) -> GpuMoment:
        """One GPU now."""
        ask, nvml = self._ask, self._nvml
        power = ask(gpu, nvml.nvmlDeviceGetPowerUsage, gpu.handle)
        return GpuMoment(
            index=gpu.index,
            sm_mhz=ask(gpu, nvml.nvmlDeviceGetClockInfo, gpu.handle, CLOCK_SM),
            reasons=self._reasons(gpu),
            temperature_c=ask(gpu, nvml.nvmlDeviceGetTemperature, gpu.handle, TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            used_bytes=self._used(gpu) if with_processes else None,
            processes=self._processes(gpu) if with_processes else [],
        )

    def uncorrected_ecc(self, gpu: Gpu) -> int | None:
        """Memory errors since the driver was loaded that could not be corrected."""
        count: int | None = self._ask(gpu, self._nvml.nvmlDeviceGetTotalEccErrors, gpu.handle, UNCORRECTED, VOLATILE)
        return count

    def new_xids(self) -> list[tuple[int, int]]:
        """Index of the GPU and number of every error that was reported since the last call."""
        found: list[tuple[int, int]] = []
        while self._events is not None and len(found) < MAX_XIDS:
            event = self._ask(None, self._nvml.nvmlEventSetWait, self._events, 0)
            if event is None:  # a time-out: no more are waiting
                break
            index = self._ask(None, self._nvml.nvmlDeviceGetIndex, event.device)
            if index is not None:
                found.append((index, int(event.eventData)))
        return found

    def _count(self) -> int:
        return int(self._ask(None, self._nvml.nvmlDeviceGetCount) or 0)

    def _open(self, index: int) -> Gpu | None:
        ask, nvml = self._ask, self._nvml
        handle = ask(None, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return None
        limit = ask(None, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return Gpu(
            index=index,
            handle=handle,
            name=_text(ask(None, nvml.nvmlDeviceGetName, handle)),
            uuid=_text(ask(None, nvml.nvmlDeviceGetUUID, handle)),
            sm_max_mhz=ask(None, nvml.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM),
            power_limit_w=None if limit is None else limit / 1000,
        )

    def _watch_errors(self) -> Any | None:
        events = self._ask(None, self._nvml.nvmlEventSetCreate)
        for gpu in self.gpus if events is not None else []:
            self._ask(None, self._nvml.nvmlDeviceRegisterEvents, gpu.handle, XID_EVENT, events)
        return events

    def _reasons(self, gpu: Gpu) -> list[Reason]:
        """By the new name of the question, or its name before driver 535, which newer modules may drop."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            question = getattr(self._nvml, name, None)
            bits = None if question is None else self._ask(gpu, question, gpu.handle)
            if bits is not None:
                return [reason for bit, reason in REASONS.items() if bits & bit]
        return []

    def _used(self, gpu: Gpu) -> int | None:
        ask = self._ask
        memory = ask(gpu, self._nvml.nvmlDeviceGetMemoryInfo, gpu.handle, MEMORY_V2)
        if memory is None:  # a driver that knows the first form only
            memory = ask(gpu, self._nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
        return None if memory is None else int(memory.used)

    def _processes(self, gpu: Gpu) -> list[GpuProcess]:
        listed = self._ask(gpu, self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []
        named = (GpuProcess(pid=int(each.pid), name=_name(int(each.pid))) for each in listed)
        return [process for process in named if not process.name.startswith(SERVICES)][:MAX_PROCESSES]

    def _ask(self, gpu: Gpu | None, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, None where there is none."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError as error:
            if gpu is not None and getattr(error, "value", None) in (GPU_IS_LOST, RESET_REQUIRED):
                self.lost.add(gpu.index)
            return None


def gpus_now(nvml: Callable[[], Nvml] = find_nvml) -> list[tuple[Gpu, GpuMoment]]:
    """All GPUs of this machine as they are now. Raises NoNvmlError."""
    gpus = Gpus(nvml(), None)
    try:
        return [(gpu, gpus.moment(gpu)) for gpu in gpus.gpus]
    finally:
        gpus.close()


def visible(gpus: Sequence[Gpu], wanted: Sequence[str] | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order; all where an entry is none that can be told, as of a MIG
    slice. CUDA, too, ends its list at the first entry that it does not know."""
    if wanted is None:
        return list(gpus)
    found: list[Gpu] = []
    for entry in wanted:
        if entry.startswith("MIG"):
            return list(gpus)
        named = [
            gpu
            for gpu in gpus
            if (entry.isdecimal() and gpu.index == int(entry)) or (entry[:4] == "GPU-" and gpu.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        found += named
    return found


def belongs(pid: int, ancestor: int) -> bool | None:
    """Whether process ``pid`` is ``ancestor`` or below it; None where that cannot be told, because it has ended or its
    number is of another namespace."""
    for _ in range(64):
        if pid == ancestor:
            return True
        if pid == 1:
            return False
        if pid <= 0:  # of a process that our namespace has no number for
            return None
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return False if _exists(pid) else None
    return False


def numbers_are_ours() -> bool:
    """Whether NVML's process numbers are those of /proc: not in every container."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE  # noqa: PTH115
    except OSError:
        return False


def _exists(pid: int) -> bool:
    """Whether there is a process that /proc may hide from us."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _name(pid: int) -> str:
    try:
        return printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())[:100]
    except OSError:
        return ""


def _text(value: str | bytes | None) -> str:
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else value or "")[:500]
