"""Schedule of one workload's session: computes the next run from the runs so far.

There is no other state, so a killed session continues from its file. A session has these parts:

    warm      one discarded launch of each arm: it fills compiler caches and shows whether the arm runs at all. With
              ``fresh_caches``, the pairs of every look begin with empty caches and two warm launches, because part of
              the speed of an arm may be drawn with its caches (``regbot.stats.arm_luck``)
    blocks    ABBA or BAAB at random (A is base): two pairs, in which a linear drift cancels
    looks     after 4, 8 and 12 pairs, or after every block where the noise of the node class is known; the first look
              that decides ends the session

With ``gate = "stored"`` a session has one discarded launch of head and three runs of head, and no blocks.

If a run fails, or ran on an unfit node, its pair is void and its block ends. The block is repeated once, and a second
failure ends the session. The judge decides what the failure means. A run that loses its nodes has not failed. The
session goes on with other nodes: both arms get a new warm launch there, and the block begins anew.

If there was an earlier session of the same code, the session has only warm launches and blocks. After each block the
always-valid interval is computed over all pairs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal, NamedTuple

from regbot.check.sessions.blocks import BLOCK_SLOTS, MAX_ATTEMPTS, block_count, draw_order
from regbot.judge.estimates import count_primary_tests, format_estimate, thresholds
from regbot.judge.health import find_slowed_blocks
from regbot.judge.interim import decide_so_far, luck_in_draws
from regbot.judge.pairs import is_head_only, is_sound, pair_up
from regbot.judge.stored_times import MAX_ATTEMPTS as HEAD_ATTEMPTS
from regbot.judge.stored_times import has_enough_sessions, judge_by_stored
from regbot.records.run import Node, Position, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.stats.arm_luck import DRAW_PAIRS
from regbot.stats.paired import LOOKS, DrawLuck, look_alpha, mde
from regbot.stats.summary import percent

MAX_MOVES = 5
"""Maximum number of times that a block begins again because its nodes were lost or replaced."""
MAX_ATTEMPTS_WITH_MOVES = MAX_ATTEMPTS + MAX_MOVES
"""Maximum number of attempts at a block, those that lost their nodes included."""

WARM_STEPS = 3
"""Steps of a warm launch. The first compiles, the second may compile again, and the third proves that the arm runs."""

WARM_SLOTS = 2
"""Warm launches before the pairs: one of base and one of head. They are block 0."""

DRAW_BLOCKS = block_count(DRAW_PAIRS)
"""Blocks that use the same compiler caches, if caches are drawn anew."""

ArmName = Literal["base", "head"]


@dataclass(frozen=True)
class Slot:
    """One run to launch, and its place in its block."""

    position: Position
    attempt: int
    """Attempt at the block, from 1."""
    arm: ArmName
    steps: int
    """Number of steps to run, warm-up included."""


def next_slot(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan, node: Node | None = None) -> Slot | None:
    """Return the run that follows ``runs``, the timed runs of ``plan`` in order; None at the end of the session.

    ``node`` is the node where it would be launched. An incomplete block of another node begins again.
    """
    if header.throughput.gate == "stored":
        # A result of ``judge_by_stored`` means that no more runs of head are needed.
        if not has_enough_sessions(header, plan) or judge_by_stored(header, plan, runs) is not None:
            return None
        return _head_slot(plan, runs, node)
    return _pair_slot(runs, header, plan, node)


def _head_slot(plan: TimedPlan, runs: Sequence[Run], node: Node | None) -> Slot:
    """Return the next run of head alone: slot 0 is the warm launch. After a failure or elsewhere all begin again."""
    attempt = max((run.attempt for run in runs), default=1)
    attempt_runs = [run for run in runs if run.attempt == attempt]
    if any(not is_sound(run) for run in attempt_runs) or _is_on_other_node(attempt_runs, node):
        attempt = min(attempt + 1, HEAD_ATTEMPTS)
    slot_number = sum(run.attempt == attempt for run in runs)
    steps = plan.steps if slot_number else min(WARM_STEPS, plan.steps)
    # "head" is the order of runs of head alone in a record.
    return Slot(Position(block=0, slot=slot_number, order="head"), attempt, "head", steps)


def _pair_slot(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan, node: Node | None) -> Slot | None:
    """Return the next run of the first block that is not complete, or of the warm launches before it."""
    session_runs = [run for run in runs if not is_head_only(run) and not run.is_from_earlier_session]
    if any(run.outcome == "refused" for run in session_runs):
        return None
    for index, block in enumerate(block_numbers(runs, plan)):
        # The number of the fresh compiler caches that the block uses, from 1; None if the session draws no caches.
        draw = index // DRAW_BLOCKS + 1 if plan.fresh_caches else None
        state = _block_state(session_runs, block, draw, node)
        if state.status != "complete":
            warm_state = _block_state(session_runs, 0, draw, node)
            if warm_state.status != "complete":
                block, state = 0, warm_state  # warm launches come first
            # The session ends if runs failed in both attempts, or if nodes were lost too often.
            if state.status != "open" or state.attempt > MAX_ATTEMPTS_WITH_MOVES:
                return None
            # Warm launches begin with base, because a failure of head can be blamed on head only if base has run.
            order = draw_order(header.seed, plan.entry, block) if block else "ABBA"
            arm: ArmName = "base" if order[state.slot] == "A" else "head"
            steps = plan.steps if block else min(WARM_STEPS, plan.steps)
            position = Position(block=block, slot=state.slot, order=order, draw=draw)
            return Slot(position, state.attempt, arm, steps)
        runs_so_far = [run for run in runs if run.position and run.position.block <= block]
        if decide_so_far(runs_so_far, header, plan).final:
            return None
    return None


class _BlockState(NamedTuple):
    """``attempt`` (from 1) and ``slot`` are those of the next run of an open block."""

    status: Literal["open", "complete", "failed"]
    attempt: int
    slot: int = 0


def _block_state(runs: Sequence[Run], block: int, draw: int | None, node: Node | None) -> _BlockState:
    """Return the state of a block, by its first attempt without a fault. Block 0 has the warm launches.

    A complete attempt at a block of pairs counts on any node. An incomplete attempt can only continue on its own node,
    and warm launches only warm their own node.
    """
    slots = BLOCK_SLOTS if block else WARM_SLOTS
    block_runs = [run for run in runs if run.position and (run.position.block, run.position.draw) == (block, draw)]
    slowed_blocks = find_slowed_blocks(block_runs)
    attempt = failures = losses = 0
    while attempt_runs := [run for run in block_runs if run.attempt == attempt + 1]:
        attempt += 1
        is_complete = len(attempt_runs) >= slots
        if (block == 0 or not is_complete) and _is_on_other_node(attempt_runs, node):
            losses += 1
        elif all(is_sound(run) for run in attempt_runs) and (block, attempt) not in slowed_blocks:
            return _BlockState("complete" if is_complete else "open", attempt, len(attempt_runs))
        elif any(run.outcome == "lost" for run in attempt_runs):
            losses += 1
        else:
            failures += 1
        if failures == MAX_ATTEMPTS or losses == MAX_ATTEMPTS_WITH_MOVES:
            return _BlockState("failed", attempt)
    return _BlockState("open", attempt + 1)


def _is_on_other_node(runs: Sequence[Run], node: Node | None) -> bool:
    return node is not None and any(run.node not in (None, node) for run in runs)


def block_numbers(runs: Sequence[Run], plan: TimedPlan) -> range:
    """Return the numbers of a session's blocks, which continue after the blocks of an earlier session."""
    earlier_blocks = [run.position.block for run in runs if run.is_from_earlier_session and run.position]
    last = max(earlier_blocks, default=0)
    # ``more_pairs``: pairs that the user requested in addition to the earlier session; 0 without such a request.
    pairs = (plan.more_pairs if last else 0) or plan.max_pairs or LOOKS[-1]
    return range(last + 1, last + 1 + block_count(pairs))


