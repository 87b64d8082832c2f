"""The paired test by hand-worked examples, by properties, and against scipy's own t interval."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
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
from regbot.stats.slow_launches import find_outliers
from regbot.stats.summary import summarise
from regbot.stats.unpaired import welch

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
REASONABLE = st.floats(-0.5, 0.5, allow_nan=False).map(lambda value: round(value, 6))
LOG_RATIOS = st.lists(REASONABLE, min_size=2, max_size=24)
STEP_TIMES = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=60)


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

    @given(STEP_TIMES, st.floats(0.5, 2.0))
    def test_a_slowdown_of_every_step_moves_both_by_its_log(self, steps: list[float], factor: float) -> None:
        before, after = summarise(steps), summarise([step * factor for step in steps])
        for name in before:
            assert after[name] - before[name] == pytest.approx(math.log(factor), abs=1e-9)


class TestInterval:
    @given(LOG_RATIOS.filter(lambda values: len(set(values)) > 1), st.floats(0.001, 0.3))
    def test_is_the_one_that_scipy_gives(self, values: list[float], alpha: float) -> None:
        mean, error = float(stats.tmean(values)), float(stats.sem(values))
        expected = stats.t.interval(1 - alpha, len(values) - 1, loc=mean, scale=error)
        result = interval(values, alpha)
        assert (result.low, result.high) == pytest.approx(expected, rel=1e-7, abs=1e-9)

    @given(LOG_RATIOS)
    def test_swapping_the_arms_negates_it(self, values: list[float]) -> None:
        swapped, back = interval(values, 0.02), interval([-value for value in values], 0.02)
        assert (back.low, back.estimate, back.high) == pytest.approx((-swapped.high, -swapped.estimate, -swapped.low))

    @given(REASONABLE, st.integers(2, 12))
    def test_pairs_that_agree_to_the_last_bit_have_no_width(self, value: float, pairs: int) -> None:
        result = interval([value] * pairs, 0.02)
        assert result.sd == 0
        assert result.low == result.high == result.estimate == pytest.approx(value)

    def test_a_known_sd_is_used_with_normal_quantiles(self) -> None:
        result = interval([0.03, 0.03, 0.03, 0.03], 0.05, known_sd=0.01)
        assert (result.low, result.high) == pytest.approx((0.03 - 1.959964 * 0.005, 0.03 + 1.959964 * 0.005))
        assert result.sd == 0.01

    def test_one_pair_has_no_variance_of_its_own(self) -> None:
        with pytest.raises(ValueError, match="needs 2"):
            interval([0.01], 0.02)
        assert interval([0.01], 0.02, known_sd=0.01).pairs == 1

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

    @given(REASONABLE, st.floats(0, 0.2), st.floats(0, 0.2))
    def test_a_slower_head_is_never_judged_milder(self, low: float, width: float, shift: float) -> None:
        if decide(bounds(low, low + width), THRESHOLDS) == "regressed":
            assert decide(bounds(low + shift, low + width + shift), THRESHOLDS) == "regressed"

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

    def test_an_improvement_needs_the_other_summary_not_to_be_slower(self) -> None:
        """A result that may be an improvement and is no slowdown is undecided."""
        tests: list[tuple[Decision, Interval]] = [
            ("improved", bounds(-0.05, -0.03)),
            ("undecided", bounds(-0.05, 0.01)),
        ]
        assert combine(tests, THRESHOLDS) == "improved"


QUIET = [0.001, -0.001] * 6
"""Twelve pairs around 0, which the first look decides as unchanged."""
WIDE = [0.05, -0.05] * 6
"""Twelve pairs that decide nothing."""


def shifted(values: list[float], by: float) -> list[float]:
    return [value + by for value in values]


class TestLooks:
    def look(self, median: list[float], mean: list[float] | None = None, **options: Any) -> Any:
        tests = {"median": median} if mean is None else {"median": median, "mean": mean}
        return sequential_test(tests, options.pop("primary_tests", len(tests)), THRESHOLDS, **options)

    def test_below_four_pairs_there_is_no_look(self) -> None:
        assert self.look(shifted(QUIET, 0.5)[:3]) is None

    def test_a_clear_regression_stops_at_the_first_look(self) -> None:
        result = self.look(shifted(QUIET, 0.05))
        assert (result.decision, result.pairs, result.look, result.unused, result.final) == ("regressed", 4, 1, 8, True)

    def test_an_open_first_look_is_followed_by_the_second(self) -> None:
        result = self.look([0.05, -0.05, 0.05, -0.05, 0.0, 0.0, 0.0, 0.0])
        assert (result.decision, result.pairs, result.look) == ("undecided", 8, 2)
        assert not result.final

    def test_twelve_open_pairs_are_the_end(self) -> None:
        result = self.look([*WIDE, 0.0, 0.0])
        assert (result.decision, result.pairs, result.look, result.unused) == ("undecided", 12, 3, 2)
        assert result.final

    def test_the_error_of_a_look_is_shared_among_the_primary_tests(self) -> None:
        for tests in (1, 2, 4, 12):
            result = self.look(QUIET, primary_tests=tests)
            assert result.alpha == LOOK_ALPHA / tests
            assert result.tests["median"][1] == look_interval(QUIET[: result.pairs], LOOK_ALPHA / tests)

    def test_no_change_of_the_median_waits_for_the_mean(self) -> None:
        result = self.look(QUIET, WIDE)
        assert (result.decision, result.pairs) == ("undecided", 12)

    def test_an_improvement_is_undecided_while_the_mean_may_be_slower(self) -> None:
        assert self.look(shifted(QUIET, -0.05), WIDE).decision == "undecided"
        assert self.look(shifted(QUIET, -0.05), shifted(WIDE, -0.2)).decision == "improved"

    @settings(max_examples=200)
    @given(st.lists(st.floats(-0.06, 0.06).map(lambda value: round(value, 6)), min_size=4, max_size=14))
    def test_swapping_the_arms_swaps_the_decision_without_slow_launches(self, values: list[float]) -> None:
        assume(not any(find_outliers(values[:pairs]) for pairs in LOOKS[1:] if pairs <= len(values)))
        there, back = self.look(values), self.look([-value for value in values])
        swapped: dict[Decision, Decision] = {"regressed": "improved", "improved": "regressed"}
        assert back.decision == swapped.get(there.decision, there.decision)
        assert (back.pairs, back.unused) == (there.pairs, there.unused)

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
    def test_the_detectable_effect_by_hand(self) -> None:
        """Six pairs at 5%, known sd: the normal's quantiles at 0.975 and 0.8 are 1.9600 and 0.8416."""
        known = mde(0.01, 6, 0.05, 0.002, known=True)
        assert known == pytest.approx(0.002 + (1.959964 + 0.841621) * 0.01 / math.sqrt(6))

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
