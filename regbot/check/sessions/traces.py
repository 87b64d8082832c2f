"""Static traces of one check, a few at a time. Both arms of a workload are traced on one device."""

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import takewhile
from pathlib import Path

from regbot.check.sessions.recording import RunSetup
from regbot.check.sessions.trace_cache import TraceCache
from regbot.check.sessions.trace_devices import TraceDevices
from regbot.check.sessions.worktrees import folder_name, with_build_changes
from regbot.records.run import Arm, Run
from regbot.records.text.progress import Progress
from regbot.workloads.checkout.worktrees import Worktree
from regbot.workloads.guest import Checkout, bare_run, trace, trace_together
from regbot.workloads.paper import Libraries
from regbot.workloads.task import Task

REPEATED_OUTCOMES = ("crashed", "hung", "no_record")
"""Outcomes of head that must occur in two attempts before head is blamed."""

Job = tuple[Arm, Task]
"""One trace to make: a workload on one mesh (the task) at one arm."""


def trace_arms(tasks: Sequence[Task], setup: RunSetup, *, parallel: int, untrusted: bool = False) -> None:
    """Trace every task once for each arm, unless an earlier check has done so, and record the runs.

    If head fails and base does not, head is traced again. ``parallel`` is the number of processes at a time.
    """
    header = setup.recorder.header
    jobs = [(arm, task) for task in tasks for arm in (header.base, header.head)]
    cache = TraceCache(setup, untrusted=untrusted)
    known = {(run.arm.name, run.workload) for run in setup.recorder.runs if run.tier == "static"}
    for arm, task in jobs:
        if (arm.name, task.entry) not in known and (run := cache.find(arm, task)) is not None:
            setup.recorder.add(run)
            setup.watch(Progress(0, 0, f"{run.workload} at {arm.name}: traced by an earlier check", lasting=True))
            known.add((arm.name, task.entry))
    libraries = setup.trees.open_libraries(setup.scratch.folder / "paper")
    new_tasks = [task for arm, task in jobs if (arm.name, task.entry) not in known]
    if any(task.wants_paper_gpu and not task.workload.python for task in new_tasks):
        # The library for regbot's own interpreter is built while the arms are checked out.
        libraries.start(sys.executable)
    with closing(libraries):
        _TraceRunner(setup, libraries, jobs, parallel, cache).run()


