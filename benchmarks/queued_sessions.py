"""Queue many very short timed sessions on a private cluster, and measure times, commands and memory from outside."""

import gc
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from regbot.check.sessions.timed import SessionRunner
from regbot.engines import Launch, LaunchResult, Needs, Seat
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.engine import SlurmEngine
from regbot.records.config import SessionSettings, SlurmSettings, Workload
from regbot.records.files import RecordError, append_line
from regbot.records.run import Arm
from regbot.records.session import SessionHeader, TimedPlan, read_session
from regbot.records.settings import ThroughputThresholds
from regbot.workloads.checkout.worktrees import Worktree
from regbot.workloads.guest import Scratch
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, plan_of, single_task
from support.slurm_cluster import Cluster

PROGRAM = """
import sys, time
for step in range(int(sys.argv[1])):
    begun = time.perf_counter()
    time.sleep(0.01)
    took = time.perf_counter() - begun
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, loss: 7.{9 - step}")
"""
COMMAND = ("-I", "-S", "train.py")
ARMS = {"base": "1" * 40, "head": "2" * 40}
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
"""Block and slot of the runs of a session: a warm launch of each arm, and two pairs."""
PROGRAMS = ("squeue", "scancel", "sinfo", "srun")
FIRST = 20
"""After this number of sessions, the memory of the driver should not grow any more."""
SAMPLE_S, WINDOW_S = 1.0, 10.0


@dataclass
class SessionTimes:
    """Seconds of one session."""

    submission: float = 0.0
    """From the request until the job is submitted."""
    queue: float = 0.0
    """From the submission until the job runs and its nodes are known."""
    facts: float = 0.0
    """From the moment when the job runs until its nodes have reported their facts."""
    steps: float = 0.0
    guest: float = 0.0
    """The part of ``steps`` in which the commands themselves ran."""
    release: float = 0.0
    all: float = 0.0


