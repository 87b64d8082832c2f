"""Bounds of rates compared with scipy and the published table, and resampling from pools with a known result."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.records.calibration_summary import Correlation
from regbot.stats.calibration import (
    contradiction,
    estimate_pair_sd,
    estimate_rate,
    pool_noise,
    rate_bounds,
)
from regbot.stats.paired import Thresholds

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
SOUND = estimate_rate(0, 0)


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


class TestScatter:
    @given(st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=60))
    def test_the_interval_is_that_of_chi_square(self, values: list[float]) -> None:
        s0, low, high = estimate_pair_sd(values)
        df = len(values) - 1
        ends = [s0 * math.sqrt(df / float(stats.chi2.ppf(p, df))) for p in (0.975, 0.025)]
        assert (low, high) == pytest.approx(tuple(ends), rel=1e-9)
        assert low <= s0 <= high


class TestTheVote:
    @pytest.mark.parametrize(("count", "total"), [(0, 0), (0, 20), (1, 10), (3, 20), (10, 200)])
    def test_vote_stays_while_nothing_is_proven(self, count: int, total: int) -> None:
        assert contradiction(estimate_rate(count, total), SOUND) == ""
        assert contradiction(SOUND, estimate_rate(total - count, total)) == ""

    def test_vote_is_lost_to_proven_false_flags(self) -> None:
        assert contradiction(estimate_rate(4, 20), SOUND) == (
            "4 of 20 comparisons of a commit with itself raised a false alarm (20%; the true rate is 5.7% to 43.7%); "
            "at most 5% are allowed"
        )

    def test_vote_is_lost_to_intervals_that_are_proven_too_narrow(self) -> None:
        assert contradiction(SOUND, estimate_rate(16, 20)) == (
            "the interval contained the true effect in 16 of 20 comparisons (a coverage of at most 94.3%); the gate "
            "promises at least 95%"
        )

    def test_vote_is_lost_to_pairs_that_are_proven_to_depend_on_each_other(self) -> None:
        strong, weak = (
            Correlation(value=value, low=low, high=0.785, count=40) for value, low in ((0.614, 0.352), (0.5, 0.199))
        )
        assert contradiction(SOUND, SOUND, {"neighbouring pairs": None, "pairs of a block": weak}) == ""
        assert contradiction(SOUND, SOUND, {"neighbouring pairs": strong, "pairs of a block": weak}) == (
            "neighbouring pairs depend on each other: their correlation is 0.61 (at least 0.35); the intervals hold up "
            "to 0.2"
        )


def test_the_noise_of_the_class_leaves_out_slow_launches() -> None:
    quiet = [0.01 * value for value in (-1.5, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.5)]
    group = {"median": quiet, "mean": quiet}
    slow = {"median": [*quiet, 0.01], "mean": [*quiet, 0.3]}
    plain, pooled = pool_noise([group, group]), pool_noise([group, slow])
    assert plain is not None
    assert plain == pooled
    assert plain.median_sd == pytest.approx(0.01)
    assert (plain.df, pool_noise([group])) == (14, None)
