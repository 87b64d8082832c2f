"""All traces of one check: a few at a time, each written down as it ends.

A workload is traced on a paper GPU at both arms, or at neither: where one arm cannot be, both are traced as CPU
programs, and their runs say why.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from regbot.checkout import Worktree
from regbot.engines import Engine
from regbot.paper import Libraries
from regbot.progress import Progress, Watcher
from regbot.records.run import Arm, Outcome, Run
from regbot.trees import Trees, marked, plain_name
from regbot.workloads import Limits, Task, bare_run, interpreter, trace, trace_together

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
        libraries: Libraries,
    ) -> None:
        self._trees, self._engine, self._folder, self._limits = trees, engine, folder, limits
        self._parallel, self._keep, self._watch, self._libraries = parallel, keep, watch, libraries
        self._lock = threading.Lock()
        self._hung: dict[tuple[str, str], str] = {}
        self._on_paper: set[str] = set()
        self._why_not: dict[str, str] = {}  # by workload: why it cannot be traced on a paper GPU
        self._done = self._total = 0

    def run(self, jobs: Sequence[Job], known: Sequence[Run] = ()) -> None:
        """Trace what ``known``, static runs of an earlier start of this check, does not hold yet."""
        outcomes: Outcomes = {(run.arm.name, run.workload, run.attempt): run.outcome for run in known}
        self._choose_devices(jobs, known)
        self._total = len(jobs)
        self._trace_all([job for job in jobs if _key(job, 1) not in outcomes], 1, outcomes)
        failed = self._on_paper & self._why_not.keys()
        self._on_paper -= failed
        again = [job for job in jobs if job[1].workload_name in failed]
        self._hung.clear()
        self._trace_all(again, 1, outcomes)
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

    def _choose_devices(self, jobs: Sequence[Job], known: Sequence[Run]) -> None:
        """Every workload that can starts on a paper GPU, unless ``known`` holds CPU programs of it."""
        programs = {run.workload: run.ledger.device for run in known if run.ledger is not None}
        for _, task in jobs:
            if task.wants_paper_gpu:
                self._on_paper.add(task.workload_name)
        for _, task in jobs:
            if programs.get(task.entry, "cuda") != "cuda" and task.workload_name in self._on_paper:
                self._on_paper.remove(task.workload_name)
                self._why_not[task.workload_name] = "it was traced so before this check was resumed"

    def _trace_all(self, jobs: Sequence[Job], attempt: int, outcomes: Outcomes) -> None:
        for arm, task in jobs:
            self._trees.of(arm, task)  # one after the other: they share one clone
        with _pool(self._parallel) as pool:
            futures = [pool.submit(self._several, batch, attempt) for batch in self._batches(jobs)]
            runs = [run for future in futures for run in future.result()]
        outcomes |= {(run.arm.name, run.workload, attempt): run.outcome for run in runs}

    def _batches(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs that one process does: on a paper GPU those of one arm and workload, as far as all places are used."""
        groups: dict[tuple[str, str], list[Job]] = {}
        batches: list[list[Job]] = []
        for arm, task in jobs:
            if task.workload_name in self._on_paper:
                groups.setdefault((arm.name, task.workload_name), []).append((arm, task))
            else:
                batches.append([(arm, task)])
        for group in groups.values():
            parts = min(len(group), max(1, self._parallel // len(groups)))
            batches += [group[part::parts] for part in range(parts)]
        return batches

    def _several(self, batch: Sequence[Job], attempt: int) -> list[Run]:
        """The runs of one batch, kept. What did not work in a common process is traced by itself."""
        runs = self._together(batch, attempt) if len(batch) > 1 else []
        ready = {run.workload for run in runs}
        alone = [self._one(arm, task, attempt) for arm, task in batch if task.entry not in ready]
        return runs + [run for run in alone if run is not None]

    def _together(self, batch: Sequence[Job], attempt: int) -> list[Run]:
        """The runs that one process gave on a paper GPU, kept; [] where any of them failed."""
        arm, task = batch[0]
        tree = self._trees.of(arm, task)
        if isinstance(tree, str) or task.workload_name in self._why_not:
            return []
        library = self._libraries.library(interpreter(task, tree.path), tree.path)
        if isinstance(library, str):
            return []
        names = ", ".join(task.entry for _, task in batch)
        self._say(f"{names} at {arm.name} {arm.commit[:7]}")
        tasks = [task.at(arm.overrides) for _, task in batch]
        scratch = self._folder / f"{plain_name(task.workload_name)}.{arm.name}.{plain_name(task.entry)}.together"
        runs = trace_together(
            tasks, arm, tree.path, self._engine, scratch, self._limits, attempt, tree.environment, library.path
        )
        if any(run.outcome != "ok" for run in runs):
            return []
        return [self._kept(marked(run, tree), task) for run, task in zip(runs, tasks, strict=True)]

    def _one(self, arm: Arm, task: Task, attempt: int) -> Run | None:
        """The run of one job, kept. None where its workload fails on a paper GPU: it will be traced again."""
        key = (arm.name, task.workload_name)
        on_paper = task.workload_name in self._on_paper
        if on_paper and task.workload_name in self._why_not:
            return None
        tree = self._trees.of(arm, task)
        if isinstance(tree, str):
            return self._kept(bare_run(task, arm, "crashed", tree, attempt), task)
        if key in self._hung:
            why = f"not started: {self._hung[key]} of the same arm and workload hung before it"
            return self._kept(bare_run(task, arm, "skipped", why, attempt), task)
        self._say(f"{task.entry} at {arm.name} {arm.commit[:7]}")
        run = self._trace_on_paper(arm, task, attempt, tree) if on_paper else self._trace(arm, task, attempt, tree)
        return self._kept(run, task) if run is not None else None

    def _kept(self, run: Run, task: Task) -> Run:
        """``run``, written down."""
        with self._lock:
            if run.outcome == "hung":
                self._hung[run.arm.name, task.workload_name] = task.entry
            self._keep(run)
            self._done += 1
        self._say(f"{run.workload} at {run.arm.name}: {run.outcome}")
        return run

    def _trace_on_paper(self, arm: Arm, task: Task, attempt: int, tree: Worktree) -> Run | None:
        """The run on a paper GPU; None where there is none, with the reason noted for the whole workload."""
        library = self._libraries.library(interpreter(task, tree.path), tree.path)
        if isinstance(library, str):
            self._why_not.setdefault(task.workload_name, library)
            return None
        run = self._trace(arm, task, attempt, tree, library.path)
        if run.outcome != "ok":
            self._why_not.setdefault(task.workload_name, f"{task.entry} at {arm.name}: {run.reason}")
            return None
        return run

    def _trace(self, arm: Arm, task: Task, attempt: int, tree: Worktree, paper: Path | None = None) -> Run:
        kind = "paper" if paper is not None else str(attempt)
        scratch = self._folder / f"{plain_name(task.entry)}.{arm.name}.{kind}"
        run = trace(
            task.at(arm.overrides),
            arm,
            tree.path,
            self._engine,
            scratch,
            self._limits,
            attempt,
            tree.environment,
            paper,
        )
        reason = self._why_not.get(task.workload_name)
        if paper is None and reason is not None:
            warning = f"traced as a CPU program, not on a paper GPU: {reason}"
            run = run.model_copy(update={"warnings": [*run.warnings, warning[:4000]]})
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
