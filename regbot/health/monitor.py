"""Monitor the node around a run: take a sample before it, one each second during it, and one after it.

A separate thread makes all GPU queries. If the driver does not answer, for example because a GPU is broken, the run
must still be started and reported. The thread that starts the run and waits for it reads the CPU times, because they
are complete only after this wait. ``benchmarks/monitor_cost.py`` measures the cost of monitoring.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from regbot.health.causes import driver_not_answering, find_causes
from regbot.health.cpu import CpuWatch, sample_range
from regbot.health.nvml import GpuDevice, NoNvmlError, Nvml, NvmlSession, find_nvml, has_host_pids, is_descendant
from regbot.records.health import (
    MAX_PROCESSES,
    MAX_XIDS,
    ClockReason,
    GpuProcess,
    GpuSnapshot,
    GpuUsage,
    Health,
    NodeSnapshot,
    NodeUsage,
)
from regbot.text.clip import clip
from regbot.text.printable import printable

INTERVAL_S = 1.0
PROCESSES_EVERY = 5
"""One of this many samples lists processes and memory, because this query takes the longest."""
SETTLE_S, SETTLE_STEP_S = 3.0, 0.25
"""Seconds to wait for a GPU that still shows effects of the previous run, such as processes or heat.

The second number is the time between two queries while waiting.
"""
OPEN_S, CLOSE_S = 60.0, 15.0
"""Seconds to wait for the GPU thread: until NVML is open, and until the thread ends. Without persistence mode, opening
NVML first starts every GPU of the node."""


@dataclass(frozen=True)
class StepMarks:
    """Two files that a run creates: ``begun`` before the steps that count, and ``ended`` after them."""

    begun: Path
    ended: Path

    def are_running(self) -> bool:
        return self.begun.exists() and not self.ended.exists()


class Monitor:
    """Context manager that monitors one run. ``health`` is available after it exits.

    ``gpus`` has the entries of the run's CUDA_VISIBLE_DEVICES; None for all GPUs. The run uses the first ``first`` of
    these GPUs; None for all. ``expected`` says whether this node has GPUs. If it has, unknown GPU health causes a
    warning. Otherwise no GPU is queried. ``steps`` marks the steps whose clocks, power and temperature describe the
    run; None for the whole run.
    """

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        first: int | None = None,
        expected: bool = True,
        nvml: Callable[[], Nvml] = find_nvml,
        interval_s: float = INTERVAL_S,
        steps: StepMarks | None = None,
    ) -> None:
        self.warnings: list[str] = []
        self._cpu, self._interval_s = CpuWatch(), interval_s
        self._gpus = _GpuThread(
            lambda: GpuWatch(NvmlSession(nvml(), gpus, first), steps=steps), self._cpu.sample, interval_s, expected
        )
        self._health: Health | None = None

    def __enter__(self) -> Self:
        self._gpus.open()
        self._before, self._begun = self._cpu.snapshot(), time.monotonic()
        self._cpu.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cpu.end()
        seconds, after = time.monotonic() - self._begun, self._cpu.snapshot()
        result = self._gpus.close()
        before = NodeSnapshot(cpu=self._before, gpus=result.before)
        during = NodeUsage(seconds=seconds, samples=result.samples, cpu=self._cpu.summary(), gpus=result.during)
        causes = find_causes(before, during) if result.answered else [driver_not_answering()]
        self._health = Health(
            before=before, during=during, after=NodeSnapshot(cpu=after, gpus=result.after), causes=causes
        )
        self.warnings = [clip(printable(result.fault), 1000)] if result.fault else []

    @property
    def health(self) -> Health:
        """The health of the run. Raises RuntimeError before the context has exited."""
        if self._health is None:
            raise RuntimeError("the run is still being monitored")
        return self._health


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES in a run's environment. None means unset, so all GPUs are visible."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [entry.strip() for entry in value.split(",") if entry.strip()]


class _GpuResult:
    """What the GPU thread has found. ``fault`` says why GPU health is unknown; '' if it is known."""

    def __init__(self) -> None:
        self.before: list[GpuSnapshot] = []
        self.during: list[GpuUsage] = []
        self.after: list[GpuSnapshot] = []
        self.samples = 0
        self.fault = ""
        self.answered = True


class _GpuThread:
    """Starts the thread that makes the GPU queries, and waits for its result."""

    def __init__(
        self, connect: Callable[[], "GpuWatch"], on_sample: Callable[[], None], interval_s: float, has_gpus: bool
    ) -> None:
        self._connect, self._on_sample, self._interval_s, self._has_gpus = connect, on_sample, interval_s, has_gpus
        self._ready, self._stop = threading.Event(), threading.Event()
        self._result = _GpuResult()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def open(self) -> None:
        self._thread.start()
        self._opened = self._ready.wait(OPEN_S)

    def close(self) -> _GpuResult:
        self._stop.set()
        self._thread.join(CLOSE_S)
        if self._opened and not self._thread.is_alive():
            return self._result
        no_answer = _GpuResult()  # self._result is not used, because the thread may still change it
        no_answer.answered, no_answer.fault = False, "GPU health is not known: the driver does not answer"
        return no_answer

    def _run(self) -> None:
        watch = self._begin() if self._has_gpus else None
        self._ready.set()
        while not self._stop.wait(self._interval_s):
            self._result.samples += 1
            self._on_sample()
            if watch is not None and not self._result.fault:
                self._run_query(watch.sample)
        if watch is not None and not self._result.fault:
            self._run_query(lambda: self._end(watch))

    def _begin(self) -> "GpuWatch | None":
        opened: list[GpuWatch] = []

        def begin() -> None:
            opened.append(self._connect())
            self._result.before = opened[0].before()

        self._run_query(begin)
        return opened[0] if opened else None

    def _end(self, watch: "GpuWatch") -> None:
        self._result.during, self._result.after = watch.end()

    def _run_query(self, query: Callable[[], None]) -> None:
        """Run ``query`` and store its error. All errors are caught here, so that a bad driver cannot harm the run."""
        try:
            query()
        except NoNvmlError as error:
            self._result.fault = f"GPU health is not known: {error}"
        except Exception as error:
            self._result.fault = f"GPU health is not known: {type(error).__name__}: {error}"


class GpuWatch:
    """Watches the GPUs of one run. Call ``before``, then ``sample`` any number of times, then ``end``."""

    def __init__(
        self,
        gpus: NvmlSession,
        is_own: Callable[[int, int], bool | None] = is_descendant,
        steps: StepMarks | None = None,
    ) -> None:
        self._gpus, self._is_own, self._steps = gpus, is_own, steps
        self._by_index = {gpu.index: _GpuSamples(gpu) for gpu in gpus.gpus}
        self._sample_count = 0
        self._can_attribute = has_host_pids()
        """Whether processes on a GPU can be attributed to the run or to others.

        This is possible if NVML and /proc use the same process ids. It is also set to True when one of NVML's ids is
        recognized as a process of the run.
        """

    def before(self) -> list[GpuSnapshot]:
        """Return the current state of the GPUs. Wait up to SETTLE_S while they still show effects of the previous
        run."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            snapshots = [self._gpus.snapshot(gpu) for gpu in self._gpus.gpus]
            is_unsettled = any(gpu.processes or set(gpu.reasons) & {"hw_thermal", "hw_slowdown"} for gpu in snapshots)
            if not is_unsettled or time.monotonic() > deadline:
                break
            time.sleep(SETTLE_STEP_S)
        for samples in self._by_index.values():
            samples.ecc = self._gpus.uncorrected_ecc(samples.gpu)
        self._gpus.new_xids()  # discard errors that were reported before the run
        return snapshots

    def sample(self) -> None:
        """Take a sample of every GPU. Its clock, power and temperature count only if steps were running when the sample
        began and when it ended."""
        with_processes = self._sample_count % PROCESSES_EVERY == PROCESSES_EVERY - 1
        self._sample_count += 1
        for samples in self._by_index.values():
            began_in_steps = self._are_steps_running()
            snapshot = self._gpus.snapshot(samples.gpu, with_processes)
            if began_in_steps and self._are_steps_running():
                samples.add(snapshot)
            for process in snapshot.processes:
                self._attribute(samples, process)
        self._note_xids()

    def end(self) -> tuple[list[GpuUsage], list[GpuSnapshot]]:
        """Close NVML. Return the usage of each GPU during the run, and the state of the GPUs after it."""
        self._note_xids()
        after = [self._gpus.snapshot(gpu) for gpu in self._gpus.gpus]
        usage = [
            samples.summary(
                self._gpus.uncorrected_ecc(samples.gpu), self._can_attribute, samples.gpu.index in self._gpus.lost
            )
            for samples in self._by_index.values()
        ]
        self._gpus.close()
        return usage, after

    def _are_steps_running(self) -> bool:
        return self._steps is None or self._steps.are_running()

    def _attribute(self, samples: "_GpuSamples", process: GpuProcess) -> None:
        is_own = self._is_own(process.pid, os.getpid())
        if is_own:
            self._can_attribute = True
        elif is_own is None:
            samples.unplaced.add(process.pid)
        elif len(samples.others) < MAX_PROCESSES:
            samples.others[process.pid] = process

    def _note_xids(self) -> None:
        for index, xid in self._gpus.new_xids():
            if index in self._by_index:
                self._by_index[index].xids.append(xid)


