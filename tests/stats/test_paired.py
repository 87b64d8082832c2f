"""The paired test by hand-worked examples, by properties, and against scipy's own t interval."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from regbot.records.calibration_summary import PairNoise
from regbot.records.verdict import Decision
from regbot.stats.paired import (
    LOOKS,
    ClassNoise,
    Interval,
    SequentialTest,
    Thresholds,
    combine,
    correlation_factor,
    decide,
    interval,
    is_noisier,
    look_alpha,
    mde,
    pairs_needed,
    sequential_test,
    session_mde,
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
        result = interval([0.03, 0.03, 0.03, 0.03], 0.05, 0.01, math.inf)
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
            (-2.1, 1.9, "within_bound"),
            (-9.0, 0.0, "within_bound"),
            (-9.0, -1.1, "improved"),
            (-1.9, -1.1, "improved"),
            (-9.0, -0.9, "undecided"),  # more pairs may prove an improvement
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
        assert decide(bounds(-delta, 0.0), THRESHOLDS) == "within_bound"
        assert decide(bounds(-delta, -1e-9), THRESHOLDS) == "undecided"

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
            ("within_bound", "no_change", "within_bound"),
            ("within_bound", "within_bound", "within_bound"),
            ("within_bound", "improved", "improved"),
            ("within_bound", "undecided", "undecided"),
        ],
    )
    def test_median_and_mean_give_one_decision(self, median: Decision, mean: Decision, expected: Decision) -> None:
        reach = {
            "regressed": (0.03, 0.05),
            "improved": (-0.05, -0.03),
            "no_change": (-0.01, 0.01),
            "within_bound": (-0.05, 0.01),
        }
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
        assert (result.decision, result.pairs, result.unused, result.final) == ("regressed", 4, 8, True)

    @pytest.mark.parametrize(
        ("pairs", "tests", "alpha"),
        [(12, 1, 0.066), (12, 2, 0.066 / 4), (4, 1, 0.022), (2, 8, 0.011 / 64)],
    )
    def test_the_error_of_a_look_grows_with_the_pairs_and_is_shared_among_the_tests(
        self, pairs: int, tests: int, alpha: float
    ) -> None:
        assert look_alpha(pairs, tests) == pytest.approx(alpha)

    @settings(max_examples=200)
    @given(st.lists(REASONABLE, min_size=4, max_size=14))
    def test_the_pairs_used_are_a_look_and_the_rest_is_unused(self, values: list[float]) -> None:
        result = self.look(values)
        assert result.pairs in LOOKS
        assert result.alpha == look_alpha(result.pairs, 1)
        assert result.pairs + result.unused == len(values)
        assert result.final == (result.decision != "undecided" or result.pairs == 12)

    def test_a_shift_of_all_pairs_widens_the_interval_on_both_sides(self) -> None:
        plain, wide = self.look(QUIET), self.look(QUIET, offset=0.01)
        for (_, first), (_, second) in zip(plain.tests.values(), wide.tests.values(), strict=True):
            assert (second.low, second.high) == pytest.approx((first.low - 0.01, first.high + 0.01))
        assert self.look(shifted(QUIET, 0.018)).decision == "regressed"
        assert self.look(shifted(QUIET, 0.018), offset=0.01).decision == "undecided"
        assert self.look(shifted(QUIET, 0.018), offset=0.01, known_sd=0.001).decision == "undecided"

    def test_a_look_whose_runs_may_not_decide_is_passed_over(self) -> None:
        def reason(pairs: int, decision: Decision) -> str:
            return f"{decision}, but not after {pairs}" if pairs < 8 else ""

        result = self.look(shifted(QUIET, 0.05), reason_to_go_on=reason)
        assert (result.decision, result.pairs, result.barred) == ("regressed", 8, "")
        early = self.look(shifted(QUIET, 0.05)[:6], reason_to_go_on=reason)
        assert (early.decision, early.pairs, early.final) == ("undecided", 4, False)
        assert early.barred == "regressed, but not after 4"


CLASS = PairNoise(df=30, median_sd=0.005, mean_sd=0.005)


def with_class(values: list[float], base: list[float] | None = None, noise: PairNoise = CLASS) -> SequentialTest | None:
    """Judge pairs by one summary. ``base`` are the levels of the base runs, by default without any scatter."""
    class_noise = ClassNoise.from_record(noise, {"median": base or [0.0] * len(values)})
    return sequential_test({"median": values}, 1, THRESHOLDS, noise=class_noise)


class TestNoiseOfTheClass:
    def test_correlated_pairs_widen_the_interval(self) -> None:
        """By hand: for two pairs sqrt(1 + 0.2), for four sqrt(1 + 2 (3/4 0.2 + 2/4 0.04 + 1/4 0.008))."""
        assert [correlation_factor(pairs) for pairs in (1, 2, 4)] == pytest.approx(
            [1, math.sqrt(1.2), math.sqrt(1.344)]
        )

    def test_the_interval_is_a_moderated_t(self) -> None:
        """Four pairs with squares of 2e-4, and a class of 0.005 with 16 degrees of freedom."""
        values = [0.01, -0.01, 0.0, 0.0]
        own, moderated = (interval(values, 0.02, 0.005, df, correlation_factor(4)) for df in (0, 16))
        for result, df, squares in ((own, 3, 2e-4), (moderated, 19, 2e-4 + 16 * 0.005**2)):
            sd = math.sqrt(squares / df)
            half_width = correlation_factor(4) * stats.t.ppf(0.99, df) * sd / 2
            assert (result.estimate, result.sd, result.high) == pytest.approx((0.0, sd, half_width))
        assert (own.prior_df, moderated.prior_df) == (0, 16)

    @pytest.mark.parametrize(("df", "counted"), [(9, 9), (28, 28), (30, 28)])
    def test_the_class_counts_28_degrees_of_freedom_and_never_more_than_it_has(self, df: int, counted: int) -> None:
        result = with_class([0.001, -0.001], noise=CLASS.model_copy(update={"df": df}))
        assert result is not None
        assert result.tests["median"][1].prior_df == counted

    def test_a_session_is_noisier_if_its_runs_scatter_more_than_the_class(self) -> None:
        """Two pairs: twice the mean variance of base's and of head's runs is compared with that of a pair."""
        limit = math.sqrt(stats.f.ppf(1 - 0.33 / 2, 2, 30)) * 0.005
        for share, expected in ((0.999, False), (1.001, True)):
            # base 0, 0 and head 0, d have the variance d^2 / 4 of a run
            d = share * limit * math.sqrt(2)
            for base, ratios in (([0.0, 0.0], [0.0, d]), ([0.0, d], [0.0, -d])):
                noise = ClassNoise.from_record(CLASS, {"median": base, "mean": [0.0, 0.0]})
                assert is_noisier({"median": ratios, "mean": [0.0, 0.0]}, noise) is expected

    def test_a_noisier_session_is_judged_by_its_own_pairs(self) -> None:
        result = with_class([0.001, -0.001, 0.001, -0.001], base=[0.0, 0.1, 0.0, 0.1])
        assert result is not None
        assert result.tests["median"][1].prior_df == 0

    def test_the_first_block_may_pass_a_change_and_never_fails_it(self) -> None:
        for by, decision in ((0.0, "no_change"), (0.05, "undecided"), (-0.05, "improved")):
            result = with_class([by, by])
            assert result is not None
            assert (result.decision, result.pairs) == (decision, 2), by

    def test_there_is_a_look_after_every_block(self) -> None:
        results = [with_class(shifted([0.01, -0.01] * 6, 0.015)[:pairs]) for pairs in range(2, 13, 2)]
        assert [result.pairs for result in results if result] == [2, 4, 6, 8, 10, 12]


class TestPlanning:
    @pytest.mark.parametrize("prior_df", [0, 16])
    @pytest.mark.parametrize("pairs", [2, 4, 12, 60])
    def test_the_detectable_effect_is_proven_with_probability_0_8(self, pairs: int, prior_df: int) -> None:
        noncentrality = (mde(0.01, pairs, 0.02, 0.002, prior_df=prior_df) - 0.002) / 0.01 * math.sqrt(pairs)
        df = prior_df + pairs - 1
        quantile = correlation_factor(pairs) * stats.t.ppf(0.99, df)
        assert stats.nct.sf(quantile, df, noncentrality) == pytest.approx(0.8, abs=1e-4)

    def test_a_longer_session_has_the_error_of_its_own_look(self) -> None:
        intervals = [Interval(0.0, -0.01, 0.01, sd, 4, look_alpha(4, 2), 16) for sd in (0.004, 0.005)]
        expected = mde(0.005, 12, look_alpha(12, 2), 0.01, prior_df=16)
        assert session_mde(intervals, 12, 0.01) == pytest.approx(expected)

    @given(st.floats(1e-5, 0.05), st.floats(0.001, 0.05), st.sampled_from((0.0, math.inf)))
    def test_the_answer_is_the_fewest_pairs_that_suffice(self, sd: float, alpha: float, prior_df: float) -> None:
        result = pairs_needed(sd, alpha, THRESHOLDS, prior_df)
        if result is None:
            assert mde(sd, 1000, alpha, THRESHOLDS.eps, prior_df) > THRESHOLDS.delta
            return
        assert mde(sd, result, alpha, THRESHOLDS.eps, prior_df) <= THRESHOLDS.delta
        assert result == LOOKS[0] or mde(sd, result - 1, alpha, THRESHOLDS.eps, prior_df) > THRESHOLDS.delta


class TestWelch:
    @given(
        st.lists(REASONABLE, min_size=2, max_size=9, unique=True),
        st.lists(REASONABLE, min_size=2, max_size=9, unique=True),
    )
    def test_is_the_one_that_scipy_gives(self, base: list[float], head: list[float]) -> None:
        expected = stats.ttest_ind(head, base, equal_var=False).confidence_interval(0.98)
        result = welch(base, head, 0.02)
        assert (result.low, result.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
