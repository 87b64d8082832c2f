"""Correlation of placebo pairs, by hand-worked examples and on simulated sessions."""

import math

import numpy as np
import pytest

from regbot.stats.correlation import block_correlation, lag_correlation

BLOCKS = [1.0, 1.0, -1.0, -1.0] * 4
"""The pairs of a block agree, and neighbouring blocks do not."""


def autoregressive(sessions: int, rho: float) -> list[list[float]]:
    """Return ``sessions`` sessions of twelve pairs with sd 1% whose neighbours are correlated by ``rho``."""
    rng = np.random.default_rng(20261123)
    values = rng.normal(0, 0.01, (sessions, 12))
    for pair in range(1, 12):
        values[:, pair] = rho * values[:, pair - 1] + math.sqrt(1 - rho**2) * values[:, pair]
    rows: list[list[float]] = values.tolist()
    return rows


def test_pairs_of_a_block_that_agree_are_correlated_and_their_neighbours_are_not() -> None:
    block, lag = block_correlation([BLOCKS]), lag_correlation([BLOCKS])
    assert block is not None
    assert lag is not None
    assert (block.value, block.count) == (1.0, 8)
    assert block.low > 0.99
    assert (lag.value, lag.count) == (pytest.approx(1 / 15), 15)


def test_the_interval_is_fishers() -> None:
    """Nine products of values 2 and 1: 9 x 2 / (9 x 2.5) = 0.8; atanh(0.8) = 1.0986, 1.96 / sqrt(8) = 0.6930."""
    block = block_correlation([[2.0, 1.0] * 9])
    assert block is not None
    assert block.value == pytest.approx(0.8)
    assert (block.low, block.high) == pytest.approx((math.tanh(1.098612 - 0.692952), math.tanh(1.098612 + 0.692952)))


def test_slow_launches_in_neighbouring_pairs_do_not_correlate_all_others() -> None:
    rows = autoregressive(5, 0.0)
    rows[2][4] += 0.3
    rows[2][5] += 0.3
    lag, block = lag_correlation(rows), block_correlation(rows)
    assert lag is not None
    assert block is not None
    assert lag.high < 0.4
    assert (lag.count, block.count) == (55 - 3, 30 - 1)


@pytest.mark.parametrize(("rho", "is_proven"), [(0.0, False), (0.2, False), (0.6, True)])
def test_a_correlation_above_the_limit_is_proven_by_many_sessions(rho: float, is_proven: bool) -> None:
    lag = lag_correlation(autoregressive(20, rho))
    assert lag is not None
    assert lag.low <= rho <= lag.high
    assert (lag.low > 0.2) == is_proven
