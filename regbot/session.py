"""The session of one workload: which run comes next, told from the runs there are.

Nothing is remembered anywhere else, so a session that was killed goes on from its file as if nothing had happened.

    screen    where stored sessions are comparable: a discarded launch of head, then three runs of it
    warm      one launch of each arm, discarded: it fills compiler caches and finds out whether the arm runs at all
    blocks    ABBA or BAAB at random (A is base): two pairs, in which a linear drift cancels
    looks     after each block, at 4, 8 and 12 pairs; the first that decides ends the session

A run that does not end well, or met a node that is not fit, voids its pair and ends its block; the block is repeated
once from its beginning. A second failure ends the session: what it means is for the judge to say. A run whose nodes
were lost is nobody's failure; on other nodes the arms are warmed again and the block begins anew. After an earlier
session on the same trees there are only blocks, and the always-valid interval over all pairs is looked at after each.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from regbot.judge.estimates import percent, span
from regbot.judge.health import slowed_blocks
from regbot.judge.pairs import is_screen, pair_up, sound
from regbot.judge.screen import ATTEMPTS as SCREEN_ATTEMPTS
from regbot.judge.screen import is_screened, screening
from regbot.judge.standing import primary_tests, standing_of, thresholds
from regbot.records.run import Node, Position, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.stats.paired import LOOK_ALPHA, LOOKS, mde

ATTEMPTS = 2
MOVES = 5
"""Times that a block may begin again because its nodes were lost, or others than those it was begun on."""

WARM_STEPS = 3
"""Steps of a warm launch: the first compiles, the second may compile again, the third shows that it runs."""

WARM_SLOTS, BLOCK_SLOTS, BLOCK_PAIRS = 2, 4, 2

ArmName = Literal["base", "head"]


@dataclass(frozen=True)
class Slot:
    """One run to launch."""

    position: Position
    attempt: int
    arm: ArmName
    steps: int


def next_slot(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan, node: Node | None = None) -> Slot | None:
    """The run that follows ``runs``, the timed runs of ``plan`` in order; None where the session is at its end.

    ``node``: where it would run. What was begun on another is begun again, and what has ended there counts.
    """
    if is_screened(header, plan, runs):
        found = screening(header, plan, runs)
        if found is None:
            return _screen_slot(plan, runs, node)
        if found.decision is not None:
            return None
    if header.throughput.gate == "stored":
        return None
    return _pair_slot(runs, header, plan, node)


def _screen_slot(plan: TimedPlan, runs: Sequence[Run], node: Node | None) -> Slot:
    attempt = max((run.attempt for run in runs), default=1)
    begun = [run for run in runs if run.attempt == attempt]
    if any(not sound(run) for run in begun) or _elsewhere(begun, node):
        attempt = min(attempt + 1, SCREEN_ATTEMPTS)
    place = sum(run.attempt == attempt for run in runs)
    steps = plan.steps if place else min(WARM_STEPS, plan.steps)
    return Slot(Position(block=0, slot=place, order="screen"), attempt, "head", steps)


def _pair_slot(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan, node: Node | None) -> Slot | None:
    own = [run for run in runs if not is_screen(run) and run.joined is None]
    slowed = slowed_blocks(own)
    for block in (0, *blocks(runs, plan)):
        slots = BLOCK_SLOTS if block else WARM_SLOTS
        failures = 0
        for attempt in range(1, ATTEMPTS + MOVES + 1):
            done = [run for run in own if _in(run, block, attempt)]
            if any(run.outcome == "refused" for run in done):
                return None
            moved = (len(done) < slots or not block) and _elsewhere(done, node)
            if all(sound(run) for run in done) and (block, attempt) not in slowed and not moved:
                if len(done) < slots:
                    return _slot(header, plan, block, len(done), attempt)
                break
            failures += not moved and not any(run.outcome == "lost" for run in done)
            if failures == ATTEMPTS:
                return None
        else:
            return None
        if block and standing_of([run for run in runs if run.position and run.position.block <= block], header).final:
            return None
    return None


def _elsewhere(runs: Sequence[Run], node: Node | None) -> bool:
    """Whether any of ``runs`` stood on another node than ``node``."""
    return node is not None and any(run.node not in (None, node) for run in runs)


def blocks(runs: Sequence[Run], plan: TimedPlan) -> range:
    """Numbers of the blocks that a session may have: after those of an earlier session, where there is one."""
    before = max((run.position.block for run in runs if run.joined is not None and run.position), default=0)
    pairs = (plan.more_pairs if before else 0) or plan.max_pairs or LOOKS[-1]
    return range(before + 1, before + 1 + -(-pairs // BLOCK_PAIRS))


def most_runs(runs: Sequence[Run], plan: TimedPlan) -> int:
    """Runs of a session that goes to its end, those of its screen among them."""
    screened = sum(is_screen(run) for run in runs)
    return screened + WARM_SLOTS + BLOCK_SLOTS * len(blocks(runs, plan))


def begins_block(slot: Slot) -> bool:
    """Whether ``slot`` is the first of a block: where a session may be left without loss."""
    return slot.position.slot == 0


def ends_block(slot: Slot) -> bool:
    """Whether ``slot`` is the last of a block: where a session may be looked at."""
    return slot.position.slot == BLOCK_SLOTS - 1


def affordable(runs: Sequence[Run], budget_s: float) -> bool:
    """Whether another block fits into ``budget_s`` seconds of which ``runs`` have used some.

    Before there is one, a run is taken to be as long as a warm launch, which is shorter: the first block may go past.
    """
    spent = sum(run.wall_s for run in runs if run.joined is None)
    paired = [run.wall_s for run in runs if run.position is not None and run.position.block]
    expected = paired or [run.wall_s for run in runs]
    return spent + BLOCK_SLOTS * (mean(expected) if expected else 0.0) < budget_s


def standing(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan) -> str:
    """Where the session stands in a few words: what it has measured, the estimate so far, what it may still cost."""
    if runs and is_screened(header, plan, runs) and screening(header, plan, runs) is None:
        return "held against stored sessions first"
    ratios = pair_up(runs).log_ratios()
    pairs = len(ratios["median"])
    found = standing_of(runs, header)
    if found.tests:
        so_far = f"{span(found.tests['median'][1])} after {found.pairs} pairs"
    elif pairs:
        so_far = f"{percent(mean(ratios['median'])):+.1f}% so far, {pairs} of {LOOKS[0]} pairs to the first look"
    else:
        so_far = "no pair yet"
    own = [run for run in runs if run.joined is None]
    paired = [run.wall_s for run in own if run.position is not None and run.position.block]
    if not paired:
        return so_far
    left = max(0, most_runs(runs, plan) - len(own))
    minutes = left * mean(paired) / 60
    if header.budget_min is not None:
        minutes = min(minutes, max(0.0, header.budget_min - sum(run.wall_s for run in own) / 60))
    return f"{so_far}, at most {left} runs and {minutes:.1f} min more"


def expected_cost(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> str:
    """Before anything is spent: what it may cost, and what the noise on record lets this node show."""
    said = f"{plan.entry}: at most {most_runs(runs, plan)} runs"
    known = [each.run_s for each in plan.references if each.run_s is not None]
    if known:
        said += f" of about {mean(known):.0f} s"
    if header.budget_min is not None:
        said += f", {header.budget_min:g} min of them"
    if noise := [each.calibrated.sd_pct / 100 for each in plan.references if each.calibrated is not None]:
        limits = thresholds(header)
        alpha = LOOK_ALPHA / primary_tests(header)
        shown = percent(mde(max(noise), LOOKS[-1], alpha, limits.eps))
        said += f"; pairs differ by {100 * max(noise):.2g}% here, so a full session shows {shown:.2g}% or more"
    return said


def order(header: SessionHeader, plan: TimedPlan, block: int) -> Literal["ABBA", "BAAB"]:
    """The order of a block: as good as random, and the same whenever it is asked for.

    The warm launches begin with base: a head that breaks is shown to be at fault only where base has run.
    """
    if not block:
        return "ABBA"
    return random.Random(f"{header.seed}/{plan.entry}/{block}").choice(("ABBA", "BAAB"))


def _slot(header: SessionHeader, plan: TimedPlan, block: int, slot: int, attempt: int) -> Slot:
    turn = order(header, plan, block)
    arm: ArmName = "base" if turn[slot] == "A" else "head"
    steps = plan.steps if block else min(WARM_STEPS, plan.steps)
    return Slot(Position(block=block, slot=slot, order=turn), attempt, arm, steps)


def _in(run: Run, block: int, attempt: int) -> bool:
    return run.position is not None and run.position.block == block and run.attempt == attempt
