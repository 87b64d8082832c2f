"""Steady state: synthetic runs with a known fault, real histories with their shuffled values as the control."""

import doctest
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import fisher_exact, kendalltau, norm

from regbot.stats import steady
from regbot.stats.steady import Steady, shared_cut, steady_state, unsettled

Array = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT.parent / "shared" / "fixtures"
SEED = 20260801
SECONDS = st.floats(1e-4, 1e3)
LOGS = st.lists(SECONDS, min_size=2, max_size=120)


def noise(steps: int, seed: int = SEED, sd: float = 0.01, rho: float = 0.4) -> Array:
    """Log step times whose neighbours follow each other, as those of real runs do."""
    innovations = np.random.default_rng(seed).normal(0, sd * math.sqrt(1 - rho**2), steps + 30)
    return np.asarray(lfilter([1.0], [1.0, -rho], innovations)[30:])


def warm_up(steps: int, length: int, excess: float = 0.5) -> Array:
    """What a warm-up adds: ``excess`` at the first step, 0.5% of a step after ``length``."""
    return np.log1p(excess * np.exp(-np.arange(steps) * math.log(excess / 0.005) / length))


def seconds(*logs: Array | float) -> Array:
    return 2.5 * np.exp(np.sum(np.broadcast_arrays(*logs), axis=0))


def flagged(runs: list[Array]) -> float:
    return float(np.mean([not steady_state(run).steady for run in runs]))


def iteration_times(name: str) -> Array:
    """The ``iteration-time`` series of a Megatron golden-value file; a first step of "nan" was never measured."""
    path = FIXTURES / "golden" / name
    if not path.exists():
        pytest.skip(f"the real samples are not beside this repository ({name})")
    values = json.loads(path.read_text())["iteration-time"]["values"].values()
    times = np.array([float(value) for value in values])
    return times[np.isfinite(times)]


def maxtext_seconds(name: str) -> list[float]:
    path = FIXTURES / "logs" / name
    if not path.exists():
        pytest.skip(f"the real samples are not beside this repository ({name})")
    return [float(found) for found in re.findall(r"seconds: ([\d.]+)", path.read_text())]


class TestWarmUp:
    def test_a_run_without_one_loses_its_first_ten_steps(self) -> None:
        found = steady_state(seconds(noise(100)))
        assert found == Steady(10, True, found.reason, "changes-and-tail", 1, 100)

    @pytest.mark.parametrize("length", [30, 60])
    def test_the_cut_is_where_at_most_a_percent_or_two_of_it_is_left(self, length: int) -> None:
        left = warm_up(200, length)
        cuts = [steady_state(seconds(noise(200, seed), left)) for seed in range(20)]
        assert sum(found.steady for found in cuts) >= 18
        assert 0.6 * length < float(np.median([found.cut for found in cuts])) < 1.1 * length
        assert float(np.median([left[found.cut] for found in cuts])) < 0.02

    def test_its_length_is_told_whatever_the_floor(self) -> None:
        short, long = (steady_state(seconds(noise(200, sd=0.002), warm_up(200, length))) for length in (8, 60))
        assert short.cut == 10
        assert short.warmup_steps is not None
        assert short.warmup_steps < 10
        assert long.warmup_steps == long.cut > 30

    def test_longer_than_half_the_run_it_leaves_no_steady_state(self) -> None:
        found = steady_state(seconds(noise(100), warm_up(100, 160)))
        assert not found.steady
        assert found.warmup_steps is None

    def test_compilation_alone_is_the_first_step_and_no_warm_up(self) -> None:
        times = seconds(noise(100))
        times[0] *= 40
        assert steady_state(times).warmup_steps == 1


