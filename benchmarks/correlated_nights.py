"""The creep monitor in correlated nights: false alarms and alarms in time, now and in the version before.

``error_rates.py`` prints these rows. The nights are those of ``creep.py``, except that each night is correlated with
the night before (an autoregressive process of order 1). The version before took nights for independent: it estimated
the noise from the differences of neighbouring nights, and had no factor for their correlation.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from creep import (
    LEAD_IN,
    QUIET_NIGHTS,
    TOO_LATE_PCT,
    creep_truth,
    detection,
    false_alarm_promise,
    first_alarms,
    monitor_alarms,
    quiet_truth,
)
from nodes import Array
from promises import Promise
from scipy.signal import lfilter

from regbot.records.calibration_summary import Rate
from regbot.stats.calibration import estimate_rate
from regbot.stats.drift import (
    LIMIT,
    MAX_NIGHT_DIFFERENCE,
    MAX_NIGHT_STEP,
    MIN_SLACK,
    SCALE_NIGHTS,
    SLACK,
    cusum,
    night_pairs,
)

SEED = 20260812
CORRELATIONS = (0.0, 0.1, 0.3, 0.5)
PROMISED_CORRELATION = 0.3
"""The false alarm rate is promised up to this correlation."""

PAIRS_BEFORE = {0.008: 4, 0.024: 16}
"""Number of pairs a night of the version before, by the standard deviation (sd) of a pair."""
LEAST_IN_TIME = 0.95
"""Smallest share of alarms in time if the nights are not correlated."""


class Rates(NamedTuple):
    """Rates for one noise and one correlation."""

    false: Rate
    """Rate of histories of quiet nights with an alarm."""
    in_time: float
    """Share of creeps with an alarm in time."""
    false_before: float
    in_time_before: float
    estimated_correlation: float
    """Mean of the monitor's estimates after the last quiet night."""


def correlated_means(truth: Array, error: float, correlation: float, histories: int, rng: np.random.Generator) -> Array:
    """Return the mean log-ratio of each night, with the shape (histories, nights)."""
    noise = rng.normal(0, error * (1 - correlation**2) ** 0.5, (histories, len(truth) + LEAD_IN))
    means: Array = truth + lfilter([1.0], [1.0, -correlation], noise)[:, LEAD_IN:]
    return means


def alarms_before(nights: Array, error: float) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the night of the first alarm of the version before, in each history; -1 without an alarm.

    ``error``: standard error of a night, which that version knew.
    """
    squares, total = np.full(len(nights), float(SCALE_NIGHTS)), np.zeros(len(nights))
    alarms = np.zeros(nights.shape, dtype=bool)
    for night in range(nights.shape[1]):
        if night:
            square = (nights[:, night] - nights[:, night - 1]) ** 2 / (2 * error**2)
            squares += np.minimum(square, MAX_NIGHT_DIFFERENCE**2 * squares / (SCALE_NIGHTS + night - 1))
        errors = error * np.sqrt(squares / (SCALE_NIGHTS + night))
        excess = (nights[:, night] - np.maximum(SLACK * errors, MIN_SLACK)) / errors
        total = np.maximum(total + np.clip(excess, -MAX_NIGHT_STEP, MAX_NIGHT_STEP), 0)
        alarms[:, night] = total >= LIMIT
    return first_alarms(alarms)


def measure(pair_sd: float, correlation: float, histories: int, seed: np.random.SeedSequence) -> Rates:
    rng, pairs = np.random.default_rng(seed), night_pairs(pair_sd)
    error, error_before = pair_sd / pairs**0.5, pair_sd / PAIRS_BEFORE[pair_sd] ** 0.5
    truths = quiet_truth(), creep_truth()
    quiet, creep = (correlated_means(truth, error, correlation, histories, rng) for truth in truths)
    now = [monitor_alarms(nights, pairs, [pair_sd] * histories) for nights in (quiet, creep)]
    before = [
        alarms_before(correlated_means(truth, error_before, correlation, histories, rng), error_before)
        for truth in truths
    ]
    estimates = []
    for history in quiet[: max(histories // 10, 1)].tolist():
        *_, last = cusum(((mean, pairs) for mean in history), pair_sd)
        estimates.append(last.correlation)
    false = estimate_rate(int((now[0] >= 0).sum()), histories)
    return Rates(
        false, _in_time(now[1]), float((before[0] >= 0).mean()), _in_time(before[1]), float(np.mean(estimates))
    )


def _in_time(alarms: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    creep = detection(alarms)
    return creep.in_time.count / creep.in_time.total if creep is not None else 0.0


def correlated_nights(histories: int, jobs: int) -> Iterator[Promise]:
    """Print the table of correlated nights, and yield its promises."""
    print(
        f"\ncorrelated nights: share of {QUIET_NIGHTS} quiet nights with a false alarm, and of creeps with an alarm"
        f" before +{TOO_LATE_PCT}%; now, and in the version before\n(2.4%: with"
        f" {PAIRS_BEFORE[0.024]} pairs a night); r: correlation, and the mean of its estimates"
    )
    heads = {"pairs": 6, "r": 5, "estimated": 10, "false": 7, "in time": 8, "before: false": 14, "in time before": 15}
    print(f"{'pair sd':>8}", *(f"{name:>{width}}" for name, width in heads.items()))
    cells = [(sd, correlation) for sd in PAIRS_BEFORE for correlation in CORRELATIONS]
    seeds = np.random.SeedSequence(SEED).spawn(len(cells))
    with ProcessPoolExecutor(jobs) as pool:
        rows = dict(
            zip(cells, pool.map(measure, *zip(*cells, strict=True), [histories] * len(cells), seeds), strict=True)
        )
    for (sd, correlation), rates in rows.items():
        print(
            f"{sd:>8.1%} {night_pairs(sd):>6} {correlation:>5.1f} {rates.estimated_correlation:>10.2f}"
            f" {rates.false.count / rates.false.total:>7.3f} {rates.in_time:>8.3f} {rates.false_before:>14.3f}"
            f" {rates.in_time_before:>15.3f}"
        )
    for (sd, correlation), rates in rows.items():
        if correlation <= PROMISED_CORRELATION:
            yield false_alarm_promise(rates.false, f"correlated nights, pair sd {sd:.1%}, r {correlation:.1f}")
        if not correlation:
            text = f"correlated nights, pair sd {sd:.1%}, r 0: alarm in time in at least {LEAST_IN_TIME:.0%}"
            yield Promise(text, f"{rates.in_time:.1%}", rates.in_time >= LEAST_IN_TIME)
