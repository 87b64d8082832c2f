"""Steady state: synthetic runs with a known fault, real histories with their shuffled values as the control."""

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
from scipy.stats import kendalltau, norm

from regbot.stats import steady
from regbot.stats.steady import steady_state, unsettled_warnings

Array = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT.parent / "shared" / "fixtures"
SEED = 20260801
SECONDS = st.floats(1e-4, 1e3)
LOGS = st.lists(SECONDS, min_size=2, max_size=120)


def noise(steps: int, seed: int = SEED, sd: float = 0.01, rho: float = 0.4) -> Array:
    """Return autocorrelated log step times, like those of real runs."""
    innovations = np.random.default_rng(seed).normal(0, sd * math.sqrt(1 - rho**2), steps + 30)
    return np.asarray(lfilter([1.0], [1.0, -rho], innovations)[30:])


def warm_up(steps: int, length: int, excess: float = 0.5) -> Array:
    """Return the excess of a warm-up: ``excess`` at the first step, 0.5% of a step after ``length`` steps."""
    return np.log1p(excess * np.exp(-np.arange(steps) * math.log(excess / 0.005) / length))


def seconds(*logs: Array | float) -> Array:
    return 2.5 * np.exp(np.sum(np.broadcast_arrays(*logs), axis=0))


def flagged(runs: list[Array]) -> float:
    return float(np.mean([not steady_state(run).steady for run in runs]))


def iteration_times(name: str) -> Array:
    """Return the ``iteration-time`` series of a Megatron golden-value file, without a first step of "nan"."""
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
    return [float(state) for state in re.findall(r"seconds: ([\d.]+)", path.read_text())]


class TestWarmUp:
    @pytest.mark.parametrize("length", [30, 60])
    def test_at_the_cut_at_most_one_or_two_percent_of_the_warm_up_remain(self, length: int) -> None:
        left = warm_up(200, length)
        cuts = [steady_state(seconds(noise(200, seed), left)) for seed in range(20)]
        assert sum(state.steady for state in cuts) >= 18
        assert 0.6 * length < float(np.median([state.cut for state in cuts])) < 1.1 * length
        assert float(np.median([left[state.cut] for state in cuts])) < 0.02

    def test_a_warm_up_longer_than_half_the_run_leaves_no_steady_state(self) -> None:
        state = steady_state(seconds(noise(100), warm_up(100, 160)))
        assert not state.steady


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

    def test_a_change_below_one_percent_is_ignored(self) -> None:
        assert flagged([seconds(noise(200, seed, 0.001), 0.008 * (np.arange(200) >= 140)) for seed in range(30)]) == 0

    @pytest.mark.parametrize(("sd", "rho"), [(0.01, 0.0), (0.01, 0.4), (0.03, 0.6)])
    def test_autocorrelated_noise_is_no_change(self, sd: float, rho: float) -> None:
        assert flagged([seconds(noise(200, seed, sd, rho)) for seed in range(100)]) <= 0.1

    def test_a_long_history_is_searched_in_blocks(self) -> None:
        state = steady_state(seconds(noise(30_000), 0.1 * (np.arange(30_000) < 9_000)))
        assert state.steady
        assert abs(state.cut - 9_000) <= 2 * 30_000 / steady.MAX_POINTS


class TestShortLogs:
    def test_a_fifth_is_left_out_and_the_rest_must_not_rise_or_fall(self) -> None:
        state = steady_state(seconds(noise(20, sd=0.002)))
        assert (state.cut, state.steady, state.method) == (4, True, "short-log")
        assert "short log" in state.warnings[0]

    @given(st.lists(st.integers(1, 9), min_size=8, max_size=39))
    @settings(deadline=None)
    def test_the_trend_test_equals_kendalls(self, values: list[int]) -> None:
        array = np.array(values, dtype=float)
        first, second = np.triu_indices(len(array), 1)
        signs = np.sign(array[second] - array[first])
        score = abs(signs.sum())
        expected = 1.0
        if score > 1:
            z = norm.isf(kendalltau(np.arange(len(array)), array, method="asymptotic").pvalue / 2)
            expected = 2 * norm.sf(z * (score - 1) / score)  # scipy's has no continuity correction
        assert steady.mann_kendall(array, signs) == pytest.approx(expected)


