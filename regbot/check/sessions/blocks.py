"""Blocks of runs: two arms in the order ABBA or BAAB. A block has two pairs, in which a linear drift cancels.

A block has four slots, numbered from 0, with one run in each. If a run fails or loses its nodes, the attempt at the
block is void, and the block begins again. All state is computed from the runs so far, so a killed measurement can
resume. This module neither launches nor judges runs.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

BLOCK_SLOTS, BLOCK_PAIRS = 4, 2

MAX_ATTEMPTS = 2
"""Maximum number of attempts at a block that fail because of the code under test. Lost nodes are counted separately."""

Order = Literal["ABBA", "BAAB"]
Fault = Literal["", "run", "nodes"]
"""Why an attempt does not count: a run failed, or nodes were lost or replaced."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a block."""

    runs: int
    """Number of runs so far."""
    fault: Fault = ""
    """Why the attempt does not count; '' if it counts."""


@dataclass(frozen=True)
class BlockState:
    """State of a block. If the block is open, ``attempt`` and ``slot`` are those of its next run."""

    status: Literal["open", "complete", "failed", "lost"]
    """failed: runs failed in ``MAX_ATTEMPTS`` attempts. lost: nodes were lost too often."""
    attempt: int
    """Number of the attempt, from 1."""
    slot: int = 0
    """Place of the run in the block, from 0."""


def draw_order(seed: int, name: str, block: int) -> Order:
    """Draw the order of a block. It is random, but always the same for the same arguments. ``name`` is the name of the
    measurement, such as the entry."""
    return random.Random(f"{seed}/{name}/{block}").choice(("ABBA", "BAAB"))


def pair_slots(order: Order) -> list[tuple[int, int]]:
    """Return the slots of both pairs of a block. A slot is the place of a run in its block, from 0. In each tuple, the
    slot of A comes first."""
    return [(0, 1), (3, 2)] if order == "ABBA" else [(1, 0), (2, 3)]


def block_count(pairs: int) -> int:
    """Return how many whole blocks hold at least ``pairs`` pairs."""
    return math.ceil(pairs / BLOCK_PAIRS)


def block_state(attempts: Iterable[Attempt], max_lost: int, slots: int = BLOCK_SLOTS) -> BlockState:
    """Return the state of a block after ``attempts``.

    The first attempt without a fault decides: the block is complete if all ``slots`` have a run, else open. If all
    attempts have faults, the block is open for a further attempt. It is failed after ``MAX_ATTEMPTS`` failed runs, and
    lost after ``max_lost`` losses of nodes.
    """
    attempt_number = run_faults = node_faults = 0
    for attempt_number, attempt in enumerate(attempts, start=1):
        if not attempt.fault:
            return BlockState("open" if attempt.runs < slots else "complete", attempt_number, attempt.runs)
        run_faults += attempt.fault == "run"
        node_faults += attempt.fault == "nodes"
        if run_faults == MAX_ATTEMPTS:
            return BlockState("failed", attempt_number)
        if node_faults == max_lost:
            return BlockState("lost", attempt_number)
    return BlockState("open", attempt_number + 1)
