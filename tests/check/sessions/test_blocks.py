"""Blocks of runs: one order, one rule for attempts, used by sessions and by confirmations of a bisection."""

import re
from pathlib import Path

import pytest

from regbot.check.sessions.blocks import Attempt, BlockState, Order, block_count, block_state, draw_order, pair_slots

SOURCES = Path(__file__).resolve().parents[3] / "regbot"


def test_a_resumed_session_draws_the_same_orders() -> None:
    """Stored sessions resume with these orders, so they must never change."""
    assert [draw_order(7, "moe@1/ep", n) for n in range(1, 7)] == ["ABBA", "ABBA", "ABBA", "BAAB", "ABBA", "BAAB"]


@pytest.mark.parametrize("order", ["ABBA", "BAAB"])
def test_a_pair_has_one_run_of_each_arm(order: Order) -> None:
    assert [order[first] + order[second] for first, second in pair_slots(order)] == ["AB", "AB"]
    assert sorted(slot for slots in pair_slots(order) for slot in slots) == [0, 1, 2, 3]


def test_pairs_come_in_whole_blocks() -> None:
    assert [block_count(pairs) for pairs in (2, 3, 4, 12)] == [1, 2, 2, 6]


def test_an_attempt_continues_at_its_next_slot() -> None:
    assert block_state([], 5) == BlockState("open", 1, 0)
    assert block_state([Attempt(3)], 5) == BlockState("open", 1, 3)
    assert block_state([Attempt(4)], 5) == BlockState("complete", 1, 4)
    assert block_state([Attempt(2)], 5, slots=2) == BlockState("complete", 1, 2)


def test_a_failed_attempt_is_repeated_once() -> None:
    assert block_state([Attempt(2, "run")], 5) == BlockState("open", 2, 0)
    assert block_state([Attempt(2, "run"), Attempt(4)], 5) == BlockState("complete", 2, 4)
    assert block_state([Attempt(2, "run"), Attempt(1, "run")], 5).status == "failed"


def test_lost_nodes_are_no_failure_but_are_limited() -> None:
    assert block_state([Attempt(1, "nodes")] * 4, 5) == BlockState("open", 5, 0)
    assert block_state([Attempt(1, "nodes")] * 5, 5).status == "lost"


def test_the_order_of_blocks_is_drawn_in_one_place() -> None:
    drawn = [path.name for path in SOURCES.rglob("*.py") if re.search(r'\("ABBA", "BAAB"\)', path.read_text())]
    assert drawn == ["blocks.py"]
