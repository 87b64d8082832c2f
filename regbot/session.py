"""The session of one workload: which run comes next, told from the runs there are.

Nothing is remembered anywhere else, so a session that was killed goes on from its file as if nothing had happened.

    warm      one launch of each arm, discarded: it fills compiler caches and finds out whether the arm runs at all
    blocks    ABBA or BAAB at random (A is base): two pairs, in which a linear drift cancels
    looks     after each block, at 4, 8 and 12 pairs; the first that decides ends the session

A run that does not end well voids its pair and ends its block; the block is repeated once from its beginning. A second
failure ends the session: what it means is for the judge to say.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from regbot.judge.pairs import pair_up
from regbot.judge.throughput import percent, primary_tests, span, thresholds
from regbot.records.run import Position, Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.stats.paired import LOOKS, sequential

BLOCKS = LOOKS[-1] // 2
ATTEMPTS = 2
WARM_STEPS = 3
"""Steps of a warm launch: the first compiles, the second may compile again, the third shows that it runs."""

WARM_SLOTS, BLOCK_SLOTS = 2, 4
FULL_SESSION = WARM_SLOTS + BLOCKS * BLOCK_SLOTS

ArmName = Literal["base", "head"]


@dataclass(frozen=True)
class Slot:
    """One run to launch."""

    position: Position
    attempt: int
    arm: ArmName
    steps: int


def next_slot(runs: Sequence[Run], header: SessionHeader, plan: TimedPlan) -> Slot | None:
    """The run that follows ``runs``, the timed runs of ``plan`` in order; None where the session is at its end."""
    for block in range(BLOCKS + 1):
        slots = BLOCK_SLOTS if block else WARM_SLOTS
        for attempt in range(1, ATTEMPTS + 1):
            done = [run for run in runs if _in(run, block, attempt)]
            if any(run.outcome == "refused" for run in done):
                return None
            if all(run.outcome == "ok" for run in done):
                if len(done) < slots:
                    return _slot(header, plan, block, len(done), attempt)
                break
        else:
            return None
        if block and _final([run for run in runs if run.position and run.position.block <= block], header):
            return None
    return None


def begins_block(slot: Slot) -> bool:
    """Whether ``slot`` is the first of a block: where a session may be left without loss."""
    return slot.position.slot == 0


def affordable(runs: Sequence[Run], budget_s: float) -> bool:
    """Whether another block fits into ``budget_s`` seconds of which ``runs`` have used some.

    Before there is one, a run is taken to be as long as a warm launch, which is shorter: the first block may go past.
    """
    spent = sum(run.wall_s for run in runs)
    paired = [run.wall_s for run in runs if run.position is not None and run.position.block]
    expected = paired or [run.wall_s for run in runs]
    return spent + BLOCK_SLOTS * (mean(expected) if expected else 0.0) < budget_s


def standing(runs: Sequence[Run], header: SessionHeader) -> str:
    """Where the session stands in a few words: what it has measured, the estimate so far, what it may still cost."""
    ratios = pair_up(runs).log_ratios()
    pairs = len(ratios["median"])
    found = sequential(ratios, primary_tests(header), thresholds(header))
    if found is not None:
        so_far = f"{span(found.tests['median'][1])} after {found.pairs} pairs"
    elif pairs:
        so_far = f"{percent(mean(ratios['median'])):+.1f}% so far, {pairs} of {LOOKS[0]} pairs to the first look"
    else:
        so_far = "no pair yet"
    paired = [run.wall_s for run in runs if run.position is not None and run.position.block]
    if not paired:
        return so_far
    left = max(0, FULL_SESSION - len(runs))
    minutes = left * mean(paired) / 60
    if header.budget_min is not None:
        minutes = min(minutes, max(0.0, header.budget_min - sum(run.wall_s for run in runs) / 60))
    return f"{so_far}, at most {left} runs and {minutes:.1f} min more"


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


def _final(runs: Sequence[Run], header: SessionHeader) -> bool:
    found = sequential(pair_up(runs).log_ratios(), primary_tests(header), thresholds(header))
    return found is not None and found.final
