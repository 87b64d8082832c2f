"""The always-valid interval: compared with its definition as an integral, by properties, and under repeated looks."""

import importlib
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import trapezoid

from regbot.stats.anytime import ANYTIME_ALPHA, PRIOR_PAIRS, anytime_interval, decide_anytime
from regbot.stats.paired import Thresholds, interval

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
LOG_RATIOS = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=8, max_size=40)


def noise(pairs: int, seed: int, sd: float = 0.01) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, sd) for _ in range(pairs)]


def evidence(values: list[float], mean: float) -> float:
    """Return the evidence against ``mean`` by integration over a grid of mean / sd and log sd, for values of size 1."""
    shifts, log_sd = np.linspace(-8, 8, 801), np.linspace(math.log(0.1), math.log(50), 801)
    scaled = (np.array(values) - mean)[:, None, None] / np.exp(log_sd)[None, None, :]
    # d(sd) / sd is d(log sd): each value has density normal(value / sd - shift) / sd.
    squares = ((scaled - shifts[None, :, None]) ** 2).sum(axis=0)
    over_sd = trapezoid(np.exp(-squares / 2 - len(values) * log_sd), log_sd, axis=1)
    mixture = trapezoid(stats.norm(0, PRIOR_PAIRS**-0.5).pdf(shifts) * over_sd, shifts)
    return float(mixture / over_sd[len(shifts) // 2])


class TestInterval:
    @pytest.mark.parametrize("alpha", [0.05, 0.01])
    def test_interval_ends_have_evidence_one_over_alpha(self, alpha: float) -> None:
        values = noise(10, seed=1, sd=1.0)
        bounds = anytime_interval(values, alpha)
        for end in (bounds.low, bounds.high):
            assert evidence(values, end) == pytest.approx(1 / alpha, rel=1e-3)
        assert evidence(values, bounds.estimate) < 1

    def test_few_pairs_prove_nothing_even_if_they_agree(self) -> None:
        for values in ([0.05] * 4, [0.05, 0.0501, 0.0499, 0.05]):
            bounds = anytime_interval(values, ANYTIME_ALPHA)
            assert (bounds.low, bounds.high) == (-math.inf, math.inf)
            assert bounds.estimate == pytest.approx(0.05)

    @pytest.mark.parametrize(("tests", "first"), [(1, 6), (2, 8), (4, 8)])
    def test_interval_is_finite_from_the_documented_number_of_pairs(self, tests: int, first: int) -> None:
        alpha = ANYTIME_ALPHA / tests
        assert anytime_interval(noise(first - 2, seed=1), alpha).high == math.inf
        assert anytime_interval(noise(first, seed=1), alpha).high < 1

    def test_enough_identical_pairs_have_zero_width(self) -> None:
        bounds = anytime_interval([0.03] * 12, ANYTIME_ALPHA)
        assert bounds.low == bounds.high == 0.03

    @given(LOG_RATIOS)
    def test_interval_is_wider_than_one_look_with_the_same_centre_and_sd(self, values: list[float]) -> None:
        always, once = anytime_interval(values, 0.005), interval(values, 0.005)
        assert (always.estimate, always.sd, always.pairs, always.alpha) == (once.estimate, once.sd, once.pairs, 0.005)
        assert always.high - always.low >= once.high - once.low

    @given(LOG_RATIOS, st.floats(0.1, 10), st.floats(-0.5, 0.5))
    def test_scales_and_shifts_with_the_log_ratios(self, values: list[float], scale: float, shift: float) -> None:
        before, after = (
            anytime_interval(values, 0.01),
            anytime_interval([scale * value + shift for value in values], 0.01),
        )
        assert after.low == pytest.approx(scale * before.low + shift, abs=1e-8)
        assert after.high == pytest.approx(scale * before.high + shift, abs=1e-8)

    def test_fewer_than_two_pairs_or_non_finite_values_are_refused(self) -> None:
        with pytest.raises(ValueError, match="needs 2"):
            anytime_interval([0.01], 0.01)
        with pytest.raises(ValueError, match="not finite"):
            anytime_interval([0.01, math.nan], 0.01)

    def test_scale_is_within_3_percent_of_the_best_from_12_to_60_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def width(pairs: int, scale: float) -> float:
            monkeypatch.setattr(module, "PRIOR_PAIRS", scale)
            return anytime_interval([(-1.0) ** pair for pair in range(pairs)], ANYTIME_ALPHA / 2).high

        module = importlib.import_module("regbot.stats.anytime")
        scales = [0.05 * step for step in range(1, 100)]
        for pairs in range(12, 61, 4):
            assert width(pairs, PRIOR_PAIRS) < 1.03 * min(width(pairs, scale) for scale in scales)
        assert min(scales, key=lambda scale: width(20, scale)) == pytest.approx(PRIOR_PAIRS, abs=0.06)

    def test_looking_after_every_block_keeps_the_error_rate(self) -> None:
        """In 800 series of 60 pairs, at most 5% ever miss the truth. With t intervals of one look, four times as many
        do."""
        alpha, series = 0.05, 800
        missed = missed_t = 0
        for seed in range(series):
            values = noise(60, seed)
            looks = [values[:pairs] for pairs in range(4, 61, 2)]
            missed += any(
                not bounds.low <= 0 <= bounds.high for bounds in (anytime_interval(seen, alpha) for seen in looks)
            )
            missed_t += any(not bounds.low <= 0 <= bounds.high for bounds in (interval(seen, alpha) for seen in looks))
        assert missed / series <= alpha
        assert missed_t / series > 4 * alpha


class TestDecision:
    def judge(self, effect: float, pairs: int = 20, tests: int = 2) -> str:
        values = [effect + value for value in noise(pairs, seed=3, sd=0.003)]
        return decide_anytime({"median": values, "mean": values}, tests, THRESHOLDS).decision

    def test_decision_follows_the_rule_of_the_paired_test(self) -> None:
        assert self.judge(math.log1p(0.03)) == "regressed"
        assert self.judge(-math.log1p(0.03)) == "improved"
        assert self.judge(0.0) == "no_change"
        assert self.judge(math.log1p(0.015), pairs=8) == "undecided"

    def test_either_summary_can_regress_and_no_change_needs_both(self) -> None:
        still = noise(20, seed=3, sd=0.003)
        slow, unsure = [value + 0.03 for value in still], [10 * value for value in still]
        for first, second in (("median", "mean"), ("mean", "median")):
            assert decide_anytime({first: still, second: slow}, 2, THRESHOLDS).decision == "regressed"
            assert decide_anytime({first: still, second: unsure}, 2, THRESHOLDS).decision == "undecided"

    def test_all_pairs_are_used_at_alpha_one_percent_divided_by_the_tests(self) -> None:
        values = noise(26, seed=4)
        result = decide_anytime({"median": values}, 4, THRESHOLDS)
        assert result.alpha == ANYTIME_ALPHA / 4
        assert result.tests["median"][1] == anytime_interval(values, result.alpha)
        assert result.tests["median"][1].pairs == 26

    def test_an_infinite_interval_is_undecided(self) -> None:
        result = decide_anytime({"median": [0.5, 0.51, 0.5, 0.51]}, 1, THRESHOLDS)
        assert result.decision == result.tests["median"][0] == "undecided"
        assert result.tests["median"][1].high == math.inf

    def test_invalid_input_is_refused(self) -> None:
        with pytest.raises(ValueError, match="the same number of pairs"):
            decide_anytime({"median": [0.0, 0.1], "mean": [0.0]}, 2, THRESHOLDS)
        with pytest.raises(ValueError, match="the same number of pairs"):
            decide_anytime({}, 2, THRESHOLDS)
        with pytest.raises(ValueError, match="but there are 2 summaries"):
            decide_anytime({"median": [0.0, 0.1], "mean": [0.0, 0.1]}, 1, THRESHOLDS)
