"""Timed part of a check. Each session has a *seat*: the nodes that are reserved for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from regbot.check.plan import TimedTask
from regbot.check.sessions.pooled_pairs import load_pooled_runs, pool_file
from regbot.check.sessions.recording import RunSetup
from regbot.check.sessions.schedule import (
    Slot,
    can_afford_block,
    expected_cost,
    max_runs,
    next_slot,
    progress_summary,
)
from regbot.check.sessions.worktrees import folder_name, with_build_changes
from regbot.engines import Engine, NoSeatError, Seat, SeatLostError
from regbot.engines.node_check import HISTORY_FILE, NodeCheck, check_nodes
from regbot.engines.removal import discard_folder
from regbot.judge.identity import first_difference
from regbot.judge.validity import examine_traced_runs
from regbot.records.node import NodeProbe
from regbot.records.run import Arm, Position, Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.text.progress import Progress, Watcher
from regbot.workloads.checkout.cache import cache_variables, create_cache_folders
from regbot.workloads.checkout.worktrees import Worktree
from regbot.workloads.guest import Checkout, Scratch, bare_run
from regbot.workloads.launch import needs_of, time_run
from regbot.workloads.task import Task
from regbot.workloads.timed import RunSpec

MAX_SEATS = 5
"""Maximum number of seats per session. With this limit, a session that keeps losing its nodes ends."""


def time_arms(timed_tasks: Sequence[TimedTask], setup: RunSetup, *, join: bool) -> None:
    """Time every task whose traces allow and need it, and record the runs.

    The tasks that are left share the time budget equally. With ``join``, the pairs of earlier sessions of the same code
    are copied into the session, and its own pairs are stored for later ones.
    """
    recorder = setup.recorder
    header = recorder.header
    # A resumed session keeps the plans that it began with.
    plans = zip(header.timed, timed_tasks, strict=True)
    to_time = [(plan, timed_task) for plan, timed_task in plans if _needs_timing(recorder.session(), plan)]
    history = recorder.cache / HISTORY_FILE
    runner = SessionRunner(header, setup.trees, setup.engine, setup.scratch, recorder.add, setup.watch, history)
    remaining_s = (header.budget_min or 0.0) * 60
    for index, (plan, timed_task) in enumerate(to_time):
        timed_runs = recorder.select(plan.entry, "timed")
        if join:
            static_runs, task = recorder.select(plan.entry, "static"), timed_task.task
            folder, kind = setup.trees.repository_cache, timed_task.node_kind
            pool = pool_file(folder, header, plan, static_runs, kind, task.workload)
            # Copy earlier runs unless this session has timed a run itself. An interrupted check may have copied the
            # first of them already.
            if all(run.is_from_earlier_session for run in timed_runs):
                for run in load_pooled_runs(pool)[len(timed_runs) :]:
                    recorder.add(run)
                timed_runs = recorder.select(plan.entry, "timed")
            recorder.share(plan.entry, pool)
        cost_text = expected_cost(header, plan, timed_runs)
        setup.watch(Progress(done=0, total=0, text=cost_text, lasting=True))  # the message stays on the terminal
        runs = runner.run(plan, timed_task.task, timed_runs, remaining_s / (len(to_time) - index))
        remaining_s -= sum(run.wall_s for run in runs if not run.is_from_earlier_session)


def _needs_timing(session: Session, plan: TimedPlan) -> bool:
    """A workload that is never traced (adapter ``command``) is always timed, and so is compiled code, because only a
    timed run can profile it. Any other workload needs valid traces that differ, or ``even_if_identical``.
    """
    if plan.entry in session.header.untraced:
        return True
    examined = examine_traced_runs(session, plan.entry)
    if examined.base is None or examined.head is None:  # an arm has no valid trace
        return examined.needs_profile
    difference = first_difference(session.header, examined.base, examined.head)  # '' if the arms are identical
    return examined.needs_profile or plan.even_if_identical or bool(difference)


class Checkouts(Protocol):
    def worktree(self, arm: Arm, task: Task) -> Worktree | str:
        """Return the worktree, or the reason why there is none."""
        ...


@dataclass(frozen=True)
class SessionRunner:
    """Runs the timed sessions of one check."""

    header: SessionHeader
    trees: Checkouts
    engine: Engine
    scratch: Scratch
    save_run: Callable[[Run], object]
    watch: Watcher
    node_history: Path | None = None
    """File with the stored probes of nodes; None if all nodes count as fit."""

    @property
    def _cache_folder(self) -> Path:
        """Folder for fresh compiler caches."""
        return self.scratch.folder.resolve() / "caches"

    def run(self, plan: TimedPlan, task: Task, known: Sequence[Run], budget_s: float) -> list[Run]:
        """Run or continue the session of ``plan``, whose runs so far are ``known``. Return all runs of the session.

        A block begins only if it fits into ``budget_s`` seconds of runs, ``known`` included. A lost seat is replaced.
        """
        runs = list(known)
        needs = needs_of(task, budget_s / 60 if math.isfinite(budget_s) else None)
        problem = ""  # why the session could not go on in its last seat
        refused_probes: list[NodeProbe] = []
        try:
            for _ in range(MAX_SEATS):
                if next_slot(runs, self.header, plan) is None:
                    break
                self._say(runs, plan, f"{plan.entry}: wait for {self.engine.name}")
                try:
                    with self.engine.seat(needs) as seat:
                        node_check = NodeCheck()
                        if self.node_history is not None:
                            probes = self.scratch.child(f"{folder_name(plan.entry)}.probe").folder
                            node_check = check_nodes(seat, needs, task.workload.python, probes, self.node_history)
                        needs = replace(needs, avoid=needs.avoid | node_check.refused_hosts)
                        problem = node_check.refusal
                        refused_probes += node_check.probes if problem else []
                        if not problem and self._run_in_seat(seat, node_check, plan, task, runs, budget_s):
                            break
                except SeatLostError as error:  # lost during the session, or during the check of its nodes
                    problem = str(error)
                if problem:
                    self._say(runs, plan, problem)
            else:  # the loop ended without a break, so the last seat was lost too
                problem = problem or f"the nodes were lost {MAX_SEATS} times; the runs have the reasons"
        except NoSeatError as error:
            problem = f"{error}; {problem}" if problem else str(error)
        if next_slot(runs, self.header, plan) is None:
            discard_folder(self._cache_folder / folder_name(plan.entry))
        elif problem:
            # Other nodes may be available later: --resume continues.
            self._record_end(task, problem, refused_probes, runs)
        self._say(runs, plan, f"{plan.entry}: {progress_summary(runs, self.header, plan)}")
        return runs

    def _run_in_seat(
        self, seat: Seat, node_check: NodeCheck, plan: TimedPlan, task: Task, runs: list[Run], budget_s: float
    ) -> bool:
        """Launch runs in ``seat`` and add them to ``runs``. Return whether the session has ended; False if nodes were
        lost.
        """
        is_first = True
        while (slot := next_slot(runs, self.header, plan, seat.node)) is not None:
            # A repeated block runs even beyond the budget: without it, the cause of the earlier failure would stay
            # unknown.
            is_new_block = slot.position.slot == 0 and slot.attempt == 1
            if is_new_block and not can_afford_block(runs, budget_s):
                break
            arm = self.header.base if slot.arm == "base" else self.header.head
            self._say(runs, plan, f"{plan.entry} {_describe_slot(slot)}; {progress_summary(runs, self.header, plan)}")
            run = self._run_slot(seat, plan, task, arm, slot, explain_profile(runs, arm))
            if is_first:
                warnings = [*run.warnings, *node_check.warnings]
                run = run.model_copy(update={"warnings": warnings, "probes": node_check.probes})
                is_first = False
            self._add(run, runs)
            if run.outcome == "lost":
                return False
        return True

    def _record_end(self, task: Task, reason: str, refused_probes: list[NodeProbe], runs: list[Run]) -> None:
        """Add a run that says why the session ends, beside the last warm launches. The session can be resumed."""
        warm_runs = [run for run in runs if run.position is not None and not run.position.block]
        draw = warm_runs[-1].position.draw if warm_runs and warm_runs[-1].position is not None else None
        attempt = max((run.attempt for run in warm_runs if run.position and run.position.draw == draw), default=1)
        end_run = bare_run(task, self.header.head, "lost", reason, attempt, tier="timed")  # without results
        position = Position(block=0, slot=0, order="ABBA", draw=draw)
        self._add(end_run.model_copy(update={"position": position, "probes": refused_probes}), runs)

    def _add(self, run: Run, runs: list[Run]) -> None:
        self.save_run(run)
        runs.append(run)

    def _run_slot(self, seat: Seat, plan: TimedPlan, task: Task, arm: Arm, slot: Slot, profile_reason: str) -> Run:
        """``profile_reason``: why the steps are profiled; '' if they need not be."""
        tree = self.trees.worktree(arm, task)
        if isinstance(tree, str):  # a string says why there is no worktree
            failed_run = bare_run(task, arm, "crashed", tree, slot.attempt, "timed")
            return failed_run.model_copy(update={"position": slot.position})
        slowdown = plan.injected_pct if slot.arm == "head" else 0.0  # a calibration may plant a slowdown in head
        spec = RunSpec(slot.position, slot.attempt, slot.steps, plan.cut, slowdown, profile_reason)
        # With the stored gate, runs of head alone have the order "head" and no block.
        block_name = "head" if slot.position.order == "head" else str(slot.position.block)
        place = f"{slot.position.draw or 0}-{block_name}.{slot.position.slot}.{slot.attempt}"
        scratch = self.scratch.child(f"{folder_name(plan.entry)}.{place}.{arm.name}")
        environment = {**tree.environment, **self._fresh_caches(plan, task, arm, slot, tree)}
        checkout = Checkout(arm, tree.path, environment)
        run = time_run(task.at(arm.overrides), spec, checkout, seat, scratch)
        # The run already contains the records in this folder. The log of the launch, beside the folder, is kept.
        discard_folder(scratch.folder / "record")
        return with_build_changes(run, tree)

    def _fresh_caches(self, plan: TimedPlan, task: Task, arm: Arm, slot: Slot, tree: Worktree) -> dict[str, str]:
        """Return variables that point to the fresh compiler caches of the slot's draw; {} if the session draws none.

        XDG_CACHE_HOME is left out where the run may need files in it: of the build, or of the user.
        """
        if slot.position.draw is None:
            return {}
        variables = cache_variables(self._cache_folder / folder_name(plan.entry) / str(slot.position.draw) / slot.arm)
        is_working_tree = not tree.environment  # only a worktree that regbot made has private caches
        if task.at(arm.overrides).workload.build or is_working_tree:
            del variables["XDG_CACHE_HOME"]
        create_cache_folders(variables)
        return variables

    def _say(self, runs: Sequence[Run], plan: TimedPlan, text: str) -> None:
        session_runs = [run for run in runs if not run.is_from_earlier_session]
        self.watch(Progress(len(session_runs), max_runs(runs, plan), text))


def explain_profile(runs: Sequence[Run], arm: Arm) -> str:
    """Return why the next run of ``arm`` must profile its steps: a run of either arm did, and a counted and a profiled
    ledger cannot be compared. '' if it need not.
    """
    for run in runs:
        if run.profile is not None:
            reason = run.profile.reason
            return reason if run.arm.name == arm.name else f"the steps of {run.arm.name} are profiled: {reason}"
    return ""


def _describe_slot(slot: Slot) -> str:
    retry = " again" if slot.attempt > 1 else ""
    is_head_only = slot.position.order == "head"
    if not slot.position.block and not (is_head_only and slot.position.slot):
        return f"warm {slot.arm}{retry}"
    block = f"block {slot.position.block}{retry} {slot.position.order}"
    return f"{'head alone' if is_head_only else block}, run {slot.position.slot + 1} ({slot.arm})"
