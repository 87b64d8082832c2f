"""The creep monitor: when it alarms, what it forgets, what it makes of noise that is not as calibrated."""

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy import stats

from regbot.stats.drift import (
    BUDGET_NIGHTS,
    LEAST_SLACK,
    LIMIT,
    NIGHT_PAIRS,
    REACH,
    SLACK,
    Night,
    budget,
    cusum,
    night_pairs,
    standings,
)
from regbot.stats.paired import Interval

SD = 0.008
NOISY = 0.024


def drawn(truth: Sequence[float], sd: float = SD, pairs: int = NIGHT_PAIRS, seed: int = 1) -> list[Night]:
    """Nights of ``truth`` with the noise of a pair."""
    rng = random.Random(seed)
    return [(mean + rng.gauss(0, sd / pairs**0.5), pairs) for mean in truth]


def frog(lead_in: int = 30, every: int = 10, times: int = 10, by: float = 0.005) -> list[float]:
    return [0.0] * lead_in + [by * change for change in range(1, times + 1) for _ in range(every)]


def first_alarm(nights: Sequence[Night], sd: float = SD, series: int = 1) -> float:
    """The night of the first alarm; infinite where there is none."""
    told = standings(nights, sd, series)
    return next((night for night, standing in enumerate(told) if standing.alarm), math.inf)


def by_now(nights: Sequence[Night]) -> Interval:
    found = budget(nights)
    assert found is not None
    return found


def test_the_example_of_the_documentation_holds() -> None:
    """Every row of the table in ``docs/drift.md``: mean, corrected sd, what it adds, the sum."""
    text = (Path(__file__).parents[1] / "docs" / "drift.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").replace("%", "").split(" | ") for line in text.splitlines() if re.match(r"\| \d+ \|", line)
    ]
    assert len(rows) == 11
    nights = [(float(row[1]) / 100, 4) for row in rows]
    before = 0.0
    for row, (mean, _), standing in zip(rows, nights, standings(nights, SD), strict=True):
        error = standing.pair_sd / 2
        adds = max(-REACH, min((mean - max(SLACK * error, LEAST_SLACK)) / error, REACH))
        assert [float(of) for of in row[2:]] == pytest.approx(
            [100 * standing.pair_sd, 100 * error, adds, standing.total], abs=0.006
        )
        assert standing.total == pytest.approx(max(0.0, before + adds))
        before = standing.total
    found, today = cusum(nights, SD), by_now(nights)
    assert found.estimate is not None
    assert (found.alarm, found.since, round(100 * found.estimate, 2)) == (True, 4, 0.79)
    assert [round(100 * of, 2) for of in (today.estimate, today.low, today.high)] == [0.79, 0.48, 1.09]


def test_no_nights_are_no_alarm() -> None:
    found = cusum([], SD)
    assert (found.value, found.alarm, found.nights, found.since, found.estimate) == (0.0, False, 0, None, None)
    assert found.limit == pytest.approx(LIMIT * SD / 2)


def test_each_night_adds_its_score_less_the_slack() -> None:
    """Worked by hand: the nights are equally far apart as the calibrated sd says, so that it is not corrected."""
    error = NOISY / 2
    nights = [(1.0 * error, 4), (1.0 * error + math.sqrt(2) * error, 4)]
    found = cusum(nights, NOISY)
    assert found.pair_sd == pytest.approx(NOISY)
    assert found.value == pytest.approx((1 - SLACK + 1 + math.sqrt(2) - SLACK) * error)
    assert found.since == 0
    assert found.estimate == pytest.approx((1 + math.sqrt(2) / 2) * error)


def test_a_night_at_the_slack_or_below_speaks_for_nothing() -> None:
    assert cusum([(SLACK * NOISY / 2, 4)], NOISY).value == 0
    assert cusum([(1.01 * SLACK * NOISY / 2, 4)], NOISY).value > 0
    found = cusum([(-0.03, 4)] * 50, NOISY)
    assert (found.value, found.since, found.alarm) == (0, None, False)


def test_a_quarter_of_a_percent_is_no_creep_however_quiet_the_node() -> None:
    """Without noise the correction of the sd goes on and on; what is left of it must not become an alarm."""
    assert cusum([(LEAST_SLACK, 4)] * 1000, 1e-6).value == 0
    assert first_alarm([(0.005, 4)] * 10, 1e-6) == 3


