"""Timed part of a check. It runs one session after the other, each in its own seat, and saves each run as it ends."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from regbot.checkout import Worktree
from regbot.checkout.cache import cache_variables, create_cache_folders, remove_folder
from regbot.engines import Engine, Needs, NoSeatError, Seat, SeatLostError
from regbot.nodes import Fitness
from regbot.records.run import Arm, Outcome, Position, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.sessions.schedule import (
    Slot,
    can_afford_block,
    is_block_end,
    is_block_start,
    max_runs,
    next_slot,
    progress_summary,
)
from regbot.sessions.worktrees import folder_name, with_checkout
from regbot.text.clip import clip
from regbot.text.progress import Progress, Watcher
from regbot.workloads import Checkout, RunSpec, Scratch, Task, bare_run, needs_of, time_run

MAX_SEATS = 5
"""Maximum number of seats per session. With this limit, a session that keeps losing its nodes ends."""


class Checkouts(Protocol):
    """Source of an arm's worktrees."""

    def worktree(self, arm: Arm, task: Task) -> Worktree | str:
        """Return the worktree, or the reason why there is no worktree."""
        ...


class SessionRunner:
    """Runs the timed sessions of one check."""

    def __init__(
        self,
        header: SessionHeader,
        trees: Checkouts,
        engine: Engine,
        scratch: Scratch,
        keep: Callable[[Run], None],
        watch: Watcher,
        *,
        fitness: Fitness | None = None,
    ) -> None:
        """``keep`` saves a run. ``fitness`` checks nodes; if it is None, all nodes count as fit."""
        self._header, self._trees, self._engine, self._scratch = header, trees, engine, scratch
        self._save_run, self._watch, self._fitness = keep, watch, fitness

    def run(self, plan: TimedPlan, task: Task, known: Sequence[Run], budget_s: float) -> list[Run]:
        """Run or continue the session of ``plan``. ``known`` has the runs of the session so far. Return all runs of
        the session.

        A block begins only if it fits into ``budget_s`` seconds of runs. The runs in ``known`` use up this budget too.
        Time spent waiting for a seat does not count. A lost seat is replaced; a session has at most MAX_SEATS seats.
        """
        runs = list(known)
        needs = needs_of(task, budget_s / 60 if math.isfinite(budget_s) else None)
        unfit = ""
        try:
            for _ in range(MAX_SEATS):
                if next_slot(runs, self._header, plan) is None:
                    break
                self._say(runs, plan, f"{plan.entry}: wait for {self._engine.name}")
                try:
                    with self._engine.seat(needs) as seat:
                        unfit = self._fitness.check_before(seat, needs, task.workload.python) if self._fitness else ""
                        if not unfit and self._run_in_seat(seat, needs, plan, task, runs, budget_s):
                            break
                except SeatLostError as error:  # lost during the session, or during the fitness check
                    unfit = str(error)
                if unfit:
                    self._say(runs, plan, unfit)
            else:
                unfit = unfit or f"the nodes were lost {MAX_SEATS} times; the runs have the reasons"
        except NoSeatError as error:
            unfit = f"{error}; {unfit}" if unfit else str(error)
        if next_slot(runs, self._header, plan) is None:
            remove_folder(self._cache_folder(plan))
        elif unfit:
            self._record_end(task, "lost", unfit, runs)  # other nodes may be available later: --resume continues
        self._say(runs, plan, f"{plan.entry}: {progress_summary(runs, self._header, plan)}")
        return runs

    def _run_in_seat(
        self, seat: Seat, needs: Needs, plan: TimedPlan, task: Task, runs: list[Run], budget_s: float
    ) -> bool:
        """Add runs in ``seat`` to ``runs``. Return True if the session has ended, and False if only the seat
        has ended.
        """
        first_run = len(runs)
        while (slot := next_slot(runs, self._header, plan, seat.node)) is not None:
            if is_block_start(slot) and slot.attempt == 1 and not can_afford_block(runs, budget_s):
                # A repeated block runs even beyond the budget: without it, the cause of the earlier failure would stay
                # unknown.
                break
            arm = self._header.base if slot.arm == "base" else self._header.head
            self._say(runs, plan, f"{plan.entry} {_describe_slot(slot)}; {progress_summary(runs, self._header, plan)}")
            run = self._run_slot(seat, plan, task, arm, slot, explain_profile(runs, arm))
            if self._fitness is not None and self._fitness.probe_failure:
                run = run.model_copy(update={"warnings": [*run.warnings, clip(self._fitness.probe_failure, 2000)]})
            self._add(run, runs)
            if run.outcome == "lost":
                return False
            if self._fitness is None or not is_block_end(slot):
                continue
            if reason := self._fitness.check_after(seat, needs, runs[first_run:], task.workload.python):
                self._record_end(task, "refused", reason, runs)
                break
        return True

    def _record_end(self, task: Task, outcome: Outcome, reason: str, runs: list[Run]) -> None:
        """Add a run that says why the session ends. The session cannot continue if ``outcome`` is ``refused``; it can
        if ``lost``.
        """
        warm = [run for run in runs if run.position is not None and not run.position.block]
        draw = warm[-1].position.draw if warm and warm[-1].position is not None else None
        attempt = max((run.attempt for run in warm if run.position and run.position.draw == draw), default=1)
        end_run = bare_run(task, self._header.head, outcome, reason, attempt, tier="timed")
        position = Position(block=0, slot=0, order="ABBA", draw=draw)
        self._add(end_run.model_copy(update={"position": position}), runs)

    def _add(self, run: Run, runs: list[Run]) -> None:
        self._save_run(run)
        runs.append(run)

    def _run_slot(self, seat: Seat, plan: TimedPlan, task: Task, arm: Arm, slot: Slot, profile_reason: str) -> Run:
        tree = self._trees.worktree(arm, task)
        if isinstance(tree, str):
            failed = bare_run(task, arm, "crashed", tree, slot.attempt, "timed")
            return failed.model_copy(update={"position": slot.position, "sparse": task.workload.sparse})
        slowdown = plan.injected_pct if slot.arm == "head" else 0.0
        spec = RunSpec(slot.position, slot.attempt, slot.steps, plan.cut, slowdown, profile_reason)
        stage = "head" if slot.position.order == "screen" else slot.position.block
        if slot.position.draw is not None:
            stage = f"{slot.position.draw}-{stage}"
        name = f"{folder_name(plan.entry)}.{stage}.{slot.position.slot}.{slot.attempt}.{arm.name}"
        scratch = self._scratch.child(name)
        environment = {**tree.environment, **self._fresh_caches(plan, task, arm, slot, tree)}
        checkout = Checkout(arm, tree.path, environment, tree.absent)
        run = time_run(task.at(arm.overrides), spec, checkout, seat, scratch)
        # the run already contains the records of the folder; the log of the launch is kept
        shutil.rmtree(scratch.folder / "record", ignore_errors=True)
        return with_checkout(run, tree)

    def _cache_folder(self, plan: TimedPlan) -> Path:
        """Return the folder of the session's fresh compiler caches."""
        return self._scratch.folder.resolve() / "caches" / folder_name(plan.entry)

    def _fresh_caches(self, plan: TimedPlan, task: Task, arm: Arm, slot: Slot, tree: Worktree) -> dict[str, str]:
        """Return the variables of the compiler caches of the slot's draw, {} if it has none of its own.

        XDG_CACHE_HOME may contain files of the build, or files of the user in a working tree. It then stays.
        """
        if slot.position.draw is None:
            return {}
        variables = cache_variables(self._cache_folder(plan) / str(slot.position.draw) / slot.arm)
        if task.at(arm.overrides).workload.build or not tree.environment:
            del variables["XDG_CACHE_HOME"]
        create_cache_folders(variables)
        return variables

    def _say(self, runs: Sequence[Run], plan: TimedPlan, text: str) -> None:
        session_runs = [run for run in runs if not run.is_from_earlier_session]
        self._watch(Progress(len(session_runs), max_runs(runs, plan), text))


def explain_profile(runs: Sequence[Run], arm: Arm) -> str:
    """Return why the next run of ``arm`` profiles its steps even if one could be counted, '' if it does not.

    A counted and a profiled ledger cannot be compared. So if a run of either arm was profiled, all later runs are.
    """
    first = next((run for run in runs if run.profile is not None), None)
    if first is None or first.profile is None:
        return ""
    same_arm = first.arm.name == arm.name
    return first.profile.reason if same_arm else f"the steps of {first.arm.name} are profiled: {first.profile.reason}"


def _describe_slot(slot: Slot) -> str:
    retry = " again" if slot.attempt > 1 else ""
    if slot.position.order == "screen":
        return f"head alone{retry}, {f'run {slot.position.slot}' if slot.position.slot else 'warm'}"
    if not slot.position.block:
        return f"warm {slot.arm}{retry}"
    return f"block {slot.position.block}{retry} {slot.position.order}, run {slot.position.slot + 1} ({slot.arm})"
