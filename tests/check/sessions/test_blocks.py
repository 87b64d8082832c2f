"""Blocks of runs: one order, one rule for attempts, used by sessions and by confirmations of a bisection."""

import pytest

from regbot.check.sessions.blocks import Order, draw_order, pair_slots


def test_a_resumed_session_draws_the_same_orders() -> None:
    """Stored sessions resume with these orders, so they must never change."""
    assert [draw_order(7, "moe@1/ep", n) for n in range(1, 7)] == ["ABBA", "ABBA", "ABBA", "BAAB", "ABBA", "BAAB"]


@pytest.mark.parametrize("order", ["ABBA", "BAAB"])
def test_a_pair_has_one_run_of_each_arm(order: Order) -> None:
    assert [order[first] + order[second] for first, second in pair_slots(order)] == ["AB", "AB"]
    assert sorted(slot for slots in pair_slots(order) for slot in slots) == [0, 1, 2, 3]