def test_ten_small_changes_alarm_before_they_sum_to_one_and_a_half_percent() -> None:
    """Night 50 is the third change. Of 40 histories, the typical node."""
    nights = [first_alarm(drawn(frog(), seed=seed)) for seed in range(40)]
    assert all(30 <= night < 50 for night in nights)


def test_quiet_nights_hardly_ever_alarm_on_any_node() -> None:
    for sd in (0.004, 0.008, 0.014, 0.024):
        alarms = [first_alarm(drawn([0.0] * 200, sd, seed=seed), sd) for seed in range(60)]
        assert sum(night < math.inf for night in alarms) <= 5


def test_the_rise_counts_from_its_first_night() -> None:
    nights = [(0.0, 4)] * 20 + [(0.01, 4)] * 20
    found = cusum(nights, SD)
    assert (found.alarm, found.since, found.nights) == (True, 20, 40)
    assert found.estimate == pytest.approx(0.01)


def test_no_three_nights_alone_make_an_alarm() -> None:
    """A bad node, a neighbour who left: however slow, it takes a fourth night."""
    quiet = drawn([0.0] * 40)
    assert 3 * REACH < LIMIT < 4 * REACH
    for nights in (1, 2, 3):
        assert not any(standing.alarm for standing in standings([(0.0, 4)] * 40 + [(0.5, 4)] * nights, SD))
    assert cusum([(0.0, 4)] * 40 + [(0.5, 4)] * 4, SD).alarm
    assert first_alarm([*quiet, (0.5, 4), *drawn([0.0] * 40, seed=2)]) == math.inf


def test_a_freak_night_does_not_make_the_monitor_deaf() -> None:
    nights = [*drawn([0.0] * 40), (0.5, 4), *drawn([0.0] * 10, seed=2)]
    assert cusum(nights, SD).pair_sd < 1.25 * cusum(drawn([0.0] * 40), SD).pair_sd
    late = first_alarm([*nights, *drawn([0.02] * 20, seed=3)])
    assert late < len(nights) + 6


def test_an_alarm_goes_on_while_the_creep_is_there_and_ends_soon_after_it_is_mended() -> None:
    creep = [(0.0, 4)] * 10 + [(0.02, 4)] * 200
    assert all(standing.alarm for standing in list(standings(creep, SD))[20:])
    mended = [standing.alarm for standing in standings(creep + [(0.0, 4)] * 20, SD)][len(creep) :]
    assert mended[0]
    assert mended.index(False) <= 9
    assert not any(mended[9:])


def test_what_was_said_after_a_night_is_not_changed_by_later_nights() -> None:
    nights = drawn(frog())
    for count, standing in enumerate(standings(nights, SD), start=1):
        found = cusum(nights[:count], SD)
        unit = standing.pair_sd / 2
        assert (found.value, found.limit) == (standing.total * unit, standing.limit * unit)
        assert (found.alarm, found.since, found.pair_sd) == (standing.alarm, standing.since, standing.pair_sd)


def test_an_sd_that_is_wrong_is_corrected_by_the_nights() -> None:
    for wrong in (0.5, 0.7, 1.4, 2.0):
        assert cusum(drawn([0.0] * 200), wrong * SD).pair_sd == pytest.approx(SD, rel=0.15)


def test_an_sd_that_is_too_small_alarms_falsely_less_often_than_one_in_ten_times() -> None:
    """Uncorrected it would be more than one in four."""
    alarms = [first_alarm(drawn([0.0] * 200, seed=seed), 0.7 * SD) for seed in range(100)]
    assert sum(night < math.inf for night in alarms) <= 10


def test_a_creep_is_not_taken_for_noise() -> None:
    """A change moves one difference of neighbours, whatever it adds to the nights after it."""
    assert cusum(drawn(frog()), SD).pair_sd == pytest.approx(cusum(drawn([0.0] * 130), SD).pair_sd, rel=0.1)


