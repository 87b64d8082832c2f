"""Monitor the node around a run: take a sample before it, and one each second during it.

A separate thread makes all GPU queries. If the driver does not answer, for example because a GPU is broken, the run
must still be started and reported. The thread that starts the run and waits for it reads the CPU times, because they
are complete only after this wait. ``benchmarks/monitor_cost.py`` measures the cost of monitoring.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from regbot.engines.health.causes import NODE_ADVICE, find_causes
from regbot.engines.health.cpu import CpuWatch, sample_range
from regbot.engines.health.nvml import GpuDevice, NoNvmlError, NvmlSession, find_nvml, has_host_pids, is_descendant
from regbot.records.health import MAX_PROCESSES, MAX_XIDS, Cause, GpuProcess, GpuSnapshot, GpuUsage, Health, NodeUsage
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

T = TypeVar("T")

INTERVAL_S = 1.0
PROCESSES_EVERY = 5
"""One of this many samples lists processes and memory, because this query takes the longest."""
SETTLE_S, SETTLE_STEP_S = 3.0, 0.25
"""Seconds to wait for a GPU that still shows effects of the previous run, and between two queries meanwhile."""
OPEN_S, CLOSE_S = 60.0, 15.0
"""Seconds to wait for the GPU thread: until NVML is open, and until the thread ends. Without persistence mode, opening
NVML first starts every GPU of the node."""


class Monitor:
    """Context manager that monitors one run. ``health`` is available after it exits.

    gpus        Entries of the run's CUDA_VISIBLE_DEVICES; None for all GPUs.
    first       The number of these GPUs that the run uses, from the first one on; None for all.
    expected    Whether this node has GPUs. If it has, unknown GPU health causes a warning. Otherwise none is queried.
    nvml        Returns the module ``pynvml``.
    interval_s  Time between two samples.
    in_steps    Says whether the steps run now whose clocks and temperature describe the run.
    """

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        first: int | None = None,
        expected: bool = True,
        nvml: Callable[[], Any] = find_nvml,
        interval_s: float = INTERVAL_S,
        in_steps: Callable[[], bool] = lambda: True,
    ) -> None:
        self.warnings: list[str] = []
        self._connect: Callable[[], GpuWatch] = lambda: GpuWatch(NvmlSession(nvml(), gpus, first), in_steps)
        self._expected, self._interval_s = expected, interval_s
        self._ready, self._stop = threading.Event(), threading.Event()
        self._result = _GpuResult()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self.health: Health
        """Available after the context has exited."""

    def __enter__(self) -> Self:
        """Start the thread. Wait until NVML is open and the state before the run is known, but at most OPEN_S."""
        self._cpu = CpuWatch()
        self._thread.start()
        self._opened_in_time = self._ready.wait(OPEN_S)
        self._cpu = CpuWatch()
        return self

    def __exit__(self, *_: object) -> None:
        cpu = self._cpu.end()
        self._stop.set()
        self._thread.join(CLOSE_S)
        result, is_answered = self._result, self._opened_in_time and not self._thread.is_alive()
        if not is_answered:  # the thread may still change its result
            result = _GpuResult(fault="GPU health is not known: the driver does not answer")
        during = NodeUsage(samples=result.samples, cpu=cpu, gpus=result.during)
        no_answer = Cause(kind="lost", outside=True, text=f"the GPU driver does not answer; {NODE_ADVICE}")
        causes = find_causes(result.before, during) if is_answered else [no_answer]
        self.health = Health(before=result.before, during=during, causes=causes)
        self.warnings = [clip(printable(result.fault), 1000)] if result.fault else []

    def _run(self) -> None:
        """Make all queries of a run. After the first query that fails, no further GPU query is made."""
        result = self._result
        watch = result.ask(self._connect) if self._expected else None
        if watch is not None:
            result.before = result.ask(watch.before) or []
        self._ready.set()
        while not self._stop.wait(self._interval_s):
            result.samples += 1
            self._cpu.sample()
            if watch is not None:
                result.ask(watch.sample)
        if watch is not None:
            result.during = result.ask(watch.end) or []


@dataclass
class _GpuResult:
    """The state of the GPUs before and during a run, as far as the thread could query it."""

    before: list[GpuSnapshot] = field(default_factory=list)
    during: list[GpuUsage] = field(default_factory=list)
    samples: int = 0
    fault: str = ""
    """Why GPU health is unknown; '' if it is known."""

    def ask(self, query: Callable[[], T]) -> T | None:
        """Return the result of a query; None after an error. All errors are caught here, so that a bad driver cannot
        harm the run."""
        if self.fault:
            return None
        try:
            return query()
        except Exception as error:
            kind = "" if isinstance(error, NoNvmlError) else f"{type(error).__name__}: "
            self.fault = f"GPU health is not known: {kind}{error}"
            return None


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES in a run's environment. None means unset, so all GPUs are visible."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [entry.strip() for entry in value.split(",") if entry.strip()]


class GpuWatch:
    """Watches the GPUs of one run. Call ``before``, then ``sample`` any number of times, then ``end``."""

    def __init__(self, session: NvmlSession, in_steps: Callable[[], bool] = lambda: True) -> None:
        """``in_steps`` is as in ``Monitor``."""
        self._session, self._in_steps = session, in_steps
        self._samples: dict[int, list[GpuSnapshot]] = {gpu.index: [] for gpu in session.gpus}
        """Samples of each GPU that were taken while steps were running."""
        self._others: dict[int, dict[int, GpuProcess]] = {gpu.index: {} for gpu in session.gpus}
        """Processes on each GPU that are not part of the run, by process id."""
        self._xids: list[tuple[int, int]] = []
        self._ecc_before: dict[int, int | None] = {}
        self._sample_count = 0
        self._can_attribute = has_host_pids()
        """Whether NVML and /proc use the same process ids. Also True once one of NVML's ids is a process of the run."""

    def before(self) -> list[GpuSnapshot]:
        """Return the current state of the GPUs. Wait up to SETTLE_S while they still show effects of the previous
        run."""
        deadline = time.monotonic() + SETTLE_S
        snapshots = [self._session.snapshot(gpu) for gpu in self._session.gpus]
        while time.monotonic() < deadline and any(
            snapshot.processes or {"hw_thermal", "hw_slowdown"} & set(snapshot.reasons) for snapshot in snapshots
        ):
            time.sleep(SETTLE_STEP_S)
            snapshots = [self._session.snapshot(gpu) for gpu in self._session.gpus]
        self._ecc_before = {gpu.index: self._session.uncorrected_ecc(gpu) for gpu in self._session.gpus}
        self._session.new_xids()  # discard errors that were reported before the run
        return snapshots

    def sample(self) -> None:
        """Take a sample of every GPU. The clock and temperature of a GPU count only if steps were running when
        its sample began and when it ended.
        """
        with_processes = self._sample_count % PROCESSES_EVERY == PROCESSES_EVERY - 1
        self._sample_count += 1
        for gpu in self._session.gpus:
            began_in_steps = self._in_steps()
            snapshot = self._session.snapshot(gpu, with_processes)
            if began_in_steps and self._in_steps():
                self._samples[gpu.index].append(snapshot)
            for process in snapshot.processes:
                is_own, others = is_descendant(process.pid, os.getpid()), self._others[gpu.index]
                self._can_attribute = self._can_attribute or bool(is_own)
                if is_own is False and len(others) < MAX_PROCESSES:
                    others[process.pid] = process
        self._xids += self._session.new_xids()

    def end(self) -> list[GpuUsage]:
        """Close NVML. Return the usage of each GPU during the run."""
        self._xids += self._session.new_xids()
        usage = [self._summarize(gpu) for gpu in self._session.gpus]
        self._session.close()
        return usage

    def _summarize(self, gpu: GpuDevice) -> GpuUsage:
        samples = self._samples[gpu.index]
        temperatures_c = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
        reason_counts = Counter(reason for sample in samples for reason in sample.reasons)
        ecc_before, ecc_after = self._ecc_before.get(gpu.index), self._session.uncorrected_ecc(gpu)
        is_ecc_known = ecc_before is not None and ecc_after is not None
        return GpuUsage(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            sm_mhz=sample_range([sample.sm_mhz for sample in samples if sample.sm_mhz is not None]),
            sm_max_mhz=gpu.sm_max_mhz,
            samples=len(samples),
            reasons={reason: count / len(samples) for reason, count in reason_counts.items()},
            temperature_max_c=max(temperatures_c, default=None),
            uncorrected_ecc=max(0, (ecc_after or 0) - (ecc_before or 0)) if is_ecc_known else None,
            xids=sorted({xid for index, xid in self._xids if index == gpu.index})[:MAX_XIDS],
            # Processes of others are known only if process ids can be attributed.
            others=list(self._others[gpu.index].values()) if self._can_attribute else [],
            lost=gpu.index in self._session.lost,  # the query above also notices a lost GPU
        )