class TestChanges:
    @pytest.mark.parametrize("by", [-0.04, 0.04])
    def test_a_shift_late_in_the_run_is_no_steady_state(self, by: float) -> None:
        shift = by * (np.arange(200) >= 140)
        assert flagged([seconds(noise(200, seed), shift) for seed in range(30)]) == 1
        assert "past the middle" in steady_state(seconds(noise(200), shift)).reason

    @pytest.mark.parametrize("by", [-0.05, 0.05])
    def test_a_trend_is_no_steady_state(self, by: float) -> None:
        assert flagged([seconds(noise(200, seed), np.linspace(0, by, 200)) for seed in range(30)]) >= 0.9

    def test_a_rise_that_no_single_change_shows_is_a_drift(self) -> None:
        runs = [seconds(noise(200, seed, 0.02, 0.6), np.linspace(0, 0.05, 200)) for seed in range(40)]
        assert flagged(runs) >= 0.9
        assert sum("rises by" in steady_state(run).reason for run in runs) > 10

    def test_a_rise_past_the_middle_is_not_cut_off(self) -> None:
        found = steady_state(seconds(noise(200, sd=0.003), 0.04 * (np.arange(200) >= 140)))
        assert (found.cut, found.steady) == (10, False)

    def test_a_change_of_less_than_a_percent_is_none(self) -> None:
        assert flagged([seconds(noise(200, seed, 0.001), 0.008 * (np.arange(200) >= 140)) for seed in range(30)]) == 0

    @pytest.mark.parametrize(("sd", "rho"), [(0.01, 0.0), (0.01, 0.4), (0.03, 0.6)])
    def test_noise_whose_neighbours_follow_each_other_is_no_change(self, sd: float, rho: float) -> None:
        assert flagged([seconds(noise(200, seed, sd, rho)) for seed in range(100)]) <= 0.1

    def test_stragglers_are_neither_a_change_nor_dropped(self) -> None:
        times = seconds(noise(200, sd=0.004))
        times[[40, 80, 81, 130, 131, 170, 195]] *= [15, 1.4, 1.4, 2, 1.4, 5, 8]
        found = steady_state(times)
        assert (found.cut, found.steady, found.warnings) == (10, True, ())

    def test_crowded_stragglers_make_no_levels_of_their_own(self) -> None:
        """Filtered in narrow windows, a sixth of slow steps leaves plateaus that look like changes of level."""
        rng = np.random.default_rng(SEED)
        runs = [seconds(noise(1000, seed, 0.004), 0.35 * (rng.random(1000) < 0.16)) for seed in range(20)]
        assert flagged(runs) <= 0.1

    def test_times_that_never_change_are_steady(self) -> None:
        assert steady_state([0.25] * 60).steady
        assert steady_state([0.25] * 20).steady

    def test_a_long_history_is_searched_in_blocks(self) -> None:
        found = steady_state(seconds(noise(30_000), 0.1 * (np.arange(30_000) < 9_000)))
        assert found.steady
        assert abs(found.cut - 9_000) <= 2 * 30_000 / steady.MOST_POINTS


class TestShortLogs:
    def test_a_fifth_is_left_out_and_the_rest_must_not_rise_or_fall(self) -> None:
        found = steady_state(seconds(noise(20, sd=0.002)))
        assert (found.cut, found.steady, found.method, found.warmup_steps) == (4, True, "short-log", None)
        assert "short log" in found.warnings[0]

    @pytest.mark.parametrize("by", [-0.1, 0.1])
    def test_one_that_drifts_is_not_steady(self, by: float) -> None:
        found = steady_state(seconds(noise(20), np.linspace(0, by, 20)))
        assert not found.steady
        assert ("rises" if by > 0 else "falls") in found.reason

    def test_one_slow_step_decides_nothing(self) -> None:
        times = seconds(noise(20, sd=0.002))
        times[[-1, -3]] *= 9
        assert steady_state(times).steady

    @pytest.mark.parametrize("steps", [2, 3, 5, 7])
    def test_a_handful_of_steps_is_too_few(self, steps: int) -> None:
        found = steady_state([1.0] * steps)
        assert (found.steady, found.method) == (False, "none")
        assert f"{steps} steps are too few" in found.reason

    @given(st.lists(st.integers(1, 9), min_size=8, max_size=39))
    @settings(deadline=None)
    def test_its_test_for_a_trend_is_kendalls(self, values: list[int]) -> None:
        array = np.array(values, dtype=float)
        first, second = np.triu_indices(len(array), 1)
        signs = np.sign(array[second] - array[first])
        score = abs(signs.sum())
        expected = 1.0
        if score > 1:
            z = norm.isf(kendalltau(np.arange(len(array)), array, method="asymptotic").pvalue / 2)
            expected = 2 * norm.sf(z * (score - 1) / score)  # scipy's has no continuity correction
        assert steady._mann_kendall(array, signs) == pytest.approx(expected)


class TestAsynchronousDispatch:
    def test_steps_that_took_no_time_are_cut_off_with_what_precedes_them(self) -> None:
        times = seconds(noise(100, sd=0.002))
        times[12:14] *= [2.0, 0.03]
        assert steady_state(times).cut == 14

    def test_later_ones_stay_and_are_told(self) -> None:
        times = seconds(noise(100, sd=0.002))
        times[70:72] *= [1.97, 0.03]
        found = steady_state(times)
        assert (found.cut, found.steady) == (10, True)
        assert "1 of 90 kept steps" in found.warnings[0]

    def test_a_clock_that_mostly_sees_the_dispatch_measures_nothing(self) -> None:
        found = steady_state(seconds(noise(100)) * np.where(np.arange(100) % 3 == 0, 0.01, 1.0))
        assert not found.steady
        assert "dispatch" in found.reason


