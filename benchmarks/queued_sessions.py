"""A queue of timed sessions on a private cluster, as short as sessions can be, and what was seen of it from outside."""

import gc
import math
import os
import shutil
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

from regbot.checkout import Worktree
from regbot.config import Session as SessionSettings
from regbot.config import SlurmSettings, Workload
from regbot.engines import Ended, Launch, Needs, Seat
from regbot.engines.slurm import SlurmEngine
from regbot.engines.slurm.commands import Slurm
from regbot.records.files import RecordError, append_line
from regbot.records.run import Arm
from regbot.records.session import SessionHeader, TimedPlan, read_session
from regbot.records.settings import Throughput
from regbot.shapes import load_shape
from regbot.timing import Timing
from regbot.workloads import Limits, Task, plan_of, single_task
from slurm_cluster import Cluster

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
ASKS = ("squeue", "sbatch", "scancel", "scontrol", "srun")
FIRST = 20
"""Sessions after which memory is taken to have reached its level."""
SAMPLE_S, WINDOW_S = 1.0, 10.0


@dataclass
class Spent:
    """Seconds of one session."""

    slot: float = 0.0
    queue: float = 0.0
    """From the submission until the job runs and its nodes are known."""
    facts: float = 0.0
    """The first step, which asks the nodes what they are."""
    steps: float = 0.0
    guest: float = 0.0
    """Of ``steps``, what the commands themselves took."""
    release: float = 0.0
    all: float = 0.0


@dataclass
class Found:
    """What was measured of a queue of sessions."""

    sessions: int
    slots: int
    wall_s: float = 0.0
    spent: list[Spent] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """What is wrong with what they recorded."""
    left: list[str] = field(default_factory=list)
    """What should not be there any more."""
    asked: list[tuple[float, str]] = field(default_factory=list)
    """When which of Slurm's programs was started."""
    samples: list[tuple[int, float]] = field(default_factory=list)
    """Sessions that had ended, and megabytes of the driver."""
    kept: int = 0
    """Blocks of memory that the interpreter has more than before, when no session is there any more."""


def measure(cluster: Cluster, folder: Path, sessions: int, slots: int) -> Found:
    """Queue all ``sessions`` at once, of which ``slots`` may have nodes, and wait for their end."""
    arms = arms_in(folder / "arms")
    (folder / "sessions").mkdir()
    task, plan = task_of()
    log = folder / "asked.log"
    slurm = Noted(counting(cluster, folder / "bin", log))
    found = Found(sessions, slots)
    before, blocks = (threading.active_count(), _descriptors()), _blocks()
    begun = time.monotonic()

    def one(engine: SlurmEngine, number: int) -> None:
        own, started = Watched(engine, slurm), time.monotonic()
        file = folder / "sessions" / f"{number:04}.jsonl"
        planned = header(plan, number)
        append_line(file, planned)
        keep = partial(append_line, file)
        timing = Timing(planned, arms, own, folder / "runs" / file.stem, Limits(), keep, lambda _: None)
        timing.run(plan, task, [], math.inf)
        own.spent.all = time.monotonic() - started
        found.spent.append(own.spent)

    with sampled(found), SlurmEngine(SlurmSettings(slots=slots), folder / "shared", slurm) as engine:
        with ThreadPoolExecutor(sessions) as pool:  # none of its threads ends before all sessions have
            ends = [pool.submit(one, engine, number) for number in range(sessions)]
            wait(ends)
            found.samples.append((len(found.spent), resident_mb()))
        found.wall_s = time.monotonic() - begun
    found.kept = _blocks() - blocks
    found.errors = [f"session {number}: {end.exception()!r}" for number, end in enumerate(ends) if end.exception()]
    found.errors += faults(folder / "sessions", sessions)
    found.asked = [(float(at), word) for at, word in map(str.split, log.read_text().splitlines())]
    found.left = leftovers(cluster, folder, before)
    return found


def task_of() -> tuple[Task, TimedPlan]:
    """A command as a workload, and the shortest session of it."""
    command = ["{python}", *COMMAND, "{steps}"]
    workload = Workload(adapter="command", command=command, shapes=["mixtral-8x7b"], variant="cpu")
    task = single_task("train", workload, load_shape("mixtral-8x7b"), "ep")
    plan = plan_of(task, SessionSettings(steps=5, warmup=1))
    return task, plan.model_copy(update={"max_pairs": 2})


def header(plan: TimedPlan, number: int) -> SessionHeader:
    arms = [Arm(name=name, revision="a folder", commit=commit, tree=commit) for name, commit in ARMS.items()]
    return SessionHeader(
        regbot="benchmark", created="2026-01-01T00:00:00+00:00", base=arms[0], head=arms[1], workloads=[plan.entry],
        untraced=[plan.entry], timed=[plan], seed=number, throughput=Throughput(gate="pairs"),
    )  # fmt: skip


