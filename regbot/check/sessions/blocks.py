"""Blocks of runs: two arms in the order ABBA or BAAB. A block has two pairs, in which a linear drift cancels.

A block has four slots, numbered from 0, with one run in each.
"""

import math
import random
from typing import Literal

BLOCK_SLOTS, BLOCK_PAIRS = 4, 2

MAX_ATTEMPTS = 2
"""Maximum number of attempts at a block that fail because of the code under test. Lost nodes are counted separately."""

Order = Literal["ABBA", "BAAB"]


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
