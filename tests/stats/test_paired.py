"""The paired test by hand-worked examples, by properties, and against scipy's own t interval."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from regbot.records.verdict import Decision
from regbot.stats.paired import (
    LOOK_ALPHA,
    LOOKS,
    Interval,
    Thresholds,
    combine,
    decide,
    interval,
    look_interval,
    mde,
    pairs_needed,
    sequential_test,
    widening,
)
from regbot.stats.summary import summarise
from regbot.stats.unpaired import welch

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
REASONABLE = st.floats(-0.5, 0.5, allow_nan=False).map(lambda value: round(value, 6))
LOG_RATIOS = st.lists(REASONABLE, min_size=2, max_size=24)


def bounds(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.01, 4, 0.02)


def slower(percent: float) -> float:
    return math.log1p(percent / 100)


class TestSummaries:
    def test_the_median_is_that_of_the_logs_and_the_mean_is_arithmetic(self) -> None:
        result = summarise([4.0, 1.0, 2.0, 1.0])
        assert result["median"] == pytest.approx((math.log(1.0) + math.log(2.0)) / 2)
        assert result["mean"] == pytest.approx(math.log(2.0))

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
    def test_an_invalid_step_time_is_named(self, bad: float) -> None:
        with pytest.raises(ValueError, match="steady step 1 took"):
            summarise([1.0, bad, 1.0])


class TestInterval:
    @given(LOG_RATIOS.filter(lambda values: len(set(values)) > 1), st.floats(0.001, 0.3))
    def test_is_the_one_that_scipy_gives(self, values: list[float], alpha: float) -> None:
        mean, error = float(stats.tmean(values)), float(stats.sem(values))
        expected = stats.t.interval(1 - alpha, len(values) - 1, loc=mean, scale=error)
        result = interval(values, alpha)
        assert (result.low, result.high) == pytest.approx(expected, rel=1e-7, abs=1e-9)

    def test_a_known_sd_is_used_with_normal_quantiles(self) -> None:
        result = interval([0.03, 0.03, 0.03, 0.03], 0.05, known_sd=0.01)
        assert (result.low, result.high) == pytest.approx((0.03 - 1.959964 * 0.005, 0.03 + 1.959964 * 0.005))
        assert result.sd == 0.01

    def test_a_log_ratio_that_is_not_finite_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not finite"):
            interval([0.0, math.nan], 0.02)


class TestRule:
    @pytest.mark.parametrize(
        ("low_pct", "high_pct", "expected"),
        [
            (1.1, 9.0, "regressed"),
            (1.1, 1.9, "regressed"),  # inside the threshold, and still proven above the indifference
            (0.9, 9.0, "undecided"),
            (0.9, 1.9, "no_change"),
            (-1.9, 1.9, "no_change"),
            (-1.9, 2.1, "undecided"),
            (-2.1, 1.9, "undecided"),
            (-9.0, -1.1, "improved"),
            (-1.9, -1.1, "improved"),
            (-9.0, -0.9, "undecided"),
            (-9.0, 9.0, "undecided"),
        ],
    )
    def test_each_position_of_the_interval_has_its_decision(
        self, low_pct: float, high_pct: float, expected: str
    ) -> None:
        # Below zero the percentages are those of the inverse ratio, so that swapping the arms is the same question.
        low, high = (math.copysign(slower(abs(value)), value) for value in (low_pct, high_pct))
        assert decide(bounds(low, high), THRESHOLDS) == expected

    def test_a_limit_that_is_only_touched_is_not_passed(self) -> None:
        eps, delta = THRESHOLDS.eps, THRESHOLDS.delta
        assert decide(bounds(eps, 2 * delta), THRESHOLDS) == "undecided"
        assert decide(bounds(-2 * delta, -eps), THRESHOLDS) == "undecided"
        assert decide(bounds(0.0, delta), THRESHOLDS) == "undecided"
        assert decide(bounds(-delta, 0.0), THRESHOLDS) == "undecided"

    @given(REASONABLE, st.floats(0, 0.2))
    def test_swapping_the_arms_turns_a_regression_into_an_improvement(self, low: float, width: float) -> None:
        other: dict[Decision, Decision] = {"regressed": "improved", "improved": "regressed"}
        decision = decide(bounds(low, low + width), THRESHOLDS)
        assert decide(bounds(-low - width, -low), THRESHOLDS) == other.get(decision, decision)

    @pytest.mark.parametrize(
        ("median", "mean", "expected"),
        [
            ("regressed", "regressed", "regressed"),
            ("regressed", "improved", "regressed"),
            ("no_change", "regressed", "regressed"),
            ("undecided", "regressed", "regressed"),
            ("improved", "improved", "improved"),
            ("improved", "no_change", "improved"),
            ("undecided", "improved", "undecided"),
            ("no_change", "no_change", "no_change"),
            ("no_change", "undecided", "undecided"),
            ("undecided", "undecided", "undecided"),
        ],
    )
    def test_median_and_mean_give_one_decision(self, median: Decision, mean: Decision, expected: Decision) -> None:
        reach = {"regressed": (0.03, 0.05), "improved": (-0.05, -0.03), "no_change": (-0.01, 0.01)}
        tests = [(decision, bounds(*reach.get(decision, (-0.05, 0.05)))) for decision in (median, mean)]
        assert combine(tests, THRESHOLDS) == combine(tests[::-1], THRESHOLDS) == expected


QUIET = [0.001, -0.001] * 6
"""Twelve pairs around 0, which the first look decides as unchanged."""


def shifted(values: list[float], by: float) -> list[float]:
    return [value + by for value in values]


class TestLooks:
    def look(self, median: list[float], mean: list[float] | None = None, **options: Any) -> Any:
        tests = {"median": median} if mean is None else {"median": median, "mean": mean}
        return sequential_test(tests, options.pop("primary_tests", len(tests)), THRESHOLDS, **options)

    def test_a_clear_regression_stops_at_the_first_look(self) -> None:
        result = self.look(shifted(QUIET, 0.05))
        assert (result.decision, result.pairs, result.look, result.unused, result.final) == ("regressed", 4, 1, 8, True)

    def test_the_error_of_a_look_is_shared_among_the_primary_tests(self) -> None:
        for tests in (1, 2, 4, 12):
            result = self.look(QUIET, primary_tests=tests)
            assert result.alpha == LOOK_ALPHA / tests
            assert result.tests["median"][1] == look_interval(QUIET[: result.pairs], LOOK_ALPHA / tests)

    @settings(max_examples=200)
    @given(st.lists(REASONABLE, min_size=4, max_size=14))
    def test_the_pairs_used_are_a_look_and_the_rest_is_unused(self, values: list[float]) -> None:
        result = self.look(values)
        assert result.pairs == LOOKS[result.look - 1]
        assert result.pairs + result.unused == len(values)
        assert result.final == (result.decision != "undecided" or result.pairs == 12)


class TestDependentPairs:
    def test_correlated_neighbours_are_rarely_called_slower_at_a_true_one_percent(self) -> None:
        """3000 sessions of normal pairs, correlated by 0.2. Without the wider intervals, 4.6% are called slower."""
        rng = np.random.default_rng(20261124)
        values = rng.normal(0, 0.008, (3000, 12))
        for pair in range(1, 12):
            values[:, pair] = 0.2 * values[:, pair - 1] + math.sqrt(0.96) * values[:, pair]
        slower = 0
        for session in (values + math.log(1.01)).tolist():
            result = sequential_test({"median": session}, 1, THRESHOLDS)
            assert result is not None
            slower += result.decision == "regressed"
        assert slower / 3000 < 0.038


class TestPlanning:
    @pytest.mark.parametrize("alpha", [0.05, LOOK_ALPHA, LOOK_ALPHA / 2, LOOK_ALPHA / 16])
    @pytest.mark.parametrize("pairs", [2, 4, 8, 12, 60])
    def test_the_detectable_effect_is_proven_with_probability_0_8(self, pairs: int, alpha: float) -> None:
        noncentrality = (mde(0.01, pairs, alpha, 0.002) - 0.002) / 0.01 * math.sqrt(pairs)
        quantile = widening(pairs) * stats.t.ppf(1 - alpha / 2, pairs - 1)
        assert stats.nct.sf(quantile, pairs - 1, noncentrality) == pytest.approx(0.8, abs=1e-4)

    @given(st.floats(1e-5, 0.05), st.floats(0.001, 0.05), st.booleans())
    def test_the_answer_is_the_fewest_pairs_that_suffice(self, sd: float, alpha: float, known: bool) -> None:
        result = pairs_needed(sd, alpha, THRESHOLDS, known=known)
        if result is None:
            assert mde(sd, 1000, alpha, THRESHOLDS.eps, known) > THRESHOLDS.delta
            return
        assert mde(sd, result, alpha, THRESHOLDS.eps, known) <= THRESHOLDS.delta
        assert result == LOOKS[0] or mde(sd, result - 1, alpha, THRESHOLDS.eps, known) > THRESHOLDS.delta


class TestWelch:
    @given(
        st.lists(REASONABLE, min_size=2, max_size=9, unique=True),
        st.lists(REASONABLE, min_size=2, max_size=9, unique=True),
    )
    def test_is_the_one_that_scipy_gives(self, base: list[float], head: list[float]) -> None:
        expected = stats.ttest_ind(head, base, equal_var=False).confidence_interval(1 - LOOK_ALPHA)
        result = welch(base, head, LOOK_ALPHA)
        assert (result.low, result.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
