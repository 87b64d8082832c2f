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

from regbot.engines.health.causes import driver_not_answering, find_causes
from regbot.engines.health.cpu import CpuWatch, sample_range
from regbot.engines.health.nvml import (
    GpuDevice,
    NoNvmlError,
    Nvml,
    NvmlSession,
    find_nvml,
    has_host_pids,
    is_descendant,
)
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
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

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

    ``gpus`` has the entries of the run's CUDA_VISIBLE_DEVICES; None for all GPUs. ``first`` is a count: the number of
    these GPUs that the run uses, from the first one on; None for all. ``expected`` says whether this node has GPUs. If
    it has, unknown GPU health causes a warning. Otherwise no GPU is queried. ``steps`` marks the steps whose clocks,
    power and temperature describe the run; None for the whole run. ``nvml`` returns the functions of NVML.
    ``interval_s`` is the time between two samples.
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
        self._cpu = CpuWatch()
        self._gpu_thread = _GpuThread(
            connect=lambda: GpuWatch(NvmlSession(nvml(), gpus, first), steps=steps),
            on_sample=self._cpu.sample,
            interval_s=interval_s,
            has_gpus=expected,
        )
        self._health: Health | None = None

    def __enter__(self) -> Self:
        self._gpu_thread.open()
        self._cpu_before, self._begun_at = self._cpu.snapshot(), time.monotonic()
        self._cpu.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cpu.end()
        seconds, cpu_after = time.monotonic() - self._begun_at, self._cpu.snapshot()
        result = self._gpu_thread.close()
        before = NodeSnapshot(cpu=self._cpu_before, gpus=result.before)
        during = NodeUsage(seconds=seconds, samples=result.samples, cpu=self._cpu.summary(), gpus=result.during)
        after = NodeSnapshot(cpu=cpu_after, gpus=result.after)
        # ``answered`` is False if a GPU query did not return in time. ``fault`` says why GPU health is unknown.
        causes = find_causes(before, during) if result.answered else [driver_not_answering()]
        self._health = Health(before=before, during=during, after=after, causes=causes)
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
    """The state of the GPUs before, during and after a run, as far as the GPU thread could query it."""

    def __init__(self) -> None:
        self.before: list[GpuSnapshot] = []
        self.during: list[GpuUsage] = []
        self.after: list[GpuSnapshot] = []
        self.samples = 0
        """Number of samples during the run."""
        self.fault = ""
        """Why GPU health is unknown; '' if it is known."""
        self.answered = True
        """False if a query did not return in time."""


class _GpuThread:
    """Starts the thread that makes the GPU queries, and waits for its result."""

    def __init__(
        self, connect: Callable[[], "GpuWatch"], on_sample: Callable[[], None], interval_s: float, has_gpus: bool
    ) -> None:
        """``connect`` opens NVML, and ``on_sample`` is called before each sample. The thread calls both. Without
        ``has_gpus``, the thread makes no GPU query and calls only ``on_sample``.
        """
        self._connect, self._on_sample, self._interval_s, self._has_gpus = connect, on_sample, interval_s, has_gpus
        self._ready, self._stop = threading.Event(), threading.Event()
        self._result = _GpuResult()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def open(self) -> None:
        """Start the thread. Wait until NVML is open and the state before the run is known, but at most OPEN_S."""
        self._thread.start()
        self._opened_in_time = self._ready.wait(OPEN_S)

    def close(self) -> _GpuResult:
        """Stop the thread and return its result. If it does not end within CLOSE_S, the driver did not answer."""
        self._stop.set()
        self._thread.join(CLOSE_S)
        if self._opened_in_time and not self._thread.is_alive():
            return self._result
        no_answer = _GpuResult()  # self._result is not used, because the thread may still change it
        no_answer.answered, no_answer.fault = False, "GPU health is not known: the driver does not answer"
        return no_answer

    def _run(self) -> None:
        """Make all queries of a run. After the first query that fails, no further GPU query is made."""
        watch = self._query_before() if self._has_gpus else None
        self._ready.set()
        while not self._stop.wait(self._interval_s):
            self._result.samples += 1
            self._on_sample()
            if watch is not None and not self._result.fault:
                self._run_query(watch.sample)
        if watch is not None and not self._result.fault:
            self._run_query(lambda: self._query_after(watch))

    def _query_before(self) -> "GpuWatch | None":
        """Open NVML and store the state before the run. Return None if NVML cannot be opened."""
        watch: GpuWatch | None = None

        def connect_and_query() -> None:
            nonlocal watch
            watch = self._connect()
            self._result.before = watch.before()

        self._run_query(connect_and_query)
        return watch

    def _query_after(self, watch: "GpuWatch") -> None:
        """Store the usage during the run and the state after it."""
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
        """``gpus`` is the open NVML session for the run's GPUs.

        ``is_own(pid, ancestor)`` says whether a process on a GPU descends from ``ancestor``, here this process; None
        if that is unknown. ``steps`` is as in ``Monitor``.
        """
        self._session, self._is_own, self._steps = gpus, is_own, steps
        self._samples_by_index = {gpu.index: _GpuSamples(gpu) for gpu in gpus.gpus}
        """Samples by the index of the GPU."""
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
            snapshots = [self._session.snapshot(gpu) for gpu in self._session.gpus]
            if all(_is_settled(snapshot) for snapshot in snapshots) or time.monotonic() > deadline:
                break
            time.sleep(SETTLE_STEP_S)
        for samples in self._samples_by_index.values():
            samples.ecc_before = self._session.uncorrected_ecc(samples.gpu)
        self._session.new_xids()  # discard errors that were reported before the run
        return snapshots

    def sample(self) -> None:
        """Take a sample of every GPU. The clock, power and temperature of a GPU count only if steps were running when
        its sample began and when it ended.
        """
        with_processes = self._sample_count % PROCESSES_EVERY == PROCESSES_EVERY - 1
        self._sample_count += 1
        for samples in self._samples_by_index.values():
            began_in_steps = self._are_steps_running()
            snapshot = self._session.snapshot(samples.gpu, with_processes)
            if began_in_steps and self._are_steps_running():
                samples.add(snapshot)
            for process in snapshot.processes:
                self._attribute(samples, process)
        self._note_xids()

    def end(self) -> tuple[list[GpuUsage], list[GpuSnapshot]]:
        """Close NVML. Return the usage of each GPU during the run, and the state of the GPUs after it."""
        self._note_xids()
        after = [self._session.snapshot(gpu) for gpu in self._session.gpus]
        usage = []
        for samples in self._samples_by_index.values():
            ecc_after = self._session.uncorrected_ecc(samples.gpu)  # this query also notices a lost GPU
            is_lost = samples.gpu.index in self._session.lost
            usage.append(samples.summary(ecc_after, self._can_attribute, is_lost))
        self._session.close()
        return usage, after

    def _are_steps_running(self) -> bool:
        """Whether the steps that count are running. Without marks, the whole run counts."""
        return self._steps is None or self._steps.are_running()

    def _attribute(self, samples: "_GpuSamples", process: GpuProcess) -> None:
        """Store a process on a GPU if it does not belong to the run (``others``), or if that is unknown
        (``unplaced``).
        """
        is_own = self._is_own(process.pid, os.getpid())
        if is_own:  # NVML's id led to a process of the run, so NVML and /proc use the same ids
            self._can_attribute = True
        elif is_own is None:
            samples.unplaced.add(process.pid)
        elif len(samples.others) < MAX_PROCESSES:
            samples.others[process.pid] = process

    def _note_xids(self) -> None:
        """Store the errors that the driver reported since the last call, for the GPUs of the run."""
        for index, xid in self._session.new_xids():
            if index in self._samples_by_index:
                self._samples_by_index[index].xids.append(xid)


