"""The trimmed t interval and the search for slow launches, by hand-worked examples and against scipy's own."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats.anytime import decide_anytime
from regbot.stats.paired import (
    LOOK_ALPHA,
    SequentialTest,
    Thresholds,
    interval,
    look_interval,
    mde,
    sequential_test,
    widening,
)
from regbot.stats.slow_launches import (
    PairOutlier,
    find_outliers,
    has_more_slow_launches,
    trimmed_mean,
    trimmed_pairs,
)

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
NOISE = [0.001, -0.002, 0.003, -0.001, 0.002, -0.003, 0.0015, -0.0015, 0.0005, -0.0005, 0.0025, -0.0025]
"""Twelve pairs of a quiet node."""
SLOW = math.log(1.3)
VALUES = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=8, max_size=12, unique=True)


def slowed(pairs: dict[int, float], by: float = 0.0) -> list[float]:
    """Return the noise with an effect of ``by``, and with the log-ratios ``pairs`` added by index."""
    return [value + by + pairs.get(index, 0.0) for index, value in enumerate(NOISE)]


def look(values: list[float], **options: Any) -> Any:
    return sequential_test({"median": values, "mean": values}, 2, THRESHOLDS, **options)


class TestOutliers:
    def test_a_value_beyond_eight_scaled_deviations_is_found(self) -> None:
        """The median of 1 to 7 is 4 and their median absolute deviation is 2, so the limit is 8 x 1.4826 x 2 = 23.7."""
        assert find_outliers([1, 2, 3, 4, 5, 6, 7]) == {}
        assert find_outliers([1, 2, 3, 4, 5, 6, 27.7]) == {}
        assert find_outliers([1, 2, 3, 4, 5, 6, 27.8]) == {6: pytest.approx(23.8)}
        assert find_outliers([-19.8, 2, 3, 4, 5, 6, 7]) == {0: pytest.approx(-23.8)}


class TestTrimmedMean:
    @given(VALUES, st.integers(1, 2))
    def test_is_the_one_that_scipy_gives(self, values: list[float], trimmed: int) -> None:
        """Yuen's test of two samples, of which one has no scatter."""
        fraction = (trimmed + 0.5) / len(values)
        expected = stats.ttest_ind(values, [0.0] * len(values), equal_var=False, trim=fraction)
        result = trimmed_mean(values, trimmed)
        assert result.mean == pytest.approx(stats.trim_mean(values, fraction), abs=1e-12)
        assert result.mean / result.standard_error == pytest.approx(expected.statistic, rel=1e-9)
        assert result.degrees_of_freedom == round(expected.df)


class TestInterval:
    @pytest.mark.parametrize(("pairs", "trimmed"), [(8, 1), (12, 2)])
    def test_a_slow_launch_hardly_moves_it(self, pairs: int, trimmed: int) -> None:
        result = look_interval(slowed({1: SLOW})[:pairs], 0.01)
        assert result.trimmed == trimmed_pairs(pairs) == trimmed
        assert abs(result.estimate) < 0.001
        assert result.high < 0.01 < interval(slowed({1: SLOW})[:pairs], 0.01).high


class TestLooks:
    def test_a_slow_launch_does_not_hide_a_slowdown(self) -> None:
        for arm in (SLOW, -SLOW):
            result = look(slowed({1: arm}, by=0.05))
            assert (result.decision, result.pairs) == ("regressed", 8)

    def test_slow_launches_of_base_or_of_both_arms_do_not_hide_that_nothing_changed(self) -> None:
        for pairs in ({1: -SLOW}, {1: SLOW, 6: -SLOW}):
            result = look(slowed(pairs))
            assert (result.decision, result.pairs, result.withheld) == ("no_change", 8, False)
            assert [launch.pair for launch in result.outliers] == sorted(pairs)

    def test_one_slow_launch_of_head_takes_twelve_pairs(self) -> None:
        """After 8 pairs, others may follow. One in 12 pairs is no sign that head has more of them."""
        first = look(slowed({1: SLOW})[:8])
        assert (first.decision, first.pairs, first.withheld, first.final) == ("undecided", 8, True, False)
        assert [decision for decision, _ in first.tests.values()] == ["no_change", "no_change"]
        result = look(slowed({1: SLOW}))
        assert (result.decision, result.pairs, result.withheld) == ("no_change", 12, False)
        assert result.outliers == (PairOutlier(1, "head", pytest.approx(SLOW, abs=0.003)),)

    @pytest.mark.parametrize("base", [{}, {10: -SLOW}])
    def test_head_does_not_pass_if_it_has_more_slow_launches(self, base: dict[int, float]) -> None:
        """One slow launch of base does not make up for two of head."""
        result = look(slowed({1: SLOW, 9: SLOW, **base}))
        assert (result.decision, result.pairs, result.withheld, result.final) == ("undecided", 12, True, True)
        assert [decision for decision, _ in result.tests.values()] == ["no_change", "no_change"]

    @pytest.mark.parametrize(
        ("head", "base", "pairs", "withheld"),
        [
            (1, 0, 8, True),
            (1, 1, 8, False),
            (0, 1, 8, False),
            (1, 0, 12, False),
            (2, 0, 12, True),
            (2, 1, 12, True),
            (2, 2, 12, False),
            (2, 0, 24, False),
            (3, 1, 24, True),
            (3, 2, 24, False),
        ],
    )
    def test_a_pass_is_withheld_by_the_share_of_slow_launches(
        self, head: int, base: int, pairs: int, withheld: bool
    ) -> None:
        arms = ["head"] * head + ["base"] * base
        assert has_more_slow_launches([PairOutlier(i, arm, SLOW) for i, arm in enumerate(arms)], pairs) == withheld


class TestMorePairs:
    """Pairs that are timed after a verdict, judged by the always-valid interval."""

    @staticmethod
    def judged(values: list[float]) -> SequentialTest:
        return decide_anytime({"median": values, "mean": values}, 2, THRESHOLDS)

    def test_a_pass_that_was_withheld_is_given_once_no_further_launch_of_head_is_slow(self) -> None:
        assert look(slowed({1: SLOW, 9: SLOW})).withheld
        result = self.judged([*slowed({1: SLOW, 9: SLOW}), *NOISE])
        assert (result.decision, result.withheld) == ("no_change", False)
        assert [bounds.trimmed for _, bounds in result.tests.values()] == [4, 4]
        assert [outlier.pair for outlier in result.outliers] == [1, 9]


def test_the_detectable_effect_of_a_trimmed_interval_has_its_degrees_of_freedom() -> None:
    effect = mde(0.01, 12, LOOK_ALPHA, 0.01, trimmed=2)
    noncentrality = (effect - 0.01) / 0.01 * math.sqrt(12)
    quantile = widening(12) * stats.t.ppf(1 - LOOK_ALPHA / 2, 7)
    assert stats.nct.sf(quantile, 7, noncentrality) == pytest.approx(0.8, abs=1e-6)
