"""All traces of one check: a few at a time, each written down as it ends."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from regbot.checkout import Worktree
from regbot.engines import Engine
from regbot.progress import Progress, Watcher
from regbot.records.run import Arm, Outcome, Run
from regbot.trees import Trees, marked, plain_name
from regbot.workloads import Limits, Task, bare_run, trace

REPEATED = ("crashed", "hung", "no_record")
"""Outcomes that a second attempt must confirm before they are blamed on the head."""

Job = tuple[Arm, Task]
Outcomes = dict[tuple[str, str, int], Outcome]
"""By arm, entry and attempt."""


class Traces:
    """Traces jobs and repeats the head's failures that the base does not share."""

    def __init__(
        self,
        trees: Trees,
        engine: Engine,
        folder: Path,
        limits: Limits,
        parallel: int,
        keep: Callable[[Run], None],
        watch: Watcher,
    ) -> None:
        self._trees, self._engine, self._folder, self._limits = trees, engine, folder, limits
        self._parallel, self._keep, self._watch = parallel, keep, watch
        self._lock = threading.Lock()
        self._hung: dict[tuple[str, str], str] = {}
        self._done = self._total = 0

    def run(self, jobs: Sequence[Job], known: Sequence[Run] = ()) -> None:
        """Trace what ``known``, static runs of an earlier start of this check, does not hold yet."""
        outcomes: Outcomes = {(run.arm.name, run.workload, run.attempt): run.outcome for run in known}
        self._total = len(jobs)
        self._trace_all([job for job in jobs if _key(job, 1) not in outcomes], 1, outcomes)
        repeats = [
            (arm, task)
            for arm, task in jobs
            if arm.name == "head"
            and outcomes["head", task.entry, 1] in REPEATED
            and outcomes["base", task.entry, 1] == "ok"
            and ("head", task.entry, 2) not in outcomes
        ]
        self._total += len(repeats)
        self._hung.clear()
        self._trace_all(repeats, 2, outcomes)

    def _trace_all(self, jobs: Sequence[Job], attempt: int, outcomes: Outcomes) -> None:
        for arm, task in jobs:
            self._trees.of(arm, task)  # one after the other: they share one clone
        with _pool(self._parallel) as pool:
            futures = {_key(job, attempt): pool.submit(self._one, *job, attempt) for job in jobs}
            outcomes |= {key: future.result().outcome for key, future in futures.items()}

    def _one(self, arm: Arm, task: Task, attempt: int) -> Run:
        key = (arm.name, task.workload_name)
        tree = self._trees.of(arm, task)
        if isinstance(tree, str):
            run = bare_run(task, arm, "crashed", tree, attempt)
        elif key in self._hung:
            why = f"not started: {self._hung[key]} of the same arm and workload hung before it"
            run = bare_run(task, arm, "skipped", why, attempt)
        else:
            self._say(f"{task.entry} at {arm.name} {arm.commit[:7]}")
            run = self._trace(arm, task, attempt, tree)
        with self._lock:
            if run.outcome == "hung":
                self._hung[key] = task.entry
            self._keep(run)
            self._done += 1
        self._say(f"{task.entry} at {arm.name}: {run.outcome}")
        return run

    def _trace(self, arm: Arm, task: Task, attempt: int, tree: Worktree) -> Run:
        scratch = self._folder / f"{plain_name(task.entry)}.{arm.name}.{attempt}"
        run = trace(
            task.at(arm.overrides), arm, tree.path, self._engine, scratch, self._limits, attempt, tree.environment
        )
        return marked(run, tree)

    def _say(self, text: str) -> None:
        self._watch(Progress(self._done, self._total, text))


@contextmanager
def _pool(size: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that, when interrupted, starts nothing new; what runs is ended by the engine."""
    pool = ThreadPoolExecutor(size)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _key(job: Job, attempt: int) -> tuple[str, str, int]:
    arm, task = job
    return arm.name, task.entry, attempt