class TestRestarts:
    @pytest.mark.parametrize("after", [[8.0, 11.0], [8.0, 1.3, 1.2, 1.1, 1.05]])
    def test_a_second_warm_up_moves_the_cut_past_it(self, after: list[float]) -> None:
        times = seconds(noise(100), warm_up(100, 8))
        times[51 : 51 + len(after)] *= after
        found = steady_state(times)
        assert found.steady
        assert found.cut == 61
        assert "started again at step 51" in found.warnings[0]

    def test_one_that_is_known_need_not_show(self) -> None:
        found = steady_state(seconds(noise(100)), resumed=[20, 51])
        assert (found.cut, found.steady, found.warmup_steps) == (61, True, 1)

    def test_too_close_to_the_end_it_leaves_no_steady_state(self) -> None:
        found = steady_state(seconds(noise(100)), resumed=[96])
        assert not found.steady
        assert 96 <= found.cut < 100
        assert found.reason.startswith("after the restart at step 96, 4 steps are too few")

    def test_single_stragglers_are_no_restart(self) -> None:
        times = seconds(noise(100, sd=0.004))
        times[[30, 60, 61, 90]] *= [15, 9, 1.4, 30]
        assert steady_state(times).cut == 10

    @pytest.mark.parametrize("at", [-1, 100])
    def test_one_outside_the_log_is_refused(self, at: int) -> None:
        with pytest.raises(ValueError, match="positions of this log are 0 to 99"):
            steady_state([1.0] * 100, resumed=[at])


class TestWarnings:
    def test_two_speeds_are_told(self) -> None:
        slow = np.random.default_rng(SEED).random(100) < 0.3
        found = steady_state(seconds(noise(100, sd=0.003), math.log(1.25) * slow))
        assert any("25% slower than the others" in warning for warning in found.warnings)

    def test_steps_that_scatter_are_told(self) -> None:
        found = steady_state(seconds(noise(100, sd=0.3, rho=0.0)))
        assert any("scatter" in warning for warning in found.warnings)


class TestPairs:
    def test_both_arms_are_cut_where_the_later_one_settles(self) -> None:
        base = steady_state(seconds(noise(200, 1)))
        head = steady_state(seconds(noise(200, 2), warm_up(200, 60)))
        assert base.cut < head.cut
        assert shared_cut([base, head]) == shared_cut([head, base]) == head.cut

    def test_a_cut_that_leaves_nothing_of_the_shorter_run_is_refused(self) -> None:
        short, long = steady_state([1.0] * 8), Steady(8, True, "", "short-log", None, 40)
        with pytest.raises(ValueError, match="leaves nothing of a run that has 8"):
            shared_cut([short, long])

    def test_no_run_has_no_cut(self) -> None:
        with pytest.raises(ValueError, match="at least one run"):
            shared_cut([])

    @given(
        st.lists(st.integers(1, 20), min_size=1, max_size=8).flatmap(
            lambda c: st.tuples(st.just(c), st.permutations(c))
        )
    )
    def test_the_order_of_the_runs_does_not_matter(self, orders: tuple[list[int], list[int]]) -> None:
        cuts = [shared_cut([Steady(cut, True, "", "changes-and-tail", 1, 40) for cut in order]) for order in orders]
        assert cuts == [max(orders[0])] * 2


class TestArms:
    def test_a_single_run_that_is_not_steady_says_nothing(self) -> None:
        assert unsettled([True] * 3 + [False], [True] * 4) == ()

    def test_half_of_an_arm_does(self) -> None:
        assert unsettled([True] * 4, [True, False, False, True]) == ("2 of 4 head runs have no steady state",)

    def test_arms_that_differ_do(self) -> None:
        told = unsettled([True] * 20, [True] * 13 + [False] * 7)
        assert told == ("runs without a steady state are not alike in the arms: base 0 of 20, head 7 of 20",)

    @given(st.lists(st.booleans(), min_size=1, max_size=12), st.lists(st.booleans(), min_size=1, max_size=12))
    @settings(deadline=None)
    def test_the_test_is_fishers(self, base: list[bool], head: list[bool]) -> None:
        counts = [[sum(runs), len(runs) - sum(runs)] for runs in (base, head)]
        assert steady._fisher(base, head) == pytest.approx(fisher_exact(counts).pvalue)


