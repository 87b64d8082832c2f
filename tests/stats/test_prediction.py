"""Prediction intervals and the stored gate: hand-worked examples, properties, and simulated sessions."""

import math

import pytest

from regbot.stats.paired import Thresholds
from regbot.stats.prediction import SESSION_ALPHA, prediction_interval, session_level, stored_gate

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
BOUND = math.log1p(0.05)
SPREAD = (-1.5, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.5)
"""Eight levels around 0 with a standard deviation of 1."""


def stored(sd: float, sessions: int = 8) -> dict[str, list[float]]:
    """Levels by summary: mean 0, standard deviation ``sd``."""
    values = [sd * value for value in SPREAD] * (sessions // 8)
    return {"median": values, "mean": list(values)}


def slower(percent: float) -> float:
    return math.log1p(percent / 100)


class TestLevel:
    def test_level_is_the_mean_of_as_many_first_runs_as_head_has(self) -> None:
        assert session_level([0.01, 0.02, 0.06]) == pytest.approx(0.03)
        assert session_level([0.01, 0.02, 0.06, 9.0, 9.0]) == pytest.approx(0.03)


class TestPrediction:
    def test_worked_by_hand(self) -> None:
        """1, 2, 3 percent: mean 2, sd 1; t at 0.975 with 2 degrees is 4.3027, times sqrt(4/3)."""
        result = prediction_interval([0.01, 0.02, 0.03], 0.05)
        half = 4.302653 * 0.01 * math.sqrt(4 / 3)
        assert result.estimate == pytest.approx(0.03)
        assert result.sd == pytest.approx(0.01)
        assert (result.low, result.high) == pytest.approx((0.03 - half, 0.03 + half), rel=1e-6)
        assert (result.count, result.alpha) == (3, SESSION_ALPHA)


class TestNewNode:
    def test_worked_by_hand(self) -> None:
        """Nodes at 1% and 3%, two sessions each, 0.2% apart: the variance of the means is 2e-4, and half of 2e-6 is
        added; one degree of freedom."""
        stored, nodes = [0.009, 0.011, 0.029, 0.031], ["a", "a", "b", "b"]
        result = prediction_interval(stored, 0.05, nodes=nodes)
        sd = math.sqrt(2e-4 + 2e-6 / 2)
        half = 12.7062 * sd * math.sqrt(3 / 2)
        assert (result.estimate, result.sd, result.count) == (pytest.approx(0.03), pytest.approx(sd), 2)
        assert result.high - result.estimate == pytest.approx(half, rel=1e-4)
        assert prediction_interval(stored, 0.05).count == 4

    def test_one_node_is_refused(self) -> None:
        with pytest.raises(ValueError, match="needs 2 stored nodes; there are 1"):
            prediction_interval([0.0, 0.01], 0.0, nodes=["a", "a"])


class TestStoredGate:
    def judge(self, sd: float, median: float, mean: float, tests: int = 2, bound: float = BOUND) -> str:
        head = {"median": slower(median), "mean": slower(mean)}
        return stored_gate(stored(sd, 40), head, tests, THRESHOLDS, bound)[0]

    def test_the_stored_gate_can_fail_a_change(self) -> None:
        assert self.judge(0.005, 5.0, 0.0) == "regressed"
        assert self.judge(0.005, 0.0, 5.0) == "regressed"

    def test_the_stored_gate_decides_no_change_and_improved_by_the_interval(self) -> None:
        assert self.judge(0.005, 0.0, 0.0) == "no_change"
        assert self.judge(0.005, -5.0, -5.0) == "improved"

    def test_an_undecided_result_whose_interval_contains_0_is_within_the_bound(self) -> None:
        assert self.judge(0.01, 0.5, 0.0) == "within_bound"
        assert self.judge(0.01, 0.5, 0.0, bound=slower(2.0)) == "undecided"

    def test_a_head_outside_the_interval_without_proof_is_undecided(self) -> None:
        assert self.judge(0.01, 2.8, 0.0) == "undecided"
        assert self.judge(0.01, 2.8, 0.0, bound=math.inf) == "undecided"

    def test_the_error_is_shared_among_the_primary_tests(self) -> None:
        head = {"median": 0.0, "mean": 0.0}
        _, tests = stored_gate(stored(0.01), head, 4, THRESHOLDS, BOUND)
        expected = prediction_interval(stored(0.01)["median"], 0.0, SESSION_ALPHA / 4)
        assert tests["median"] == ("undecided", expected)
        assert self.judge(0.01, 3.7, 0.0, tests=2) == "regressed"
        assert self.judge(0.01, 3.7, 0.0, tests=20) == "undecided"
