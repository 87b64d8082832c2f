"""The luck of an arm: its estimate from draws of placebo pairs, and the intervals that contain it."""

import math

import numpy as np
import pytest

from regbot.records.calibration_summary import ArmLuck
from regbot.stats.arm_luck import DRAW_PAIRS, SharedLuck, estimate_luck
from regbot.stats.calibration import contradiction, estimate_rate
from regbot.stats.paired import DrawLuck, Thresholds, add_luck, interval, pairs_needed

NO_PROOF = estimate_rate(0, 0)


def placebo_draws(luck: float, noise: float, draws: int, seed: int) -> list[list[float]]:
    """Log-ratios of placebo pairs by draw, if each arm draws ``luck``."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, luck, (2, draws, 1))
    ratios: list[list[float]] = (shared[1] - shared[0] + rng.normal(0, noise, (draws, DRAW_PAIRS))).tolist()
    return ratios


def test_the_estimate_is_the_excess_of_the_draws_over_the_pairs_within_them() -> None:
    draws = [[0.035, 0.025], [-0.025, -0.035], [0.025, 0.035], [-0.035, -0.025]]
    luck = estimate_luck(draws)
    assert luck is not None
    between = 2 * 4 * 0.03**2 / 4  # squares of the means around 0
    within = 8 * 0.005**2 / 4
    assert luck.sd_pct == pytest.approx(100 * math.sqrt((between - within) / 2 / 2))  # pairs of a draw, and two arms
    assert (luck.draws, luck.counted_pct) == (4, luck.sd_pct)
    in_mean = SharedLuck(luck.sd_pct, luck.draws, [1] * 4 + [2] * 4 + [3] * 4).sd_of_mean(12)
    assert in_mean == pytest.approx(luck.sd_pct * math.sqrt(2 / 3)), "three draws, and two arms"
    assert luck.low_pct < luck.sd_pct < luck.high_pct


def test_luck_lasts_if_the_draws_of_an_allocation_share_it() -> None:
    rng = np.random.default_rng(1)
    allocations = [number // 2 for number in range(24)]
    shared = np.repeat(rng.normal(0, 0.006, 12), 2)[:, None]
    draws = rng.normal(0, 0.004, (24, DRAW_PAIRS))
    lasting, none = (estimate_luck(pairs.tolist(), 0.0, allocations) for pairs in (draws + shared, draws))
    assert lasting is not None
    assert none is not None
    assert (lasting.lasts, lasting.draws, lasting.allocations, none.lasts, none.allocations) == (
        True,
        12,
        12,
        False,
        12,
    )
    assert lasting.counted_pct >= lasting.sd_pct > 0.25
    assert SharedLuck(0.003, 10, [1, 1, 2, 2], lasts=True).sd_of_mean(4) == pytest.approx(0.003 * math.sqrt(2))
    short = estimate_luck((draws + shared)[::2].tolist(), 0.0, allocations[::2])
    assert short is not None
    assert (short.lasts, short.allocations) == (False, 0), "four pairs of an allocation are too few"


def test_more_pairs_do_not_prove_more_if_luck_lasts() -> None:
    drawn, lasting = (SharedLuck(0.003, 15, [1] * 4, lasts) for lasts in (False, True))
    bounds = [add_luck(interval([0.02, 0.021, 0.019, 0.02], 0.0204), luck) for luck in (drawn, lasting)]
    assert bounds[0].high == bounds[1].high
    thresholds = Thresholds.from_percent(2.0, 1.0)
    needed = [pairs_needed(0.001, 0.02, thresholds, luck=DrawLuck(0.004, each.draw_pairs)) for each in bounds]
    assert needed == [7, None]


@pytest.mark.parametrize(("luck", "noise", "draws"), [(0.0, 0.008, 15), (0.003, 0.003, 15), (0.005, 0.008, 50)])
def test_the_interval_contains_the_truth_in_95_percent(luck: float, noise: float, draws: int) -> None:
    estimates = [estimate_luck(placebo_draws(luck, noise, draws, seed)) for seed in range(1000)]
    assert sum(e is not None and e.low_pct <= 100 * luck <= e.high_pct for e in estimates) > 930


def test_luck_that_chance_explains_counts_if_neighbouring_pairs_are_correlated() -> None:
    draws = placebo_draws(0.002, 0.008, 5, 6)
    independent, dependent = estimate_luck(draws, 0.25), estimate_luck(draws, 0.26)
    assert independent is not None
    assert dependent is not None
    assert (independent.counted_pct, dependent.counted_pct) == (0.0, dependent.sd_pct)
    assert dependent.sd_pct > 0


def test_few_draws_or_no_noise_give_no_estimate() -> None:
    assert estimate_luck([]) is None
    assert estimate_luck(placebo_draws(0.01, 0.01, 3, 1)) is None
    assert estimate_luck([[0.01, 0.01]] * 10) is None


def test_a_slow_launch_is_no_luck() -> None:
    draws = placebo_draws(0.0, 0.003, 15, 2)
    slow = [[draws[0][0] + 0.3, *draws[0][1:]], *draws[1:]]
    with_slow, without = estimate_luck(slow), estimate_luck(draws)
    assert with_slow is not None
    assert without is not None
    assert with_slow.high_pct < 2 * max(without.high_pct, 0.1)


def test_an_interval_contains_the_luck() -> None:
    plain = interval([0.02, 0.021, 0.019, 0.02], 0.0204)
    wide = add_luck(plain, SharedLuck(0.003, 15, [1] * 4))
    assert wide.estimate == plain.estimate
    assert wide.high - wide.estimate == pytest.approx(
        math.hypot(plain.high - plain.estimate, 2.5927 * 0.004243), rel=1e-3
    )
    assert add_luck(plain, None) == plain


def test_proven_luck_takes_the_vote_and_likely_luck_does_not() -> None:
    proven = ArmLuck(sd_pct=1.5, low_pct=0.8, high_pct=5.0, counted_pct=1.5, draws=5, allocations=0, lasts=False)
    reason = contradiction(NO_PROOF, NO_PROOF, luck=proven)
    assert "the luck of an arm has a standard deviation of 1.50% (at least 0.80%)" in reason
    assert contradiction(NO_PROOF, NO_PROOF, luck=proven.model_copy(update={"low_pct": 0.4})) == ""
