"""The clocks of a timed run: step times, CPU time, time in collectives, memory. Nothing here counts or dispatches.

On a CPU the clock is ``perf_counter``. On a GPU it is CUDA events on the current stream, so that a step is timed by the
device and nothing waits for it; the events are read after the last step. Per step this costs a few reads of clocks and
two per collective: ``benchmarks/probe_overhead.py`` measures it.

Time in collectives is what is spent between a process group's method being called and its return, and in waiting for
the handle it gave: seconds of the host on a CPU, seconds that the compute stream stood still on a GPU. Collectives that
torch issues from C++ (functional ones, DDP's reducer) are not seen, and their time is not in it.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from regbot_guest.unseen import METHODS

ISSUING = tuple(dict.fromkeys((*METHODS, "all_gather_single", "all_gather_single_coalesced", "all_to_all_single",
                               "reduce_scatter_single", "reduce_scatter_single_coalesced")))  # fmt: skip
"""Methods of a process group that issue a collective, torch 2.8 to 2.13."""


class Clock(Protocol):
    """Marks that are cheap to make, and the seconds between two of them once ``settle`` has been called."""

    name: str

    def mark(self) -> Any: ...

    def settle(self) -> None: ...

    def between(self, start: Any, end: Any) -> float: ...


class HostClock:
    """``perf_counter``: monotonic, of this process's machine."""

    name = "perf_counter"

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        pass

    def between(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """CUDA events on the current stream."""

    name = "cuda_events"

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        torch.cuda.synchronize()

    def between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000.0


class Stopwatch:
    """Use as a context manager around the steps; call ``step_ended`` after each of them."""

    def __init__(self, device: torch.device, slowdown_pct: float = 0.0) -> None:
        self._slowdown = slowdown_pct / 100
        self._begun = 0.0
        self._on_gpu = device.type == "cuda"
        self.clock: Clock = CudaClock() if self._on_gpu else HostClock()
        self._marks: list[Any] = []
        self._cpu: list[float] = []
        self._memory: list[int] = []
        self.spans: list[list[tuple[Any, Any]]] = [[]]
        self._replaced: list[tuple[type, str, Any]] = []

    def __enter__(self) -> "Stopwatch":
        for name in ISSUING:
            if hasattr(dist.ProcessGroup, name):
                self._time(dist.ProcessGroup, name)
        self._time(dist.Work, "wait")
        self._marks.append(self.clock.mark())
        self._cpu.append(time.process_time())
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        self._replaced.clear()

    def step_ended(self) -> None:
        """Mark the end of a step, which is the beginning of the next."""
        if self._slowdown:
            self._hold()
        self._marks.append(self.clock.mark())
        self._cpu.append(time.process_time())
        self._memory.append(torch.cuda.memory_allocated() if self._on_gpu else resident_bytes())
        self.spans.append([])

    def _hold(self) -> None:
        """Make the step longer by a share of what it took: a slowdown that is known, to try the gate with."""
        if self._on_gpu:
            torch.cuda.synchronize()
        time.sleep((time.perf_counter() - self._begun) * self._slowdown)
        self._begun = time.perf_counter()

    def record(self) -> dict[str, Any]:
        """The account of all steps, seconds and bytes. Waits for the device."""
        self.clock.settle()
        between = self.clock.between
        steps = len(self._memory)
        peak = torch.cuda.max_memory_allocated() if self._on_gpu else peak_resident_bytes()
        return {
            "step_s": [between(self._marks[n], self._marks[n + 1]) for n in range(steps)],
            "cpu_s": [self._cpu[n + 1] - self._cpu[n] for n in range(steps)],
            "wait_s": [sum(between(*span) for span in self.spans[n]) for n in range(steps)],
            "memory_bytes": self._memory,
            "peak_bytes": max(peak, *self._memory),  # the system's own peak lags behind by some pages
        }

    def _time(self, owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)
        mark = self.clock.mark

        def timed(subject: Any, *args: Any, **kwargs: Any) -> Any:
            start = mark()
            try:
                return original(subject, *args, **kwargs)
            finally:
                self.spans[-1].append((start, mark()))

        self._replaced.append((owner, name, owner.__dict__.get(name, original)))
        setattr(owner, name, timed)


def resident_bytes() -> int:
    """What this process holds in memory now; its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return peak_resident_bytes()
    return pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    """The most that this process has held in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
