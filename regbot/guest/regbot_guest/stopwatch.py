"""The clocks of a timed run: step times, CPU time, time in collectives, memory. No dispatch mode is installed.

On a GPU the clock is CUDA events on the current stream, read after the last step, so the host does not wait. The cost
is a few clock reads per step and two per collective (``benchmarks/probe_overhead.py``).

Time in collectives is the time in methods of a process group plus waits for the work handles that they return: host
time on a CPU, waits of the compute stream on a GPU, which also include deep_ep's exchanges and waits for events of
other streams that run collectives. Collectives on another stream, such as FSDP's, count as overlapped time. Those that
torch issues from C++ (functional collectives, the reducer of DDP) or captures in a CUDA graph are in neither.
"""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from regbot_guest.replaced import replaced
from regbot_guest.uncounted_collectives import METHODS

DEEP_EP_CALLS = {
    "Buffer": ("dispatch", "combine"),
    "ElasticBuffer": ("dispatch", "combine"),
    "HybridEPBuffer": ("dispatch", "combine", "dispatch_with_permute", "combine_with_unpermute"),
    "EventOverlap": ("current_stream_wait",),
}
"""Methods of deep_ep in which the compute stream waits, by class."""


class HostClock:
    name = "perf_counter"

    def mark(self) -> Any:
        return time.perf_counter()

    def settle(self) -> None:
        """Wait until the device has reached all marks. Call it before ``between``."""

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        return float(end - start)