class Arms:
    """Two folders as the checkouts of both arms."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, arm: Arm, task: Task) -> Worktree:
        del task
        return Worktree(self._folder / arm.name, arm.commit, arm.tree, {}, False, "", (), {})


def arms_in(folder: Path) -> Arms:
    """The program, once for each arm."""
    for name in ARMS:
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(PROGRAM)
    return Arms(folder)


class Noted(Slurm):
    """Knows when each thread submitted its last job."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self.submitted = threading.local()

    def submit(self, *given: Any, **named: Any) -> str:
        self.submitted.at = time.monotonic()
        return super().submit(*given, **named)


class Watched:
    """The engine as one session has it, and the seconds that it spends there."""

    def __init__(self, engine: SlurmEngine, slurm: Noted) -> None:
        self._engine, self._slurm, self.spent = engine, slurm, Spent()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        asked, spent = time.monotonic(), self.spent
        with self._engine.seat(needs) as seat:
            had, submitted = time.monotonic(), self._slurm.submitted.at
            spent.slot += submitted - asked
            spent.queue += seat.allocation.queued_s
            spent.facts += had - submitted - seat.allocation.queued_s
            yield WatchedSeat(seat, spent)
            left = time.monotonic()
        spent.release += time.monotonic() - left


class WatchedSeat:
    """A seat, and the seconds of its steps."""

    def __init__(self, seat: Seat, spent: Spent) -> None:
        self._seat, self._spent = seat, spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)

    def run(self, launch: Launch) -> Ended:
        begun = time.monotonic()
        ended = self._seat.run(launch)
        self._spent.steps += time.monotonic() - begun
        self._spent.guest += ended.wall_s
        return ended


def counting(cluster: Cluster, folder: Path, log: Path) -> dict[str, str]:
    """An environment in which each start of one of Slurm's programs is a line of ``log``: when, and which."""
    folder.mkdir(parents=True)
    log.touch()
    for name in ASKS:
        script = f'#!/bin/sh\nread -r now rest < /proc/uptime\necho "$now {name}" >> {log}\n'
        (folder / name).write_text(f'{script}exec {shutil.which(name)} "$@"\n')
        (folder / name).chmod(0o755)
    environment = cluster.environment()
    return {**environment, "PATH": f"{folder}:{environment['PATH']}"}


@contextmanager
def sampled(found: Found) -> Iterator[None]:
    """Meanwhile, see how much memory this process has."""
    stop = threading.Event()

    def watch() -> None:
        begun, told_of = time.monotonic(), 0
        while not stop.wait(SAMPLE_S):
            found.samples.append((len(found.spent), resident_mb()))
            ended, mb = found.samples[-1]
            if ended - told_of >= FIRST:
                told_of = ended
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
    """What is wrong with the files of ``sessions`` sessions: each has each of its runs exactly once, and none else."""
    found = []
    for number in range(sessions):
        file = folder / f"{number:04}.jsonl"
        try:
            runs = read_session(file).runs
        except (RecordError, OSError) as error:
            found.append(f"session {number}: {error}")
            continue
        places = sorted((run.position.block, run.position.slot) for run in runs if run.position)
        if places != PLACES or len(runs) != len(PLACES):
            found.append(f"session {number}: has the runs {places}")
        found += [f"session {number}: {run.outcome}, {run.reason}" for run in runs if run.outcome != "ok"]
    return found


def leftovers(cluster: Cluster, folder: Path, before: tuple[int, int]) -> list[str]:
    """Jobs, folders of reservations, threads and open files (``before``: how many there were) that are still there."""
    until = time.monotonic() + 30.0
    while any(job["state"] == "COMPLETING" for job in cluster.jobs()) and time.monotonic() < until:
        time.sleep(0.2)
    found = [f"job {job['id']} is {job['state']}" for job in cluster.jobs()]
    found += [f"the folder {each.name}" for each in (folder / "shared").glob("seat-*")]
    kinds = (("threads", threading.active_count()), ("open files", _descriptors()))
    return found + [f"{now} {what}, {was} before" for (what, now), was in zip(kinds, before, strict=True) if now > was]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def most_per_s(asked: Sequence[tuple[float, str]], words: Collection[str], less: Collection[str] = ()) -> float:
    """The most starts of ``words`` per second, in any WINDOW_S seconds. Those of ``less`` each make up for one."""
    events = sorted((at, (word in words) - (word in less)) for at, word in asked)
    most, now, first = 0, 0, 0
    for at, count in events:
        now += count
        while at - events[first][0] > WINDOW_S:
            now -= events[first][1]
            first += 1
        most = max(most, now)
    return most / WINDOW_S


def memory(found: Found) -> tuple[float, float]:
    """Megabytes: at most, and by how much that is more after the first sessions than when they had ended."""
    first = min(FIRST, found.sessions // 2)
    later = [mb for ended, mb in found.samples if ended >= first] or [found.samples[-1][1]]
    return max(mb for _, mb in found.samples), max(later) - later[0]
