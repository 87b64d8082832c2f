"""The screen by hand-worked examples, by properties, and by sessions whose truth is known."""

import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats import (
    LEAST_SESSIONS,
    SCREEN_ALPHA,
    SCREEN_RUNS,
    Thresholds,
    level,
    prediction,
    stored_gate,
)
from regbot.stats.screen import screen

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
BOUND = math.log1p(0.05)
SPREAD = (-1.5, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.5)
"""Eight levels around 0 with a standard deviation of 1."""
LEVELS = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=40)


def stored(sd: float, sessions: int = 8) -> dict[str, list[float]]:
    """Levels by summary: mean 0, standard deviation ``sd``."""
    values = [sd * each for each in SPREAD] * (sessions // 8)
    return {"median": values, "mean": list(values)}


def slower(percent: float) -> float:
    return math.log1p(percent / 100)


class TestLevel:
    def test_is_the_mean_of_the_first_runs_as_many_as_head_has(self) -> None:
        assert level([0.01, 0.02, 0.06]) == pytest.approx(0.03)
        assert level([0.01, 0.02, 0.06, 9.0, 9.0]) == pytest.approx(0.03)

    def test_a_session_of_fewer_runs_has_none(self) -> None:
        with pytest.raises(ValueError, match=f"2 runs has no level; {SCREEN_RUNS} are needed"):
            level([0.01, 0.02])

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_run_without_a_finite_summary_is_refused(self, bad: float) -> None:
        with pytest.raises(ValueError, match="not finite"):
            level([0.0, bad, 0.0])

    def test_a_bad_run_beyond_the_first_is_not_looked_at(self) -> None:
        assert level([0.0, 0.0, 0.0, math.nan]) == 0.0


class TestPrediction:
    def test_worked_by_hand(self) -> None:
        """1, 2, 3 percent: mean 2, sd 1; t at 0.975 with 2 degrees is 4.3027, times sqrt(4/3)."""
        found = prediction([0.01, 0.02, 0.03], 0.05)
        half = 4.302653 * 0.01 * math.sqrt(4 / 3)
        assert found.estimate == pytest.approx(0.03)
        assert found.sd == pytest.approx(0.01)
        assert (found.low, found.high) == pytest.approx((0.03 - half, 0.03 + half), rel=1e-6)
        assert (found.sessions, found.alpha) == (3, SCREEN_ALPHA)

    @given(LEVELS, st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
    def test_the_unit_of_time_does_not_matter(self, values: list[float], head: float, shift: float) -> None:
        here, there = prediction(values, head), prediction([value + shift for value in values], head + shift)
        assert (there.estimate, there.low, there.high) == pytest.approx((here.estimate, here.low, here.high), abs=1e-9)

    @given(LEVELS, st.floats(-0.5, 0.5), st.floats(0, 0.5))
    def test_a_slower_head_shifts_it(self, values: list[float], head: float, effect: float) -> None:
        before, after = prediction(values, head), prediction(values, head + effect)
        assert after.low == pytest.approx(before.low + effect, abs=1e-9)
        assert after.high == pytest.approx(before.high + effect, abs=1e-9)

    def test_one_session_has_no_scatter(self) -> None:
        with pytest.raises(ValueError, match="1 stored sessions have no scatter"):
            prediction([0.01], 0.02)

    @pytest.mark.parametrize(("values", "head"), [([0.0, math.nan], 0.0), ([0.0, 0.1], math.inf)])
    def test_a_level_that_is_not_finite_is_refused(self, values: list[float], head: float) -> None:
        with pytest.raises(ValueError, match="not finite"):
            prediction(values, head)

    def test_sessions_that_agree_to_the_last_bit_have_no_scatter(self) -> None:
        found = prediction([0.1] * 10, 0.1)
        assert (found.estimate, found.low, found.high, found.sd) == (0.0, 0.0, 0.0, 0.0)

    @pytest.mark.parametrize("sessions", [2, 8, 40])
    def test_holds_the_truth_as_often_as_it_says_with_any_number_of_sessions(self, sessions: int) -> None:
        """4000 sessions: 5% is known to within 0.7 points (95%). The fault that it would find: runs as samples."""
        random.seed(sessions)
        misses = 0
        for _ in range(4000):
            *values, head = (random.gauss(0, 0.01) for _ in range(sessions + 1))
            found = prediction(values, head)
            misses += not found.low <= 0 <= found.high
        assert misses / 4000 == pytest.approx(SCREEN_ALPHA, abs=0.012)


class TestScreen:
    def test_passes_a_head_like_the_stored_sessions_with_the_bound_that_it_proves(self) -> None:
        head = {"median": 0.001, "mean": 0.002}
        found = screen(stored(0.01), head, BOUND)
        assert found.passed
        assert found.why == ""
        assert found.bound == found.tests["mean"].high == prediction(stored(0.01)["mean"], 0.002).high
        assert found.tests["median"].alpha == SCREEN_ALPHA  # not shared among the summaries

    @pytest.mark.parametrize("summary", ["median", "mean"])
    @pytest.mark.parametrize(("effect", "word"), [(0.04, "4.1% slower"), (-0.04, "3.9% faster")])
    def test_a_head_outside_by_either_summary_goes_on_to_pairs(self, summary: str, effect: float, word: str) -> None:
        found = screen(stored(0.01), {"median": 0.0, "mean": 0.0, summary: effect}, BOUND)
        assert not found.passed
        assert found.why.startswith(f"by the {summary} step time head is {word} than the mean of 8 stored sessions")

    def test_a_bound_that_is_too_large_goes_on_to_pairs(self) -> None:
        found = screen(stored(0.02), {"median": 0.0, "mean": 0.0}, BOUND)
        assert not found.passed
        assert found.bound == pytest.approx(2.364624 * 0.02 * math.sqrt(9 / 8))
        assert found.why == (
            "stored sessions differ so much that head may be up to 5.1% slower, and a screen passes up to 5%"
        )

    def test_a_bound_that_is_just_reached_passes(self) -> None:
        head = {"median": 0.0, "mean": 0.0}
        bound = screen(stored(0.02), head, BOUND).bound
        assert screen(stored(0.02), head, bound).passed

    def test_it_takes_eight_sessions(self) -> None:
        head = {"median": 0.0, "mean": 0.0}
        seven = {name: values[: LEAST_SESSIONS - 1] for name, values in stored(0.001).items()}
        found = screen(seven, head, BOUND)
        assert not found.passed
        assert found.why == "7 stored sessions of this class and environment are too few; a screen needs 8"
        assert found.tests["median"].sessions == 7
        assert screen(stored(0.001), head, BOUND).passed

    @pytest.mark.parametrize("sessions", [0, 1])
    def test_without_two_sessions_there_is_no_interval(self, sessions: int) -> None:
        found = screen({"median": [0.0] * sessions}, {"median": 0.0}, BOUND)
        assert (found.passed, found.bound, found.tests) == (False, math.inf, {})

    def test_summaries_that_do_not_match_are_refused(self) -> None:
        with pytest.raises(ValueError, match="the same summaries"):
            screen(stored(0.01), {"median": 0.0}, BOUND)
        with pytest.raises(ValueError, match="the same summaries"):
            screen({}, {}, BOUND)
        with pytest.raises(ValueError, match="the same number of stored sessions"):
            screen({"median": [0.0, 0.1], "mean": [0.0]}, {"median": 0.0, "mean": 0.0}, BOUND)

    @pytest.mark.parametrize("effect_of_mean", [0.02, 0.025])
    def test_a_stated_bound_is_false_no_more_often_than_one_end_of_one_interval(self, effect_of_mean: float) -> None:
        """Median slowed by 2%, mean by as much or more: 2.5% of all checks, known to within 0.7 points here (95%)."""
        random.seed(1)
        false = 0
        for _ in range(2000):
            levels: dict[str, list[float]] = {"median": [], "mean": []}
            for _ in range(21):
                session = random.gauss(0, 0.01)
                levels["median"].append(session)
                levels["mean"].append(session + random.gauss(0, 0.004))
            head = {"median": levels["median"].pop() + 0.02, "mean": levels["mean"].pop() + effect_of_mean}
            found = screen(levels, head, math.inf)
            false += found.bound < effect_of_mean
        assert false / 2000 < SCREEN_ALPHA / 2 + 0.007


class TestStoredGate:
    def judge(self, sd: float, median: float, mean: float, tests: int = 2, bound: float = BOUND) -> str:
        head = {"median": slower(median), "mean": slower(mean)}
        return stored_gate(stored(sd, 40), head, tests, THRESHOLDS, bound)[0]

    def test_it_may_fail_a_change(self) -> None:
        assert self.judge(0.005, 5.0, 0.0) == "regressed"
        assert self.judge(0.005, 0.0, 5.0) == "regressed"

    def test_it_says_no_change_and_improved_where_the_interval_does(self) -> None:
        assert self.judge(0.005, 0.0, 0.0) == "no_change"
        assert self.judge(0.005, -5.0, -5.0) == "improved"

    def test_what_is_undecided_and_passes_the_screen_is_within_its_bound(self) -> None:
        assert self.judge(0.01, 0.5, 0.0) == "within_bound"
        assert self.judge(0.01, 0.5, 0.0, bound=slower(2.0)) == "undecided"

    def test_what_lies_outside_and_proves_nothing_is_undecided(self) -> None:
        assert self.judge(0.01, 2.8, 0.0) == "undecided"
        assert self.judge(0.01, 2.8, 0.0, bound=math.inf) == "undecided"

    def test_the_error_is_shared_among_the_primary_tests(self) -> None:
        head = {"median": 0.0, "mean": 0.0}
        _, tests = stored_gate(stored(0.01), head, 4, THRESHOLDS, BOUND)
        expected = prediction(stored(0.01)["median"], 0.0, SCREEN_ALPHA / 4)
        assert tests["median"] == ("undecided", expected)
        assert self.judge(0.01, 3.7, 0.0, tests=2) == "regressed"
        assert self.judge(0.01, 3.7, 0.0, tests=20) == "undecided"
        with pytest.raises(ValueError, match="1 primary tests are fewer than the 2 summaries"):
            stored_gate(stored(0.01), head, 1, THRESHOLDS, BOUND)

    def test_too_few_sessions_decide_nothing_whatever_they_show(self) -> None:
        seven = {name: values[:7] for name, values in stored(0.0001).items()}
        decision, tests = stored_gate(seven, {"median": 1.0, "mean": 1.0}, 2, THRESHOLDS, BOUND)
        assert decision == "undecided"
        assert {each for each, _ in tests.values()} == {"undecided"}
        assert stored_gate({"median": [0.0]}, {"median": 1.0}, 1, THRESHOLDS, BOUND) == ("undecided", {})


def test_the_example_of_the_documentation_is_right() -> None:
    text = (Path(__file__).parents[1] / "docs" / "statistics.md").read_text()
    section = text[text.index("## The screen") : text.index('## `gate = "stored"`')]
    rows = re.findall(r"^\| (?:stored|head)[^|]*\| ([\d. ]+) \|$", section, re.MULTILINE)
    before, (head,) = ([math.log(float(cell)) for cell in row.split()] for row in rows)
    words = " ".join(section.split())
    found = prediction(before, head)
    assert f"s is {100 * found.sd:.3f}" in words
    assert f"head lies {100 * found.estimate:.3f} above their mean" in words
    quantile = float(stats.t.ppf(0.975, 7))
    assert f"{quantile:.3f} · {100 * found.sd:.3f} · √(9/8) = {100 * (found.high - found.estimate):.3f}" in words
    assert f"that is {100 * found.low:.3f} to {100 * found.high:.3f}" in words
    assert screen({"median": before}, {"median": head}, BOUND).passed
    assert f"at most {100 * math.expm1(found.high):.1f}% slower" in words
    section = text[text.index('## `gate = "stored"`') : text.index("## Extra runs")]
    words = " ".join(section.split())
    decision, tests = stored_gate({"median": before}, {"median": head}, 2, THRESHOLDS, BOUND)
    wider = tests["median"][1]
    assert f"t(0.9875, 7) = {float(stats.t.ppf(0.9875, 7)):.3f}" in words
    assert (
        f"± {100 * (wider.high - wider.estimate):.3f}, that is {100 * wider.low:.3f} to {100 * wider.high:.3f}" in words
    )
    assert decision == "within_bound"
    assert f"within bound, at most {100 * math.expm1(wider.high):.1f}% slower" in words
