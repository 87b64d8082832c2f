"""Rates with their bounds against scipy and the published table, resampling by pools whose answer is known."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regbot.stats import Rate, Thresholds, contradicted, rate_bounds, resampled, scatter, upper_bound

THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
SOUND = Rate.of(0, 0)


def pool(pairs: int, sd: float = 0.008, seed: int = 1) -> dict[str, list[float]]:
    generator = random.Random(seed)
    values = [generator.gauss(0, sd) for _ in range(pairs)]
    return {"median": values, "mean": [value + generator.gauss(0, sd / 4) for value in values]}


class TestRates:
    @pytest.mark.parametrize("total", [1, 2, 5, 20, 60])
    def test_bounds_are_those_of_scipys_exact_interval(self, total: int) -> None:
        for count in range(total + 1):
            found = stats.binomtest(count, total).proportion_ci(0.95, "exact")
            assert rate_bounds(count, total) == pytest.approx((found.low, found.high), abs=1e-11)

    @pytest.mark.parametrize("total", [1, 2, 5, 20, 60])
    def test_the_upper_bound_is_that_of_the_one_sided_interval(self, total: int) -> None:
        for count in range(total + 1):
            found = stats.binomtest(count, total, alternative="less").proportion_ci(0.95, "exact")
            assert upper_bound(count, total) == pytest.approx(found.high, abs=1e-11)

    @pytest.mark.parametrize(
        ("total", "expected"),
        [(20, (0.139, 0.216, 0.283)), (60, (0.049, 0.077, 0.101)), (200, (0.015, 0.023, 0.031))],
    )
    def test_few_clean_placebos_prove_little(self, total: int, expected: tuple[float, ...]) -> None:
        assert tuple(round(upper_bound(count, total), 3) for count in range(3)) == expected

    def test_nothing_seen_says_nothing(self) -> None:
        assert rate_bounds(0, 0) == (0.0, 1.0)
        assert Rate.of(0, 0) == Rate(0, 0, 0.0, 1.0)

    @pytest.mark.parametrize(("count", "total"), [(-1, 5), (6, 5)])
    def test_more_than_all_is_no_rate(self, count: int, total: int) -> None:
        with pytest.raises(ValueError, match="is no rate"):
            rate_bounds(count, total)
        with pytest.raises(ValueError, match="is no rate"):
            upper_bound(count, total)

    @pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95.0, math.nan])
    def test_a_level_is_between_0_and_1(self, level: float) -> None:
        with pytest.raises(ValueError, match="level"):
            rate_bounds(1, 5, level)
        with pytest.raises(ValueError, match="level"):
            upper_bound(1, 5, level)


class TestResampling:
    def test_gives_the_same_answer_every_time(self) -> None:
        assert resampled(pool(20), 0.0, 2, THRESHOLDS, 200) == resampled(pool(20), 0.0, 2, THRESHOLDS, 200)
        other = resampled(pool(20, sd=0.02), 0.0, 2, THRESHOLDS, 200, seed=1)
        assert other != resampled(pool(20, sd=0.02), 0.0, 2, THRESHOLDS, 200, seed=2)

    def test_shares_are_of_all_sessions_and_every_decision_of_pairs_is_there(self) -> None:
        found = resampled(pool(40), math.log1p(0.02), 2, THRESHOLDS, 300)
        assert set(found.decisions) == {"regressed", "improved", "no_change", "undecided"}
        assert math.fsum(found.decisions.values()) == pytest.approx(1)
        assert found.sessions == 300
        assert 4 <= found.pairs <= 12

    def test_a_large_pool_says_what_the_node_does(self) -> None:
        """A pair sd of 0.8%: at a true 2%, 0.88 are found; intervals hold the truth in 98% of sessions."""
        large = pool(4000, sd=0.008)
        found = resampled(large, math.log1p(0.02), 2, THRESHOLDS, 1000)
        assert found.decisions["regressed"] == pytest.approx(0.88, abs=0.04)
        assert found.decisions["no_change"] < 0.02
        assert found.coverage == pytest.approx(0.98, abs=0.018)
        none = resampled(large, 0.0, 2, THRESHOLDS, 1000)
        assert none.decisions["regressed"] + none.decisions["improved"] < 0.005

    def test_the_mean_of_the_pool_is_no_effect(self) -> None:
        """A pool that happens to lie at +3% must not make every placebo a regression."""
        moved = {name: [value + 0.03 for value in values] for name, values in pool(20).items()}
        here, there = (resampled(each, 0.0, 2, THRESHOLDS, 200) for each in (pool(20), moved))
        assert there.decisions == pytest.approx(here.decisions)
        assert here.decisions["regressed"] < 0.05

    def test_blocks_are_drawn_whole(self) -> None:
        """Drift in a session: +1% in one pair of a block and -1% in the other. Whole, they cancel in every session."""
        drifting = {"median": [0.01, -0.01] * 10}
        found = resampled(drifting, 0.0, 1, THRESHOLDS, 300)
        assert found.coverage == 1.0

    def test_what_centring_takes_from_the_scatter_is_given_back(self) -> None:
        """Two blocks at -1% and +1% of equal pairs: their sd is 1.41%, by their own deviations it would be 1%."""
        found = resampled({"median": [-0.01, -0.01, 0.01, 0.01]}, 0.0, 1, Thresholds(0.0143, 0.0139), 400)
        alone = 2 * 0.5**2  # a first look of two equal blocks: a point at +-1.41%, beyond eps
        assert found.decisions["regressed"] + found.decisions["improved"] == pytest.approx(alone, abs=0.08)

    def test_an_odd_pair_at_the_end_is_left_out(self) -> None:
        odd = {name: [*values, 99.0] for name, values in pool(20).items()}
        assert resampled(odd, 0.0, 2, THRESHOLDS, 100) == resampled(pool(20), 0.0, 2, THRESHOLDS, 100)

    def test_what_is_no_pool_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1 whole blocks of 2 placebo pairs"):
            resampled({"median": [0.0, 0.1, 0.2]}, 0.0, 1, THRESHOLDS)
        with pytest.raises(ValueError, match="the same number of pairs"):
            resampled({"median": [0.0] * 4, "mean": [0.0] * 5}, 0.0, 2, THRESHOLDS)
        with pytest.raises(ValueError, match="not finite"):
            resampled({"median": [0.0, 0.1, 0.2, math.nan]}, 0.0, 1, THRESHOLDS)


class TestScatter:
    def test_twenty_pairs_know_it_to_a_quarter_and_a_half(self) -> None:
        values = [0.01 * (-1) ** pair for pair in range(20)]
        s0, low, high = scatter(values)
        assert s0 == pytest.approx(0.01 * math.sqrt(20 / 19))
        assert (low / s0, high / s0) == pytest.approx((0.760, 1.461), abs=0.001)

    @given(st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=60))
    def test_the_interval_is_that_of_chi_square(self, values: list[float]) -> None:
        s0, low, high = scatter(values)
        df = len(values) - 1
        ends = [s0 * math.sqrt(df / float(stats.chi2.ppf(p, df))) for p in (0.975, 0.025)]
        assert (low, high) == pytest.approx(tuple(ends), rel=1e-9)
        assert low <= s0 <= high

    def test_pairs_that_agree_have_none_and_too_few_are_refused(self) -> None:
        assert scatter([0.1, 0.1, 0.1]) == (0.0, 0.0, 0.0)
        with pytest.raises(ValueError, match="2 are needed"):
            scatter([0.1])
        with pytest.raises(ValueError, match="not finite"):
            scatter([0.1, math.nan])


class TestTheVote:
    @pytest.mark.parametrize(("count", "total"), [(0, 0), (0, 20), (1, 10), (3, 20), (10, 200)])
    def test_stays_as_long_as_nothing_is_proven(self, count: int, total: int) -> None:
        assert contradicted(Rate.of(count, total), SOUND) == ""
        assert contradicted(SOUND, Rate.of(total - count, total)) == ""

    def test_is_lost_to_proven_false_flags(self) -> None:
        assert contradicted(Rate.of(4, 20), SOUND) == (
            "4 of 20 comparisons of a commit with itself were called a change: at least 5.7% of all would be, and the "
            "gate promises at most 5%"
        )

    def test_is_lost_to_intervals_that_are_proven_too_narrow(self) -> None:
        assert contradicted(SOUND, Rate.of(16, 20)) == (
            "the interval held the true effect in 16 of 20 comparisons: in at most 94.3% of all it would, and the gate "
            "promises 95%"
        )

    def test_a_sound_gate_keeps_it(self) -> None:
        """False flags in 0.2% of sessions, intervals right in 98%: after 60 placebos less than 1 in 1000 lose it."""
        for rate in (0.002, 0.02):
            lost = [count for count in range(61) if contradicted(Rate.of(count, 60), SOUND)]
            assert math.fsum(float(stats.binom.pmf(count, 60, rate)) for count in lost) < 0.001


def test_the_figures_of_the_documentation_that_are_exact_are_right() -> None:
    text = (Path(__file__).parents[1] / "docs" / "statistics.md").read_text()
    words = " ".join(text[text.index("## Calibration") :].split())
    clean = [f"{upper_bound(0, total):.1%}" for total in (20, 60, 200)]
    assert (
        f"No false flag in 20 sessions leaves up to {clean[0]} possible (one-sided 95%), in 60 sessions {clean[1]}"
        in words
    )
    assert f"in 200 sessions {clean[2]}" in words
    assert f"4 false flags in 20 sessions are such a proof (at least {rate_bounds(4, 20)[0]:.1%}), 3 are not" in words
    assert contradicted(Rate.of(4, 20), SOUND)
    assert not contradicted(Rate.of(3, 20), SOUND)
    away = 0.8 * math.sqrt(19 / 20)
    s0, low, high = scatter([away * (-1) ** pair for pair in range(20)])
    assert f"20 pairs that give {s0:.2f}% say {low:.2f}% to {high:.2f}%" in words
