"""The timed half of a check: sessions on this machine, one workload after the other, every run written as it ends."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from regbot.checkout import Worktree
from regbot.engines import Engine
from regbot.progress import Progress, Watcher
from regbot.records.run import Arm, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.session import Slot, affordable, begins_block, most_runs, next_slot, standing
from regbot.trees import marked, plain_name
from regbot.workloads import Limits, Place, Task, bare_run, time_run


class Checkouts(Protocol):
    """Where the code of an arm lies."""

    def of(self, arm: Arm, task: Task) -> Worktree | str:
        """The checkout, or why there is none."""
        ...


class Timing:
    """Runs the sessions of one check."""

    def __init__(
        self,
        header: SessionHeader,
        trees: Checkouts,
        engine: Engine,
        folder: Path,
        lock: Path,
        limits: Limits,
        keep: Callable[[Run], None],
        watch: Watcher,
    ) -> None:
        self._header, self._trees, self._engine, self._folder = header, trees, engine, folder
        self._limits, self._keep, self._watch = limits, keep, watch
        self._machine = FileLock(lock)

    def run(self, plan: TimedPlan, task: Task, known: Sequence[Run], budget_s: float) -> list[Run]:
        """The session of ``plan``, from where ``known``, its runs so far, leaves it. Returns all its runs.

        No block is begun that ``budget_s`` seconds of runs, those of ``known`` among them, would not see the end of.
        One session at a time on a machine: two would time each other.
        """
        with self._machine:
            return self._session(plan, task, list(known), budget_s)

    def _session(self, plan: TimedPlan, task: Task, runs: list[Run], budget_s: float) -> list[Run]:
        while (slot := next_slot(runs, self._header, plan)) is not None:
            if begins_block(slot) and slot.attempt == 1 and not affordable(runs, budget_s):
                break  # a repeat is not refused: without it the failure before it would stay unexplained
            arm = self._header.base if slot.arm == "base" else self._header.head
            self._say(runs, plan, f"{plan.entry} {_words(slot)}; {standing(runs, self._header, plan)}")
            run = self._one(plan, task, arm, slot)
            self._keep(run)
            runs.append(run)
        self._say(runs, plan, f"{plan.entry}: {standing(runs, self._header, plan)}")
        return runs

    def _one(self, plan: TimedPlan, task: Task, arm: Arm, slot: Slot) -> Run:
        tree = self._trees.of(arm, task)
        if isinstance(tree, str):
            failed = bare_run(task, arm, "crashed", tree, slot.attempt, "timed")
            return failed.model_copy(update={"position": slot.position})
        slowdown = plan.injected_pct if slot.arm == "head" else 0.0
        place = Place(slot.position, slot.attempt, slot.steps, slowdown)
        stage = "screen" if slot.position.order == "screen" else slot.position.block
        name = f"{plain_name(plan.entry)}.{stage}.{slot.position.slot}.{slot.attempt}.{arm.name}"
        scratch = self._folder / name
        run = time_run(
            task.at(arm.overrides),
            plan,
            place,
            arm,
            tree.path,
            self._engine,
            scratch,
            self._limits,
            tree.environment,
        )
        shutil.rmtree(scratch / "record", ignore_errors=True)  # what was read stands in the run; the log is kept
        return marked(run, tree)

    def _say(self, runs: Sequence[Run], plan: TimedPlan, text: str) -> None:
        own = [run for run in runs if run.joined is None]
        self._watch(Progress(len(own), most_runs(runs, plan), text))


def _words(slot: Slot) -> str:
    again = " again" if slot.attempt > 1 else ""
    if slot.position.order == "screen":
        return f"screen{again}, {f'run {slot.position.slot}' if slot.position.slot else 'warm'} (head)"
    if not slot.position.block:
        return f"warm {slot.arm}{again}"
    return f"block {slot.position.block}{again} {slot.position.order}, run {slot.position.slot + 1} ({slot.arm})"
