"""Stalls that return after a fixed number of steps."""

import pytest

from regbot.stats.stalls import common_period, find_stalls

LIMIT = 0.5


def run(phase: int, period: int = 15, length: int = 1, by: float = 1.5, steps: int = 40) -> list[float]:
    return [by if (step + phase) % period < length else 1.0 for step in range(steps)]


@pytest.mark.parametrize(
    ("step_s", "stalls"),
    [
        ([1, 1, 2, 1, 1, 1, 2, 1], [2, 6]),
        ([1, 1, 2, 2, 2, 1, 1, 1], [2]),  # neighbours are one stall
        ([2, 2, 1, 1, 1, 2, 1, 1], [5]),  # the first has begun before
        ([1, 1, 1.6, 1, 1, 1, 1, 1], []),  # below e^0.5
    ],
)
def test_a_stall_begins_at_its_first_step(step_s: list[float], stalls: list[int]) -> None:
    assert find_stalls(step_s, LIMIT) == stalls


@pytest.mark.parametrize(
    ("base", "head", "period"),
    [
        ([run(0), run(5), run(9)], [run(3), run(11)], 15),
        ([run(0, 25, 4, 3.0), run(21, 25, 4, 3.0)], [run(13, 25, 4, 3.0)], 25),
        ([run(3)], [run(3, period=12)], 0),  # other periods
        ([run(3)], [run(3, by=1.0)], 0),  # head never stalls
        ([run(3, by=1.08)], [run(3, by=1.08)], 0),  # too small to be a stall
        ([run(3), [1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]], [run(3)], 0),  # half of the gaps are others
        ([], [run(3)], 0),
    ],
)
def test_whole_periods_are_counted_only_if_both_arms_show_the_same(
    base: list[list[float]], head: list[list[float]], period: int
) -> None:
    assert common_period(base, head) == period