class TestAsynchronousDispatch:
    def test_artefacts_and_the_steps_before_them_are_cut_off(self) -> None:
        times = seconds(noise(100, sd=0.002))
        times[12:14] *= [2.0, 0.03]
        assert steady_state(times).cut == 14

    def test_a_clock_that_mostly_measures_the_dispatch_gives_no_steady_state(self) -> None:
        state = steady_state(seconds(noise(100)) * np.where(np.arange(100) % 3 == 0, 0.01, 1.0))
        assert not state.steady
        assert "dispatch" in state.reason


class TestRestarts:
    @pytest.mark.parametrize("after", [[8.0, 11.0], [8.0, 1.3, 1.2, 1.1, 1.05]])
    def test_a_second_warm_up_moves_the_cut_past_it(self, after: list[float]) -> None:
        times = seconds(noise(100), warm_up(100, 8))
        times[51 : 51 + len(after)] *= after
        state = steady_state(times)
        assert state.steady
        assert state.cut == 61
        assert "started again at step 51" in state.warnings[0]


class TestWarnings:
    def test_two_speeds_get_a_warning(self) -> None:
        slow = np.random.default_rng(SEED).random(100) < 0.3
        state = steady_state(seconds(noise(100, sd=0.003), math.log(1.25) * slow))
        assert any("25% slower than the others" in warning for warning in state.warnings)


class TestArms:
    def test_half_of_an_arm_unsteady_gives_a_warning(self) -> None:
        still, moving = steady_state([1.0] * 60), steady_state([1.0] * 40 + [0.9] * 20)
        assert (moving.steady, moving.rise < 0) == (False, True)
        warnings = unsettled_warnings([still] * 4, [still, moving, moving, still])
        assert warnings == ("2 of 4 head runs have no steady state",)
        assert unsettled_warnings([still] * 4, [still, moving, still, still]) == ()
        assert unsettled_warnings([still] * 11 + [moving], [still, moving] * 6) == (), "one of twelve is chance"
        assert unsettled_warnings([moving] * 4, [moving] * 4) == (), "what both arms do alike cancels"
        short = steady_state([1.0] * 7)
        assert len(unsettled_warnings([short] * 4, [short] * 4)) == 2, "nobody knows what they do"

    @pytest.mark.parametrize("steps", [20, 60])
    def test_growth_within_the_runs_of_one_arm_is_named(self, steps: int) -> None:
        still, growing = steady_state([1.0] * steps), steady_state(np.linspace(1.0, 1.2, steps))
        first, *_ = unsettled_warnings([still] * 4, [growing] * 4)
        assert first.startswith("the step time grows within 4 of 4 head runs, by 1")
        assert first.endswith("%, and within 0 of 4 base runs")
        assert unsettled_warnings([growing] * 4, [still] * 4)[0].endswith("and within 0 of 4 head runs")
        assert not any("grows" in text for text in unsettled_warnings([growing] * 4, [growing] * 4))
        assert unsettled_warnings([still] * 4, [still] * 3 + [growing]) == ()


class TestInput:
    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
    def test_an_invalid_step_time_is_named(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"step 1 took \S+ s; a step time must be positive and finite"):
            steady_state([1.0, bad, 1.0])


class TestProperties:
    @given(LOGS)
    @settings(deadline=None)
    def test_the_cut_leaves_out_at_least_one_step_and_keeps_one(self, times: list[float]) -> None:
        state = steady_state(times)
        assert 1 <= state.cut < len(times)
        if state.steady:
            assert len(times) - state.cut >= steady.MIN_KEPT_STEPS


class TestRealHistories:
    def shuffled(self, times: Array) -> Array:
        return np.random.default_rng(SEED).permutation(times)

    def test_the_maxtext_step_is_that_of_the_device_not_of_the_dispatch(self) -> None:
        times = maxtext_seconds("maxtext_mixtral_docs.log")
        state = steady_state(times)
        assert state.steady
        assert float(np.median(times[state.cut :])) == pytest.approx(5.67, abs=0.005)
        assert min(times[state.cut :]) > 5

    @pytest.mark.parametrize("samples", [20, 50, 100])
    def test_natural_routing_that_settles_is_not_steady_and_its_shuffled_values_are(self, samples: int) -> None:
        times = iteration_times("mixtral_8x7b_tp2pp4ep4_h100_long.json")[:samples]
        assert not steady_state(times).steady
        assert steady_state(self.shuffled(times)).steady
        assert flagged([np.random.default_rng(seed).permutation(times) for seed in range(100)]) <= 0.1