def max_runs(runs: Sequence[Run], plan: TimedPlan) -> int:
    """Return the number of runs of a session that does not stop early."""
    blocks = len(block_numbers(runs, plan))
    draws = math.ceil(blocks / DRAW_BLOCKS) if plan.fresh_caches else 1  # every draw has warm launches of its own
    return sum(map(is_head_only, runs)) + WARM_SLOTS * draws + BLOCK_SLOTS * blocks


def can_afford_block(runs: Sequence[Run], budget_s: float) -> bool:
    """Return whether another block fits into ``budget_s`` seconds, after the time that ``runs`` have used. The first
    block may exceed it, because its estimate uses the shorter warm launches.
    """
    spent_s = sum(run.wall_s for run in runs if not run.is_from_earlier_session)
    seconds = [run.wall_s for run in runs if run.position is not None and run.position.block]
    seconds = seconds or [run.wall_s for run in runs] or [0.0]
    return spent_s + BLOCK_SLOTS * mean(seconds) < budget_s


def progress_summary(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan) -> str:
    if header.throughput.gate == "stored":
        return "compared with stored sessions"
    log_ratios, estimate = pair_up(runs).log_ratios()["median"], "no pair yet"
    interim = decide_so_far(runs, header, plan)
    if interim.test is not None:  # there are enough pairs for an interval
        estimate = f"{format_estimate(interim.test.tests['median'][1])} after {interim.pairs} pairs"
    elif log_ratios:
        progress = f"{len(log_ratios)} of {LOOKS[0]} pairs to the first look"
        estimate = f"{percent(mean(log_ratios)):+.1f}% so far, {progress}"
    session_runs = [run for run in runs if not run.is_from_earlier_session]
    seconds = [run.wall_s for run in session_runs if run.position is not None and run.position.block]
    if not seconds:
        return estimate
    runs_left = max(0, max_runs(runs, plan) - len(session_runs))
    minutes_left = runs_left * mean(seconds) / 60
    if header.budget_min is not None:
        minutes_left = min(minutes_left, max(0.0, header.budget_min - sum(run.wall_s for run in session_runs) / 60))
    return f"{estimate}, at most {runs_left} runs and {minutes_left:.1f} min more"


