"""The timed half of a check: one session after the other, each in a seat of its own, every run written as it ends."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from regbot.checkout import Worktree
from regbot.engines import Engine, Needs, NoSeatError, Seat, SeatLostError
from regbot.nodes import Fitness
from regbot.progress import Progress, Watcher
from regbot.records.run import Arm, Outcome, Position, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.session import Slot, affordable, begins_block, ends_block, most_runs, next_slot, standing
from regbot.trees import marked, plain_name
from regbot.workloads import Limits, Place, Task, bare_run, needs_of, time_run

MOST_SEATS = 5
"""Of one session. One that loses its nodes again and again has no end."""


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
        limits: Limits,
        keep: Callable[[Run], None],
        watch: Watcher,
        fitness: Fitness | None = None,
    ) -> None:
        """``fitness`` tells of nodes; without it all are taken to be fit."""
        self._header, self._trees, self._engine, self._folder = header, trees, engine, folder
        self._limits, self._keep, self._watch, self._fitness = limits, keep, watch, fitness

    def run(self, plan: TimedPlan, task: Task, known: Sequence[Run], budget_s: float) -> list[Run]:
        """The session of ``plan``, from where ``known``, its runs so far, leaves it. Returns all its runs.

        No block is begun that ``budget_s`` seconds of runs, those of ``known`` among them, would not see the end of.
        Waiting for a seat is no part of it. A seat that is lost is followed by another, at most MOST_SEATS of them.
        """
        runs = list(known)
        needs = needs_of(task, budget_s / 60 if math.isfinite(budget_s) else None)
        unfit = ""
        try:
            for _ in range(MOST_SEATS):
                if next_slot(runs, self._header, plan) is None:
                    break
                self._say(runs, plan, f"{plan.entry}: wait for {self._engine.name}")
                try:
                    with self._engine.seat(needs) as seat:
                        unfit = self._fitness.before(seat, needs, task.workload.python) if self._fitness else ""
                        if not unfit and self._session(seat, needs, plan, task, runs, budget_s):
                            break
                except SeatLostError as error:  # while it was had, or looked at
                    unfit = str(error)
                if unfit:
                    self._say(runs, plan, unfit)
            else:
                unfit = unfit or f"{MOST_SEATS} times the nodes were lost: see the runs for how"
        except NoSeatError as error:
            unfit = f"{error}; {unfit}" if unfit else str(error)
        if unfit and next_slot(runs, self._header, plan) is not None:
            self._end(task, "lost", unfit, runs)  # other nodes may be had another day: --resume goes on
        self._say(runs, plan, f"{plan.entry}: {standing(runs, self._header, plan)}")
        return runs

    def _session(self, seat: Seat, needs: Needs, plan: TimedPlan, task: Task, runs: list[Run], budget_s: float) -> bool:
        """Add runs in ``seat`` to ``runs``; whether the session is at its end, and not only the seat."""
        here = len(runs)
        while (slot := next_slot(runs, self._header, plan, seat.node)) is not None:
            if begins_block(slot) and slot.attempt == 1 and not affordable(runs, budget_s):
                break  # a repeat is not refused: without it the failure before it would stay unexplained
            arm = self._header.base if slot.arm == "base" else self._header.head
            self._say(runs, plan, f"{plan.entry} {_words(slot)}; {standing(runs, self._header, plan)}")
            run = self._one(seat, plan, task, arm, slot)
            if self._fitness is not None and self._fitness.unprobed:
                run = run.model_copy(update={"warnings": [*run.warnings, self._fitness.unprobed[:2000]]})
            self._add(run, runs)
            if run.outcome == "lost":
                return False
            if self._fitness is None or not ends_block(slot):
                continue
            if why := self._fitness.after(seat, needs, runs[here:], task.workload.python):
                self._end(task, "refused", why, runs)
                break
        return True

    def _end(self, task: Task, outcome: Outcome, why: str, runs: list[Run]) -> None:
        """Say why the session goes no further: for good where ``refused``, for now where its nodes are ``lost``."""
        attempt = max((run.attempt for run in runs if run.position is not None and not run.position.block), default=1)
        ended = bare_run(task, self._header.head, outcome, why, attempt, tier="timed")
        self._add(ended.model_copy(update={"position": Position(block=0, slot=0, order="ABBA")}), runs)

    def _add(self, run: Run, runs: list[Run]) -> None:
        self._keep(run)
        runs.append(run)

    def _one(self, seat: Seat, plan: TimedPlan, task: Task, arm: Arm, slot: Slot) -> Run:
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
            seat,
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
