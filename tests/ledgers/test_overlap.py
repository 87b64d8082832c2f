"""Interval unions: what of communication no compute hid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regbot.ledgers.overlap import overlap, union

Pairs = list[tuple[float, float]]


def measure(communication: Pairs, compute: Pairs) -> tuple[float, float]:
    spans = [union([a for a, _ in pairs], [b for _, b in pairs]) for pairs in (communication, compute)]
    measured = overlap(*spans)
    return measured.exposed, measured.hidden


@pytest.mark.parametrize(
    ("communication", "compute", "exposed", "hidden"),
    [
        ([(0, 10)], [], 10, 0),
        ([], [(0, 10)], 0, 0),
        ([(0, 10)], [(0, 10)], 0, 10),
        ([(0, 10)], [(10, 20)], 10, 0),
        ([(0, 10)], [(2, 4), (6, 8)], 6, 4),
        ([(2, 4), (6, 8)], [(0, 10)], 0, 4),
        ([(0, 10), (5, 15)], [(12, 30)], 12, 3),  # two kernels at a time take the time of one
        ([(0, 10)], [(2, 6), (4, 8), (3, 5)], 4, 6),  # so do two that compute
        ([(5, 15)], [(0, 7), (12, 20)], 5, 5),
        ([(0, 4), (6, 10)], [(3, 7)], 6, 2),
        ([(7, 7)], [(0, 10)], 0, 0),
    ],
)
def test_communication_is_hidden_where_compute_runs(
    communication: Pairs, compute: Pairs, exposed: float, hidden: float
) -> None:
    assert measure(communication, compute) == (exposed, hidden)
    assert measure(communication[::-1], compute[::-1]) == (exposed, hidden)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(spans, spans)
def test_the_parts_are_those_of_a_clock_that_ticks(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    ticks = [np.zeros(100, dtype=bool), np.zeros(100, dtype=bool)]
    for tick, pairs in zip(ticks, (a, b), strict=True):
        for start, length in pairs:
            tick[start : start + length] = True
    measured = measure(*([(float(s), float(s + n)) for s, n in pairs] for pairs in (a, b)))
    assert measured == ((ticks[0] & ~ticks[1]).sum(), (ticks[0] & ticks[1]).sum())
