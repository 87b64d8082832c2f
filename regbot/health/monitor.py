"""Watches the node while a run runs: a sample before it, one a second during it, one after it.

A thread asks the GPUs, from the first question to the last: a driver that does not answer, which is what a broken GPU
does, must not keep a run from being started or reported. The accounts of the processors are read where the run is
started and waited for, because they are only whole then. What it costs is measured by ``benchmarks/monitor_cost.py``.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from regbot.health.causes import find_causes, not_answering
from regbot.health.cpu import CpuWatch, span
from regbot.health.nvml import Gpu, Gpus, NoNvmlError, Nvml, belongs, find_nvml, numbers_are_ours
from regbot.records.health import (
    MAX_PROCESSES,
    MAX_XIDS,
    During,
    GpuDuring,
    GpuMoment,
    GpuProcess,
    Health,
    Moment,
    Reason,
)
from regbot.text import printable

INTERVAL_S = 1.0
PROCESSES_EVERY = 5
"""Samples between two lists of processes and memory, the dearest question."""
SETTLE_S, SETTLE_STEP_S = 3.0, 0.25
"""How long a GPU may still show the run before: its processes, its heat."""
OPEN_S, CLOSE_S = 60.0, 15.0
"""How long NVML may take: without persistence mode it starts every GPU of the node first."""


class Monitor:
    """A context around one run. ``health`` is known once it has been left.

    ``gpus``: entries of CUDA_VISIBLE_DEVICES as the run sees it, None for all; ``first``: of those the first so many.
    ``expected``: whether this node has GPUs; where it has, to know nothing of them is a warning, else none is asked.
    """

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        first: int | None = None,
        expected: bool = True,
        nvml: Callable[[], Nvml] = find_nvml,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.warnings: list[str] = []
        self._cpu, self._interval_s = CpuWatch(), interval_s
        self._gpus = _GpuThread(lambda: Gpus(nvml(), gpus, first), self._cpu.sample, interval_s, expected)
        self._health: Health | None = None

    def __enter__(self) -> Self:
        self._gpus.open()
        self._before, self._begun = self._cpu.moment(), time.monotonic()
        self._cpu.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cpu.end()
        seconds, after = time.monotonic() - self._begun, self._cpu.moment()
        watched = self._gpus.close()
        before = Moment(cpu=self._before, gpus=watched.before)
        during = During(seconds=seconds, samples=watched.samples, cpu=self._cpu.summary(), gpus=watched.during)
        causes = find_causes(before, during) if watched.answered else [not_answering()]
        self._health = Health(before=before, during=during, after=Moment(cpu=after, gpus=watched.after), causes=causes)
        self.warnings = [printable(watched.fault)[:1000]] if watched.fault else []

    @property
    def health(self) -> Health:
        """What was seen. Only once the context has been left."""
        if self._health is None:
            raise RuntimeError("the run is still being watched")
        return self._health


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES of a run's environment names; None where it leaves all GPUs to it."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [entry.strip() for entry in value.split(",") if entry.strip()]


class _Watched:
    """What the thread found. ``fault`` says why nothing is known of the GPUs, '' where something is."""

    def __init__(self) -> None:
        self.before: list[GpuMoment] = []
        self.during: list[GpuDuring] = []
        self.after: list[GpuMoment] = []
        self.samples = 0
        self.fault = ""
        self.answered = True


class _GpuThread:
    """The thread that asks, and the waiting for it."""

    def __init__(
        self, connect: Callable[[], Gpus], also: Callable[[], None], interval_s: float, expected: bool
    ) -> None:
        self._connect, self._also, self._interval_s, self._expected = connect, also, interval_s, expected
        self._ready, self._stop = threading.Event(), threading.Event()
        self._found = _Watched()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def open(self) -> None:
        self._thread.start()
        self._opened = self._ready.wait(OPEN_S)

    def close(self) -> _Watched:
        self._stop.set()
        self._thread.join(CLOSE_S)
        if self._opened and not self._thread.is_alive():
            return self._found
        lost = _Watched()  # what the thread holds may still change
        lost.answered, lost.fault = False, "GPU health is not known: the driver does not answer"
        return lost

    def _run(self) -> None:
        watch = self._begin() if self._expected else None
        self._ready.set()
        while not self._stop.wait(self._interval_s):
            self._found.samples += 1
            self._also()
            if watch is not None and not self._found.fault:
                self._try(watch.sample)
        if watch is not None and not self._found.fault:
            self._try(lambda: self._end(watch))

    def _begin(self) -> "GpuWatch | None":
        opened: list[GpuWatch] = []

        def begin() -> None:
            opened.append(GpuWatch(self._connect()))
            self._found.before = opened[0].before()

        self._try(begin)
        return opened[0] if opened else None

    def _end(self, watch: "GpuWatch") -> None:
        self._found.during, self._found.after = watch.end()

    def _try(self, question: Callable[[], None]) -> None:
        """The edge of this thread. Whatever a driver or a module of another version does, the run is not its victim."""
        try:
            question()
        except NoNvmlError as error:
            self._found.fault = f"GPU health is not known: {error}"
        except Exception as error:
            self._found.fault = f"GPU health is not known: {type(error).__name__}: {error}"


class GpuWatch:
    """The GPUs of one run between two moments: ``before``, any number of ``sample``, ``end``."""

    def __init__(self, gpus: Gpus, ours: Callable[[int, int], bool | None] = belongs) -> None:
        self._gpus, self._ours = gpus, ours
        self._seen = {gpu.index: _Seen(gpu) for gpu in gpus.gpus}
        self._samples = 0
        self._own_seen = numbers_are_ours()
        """Whether process numbers can be told apart: NVML's are those of /proc, or one was known to be the run's."""

    def before(self) -> list[GpuMoment]:
        """The GPUs now; after a moment, where they still show the run before."""
        until = time.monotonic() + SETTLE_S
        while True:
            found = [self._gpus.moment(gpu) for gpu in self._gpus.gpus]
            unrest = any(each.processes or set(each.reasons) & {"hw_thermal", "hw_slowdown"} for each in found)
            if not unrest or time.monotonic() > until:
                break
            time.sleep(SETTLE_STEP_S)
        for seen in self._seen.values():
            seen.ecc = self._gpus.uncorrected_ecc(seen.gpu)
        self._gpus.new_xids()  # those of before are not the run's
        return found

    def sample(self) -> None:
        """Note every GPU."""
        with_processes = self._samples % PROCESSES_EVERY == PROCESSES_EVERY - 1
        self._samples += 1
        for seen in self._seen.values():
            moment = self._gpus.moment(seen.gpu, with_processes)
            seen.note(moment)
            for process in moment.processes:
                self._place(seen, process)
        self._note_xids()

    def end(self) -> tuple[list[GpuDuring], list[GpuMoment]]:
        """What was seen during the run, and the GPUs now. NVML is given back."""
        self._note_xids()
        after = [self._gpus.moment(gpu) for gpu in self._gpus.gpus]
        found = [
            seen.summary(self._gpus.uncorrected_ecc(seen.gpu), self._own_seen, seen.gpu.index in self._gpus.lost)
            for seen in self._seen.values()
        ]
        self._gpus.close()
        return found, after

    def _place(self, seen: "_Seen", process: GpuProcess) -> None:
        ours = self._ours(process.pid, os.getpid())
        if ours:
            self._own_seen = True
        elif ours is None:
            seen.unplaced.add(process.pid)
        elif len(seen.others) < MAX_PROCESSES:
            seen.others[process.pid] = process

    def _note_xids(self) -> None:
        for index, xid in self._gpus.new_xids():
            if index in self._seen:
                self._seen[index].xids.append(xid)


class _Seen:
    """The samples of one GPU, added up."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.ecc: int | None = None
        self.samples = 0
        self.reasons: Counter[Reason] = Counter()
        self.mhz: list[float] = []
        self.power: list[float] = []
        self.temperature: int | None = None
        self.xids: list[int] = []
        self.others: dict[int, GpuProcess] = {}
        self.unplaced: set[int] = set()

    def note(self, moment: GpuMoment) -> None:
        self.samples += 1
        self.reasons.update(moment.reasons)
        if moment.sm_mhz is not None:
            self.mhz.append(moment.sm_mhz)
        if moment.power_w is not None:
            self.power.append(moment.power_w)
        if moment.temperature_c is not None:
            self.temperature = max(moment.temperature_c, self.temperature or moment.temperature_c)

    def summary(self, ecc: int | None, placed: bool, lost: bool) -> GpuDuring:
        """``placed``: process numbers could be told apart."""
        gpu = self.gpu
        return GpuDuring(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            sm_mhz=span(self.mhz),
            sm_max_mhz=gpu.sm_max_mhz,
            reasons={reason: count / self.samples for reason, count in self.reasons.items()},
            temperature_max_c=self.temperature,
            power_w=span(self.power),
            power_limit_w=gpu.power_limit_w,
            uncorrected_ecc=max(0, ecc - self.ecc) if ecc is not None and self.ecc is not None else None,
            xids=sorted(set(self.xids))[:MAX_XIDS],
            others=list(self.others.values()) if placed else [],
            unplaced=len(self.unplaced) + (0 if placed else len(self.others)),
            lost=lost,
        )