class CudaClock(HostClock):
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
    """Context manager around all steps. Call ``end_step`` after each. ``slowdown_pct`` lengthens each step."""

    def __init__(self, device: torch.device, slowdown_pct: float = 0.0) -> None:
        self._slowdown = slowdown_pct / 100
        self._step_start = 0.0
        """Host time at which the running step began. Only a planted slowdown uses it."""
        self._on_gpu = device.type == "cuda"
        self.clock = CudaClock() if self._on_gpu else HostClock()
        self._marks: list[Any] = []
        """Marks of the clock: the start of the first step, and then the end of each step."""
        self._cpu_marks_s: list[float] = []
        self._memory_bytes: list[int] = []
        """Memory in use at the end of each step: of the GPU, or the resident memory without a GPU."""
        self.wait_spans: list[list[tuple[Any, Any]]] = [[]]
        """Start and end mark of each call that issues or waits for a collective, by step, the running one last."""
        self.overlapped_spans: list[list[tuple[Any, Any]]] = [[]]
        """The same for calls that issue a collective on another stream than the compute stream."""
        self._compute_stream: Any = None
        self._collective_streams: set[Any] = set()
        self._collective_events: WeakSet[Any] = WeakSet()
        self._wraps_deep_ep = False
        self._stack = ExitStack()

    def __enter__(self) -> "Stopwatch":
        for name in METHODS:
            if hasattr(dist.ProcessGroup, name):
                self._wrap(dist.ProcessGroup, name)
        self._wrap(dist.Work, "wait")
        if self._on_gpu:
            self._compute_stream = torch.cuda.current_stream()
            self._watch_events()
        self._wrap_deep_ep()
        self.clock.settle()
        self._marks.append(self.clock.mark())
        self._cpu_marks_s.append(time.process_time())
        self._step_start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def end_step(self) -> None:
        if self._slowdown:
            self._slow_down()
        self._marks.append(self.clock.mark())
        self._cpu_marks_s.append(time.process_time())
        self._memory_bytes.append(torch.cuda.memory_allocated() if self._on_gpu else resident_bytes())
        self.wait_spans.append([])
        self.overlapped_spans.append([])
        self._wrap_deep_ep()  # deep_ep is imported at its first exchange

    def _slow_down(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        time.sleep((time.perf_counter() - self._step_start) * self._slowdown)
        self._step_start = time.perf_counter()

    def record(self) -> dict[str, Any]:
        """Return times in seconds and memory in bytes of all steps. Waits for the device to finish. ``wait_s`` is the
        time in collectives. Runs on a GPU also have ``overlapped_s``, that of collectives on other streams.
        """
        self.clock.settle()
        between = self.clock.between
        steps = len(self._memory_bytes)
        peak = torch.cuda.max_memory_allocated() if self._on_gpu else peak_resident_bytes()
        overlapped = {"overlapped_s": self._sum_by_step(self.overlapped_spans)} if self._on_gpu else {}
        return {
            **overlapped,
            "step_s": [between(self._marks[n], self._marks[n + 1]) for n in range(steps)],
            "cpu_s": [self._cpu_marks_s[n + 1] - self._cpu_marks_s[n] for n in range(steps)],
            "wait_s": self._sum_by_step(self.wait_spans),
            "memory_bytes": self._memory_bytes,
            "peak_bytes": max(peak, *self._memory_bytes),  # the peak that the system reports lags by some pages
        }

    def _sum_by_step(self, spans_by_step: list[list[tuple[Any, Any]]]) -> list[float]:
        finished_steps = len(self._memory_bytes)
        return [sum(self.clock.between(start, end) for start, end in spans) for spans in spans_by_step[:finished_steps]]

    def _wrap(self, owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)
        mark = self.clock.mark

        def wrapper(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on_gpu and torch.cuda.is_current_stream_capturing():
                return original(instance, *args, **kwargs)  # an event that is captured in a graph has no time
            spans = self._current_spans()
            start = mark()
            try:
                return original(instance, *args, **kwargs)
            finally:
                spans.append((start, mark()))

        self._stack.enter_context(replaced(owner, name, wrapper))

    def _current_spans(self) -> list[tuple[Any, Any]]:
        """Return the running step's wait spans, or its overlapped spans on another stream than the compute stream."""
        if not self._on_gpu:
            return self.wait_spans[-1]
        stream = torch.cuda.current_stream()
        if stream == self._compute_stream:
            return self.wait_spans[-1]
        self._collective_streams.add(stream)
        return self.overlapped_spans[-1]

    def _watch_events(self) -> None:
        original_record, original_wait = torch.cuda.Event.record, torch.cuda.Event.wait
        mark = self.clock.mark

        def record_event(event: Any, stream: Any = None) -> None:
            stream = torch.cuda.current_stream() if stream is None else stream
            original_record(event, stream)
            if stream in self._collective_streams:
                self._collective_events.add(event)
            else:
                self._collective_events.discard(event)

        def wait_for_event(event: Any, stream: Any = None) -> None:
            stream = torch.cuda.current_stream() if stream is None else stream
            is_measured = stream == self._compute_stream and event in self._collective_events
            if not is_measured or torch.cuda.is_current_stream_capturing():
                original_wait(event, stream)
                return
            with torch.cuda.stream(stream):  # marks are recorded on the current stream
                start = mark()
                original_wait(event, stream)
                self.wait_spans[-1].append((start, mark()))

        self._stack.enter_context(replaced(torch.cuda.Event, "record", record_event))
        self._stack.enter_context(replaced(torch.cuda.Event, "wait", wait_for_event))

    def _wrap_deep_ep(self) -> None:
        library = sys.modules.get("deep_ep")
        if library is None or self._wraps_deep_ep or not self._on_gpu:
            return
        self._wraps_deep_ep = True
        for class_name, method_names in DEEP_EP_CALLS.items():
            owner = getattr(library, class_name, None)
            for name in method_names:
                if hasattr(owner, name):
                    self._wrap(owner, name)  # type: ignore[arg-type]


def resident_bytes() -> int:
    """Return the resident memory of this process, or its peak if the system does not report the current value."""
    try:
        _, resident_pages, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    except OSError:
        return peak_resident_bytes()
    return resident_pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    unit_bytes = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, and Linux reports KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
