"""Intervals of unpaired runs: the prediction interval of head, and what an undecided difference would need."""

import math
from statistics import NormalDist, stdev

import numpy as np
import pytest
from scipy import stats

from regbot.stats.paired import Thresholds, decide
from regbot.stats.prediction import MIN_SESSIONS
from regbot.stats.unpaired import detectable_excess, predict_head, sessions_needed, tipping_sd

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
ALPHA = 0.025


class TestPredictHead:
    def test_it_is_the_prediction_interval_of_one_more_run(self) -> None:
        base = [0.01, -0.01, 0.0, 0.005, -0.005, 0.002, -0.002, 0.0]
        interval = predict_head(base, [0.05], ALPHA)
        half_width = stats.t.ppf(1 - ALPHA / 2, 7) * stdev(base) * math.sqrt(9 / 8)
        assert (interval.estimate, interval.sessions) == (pytest.approx(0.05), 8)
        assert (interval.low, interval.high) == pytest.approx((0.05 - half_width, 0.05 + half_width))

    def test_several_head_runs_count_with_their_mean(self) -> None:
        base = [0.01, -0.01, 0.0, 0.005, -0.005, 0.002, -0.002, 0.0]
        assert predict_head(base, [0.03, 0.05], ALPHA) == predict_head(base, [0.04], ALPHA)

    def test_it_reaches_as_far_as_the_base_runs_lie_from_their_mean(self) -> None:
        """One of forty launches is slow: the normal interval would exclude another such launch."""
        base = [0.0] * 39 + [0.05]
        interval = predict_head(base, [0.05], ALPHA)
        assert interval.low == pytest.approx(0.0)
        assert interval.high > interval.estimate

    def test_it_needs_a_head_run(self) -> None:
        with pytest.raises(ValueError, match="one run"):
            predict_head([0.0, 1.0], [], ALPHA)

    @pytest.mark.parametrize("slow_rate", [0.0, 0.12])
    def test_it_calls_few_heads_slower_that_are_slower_by_the_indifference(self, slow_rate: float) -> None:
        """Also where 12% of the launches are slower by 2.5%, which no normal interval describes."""
        rng = np.random.default_rng(20260824)
        runs = rng.normal(0, 0.01, (4000, 21)) + 0.025 * (rng.random((4000, 21)) < slow_rate)
        alarms = sum(
            decide(predict_head(row[:20].tolist(), [row[20] + THRESHOLDS.eps], ALPHA), THRESHOLDS) == "regressed"
            for row in runs
        )
        assert alarms / len(runs) < 0.035


class TestNeeds:
    def test_a_difference_decides_up_to_the_tipping_noise_and_not_beyond(self) -> None:
        z = NormalDist().inv_cdf(1 - ALPHA / 2)
        for estimate, limit in ((0.05, 0.05 - THRESHOLDS.eps), (-0.05, 0.05 - THRESHOLDS.eps), (0.0, THRESHOLDS.delta)):
            assert tipping_sd(estimate, 0.0, ALPHA, THRESHOLDS) == pytest.approx(limit / z)
            sd = tipping_sd(estimate, 0.01, ALPHA, THRESHOLDS)
            assert math.hypot(0.01, z * sd) == pytest.approx(limit)

    def test_an_interval_that_decides_nothing_has_no_tipping_noise(self) -> None:
        assert tipping_sd(0.05, 0.06, ALPHA, THRESHOLDS) == 0.0

    def test_enough_sessions_prove_an_effect_with_probability_eight_in_ten(self) -> None:
        sessions = sessions_needed(0.01, 0.05, ALPHA, THRESHOLDS.eps)
        assert sessions is not None
        assert THRESHOLDS.eps + detectable_excess(0.01, sessions, ALPHA) <= 0.05
        assert sessions == MIN_SESSIONS or THRESHOLDS.eps + detectable_excess(0.01, sessions - 1, ALPHA) > 0.05

    def test_no_number_of_sessions_makes_one_noisy_launch_precise(self) -> None:
        assert sessions_needed(0.02, 0.02, ALPHA, THRESHOLDS.eps) is None
        assert sessions_needed(0.001, 0.05, ALPHA, THRESHOLDS.eps) == MIN_SESSIONS