@dataclass
class QueueResult:
    """Measurements of a queue of sessions."""

    sessions: int
    wall_s: float = 0.0
    times: list[SessionTimes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Faults of the session files, and exceptions of the sessions."""
    left: list[str] = field(default_factory=list)
    """Jobs, folders, threads and files that should be gone after the queue."""
    commands: list[tuple[float, str]] = field(default_factory=list)
    """Time and name of each start of one of Slurm's programs."""
    samples: list[tuple[int, float]] = field(default_factory=list)
    """Samples of the number of ended sessions, and of the memory of the driver in megabytes."""
    kept: int = 0
    """Number of memory blocks that the interpreter has after the queue in addition to those before it."""


def measure(cluster: Cluster, folder: Path, sessions: int) -> QueueResult:
    """Queue all ``sessions`` at once and wait for their end."""
    arms = arms_in(folder / "arms")
    (folder / "sessions").mkdir()
    task, plan = task_of()
    log = folder / "commands.log"
    slurm = RecordingSlurm(logging_environment(cluster, folder / "bin", log))
    result = QueueResult(sessions)
    before, blocks = (threading.active_count(), _descriptors()), _blocks()
    begun = time.monotonic()

    def run_session(engine: SlurmEngine, number: int) -> None:
        timed_engine, started = TimedEngine(engine, slurm), time.monotonic()
        file = folder / "sessions" / f"{number:04}.jsonl"
        planned = header(plan, number)
        append_line(file, planned)
        keep = partial(append_line, file)
        timing = SessionRunner(planned, arms, timed_engine, Scratch(folder / "runs" / file.stem), keep, lambda _: None)
        timing.run(plan, task, [], math.inf)
        timed_engine.times.all = time.monotonic() - started
        result.times.append(timed_engine.times)

    with sampled_memory(result), SlurmEngine(SlurmSettings(), folder / "shared", slurm) as engine:
        with ThreadPoolExecutor(sessions) as pool:  # its threads end only after all sessions have ended
            ends = [pool.submit(run_session, engine, number) for number in range(sessions)]
            wait(ends)
            result.samples.append((len(result.times), resident_mb()))
        result.wall_s = time.monotonic() - begun
    result.kept = _blocks() - blocks
    result.errors = [f"session {number}: {end.exception()!r}" for number, end in enumerate(ends) if end.exception()]
    result.errors += faults(folder / "sessions", sessions)
    result.commands = [(float(at), program) for at, program in map(str.split, log.read_text().splitlines())]
    result.left = leftovers(cluster, folder, before)
    return result


def task_of() -> tuple[Task, TimedPlan]:
    """Return a task that runs a command, and the plan of its shortest session."""
    command = ["{python}", *COMMAND, "{steps}"]
    workload = Workload(adapter="command", command=command, shapes=["mixtral-8x7b"], variant="cpu")
    task = single_task("train", workload, load_shape("mixtral-8x7b"), "ep")
    plan = plan_of(task, SessionSettings(steps=5, warmup=1))
    return task, plan.model_copy(update={"max_pairs": 2})


def header(plan: TimedPlan, number: int) -> SessionHeader:
    arms = [Arm(name=name, revision="a folder", commit=commit, tree=commit) for name, commit in ARMS.items()]
    return SessionHeader(
        regbot="benchmark", created="2026-01-01T00:00:00+00:00", base=arms[0], head=arms[1], workloads=[plan.entry],
        untraced=[plan.entry], timed=[plan], seed=number, throughput=ThroughputThresholds(gate="pairs"),
    )  # fmt: skip


class Arms:
    """Folders that serve as the checkouts of both arms."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def worktree(self, arm: Arm, task: Task) -> Worktree:
        del task
        return Worktree(self._folder / arm.name, False, "", (), {})


def arms_in(folder: Path) -> Arms:
    """Write the program into one folder for each arm."""
    for name in ARMS:
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(PROGRAM)
    return Arms(folder)


class RecordingSlurm(Slurm):
    """Records when each thread submitted its last job."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self.submitted = threading.local()

    def start(self, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        self.submitted.at = time.monotonic()
        return super().start(arguments)


class TimedEngine:
    """The engine of one session. It measures how long the session waits for each part of its seat."""

    def __init__(self, engine: SlurmEngine, slurm: RecordingSlurm) -> None:
        self._engine, self._slurm, self.times = engine, slurm, SessionTimes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        requested, times = time.monotonic(), self.times
        with self._engine.seat(needs) as seat:
            ready, submitted = time.monotonic(), self._slurm.submitted.at
            times.submission += submitted - requested
            times.queue += seat.allocation.queued_s
            times.facts += ready - submitted - seat.allocation.queued_s
            yield TimedSeat(seat, times)
            ended = time.monotonic()
        times.release += time.monotonic() - ended


class TimedSeat:
    """A seat that measures the seconds of its steps."""

    def __init__(self, seat: Seat, times: SessionTimes) -> None:
        self._seat, self._times = seat, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)

    def run(self, launch: Launch) -> LaunchResult:
        begun = time.monotonic()
        result = self._seat.run(launch)
        self._times.steps += time.monotonic() - begun
        self._times.guest += result.wall_s
        return result


def logging_environment(cluster: Cluster, folder: Path, log: Path) -> dict[str, str]:
    """Return an environment in which each start of one of Slurm's programs writes its time and name to ``log``."""
    folder.mkdir(parents=True)
    log.touch()
    for name in PROGRAMS:
        script = f'#!/bin/sh\nread -r now rest < /proc/uptime\necho "$now {name}" >> {log}\n'
        (folder / name).write_text(f'{script}exec {shutil.which(name)} "$@"\n')
        (folder / name).chmod(0o755)
    environment = cluster.environment()
    return {**environment, "PATH": f"{folder}:{environment['PATH']}"}


@contextmanager
def sampled_memory(result: QueueResult) -> Iterator[None]:
    """Sample the memory of this process during the context."""
    stop = threading.Event()

    def watch() -> None:
        begun, printed = time.monotonic(), 0
        while not stop.wait(SAMPLE_S):
            result.samples.append((len(result.times), resident_mb()))
            ended, mb = result.samples[-1]
            if ended - printed >= FIRST:
                printed = ended
                print(f"{ended} sessions after {time.monotonic() - begun:.0f} s, {mb:.1f} MB", file=sys.stderr)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def faults(folder: Path, sessions: int) -> list[str]:
    """Return the faults of the files of all sessions. A file must have every planned run exactly once, and no other."""
    errors = []
    for number in range(sessions):
        file = folder / f"{number:04}.jsonl"
        try:
            runs = read_session(file).runs
        except (RecordError, OSError) as error:
            errors.append(f"session {number}: {error}")
            continue
        places = sorted((run.position.block, run.position.slot) for run in runs if run.position)
        if places != PLACES or len(runs) != len(PLACES):
            errors.append(f"session {number}: has the runs {places}")
        errors += [f"session {number}: {run.outcome}, {run.reason}" for run in runs if run.outcome != "ok"]
    return errors


def leftovers(cluster: Cluster, folder: Path, before: tuple[int, int]) -> list[str]:
    """Return descriptions of jobs and of folders of reservations that are left, and of additional threads and files.

    ``before`` has the numbers of threads and open files before the queue.
    """
    until = time.monotonic() + 30.0
    while any(job["state"] == "COMPLETING" for job in cluster.jobs()) and time.monotonic() < until:
        time.sleep(0.2)
    left = [f"job {job['id']} is {job['state']}" for job in cluster.jobs()]
    left += [f"the folder {path.name}" for path in (folder / "shared").glob("seat-*")]
    kinds = (("threads", threading.active_count()), ("open files", _descriptors()))
    return left + [f"{now} {what}, {was} before" for (what, now), was in zip(kinds, before, strict=True) if now > was]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def most_per_s(commands: Sequence[tuple[float, str]], programs: Collection[str], less: Collection[str] = ()) -> float:
    """Return the largest number of starts of ``programs`` per second, in any window of WINDOW_S seconds.

    Each start of a program in ``less`` is subtracted.
    """
    events = sorted((at, (program in programs) - (program in less)) for at, program in commands)
    most, now, first = 0, 0, 0
    for at, count in events:
        now += count
        while at - events[first][0] > WINDOW_S:
            now -= events[first][1]
            first += 1
        most = max(most, now)
    return most / WINDOW_S


def memory(result: QueueResult) -> tuple[float, float]:
    """Return the peak memory of the driver, and its growth after the first sessions, in megabytes."""
    first = min(FIRST, result.sessions // 2)
    later = [mb for ended, mb in result.samples if ended >= first] or [result.samples[-1][1]]
    return max(mb for _, mb in result.samples), max(later) - later[0]