class TestInput:
    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
    def test_a_step_that_took_no_positive_finite_time_is_named(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"step 1 took \S+ s; a step time is positive and finite"):
            steady_state([1.0, bad, 1.0])

    @pytest.mark.parametrize("few", [[], [1.0]])
    def test_less_than_two_steps_are_refused(self, few: list[float]) -> None:
        with pytest.raises(ValueError, match=f"{len(few)} step times have no steady state"):
            steady_state(few)

    def test_an_array_of_several_runs_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not an array of 2 dimensions"):
            steady_state(np.ones((2, 50)))


class TestProperties:
    @given(LOGS, st.floats(1e-6, 1e6))
    @settings(deadline=None)
    def test_the_unit_of_the_times_changes_nothing(self, times: list[float], factor: float) -> None:
        assert steady_state([time * factor for time in times]) == steady_state(times)

    @given(LOGS, st.data())
    @settings(deadline=None)
    def test_the_cut_leaves_a_step_and_leaves_one_out(self, times: list[float], data: st.DataObject) -> None:
        resumed = data.draw(st.lists(st.integers(0, len(times) - 1), max_size=3))
        found = steady_state(times, resumed)
        assert 1 <= found.cut < found.steps == len(times)
        assert found.cut > max(resumed, default=0) or len(times) - max(resumed) == 1
        if found.steady:
            start = max(resumed, default=0)
            assert found.steps - found.cut >= steady.LEAST
            assert found.warmup_steps is None or 1 <= found.warmup_steps <= found.cut - start

    @given(st.integers(0, 10_000), st.integers(40, 150), st.floats(0.0, 0.05))
    @settings(deadline=None, max_examples=50)
    def test_the_answer_hangs_on_nothing_but_the_times(self, seed: int, steps: int, sd: float) -> None:
        times = seconds(noise(steps, seed, sd))
        before = times.copy()
        assert steady_state(times) == steady_state(times.tolist())
        assert (times == before).all()


class TestRealHistories:
    def shuffled(self, times: Array) -> Array:
        return np.random.default_rng(SEED).permutation(times)

    def test_the_maxtext_step_is_that_of_the_device_not_of_the_dispatch(self) -> None:
        times = maxtext_seconds("maxtext_mixtral_docs.log")
        found = steady_state(times)
        assert found.steady
        assert float(np.median(times[found.cut :])) == pytest.approx(5.67, abs=0.005)
        assert min(times[found.cut :]) > 5

    def test_five_lines_of_maxtext_are_too_few(self) -> None:
        times = maxtext_seconds("maxtext_getting_started.log")
        found = steady_state(times)
        assert not found.steady
        assert float(np.median(times[found.cut :])) == pytest.approx(11.7, abs=0.05)

    @pytest.mark.parametrize("samples", [20, 50, 100])
    def test_natural_routing_that_settles_is_not_steady_and_its_shuffled_values_are(self, samples: int) -> None:
        times = iteration_times("mixtral_8x7b_tp2pp4ep4_h100_long.json")[:samples]
        assert not steady_state(times).steady
        assert steady_state(self.shuffled(times)).steady
        assert flagged([np.random.default_rng(seed).permutation(times) for seed in range(100)]) <= 0.1

    def test_the_whole_history_settles_where_routing_did(self) -> None:
        found = steady_state(iteration_times("mixtral_8x7b_tp2pp4ep4_h100_long.json"))
        assert found.steady
        assert 60 <= found.cut <= 400

    def test_a_node_that_decides_nothing_is_flagged(self) -> None:
        found = steady_state(iteration_times("moe_ep8_gb200_1node_bimodal.json"))
        assert any("scatter by" in warning for warning in found.warnings)

    def test_a_hump_of_a_hundred_steps_is_not_steady_and_its_shuffled_values_are(self) -> None:
        times = iteration_times("dsv3proxy_flex_h100_sm_2026-02-19.json")
        assert not steady_state(times[:100]).steady
        assert steady_state(self.shuffled(times[:100])).steady

    def test_nine_slow_steps_are_cut_off(self) -> None:
        times = iteration_times("moe_memory_speed_h100.json")
        found = steady_state(times)
        assert found.steady
        assert found.warmup_steps is not None
        assert 9 <= found.warmup_steps <= found.cut <= 12

    @pytest.mark.parametrize("side", ["before", "after"])
    def test_a_job_that_settles_in_six_steps_keeps_the_rest(self, side: str) -> None:
        times = iteration_times(f"moe_tp4ep2pp2_h100_{side}_26.04.json")[:50]
        assert steady_state(times).cut == 10


def test_the_example_of_the_page_is_what_comes_out() -> None:
    failures, tried = doctest.testfile(str(ROOT / "docs" / "steady-state.md"), module_relative=False)
    assert tried > 3
    assert failures == 0
