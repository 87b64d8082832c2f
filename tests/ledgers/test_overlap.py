"""Interval unions: what of communication no compute hid."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regbot.ledgers.overlap import overlap, union

Pairs = list[tuple[float, float]]


def measure(communication: Pairs, compute: Pairs) -> tuple[float, float]:
    spans = [union([a for a, _ in pairs], [b for _, b in pairs]) for pairs in (communication, compute)]
    measured = overlap(*spans)
    return measured.exposed, measured.hidden


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(spans, spans)
def test_the_parts_are_those_of_a_clock_that_ticks(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    ticks = [np.zeros(100, dtype=bool), np.zeros(100, dtype=bool)]
    for tick, pairs in zip(ticks, (a, b), strict=True):
        for start, length in pairs:
            tick[start : start + length] = True
    measured = measure(*([(float(s), float(s + n)) for s, n in pairs] for pairs in (a, b)))
    assert measured == ((ticks[0] & ~ticks[1]).sum(), (ticks[0] & ticks[1]).sum())
