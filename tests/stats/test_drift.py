"""The creep monitor: alarms, restarts, and the correction of a wrong calibrated noise."""

import math
import random
from collections.abc import Sequence

import pytest
from scipy import stats

from regbot.stats.drift import (
    BUDGET_NIGHTS,
    LIMIT,
    MAX_NIGHT_STEP,
    NIGHT_PAIRS,
    PRIOR_CORRELATION,
    SLACK,
    Night,
    budget_interval,
    cusum,
)
from regbot.stats.paired import Interval

SD = 0.008
NOISY = 0.024
FIRST_INFLATION = math.sqrt((1 + PRIOR_CORRELATION) / (1 - PRIOR_CORRELATION))
"""Factor of a night's standard error before the nights show their correlation."""


def drawn(
    truth: Sequence[float], sd: float = SD, pairs: int = NIGHT_PAIRS, seed: int = 1, correlation: float = 0.0
) -> list[Night]:
    """Return nights with means ``truth`` and the noise of their pairs. Neighbouring nights may be correlated."""
    rng = random.Random(seed)
    error = sd / pairs**0.5
    nights, noise = [], rng.gauss(0, error)
    for mean in truth:
        nights.append((mean + noise, pairs))
        noise = correlation * noise + math.sqrt(1 - correlation**2) * rng.gauss(0, error)
    return nights


def frog(lead_in: int = 30, every: int = 10, times: int = 10, by: float = 0.005) -> list[float]:
    return [0.0] * lead_in + [by * change for change in range(1, times + 1) for _ in range(every)]


def first_alarm(nights: Sequence[Night], sd: float = SD, series: int = 1) -> float:
    """Return the night of the first alarm; infinite if there is none."""
    alarms = cusum(nights, sd, series)
    return next((night for night, standing in enumerate(alarms) if standing.alarm), math.inf)


def by_now(nights: Sequence[Night]) -> Interval:
    result = budget_interval(nights)
    assert result is not None
    return result


def test_each_night_adds_its_score_less_the_slack() -> None:
    """Worked by hand. The first nights do not change the calibrated sd and the expected correlation."""
    error = FIRST_INFLATION * NOISY / 2
    *_, result = cusum([(1.0 * error, 4), (1.7 * error, 4)], NOISY)
    assert result.pair_sd == pytest.approx(NOISY)
    assert result.value == pytest.approx((1 - SLACK + 1.7 - SLACK) * error)
    assert result.since == 0
    assert result.estimate == pytest.approx(1.35 * error)


def test_the_noise_is_computed_from_the_differences_of_nights() -> None:
    """Worked by hand, in units of the calibrated standard error. Of six nights only the last has a night five nights
    before it; it differs by 2, and from its neighbour by 1."""
    error = SD / 2
    nights = [(value * error, 4) for value in (0.0, 0.0, 1.0, 1.0, 1.0, 2.0)]
    *_, result = cusum(nights, SD)
    variance = (10 * 1 + 2**2 / 2) / 11
    neighbours = (1 + 1) / 2 / 5
    observed = 1 - neighbours / variance
    assert result.pair_sd == pytest.approx(math.sqrt(variance) * SD)
    assert result.correlation == pytest.approx((1 * observed + 20 * 0.2) / 21)


def test_ten_small_changes_alarm_before_they_sum_to_one_and_a_half_percent() -> None:
    """Night 50 is the third change. 40 histories of a typical node."""
    nights = [first_alarm(drawn(frog(), seed=seed)) for seed in range(40)]
    assert all(30 <= night < 50 for night in nights)


def test_correlated_nights_raise_false_alarms_in_less_than_one_of_ten_spans() -> None:
    """A monitor that takes nights for independent alarms in more than a third of these spans."""
    for sd, pairs in ((SD, 4), (NOISY, 24)):
        spans = [drawn([0.0] * 200, sd, pairs, seed, correlation=0.3) for seed in range(100)]
        assert sum(first_alarm(nights, sd) < math.inf for nights in spans) <= 9


def test_three_nights_alone_raise_no_alarm() -> None:
    """However slow three nights are, for example on a bad node, an alarm needs a fourth night."""
    quiet = drawn([0.0] * 40)
    assert 3 * MAX_NIGHT_STEP < LIMIT < 4 * MAX_NIGHT_STEP
    for nights in (1, 2, 3):
        assert not any(standing.alarm for standing in cusum([(0.0, 4)] * 40 + [(0.5, 4)] * nights, SD))
    assert [*cusum([(0.0, 4)] * 40 + [(0.5, 4)] * 4, SD)][-1].alarm
    assert first_alarm([*quiet, (0.5, 4), *drawn([0.0] * 40, seed=2)]) == math.inf


def test_an_alarm_lasts_as_long_as_the_creep_and_ends_soon_after_the_fix() -> None:
    creep = [(0.0, 4)] * 10 + [(0.02, 4)] * 200
    assert all(standing.alarm for standing in list(cusum(creep, SD))[20:])
    mended = [standing.alarm for standing in cusum(creep + [(0.0, 4)] * 20, SD)][len(creep) :]
    assert mended[0]
    assert mended.index(False) <= 9
    assert not any(mended[9:])


def test_series_share_one_false_alarm_rate() -> None:
    (single,), (eight,) = cusum([(0.0, 4)], SD), cusum([(0.0, 4)], SD, series=8)
    assert eight.limit - single.limit == pytest.approx(math.log(8) * FIRST_INFLATION * SD / 2)
    assert first_alarm(drawn(frog()), series=8) >= first_alarm(drawn(frog()))


def test_the_budget_is_the_t_interval_of_the_last_seven_nights() -> None:
    nights = drawn([0.5] * 10 + [0.01] * BUDGET_NIGHTS)
    means = [mean for mean, _ in nights[-BUDGET_NIGHTS:]]
    low, high = stats.t.interval(0.95, BUDGET_NIGHTS - 1, stats.tmean(means), stats.sem(means))
    result = by_now(nights)
    assert (result.estimate, result.low, result.high) == pytest.approx((stats.tmean(means), low, high))
    assert result.sd == pytest.approx(2 * stats.tstd(means))
    assert (result.count, result.alpha) == (4 * BUDGET_NIGHTS, 0.05)


@pytest.mark.parametrize(("luck", "alarm"), [(0.0, True), (0.003, True), (0.0035, False)])
def test_the_luck_of_the_anchor_is_no_creep(luck: float, alarm: bool) -> None:
    """A slowdown of 1% from the first night on: three times the luck of an arm does not count."""
    assert [*cusum([(0.01, 4)] * 100, 0.002, luck=luck)][-1].alarm is alarm