def test_a_night_of_more_pairs_says_more() -> None:
    few, many = cusum([(0.015, 4)], NOISY), cusum([(0.015, 16)], NOISY)
    assert few.value == pytest.approx((1.25 - SLACK) * NOISY / 2)
    assert many.value == pytest.approx((2.5 - SLACK) * NOISY / 2)
    assert cusum([(0.0, 2), (0.01, 14)], SD).estimate == pytest.approx(0.01)
    assert cusum([(0.005, 2), (0.01, 14)], SD).estimate == pytest.approx((2 * 0.005 + 14 * 0.01) / 16)


def test_neighbours_of_different_length_differ_by_both_their_errors() -> None:
    apart = SD * math.sqrt(1 / 4 + 1 / 12)
    assert cusum([(0.0, 4), (apart, 12)], SD).pair_sd == pytest.approx(SD)


def test_the_scale_of_the_noise_does_not_matter() -> None:
    nights = drawn(frog(), NOISY)
    small, large = cusum(nights, NOISY), cusum([(3 * mean, pairs) for mean, pairs in nights], 3 * NOISY)
    assert large.value == pytest.approx(3 * small.value)
    assert large.limit == pytest.approx(3 * small.limit)
    assert (large.alarm, large.since) == (small.alarm, small.since)


def test_more_series_share_one_promise_of_false_alarms() -> None:
    one, eight = cusum([(0.0, 4)], SD), cusum([(0.0, 4)], SD, series=8)
    assert eight.limit - one.limit == pytest.approx(math.log(8) * SD / 2)
    assert first_alarm(drawn(frog()), series=8) >= first_alarm(drawn(frog()))


@pytest.mark.parametrize(
    ("nights", "sd", "series", "message"),
    [
        ([(0.0, 4)], 0.0, 1, "sd of a pair is 0.0"),
        ([(0.0, 4)], math.inf, 1, "positive and finite"),
        ([(0.0, 4)], math.nan, 1, "positive and finite"),
        ([], -1.0, 1, "positive and finite"),
        ([(0.0, 4), (0.0, 0)], SD, 1, "night 1 has 0 pairs"),
        ([(math.nan, 4)], SD, 1, "night 0 is not finite"),
        ([(0.0, 4)], SD, 0, "0 series"),
    ],
)
def test_what_is_no_history_is_refused(nights: list[Night], sd: float, series: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cusum(nights, sd, series)


def test_the_budget_is_the_t_interval_of_the_last_seven_nights() -> None:
    nights = drawn([0.5] * 10 + [0.01] * BUDGET_NIGHTS)
    means = [mean for mean, _ in nights[-BUDGET_NIGHTS:]]
    low, high = stats.t.interval(0.95, BUDGET_NIGHTS - 1, stats.tmean(means), stats.sem(means))
    found = by_now(nights)
    assert (found.estimate, found.low, found.high) == pytest.approx((stats.tmean(means), low, high))
    assert found.sd == pytest.approx(2 * stats.tstd(means))
    assert (found.pairs, found.alpha) == (4 * BUDGET_NIGHTS, 0.05)


def test_the_budget_weighs_nights_by_their_pairs() -> None:
    found = by_now([(0.00, 4), (0.02, 12)])
    assert found.estimate == pytest.approx(0.015)
    assert found.sd == pytest.approx(math.sqrt(4 * 0.015**2 + 12 * 0.005**2))
    assert found.low < 0.015 < found.high


def test_the_budget_needs_two_nights_and_says_a_point_where_all_agree() -> None:
    assert budget([]) is None
    assert budget([(0.01, 4)]) is None
    found = by_now([(0.1, 4)] * 7)
    assert found.estimate == pytest.approx(0.1)
    assert (found.low, found.high, found.sd) == (found.estimate, found.estimate, 0)
    with pytest.raises(ValueError, match="0 pairs"):
        budget([(0.01, 4), (0.01, 0)])


def test_the_budget_covers_the_creep_as_often_as_it_says() -> None:
    held = 0
    for seed in range(400):
        found = by_now(drawn([0.01] * 7, seed=seed))
        held += found.low <= 0.01 <= found.high
    assert 0.92 < held / 400 < 0.98


def test_a_noisy_node_takes_more_pairs_a_night_in_whole_blocks() -> None:
    assert [night_pairs(sd) for sd in (0.0, 0.004, 0.008, 0.012, 0.014, 0.024)] == [4, 4, 4, 4, 6, 16]
    with pytest.raises(ValueError, match="finite"):
        night_pairs(math.inf)