def expected_cost(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> str:
    text = f"{plan.entry}: at most {max_runs(runs, plan)} runs"
    run_seconds = [reference.run_s for reference in plan.references if reference.run_s is not None]
    if run_seconds:
        text += f" of about {mean(run_seconds):.0f} s"
    if header.budget_min is not None:
        text += f", within a budget of {header.budget_min:g} min"
    calibrations = [reference.calibrated for reference in plan.references if reference.calibrated is not None]
    if calibrations:
        # The largest noise of a pair, as a standard deviation on the log scale.
        noise = max(calibrated.sd_pct / 100 for calibrated in calibrations)
        alpha = look_alpha(LOOKS[-1], count_primary_tests(header))
        # The pairs of one draw of compiler caches share its luck.
        lucks = [luck_in_draws(calibrated.arm_luck, [1] * DRAW_PAIRS) for calibrated in calibrations]
        draws = [DrawLuck(luck.sd_of_mean(DRAW_PAIRS), luck.draw_pairs) if luck else DrawLuck() for luck in lucks]
        # ``eps`` is the slowdown above which an interval proves a regression.
        limits = thresholds(header.throughput)
        detectable_pct = percent(max(mde(noise, LOOKS[-1], alpha, limits.eps, luck=luck) for luck in draws))
        text += f"; pairs differ by {100 * noise:.2g}% here, so a full session detects {detectable_pct:.2g}% or more"
    return text
