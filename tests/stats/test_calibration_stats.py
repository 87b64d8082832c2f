"""Bounds of rates compared with scipy and the published table, and resampling from pools with a known result."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats.calibration import (
    RateEstimate,
    contradiction,
    estimate_pair_sd,
    rate_bounds,
    rate_upper_bound,
    resample_sessions,
)
from regbot.stats.correlation import CorrelationEstimate
from regbot.stats.paired import Thresholds

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
SOUND = RateEstimate.from_counts(0, 0)


def pool(pairs: int, sd: float = 0.008, seed: int = 1) -> dict[str, list[float]]:
    generator = random.Random(seed)
    values = [generator.gauss(0, sd) for _ in range(pairs)]
    return {"median": values, "mean": [value + generator.gauss(0, sd / 4) for value in values]}


class TestRates:
    @pytest.mark.parametrize("total", [1, 2, 5, 20, 60])
    def test_bounds_are_those_of_scipys_exact_interval(self, total: int) -> None:
        for count in range(total + 1):
            result = stats.binomtest(count, total).proportion_ci(0.95, "exact")
            assert rate_bounds(count, total) == pytest.approx((result.low, result.high), abs=1e-11)

    @pytest.mark.parametrize("total", [1, 2, 5, 20, 60])
    def test_the_upper_bound_is_that_of_the_one_sided_interval(self, total: int) -> None:
        for count in range(total + 1):
            result = stats.binomtest(count, total, alternative="less").proportion_ci(0.95, "exact")
            assert rate_upper_bound(count, total) == pytest.approx(result.high, abs=1e-11)

    @pytest.mark.parametrize(
        ("total", "expected"),
        [(20, (0.139, 0.216, 0.283)), (60, (0.049, 0.077, 0.101)), (200, (0.015, 0.023, 0.031))],
    )
    def test_few_clean_placebos_prove_little(self, total: int, expected: tuple[float, ...]) -> None:
        assert tuple(round(rate_upper_bound(count, total), 3) for count in range(3)) == expected

    def test_zero_of_zero_has_the_bounds_0_and_1(self) -> None:
        assert rate_bounds(0, 0) == (0.0, 1.0)
        assert RateEstimate.from_counts(0, 0) == RateEstimate(0, 0, 0.0, 1.0)

    @pytest.mark.parametrize(("count", "total"), [(-1, 5), (6, 5)])
    def test_a_count_above_the_total_is_refused(self, count: int, total: int) -> None:
        with pytest.raises(ValueError, match="count must be between 0 and total"):
            rate_bounds(count, total)
        with pytest.raises(ValueError, match="count must be between 0 and total"):
            rate_upper_bound(count, total)

    @pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95.0, math.nan])
    def test_a_level_outside_0_and_1_is_refused(self, level: float) -> None:
        with pytest.raises(ValueError, match="level"):
            rate_bounds(1, 5, level)
        with pytest.raises(ValueError, match="level"):
            rate_upper_bound(1, 5, level)


class TestResampling:
    def test_gives_the_same_answer_every_time(self) -> None:
        assert resample_sessions(pool(20), 0.0, 2, THRESHOLDS, 200) == resample_sessions(
            pool(20), 0.0, 2, THRESHOLDS, 200
        )
        other = resample_sessions(pool(20, sd=0.02), 0.0, 2, THRESHOLDS, 200, seed=1)
        assert other != resample_sessions(pool(20, sd=0.02), 0.0, 2, THRESHOLDS, 200, seed=2)

    def test_shares_sum_to_one_over_every_decision(self) -> None:
        result = resample_sessions(pool(40), math.log1p(0.02), 2, THRESHOLDS, 300)
        assert set(result.decisions) == {"regressed", "improved", "no_change", "undecided"}
        assert math.fsum(result.decisions.values()) == pytest.approx(1)
        assert result.sessions == 300
        assert 4 <= result.pairs <= 12

    def test_a_large_pool_gives_the_power_and_coverage_of_the_node(self) -> None:
        """With a pair sd of 0.8% and a true effect of 2%, 88% of sessions detect it, and 98% of intervals cover it."""
        large = pool(4000, sd=0.008)
        result = resample_sessions(large, math.log1p(0.02), 2, THRESHOLDS, 4000)
        assert result.decisions["regressed"] == pytest.approx(0.88, abs=0.04)
        assert result.decisions["no_change"] < 0.02
        assert result.coverage == pytest.approx(0.976, abs=0.01)
        none = resample_sessions(large, 0.0, 2, THRESHOLDS, 1000)
        assert none.decisions["regressed"] + none.decisions["improved"] < 0.005

    def test_the_mean_of_the_pool_does_not_add_to_the_effect(self) -> None:
        """A pool with a mean of +3% must not turn every placebo into a regression."""
        moved = {name: [value + 0.03 for value in values] for name, values in pool(20).items()}
        here, shifted = (resample_sessions(bounds, 0.0, 2, THRESHOLDS, 200) for bounds in (pool(20), moved))
        assert shifted.decisions == pytest.approx(here.decisions)
        assert here.decisions["regressed"] < 0.05

    def test_blocks_are_drawn_whole(self) -> None:
        """Drift of +1% in one pair of a block and -1% in the other cancels in every session of whole blocks."""
        drifting = {"median": [0.01, -0.01] * 10}
        result = resample_sessions(drifting, 0.0, 1, THRESHOLDS, 300)
        assert result.coverage == 1.0

    def test_the_scatter_lost_by_centring_is_restored(self) -> None:
        """Two blocks of equal pairs at -1% and +1% have a sd of 1.41%. Their plain deviations would give 1%."""
        result = resample_sessions({"median": [-0.01, -0.01, 0.01, 0.01]}, 0.0, 1, Thresholds(0.0143, 0.0139), 400)
        alone = 2 * 0.5**2  # a first look of two equal blocks: a point at +-1.41%, beyond eps
        assert result.decisions["regressed"] + result.decisions["improved"] == pytest.approx(alone, abs=0.08)

    def test_an_odd_pair_at_the_end_is_left_out(self) -> None:
        odd = {name: [*values, 99.0] for name, values in pool(20).items()}
        assert resample_sessions(odd, 0.0, 2, THRESHOLDS, 100) == resample_sessions(pool(20), 0.0, 2, THRESHOLDS, 100)

    def test_an_unusable_pool_is_refused(self) -> None:
        with pytest.raises(ValueError, match="needs 2 whole blocks of 2 placebo pairs; there are 1"):
            resample_sessions({"median": [0.0, 0.1, 0.2]}, 0.0, 1, THRESHOLDS)
        with pytest.raises(ValueError, match="the same number of pairs"):
            resample_sessions({"median": [0.0] * 4, "mean": [0.0] * 5}, 0.0, 2, THRESHOLDS)
        with pytest.raises(ValueError, match="not finite"):
            resample_sessions({"median": [0.0, 0.1, 0.2, math.nan]}, 0.0, 1, THRESHOLDS)


class TestScatter:
    def test_twenty_pairs_estimate_the_sd_to_minus_24_and_plus_46_percent(self) -> None:
        values = [0.01 * (-1) ** pair for pair in range(20)]
        s0, low, high = estimate_pair_sd(values)
        assert s0 == pytest.approx(0.01 * math.sqrt(20 / 19))
        assert (low / s0, high / s0) == pytest.approx((0.760, 1.461), abs=0.001)

    @given(st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=60))
    def test_the_interval_is_that_of_chi_square(self, values: list[float]) -> None:
        s0, low, high = estimate_pair_sd(values)
        df = len(values) - 1
        ends = [s0 * math.sqrt(df / float(stats.chi2.ppf(p, df))) for p in (0.975, 0.025)]
        assert (low, high) == pytest.approx(tuple(ends), rel=1e-9)
        assert low <= s0 <= high

    def test_identical_pairs_have_sd_zero_and_too_few_are_refused(self) -> None:
        assert estimate_pair_sd([0.1, 0.1, 0.1]) == (0.0, 0.0, 0.0)
        with pytest.raises(ValueError, match="needs 2 placebo pairs"):
            estimate_pair_sd([0.1])
        with pytest.raises(ValueError, match="not finite"):
            estimate_pair_sd([0.1, math.nan])


class TestTheVote:
    @pytest.mark.parametrize(("count", "total"), [(0, 0), (0, 20), (1, 10), (3, 20), (10, 200)])
    def test_vote_stays_while_nothing_is_proven(self, count: int, total: int) -> None:
        assert contradiction(RateEstimate.from_counts(count, total), SOUND) == ""
        assert contradiction(SOUND, RateEstimate.from_counts(total - count, total)) == ""

    def test_vote_is_lost_to_proven_false_flags(self) -> None:
        assert contradiction(RateEstimate.from_counts(4, 20), SOUND) == (
            "4 of 20 comparisons of a commit with itself raised a false alarm (20%; the true rate is 5.7% to 43.7%); "
            "at most 5% are allowed"
        )

    def test_vote_is_lost_to_intervals_that_are_proven_too_narrow(self) -> None:
        assert contradiction(SOUND, RateEstimate.from_counts(16, 20)) == (
            "the interval contained the true effect in 16 of 20 comparisons (a coverage of at most 94.3%); the gate "
            "promises at least 95%"
        )

    def test_vote_is_lost_to_pairs_that_are_proven_to_depend_on_each_other(self) -> None:
        strong, weak = CorrelationEstimate(0.614, 0.352, 0.785, 40), CorrelationEstimate(0.5, 0.199, 0.7, 40)
        assert contradiction(SOUND, SOUND, {"neighbouring pairs": None, "pairs of a block": weak}) == ""
        assert contradiction(SOUND, SOUND, {"neighbouring pairs": strong, "pairs of a block": weak}) == (
            "neighbouring pairs depend on each other: their correlation is 0.61 (at least 0.35); the intervals hold up "
            "to 0.2"
        )

    def test_a_sound_gate_keeps_its_vote(self) -> None:
        """With 0.2% false flags and 98% coverage, less than 1 in 1000 gates lose their vote after 60 placebos."""
        for rate in (0.002, 0.02):
            lost = [count for count in range(61) if contradiction(RateEstimate.from_counts(count, 60), SOUND)]
            assert math.fsum(float(stats.binom.pmf(count, 60, rate)) for count in lost) < 0.001