class _GpuSamples:
    """All samples of one GPU during a run."""

    def __init__(self, gpu: GpuDevice) -> None:
        self.gpu = gpu
        self.ecc: int | None = None
        self.samples = 0
        self.reasons: Counter[ClockReason] = Counter()
        self.mhz: list[float] = []
        self.power: list[float] = []
        self.temperature: int | None = None
        self.xids: list[int] = []
        self.others: dict[int, GpuProcess] = {}
        self.unplaced: set[int] = set()

    def add(self, snapshot: GpuSnapshot) -> None:
        self.samples += 1
        self.reasons.update(snapshot.reasons)
        if snapshot.sm_mhz is not None:
            self.mhz.append(snapshot.sm_mhz)
        if snapshot.power_w is not None:
            self.power.append(snapshot.power_w)
        if snapshot.temperature_c is not None:
            self.temperature = max(snapshot.temperature_c, self.temperature or snapshot.temperature_c)

    def summary(self, ecc: int | None, can_attribute: bool, is_lost: bool) -> GpuUsage:
        """Summarize the samples. ``can_attribute`` says whether process ids could be attributed to the run or to
        others."""
        gpu = self.gpu
        return GpuUsage(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            sm_mhz=sample_range(self.mhz),
            sm_max_mhz=gpu.sm_max_mhz,
            samples=self.samples,
            reasons={reason: count / self.samples for reason, count in self.reasons.items()},
            temperature_max_c=self.temperature,
            power_w=sample_range(self.power),
            power_limit_w=gpu.power_limit_w,
            uncorrected_ecc=max(0, ecc - self.ecc) if ecc is not None and self.ecc is not None else None,
            xids=sorted(set(self.xids))[:MAX_XIDS],
            others=list(self.others.values()) if can_attribute else [],
            unplaced=len(self.unplaced) + (0 if can_attribute else len(self.others)),
            lost=is_lost,
        )
