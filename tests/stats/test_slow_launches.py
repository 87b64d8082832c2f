"""The search for slow launches, and what is decided without them, by hand-worked examples."""

import math
from typing import Any

import pytest

from regbot.records.verdict import SlowLaunch
from regbot.stats.paired import ClassNoise, Thresholds, sequential_test
from regbot.stats.slow_launches import find_outliers, has_more_slow_launches, set_aside
from regbot.stats.summary import percent

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
NOISE = [0.001, -0.002, 0.003, -0.001, 0.002, -0.003, 0.0015, -0.0015, 0.0005, -0.0005, 0.0025, -0.0025]
"""Twelve pairs of a quiet node."""
SLOW = math.log(1.3)
CLASS = ClassNoise({"median": 0.002, "mean": 0.002}, 30, {"median": [0.0] * 12, "mean": [0.0] * 12})


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

    def test_the_scale_is_at_least_that_of_the_class(self) -> None:
        assert find_outliers([1, 2, 3, 4, 5, 6, 27.8], class_sd=2.97) == {6: pytest.approx(23.8)}
        assert find_outliers([1, 2, 3, 4, 5, 6, 27.8], class_sd=2.98) == {}
        assert find_outliers([0, 0, 0, 8.1], class_sd=1.0) == {3: pytest.approx(8.1)}

    @pytest.mark.parametrize(("slow", "kept"), [([], 8), ([3], 7), ([3, 5], 6), ([1, 3, 5], 8)])
    def test_at_most_a_quarter_of_the_pairs_is_set_aside(self, slow: list[int], kept: int) -> None:
        result = set_aside([SlowLaunch(pair=pair + 1, arm="head", slower_pct=30.0) for pair in slow], 8)
        assert len(result) == kept
        assert result == [pair for pair in range(8) if kept == 8 or pair not in slow]


class TestLooks:
    def test_with_the_noise_of_the_class_four_pairs_show_a_slow_launch(self) -> None:
        result = look(slowed({1: SLOW}, by=0.05)[:4], noise=CLASS)
        assert (result.decision, result.pairs, len(result.outliers)) == ("regressed", 4, 1)
        assert look(slowed({1: SLOW}, by=0.05)[:4]).outliers == ()

    def test_slow_launches_of_base_or_of_both_arms_do_not_hide_that_nothing_changed(self) -> None:
        for pairs in ({1: -SLOW}, {1: SLOW, 6: -SLOW}):
            result = look(slowed(pairs))
            assert (result.decision, result.pairs, result.withheld) == ("no_change", 8, False)
            assert [launch.pair - 1 for launch in result.outliers] == sorted(pairs)

    def test_one_slow_launch_of_head_takes_twelve_pairs(self) -> None:
        """After 8 pairs, others may follow. One in 12 pairs is no sign that head has more of them."""
        first = look(slowed({1: SLOW})[:8])
        assert (first.decision, first.pairs, first.withheld, first.final) == ("undecided", 8, True, False)
        assert [decision for decision, _ in first.tests.values()] == ["no_change", "no_change"]
        result = look(slowed({1: SLOW}))
        assert (result.decision, result.pairs, result.withheld) == ("no_change", 12, False)
        (launch,) = result.outliers
        assert (launch.pair, launch.arm) == (2, "head")
        assert launch.slower_pct == pytest.approx(percent(SLOW), abs=0.4)

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
        launches = [SlowLaunch(pair=number, arm=arm, slower_pct=30.0) for number, arm in enumerate(arms, 1)]
        assert has_more_slow_launches(launches, pairs) == withheld