class _TraceRunner:
    def __init__(
        self, setup: RunSetup, libraries: Libraries, jobs: Sequence[Job], parallel: int, cache: TraceCache
    ) -> None:
        self._cache = cache
        self._setup, self._trees, self._jobs, self._parallel = setup, setup.trees, jobs, parallel
        known = [run for run in setup.recorder.runs if run.tier == "static"]
        self._runs = {_key(run.arm, run.workload, run.attempt): run for run in known}
        self._devices = TraceDevices([task for _, task in jobs], known, libraries)
        self._lock = threading.Lock()
        self._hung: dict[tuple[str, str], str] = {}  # (arm, workload name) -> entry that hung
        self._done, self._total = 0, len(jobs)  # numbers of jobs, for the progress

    def run(self) -> None:
        """Trace what is missing, then as CPU programs what failed on a paper GPU, then the rest of the workloads that
        have such a ledger now, and at last, a second time, what failed in head only."""
        for _ in range(2):
            self._trace_all([(arm, task) for arm, task in self._jobs if _key(arm, task.entry) not in self._runs])
            self._devices.drop_rejected()
        on_cpu = {task.workload_name for arm, task in self._jobs if self._has_ledger(arm, task, "cpu")}
        on_paper = [(arm, task) for arm, task in self._jobs if self._has_ledger(arm, task, "cuda")]
        self._trace_all([(arm, task) for arm, task in on_paper if task.workload_name in on_cpu])
        header = self._setup.recorder.header
        repeats = [
            (arm, task)
            for arm, task in self._jobs
            if arm.name == "head"
            and self._runs[_key(arm, task.entry)].outcome in REPEATED_OUTCOMES
            and self._runs[_key(header.base, task.entry)].outcome == "ok"
            and _key(arm, task.entry, 2) not in self._runs
        ]
        self._total += len(repeats)
        self._trace_all(repeats, attempt=2)

    def _trace_all(self, jobs: Sequence[Job], attempt: int = 1) -> None:
        self._hung.clear()  # every round tries all of its jobs
        for arm, task in jobs:
            self._trees.worktree(arm, task)  # worktrees are made one after the other, because all use the same clone
        pool = ThreadPoolExecutor(self._parallel)
        try:
            futures = [pool.submit(self._trace_batch, batch, attempt) for batch in self._batches(jobs)]
            runs = [run for future in futures for run in future.result()]
        finally:  # start no new jobs after an interrupt; the engine ends the running ones
            pool.shutdown(wait=False, cancel_futures=True)
        self._runs |= {_key(run.arm, run.workload, attempt): run for run in runs}

    def _batches(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The jobs of a batch are of one arm and workload. On a paper GPU they share a process, and so imports and
        cached shapes.
        """
        groups: dict[tuple[str, str], list[Job]] = {}
        batches: list[list[Job]] = []
        for arm, task in jobs:
            # Megatron keeps its arguments and its buffers for the whole process, so its script runs once in each.
            if self._devices.is_on_paper(task) and not task.workload.training_script:
                groups.setdefault((arm.name, task.workload_name), []).append((arm, task))
            else:
                batches.append([(arm, task)])
        for group in groups.values():
            # The groups share the processes equally. A group is split into as many batches as it gets processes.
            batch_count = min(len(group), max(1, self._parallel // len(groups)))
            batches += [group[first::batch_count] for first in range(batch_count)]
        return batches

    def _trace_batch(self, batch: Sequence[Job], attempt: int) -> list[Run]:
        """If one of several jobs of a process fails, it and those after it are traced separately, because the jobs
        before it may be the cause. If the first fails, the others that fail with its error are not traced again.
        """
        arm, task = batch[0]
        tree = self._trees.worktree(arm, task)
        if isinstance(tree, str):  # a string says why there is no worktree
            return [self._record(bare_run(task, arm, "crashed", tree, attempt), task) for _, task in batch]
        checkout = Checkout(arm, tree.path, tree.environment)
        tasks = [task for _, task in batch]
        runs: list[Run] = []
        library = self._devices.library(task, tree.path, tree.paper) if len(batch) > 1 else ""
        if isinstance(library, Path):  # a string says why there is none
            self._say(f"trace {', '.join(task.entry for task in tasks)} at {arm.name} {arm.commit[:7]}")
            folder = f"{folder_name(task.workload_name)}.{arm.name}.{folder_name(task.entry)}.together"
            at_arm, scratch = [task.at(arm.overrides) for task in tasks], self._setup.scratch.child(folder)
            together = trace_together(at_arm, checkout, self._setup.engine, scratch, attempt, library)
            runs = list(takewhile(lambda run: run.outcome == "ok", together))
            has_reported = together[0].outcome == "refused" or bool(together[0].crash and together[0].crash.frames)
            if not runs and has_reported and self._devices.accepts(task, together[0]):
                runs = [run for run in together if run.reason == together[0].reason]
            runs = [self._record(with_build_changes(run, tree), task) for run in runs]
        traced_entries = {run.workload for run in runs}
        for task in tasks:
            if task.entry not in traced_entries and (run := self._trace_one(task, checkout, tree, attempt)):
                runs.append(run)
        return runs

    def _trace_one(self, task: Task, checkout: Checkout, tree: Worktree, attempt: int) -> Run | None:
        """Return None if the workload fails on a paper GPU and will be traced again as a CPU program."""
        arm = checkout.arm
        if hung_entry := self._hung.get((arm.name, task.workload_name)):
            reason = f"not started, because {hung_entry} of the same arm and workload hung"
            return self._record(bare_run(task, arm, "skipped", reason, attempt), task)

        def launch(library: Path | None) -> Run:
            self._say(f"trace {task.entry} at {arm.name} {arm.commit[:7]}")
            ending = "paper" if library is not None else str(attempt)  # so that every trace has a folder of its own
            scratch = self._setup.scratch.child(f"{folder_name(task.entry)}.{arm.name}.{ending}")
            run = trace(task.at(arm.overrides), checkout, self._setup.engine, scratch, attempt, library)
            return with_build_changes(run, tree)

        run = self._devices.trace(task, checkout, tree.paper, launch, attempt=attempt)
        return None if run is None else self._record(run, task)

    def _record(self, run: Run, task: Task) -> Run:
        """Save and return ``run``. After a hang, other traces of the same arm and workload are not started."""
        with self._lock:
            if run.outcome == "hung":
                self._hung[run.arm.name, task.workload_name] = task.entry
            self._setup.recorder.add(run)
            self._cache.keep(run.arm, task, run)
            self._done += 1
        self._say(f"{run.workload} at {run.arm.name}: {run.outcome}")
        return run

    def _say(self, text: str) -> None:
        self._setup.watch(Progress(self._done, self._total, text))

    def _has_ledger(self, arm: Arm, task: Task, device: str) -> bool:
        ledger = self._runs[_key(arm, task.entry)].ledger
        return ledger is not None and ledger.device == device


def _key(arm: Arm, entry: str, attempt: int = 1) -> tuple[str, str, int]:
    return arm.name, entry, attempt