def _is_settled(snapshot: GpuSnapshot) -> bool:
    """Whether a GPU shows no effect of an earlier run: no process, and no slowdown from heat."""
    return not snapshot.processes and not set(snapshot.reasons) & {"hw_thermal", "hw_slowdown"}


class _GpuSamples:
    """All samples of one GPU during a run."""

    def __init__(self, gpu: GpuDevice) -> None:
        self.gpu = gpu
        self.ecc_before: int | None = None
        """Number of uncorrected memory errors before the run; None if it is unknown."""
        self.samples = 0
        """Number of samples that ``add`` got: those that were taken while steps were running."""
        self.reasons: Counter[ClockReason] = Counter()
        """Number of samples that show each reason."""
        self.mhz: list[float] = []
        self.power_w: list[float] = []
        self.temperature_max_c: int | None = None
        self.xids: list[int] = []
        self.others: dict[int, GpuProcess] = {}
        """Processes that are not part of the run, by process id."""
        self.unplaced: set[int] = set()
        """Ids of processes of which it is unknown whether they are part of the run."""

    def add(self, snapshot: GpuSnapshot) -> None:
        """Add the clock, reasons, power and temperature of one sample."""
        self.samples += 1
        self.reasons.update(snapshot.reasons)
        if snapshot.sm_mhz is not None:
            self.mhz.append(snapshot.sm_mhz)
        if snapshot.power_w is not None:
            self.power_w.append(snapshot.power_w)
        if snapshot.temperature_c is not None:
            self.temperature_max_c = max(snapshot.temperature_c, self.temperature_max_c or snapshot.temperature_c)

    def summary(self, ecc_after: int | None, can_attribute: bool, is_lost: bool) -> GpuUsage:
        """Summarize the samples.

        ``ecc_after`` is the number of uncorrected memory errors after the run; None if it is unknown. ``can_attribute``
        says whether process ids could be attributed to the run or to others. If they could not, the processes of others
        count as unplaced.
        """
        gpu = self.gpu
        new_ecc_errors = None
        if ecc_after is not None and self.ecc_before is not None:
            new_ecc_errors = max(0, ecc_after - self.ecc_before)
        return GpuUsage(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            sm_mhz=sample_range(self.mhz),
            sm_max_mhz=gpu.sm_max_mhz,
            samples=self.samples,
            reasons={reason: count / self.samples for reason, count in self.reasons.items()},
            temperature_max_c=self.temperature_max_c,
            power_w=sample_range(self.power_w),
            power_limit_w=gpu.power_limit_w,
            uncorrected_ecc=new_ecc_errors,
            xids=sorted(set(self.xids))[:MAX_XIDS],
            others=list(self.others.values()) if can_attribute else [],
            unplaced=len(self.unplaced) + (0 if can_attribute else len(self.others)),
            lost=is_lost,
        )
