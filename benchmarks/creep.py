"""How soon the creep monitor gives an alarm, and how often it gives a false one, in simulated nights.

    python benchmarks/creep.py [--histories 4000] [--jobs 2]

A night has pairs of head and the anchor's commit with normal log-ratios, and one stored session of head, which the
other policies use. Only the nights are simulated. regbot's own code judges them: ``regbot.stats.drift``, and for the
gate ``regbot.stats.paired``. There are three kinds of histories:

    quiet   200 nights of a head that is not slower
    creep   after 30 quiet nights, a pull request of +0.5% is merged every ten nights, ten times
    step    one change after 30 quiet nights

The promises are printed last. The exit code is 1 if one is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log1p

import numpy as np
from numpy.typing import NDArray
from promises import Promise, report_promises

from regbot.records.calibration_summary import Rate
from regbot.stats.calibration import estimate_rate, rate_upper_bound
from regbot.stats.drift import LIMIT, MAX_NIGHT_STEP, MIN_SLACK, NIGHT_PAIRS, SLACK, cusum, night_pairs
from regbot.stats.paired import LOOKS, Thresholds, sequential_test

Array = NDArray[np.float64]

SEED = 20260805
HISTORIES = 4000
QUIET_NIGHTS = 200
LEAD_IN = 30
"""Number of quiet nights before the first change."""
EVERY, TIMES, CHANGE_PCT = 10, 10, 0.5
TOO_LATE_PCT = 1.5
CALIBRATION_PAIRS = 20
TOO_SMALL = 0.7
"""Ratio of an estimated standard deviation that is 30% too small."""
FAMILY = 8
"""Number of workloads that are monitored together."""

PAIR_SDS = {0.004: 0.005, 0.008: 0.010, 0.014: 0.013, 0.024: 0.023}
"""Standard deviation (sd) of a stored session, by the sd of a pair. The entries are for quiet, typical, bimodal and
noisy nodes (``benchmarks/nodes.py``)."""

NOISY = (0.014, 0.024)

MOST_FALSE = 0.05
LEAST_IN_TIME = 0.95


def quiet_truth() -> Array:
    return np.zeros(QUIET_NIGHTS)


def creep_truth() -> Array:
    """Return the log of head's step time over the anchor's, for each night."""
    steps = np.concatenate([np.zeros(LEAD_IN), np.repeat(np.arange(1, TIMES + 1), EVERY)])
    return log1p(CHANGE_PCT / 100) * steps


def step_truth(percent: float) -> Array:
    return log1p(percent / 100) * np.concatenate([np.zeros(LEAD_IN), np.ones(QUIET_NIGHTS)])


def simulate_means(truth: Array, pair_sd: float, pairs: int, histories: int, rng: np.random.Generator) -> Array:
    """Return the mean log-ratio of each night, with the shape (histories, nights)."""
    return truth + rng.normal(0, pair_sd / pairs**0.5, (histories, len(truth)))


def first_alarms(alarms: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the night of the first alarm of each history; -1 without an alarm."""
    nights: NDArray[np.int64] = np.where(alarms.any(axis=1), alarms.argmax(axis=1), -1)
    return nights


def monitor_alarms(nights: Array, pairs: int, pair_sd: Iterable[float], series: int = 1) -> NDArray[np.int64]:
    """Return the night of the monitor's first alarm in each history; -1 without an alarm."""
    alarms = []
    for history, sd in zip(nights.tolist(), pair_sd, strict=True):
        states = cusum(((mean, pairs) for mean in history), sd, series)
        alarms.append(next((night for night, state in enumerate(states) if state.alarm), -1))
    return np.array(alarms)


# The other policies. Their arguments are the means of the nights, and the levels of the stored sessions, which begin
# EARLIER sessions before the first night. They return the alarms.

EARLIER = 20
"""Number of stored sessions before the first night. A frozen or a rolling baseline begins with these."""


def latest_run(_: Array, stored: Array) -> NDArray[np.bool_]:
    risen: Array = np.diff(stored[:, EARLIER - 1 :], axis=1)
    return risen > log1p(0.02)


def rolling_mean(_: Array, stored: Array) -> NDArray[np.bool_]:
    sums = np.cumsum(np.pad(stored, ((0, 0), (1, 0))), axis=1)
    before = (sums[:, EARLIER:-1] - sums[:, : -EARLIER - 1]) / EARLIER
    risen: Array = stored[:, EARLIER:] - before
    return risen > log1p(0.02)


def frozen(_: Array, stored: Array) -> NDArray[np.bool_]:
    risen: Array = stored[:, EARLIER:] - stored[:, :EARLIER].mean(axis=1, keepdims=True)
    return risen > log1p(0.02)


def frozen_week(_: Array, stored: Array) -> NDArray[np.bool_]:
    weeks = np.lib.stride_tricks.sliding_window_view(stored[:, EARLIER - 6 :], 7, axis=1).mean(axis=-1)
    risen: Array = weeks - stored[:, :EARLIER].mean(axis=1, keepdims=True)
    return risen > log1p(0.015)


def one_night(nights: Array, _: Array) -> NDArray[np.bool_]:
    return nights > log1p(0.02)


def plain_cusum(scores: Array, slack: float, limit: float) -> NDArray[np.bool_]:
    """Return for each night whether Page's CUSUM, without any addition, is above the limit."""
    total, alarms = np.zeros(len(scores)), np.zeros(scores.shape, dtype=bool)
    for night in range(scores.shape[1]):
        total = np.maximum(0, total + scores[:, night] - slack)
        alarms[:, night] = total > limit
    return alarms


def unscaled(nights: Array, _: Array) -> NDArray[np.bool_]:
    return plain_cusum(nights, 0.005, 0.02)


POLICIES: dict[str, Callable[[Array, Array], NDArray[np.bool_]]] = {
    "latest run is the baseline, +2%": latest_run,
    "rolling mean of 20 sessions, +2%": rolling_mean,
    "frozen stored baseline, +2% in one night": frozen,
    "frozen stored baseline, 7-night mean +1.5%": frozen_week,
    "anchor's pairs of one night, +2%": one_night,
    "CUSUM with k 0.5% and h 2% on every node": unscaled,
}


@dataclass(frozen=True)
class Detection:
    """How well a policy detects a creep."""

    in_time: Rate
    """Rate of alarms before the sum of the changes is ``TOO_LATE_PCT``. Histories with an alarm before the first change
    are left out."""
    ever: float
    """Share of these histories with any alarm."""
    median_pct: float
    p90_pct: float
    """90th percentile of the sum of the changes at the alarm, like the median above. Infinite without an alarm."""


def detection(nights: NDArray[np.int64]) -> Detection | None:
    """Summarise the nights of the first alarms. Return None if nearly all alarms came before the first change."""
    after = nights[(nights >= LEAD_IN) | (nights < 0)]
    if len(after) < 0.1 * len(nights):
        return None
    sums = np.where(after < 0, np.inf, ((after - LEAD_IN) // EVERY + 1) * CHANGE_PCT)
    in_time = estimate_rate(int((sums < TOO_LATE_PCT).sum()), len(sums))
    median, p90 = np.quantile(sums, [0.5, 0.9], method="inverted_cdf")
    return Detection(in_time, float(np.isfinite(sums).mean()), float(median), float(p90))


def delays(nights: NDArray[np.int64]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the number of nights from a step to its alarm."""
    after = nights[(nights >= LEAD_IN) | (nights < 0)]
    waited = np.where(after < 0, np.inf, after - LEAD_IN + 1.0)
    median, p90 = np.quantile(waited, [0.5, 0.9], method="inverted_cdf")
    return float(median), float(p90)


@dataclass(frozen=True)
class FalseAlarms:
    """Rates of histories of 200 quiet nights with a false alarm, by what the monitor knows about the sd of a pair."""

    known: Rate
    """The sd is right."""
    calibrated: Rate
    """The sd is estimated from 20 pairs."""
    too_small: Rate
    """The sd is 30% too small."""
    uncorrected: Rate
    """The sd is 30% too small, and the monitor does not correct it."""


def measure_false_alarms(pair_sd: float, histories: int, seed: np.random.SeedSequence) -> FalseAlarms:
    rng = np.random.default_rng(seed)
    nights = simulate_means(quiet_truth(), pair_sd, NIGHT_PAIRS, histories, rng)
    freedom = CALIBRATION_PAIRS - 1
    estimated = pair_sd * np.sqrt(rng.chisquare(freedom, histories) / freedom)

    def false_rate(sds: Array) -> Rate:
        return estimate_rate(int((monitor_alarms(nights, NIGHT_PAIRS, sds.tolist()) >= 0).sum()), histories)

    right = np.full(histories, pair_sd)
    error = TOO_SMALL * pair_sd / NIGHT_PAIRS**0.5
    excess = np.clip((nights - max(SLACK * error, MIN_SLACK)) / error, -MAX_NIGHT_STEP, MAX_NIGHT_STEP)
    uncorrected = estimate_rate(int(plain_cusum(excess, 0.0, LIMIT).any(axis=1).sum()), histories)
    return FalseAlarms(false_rate(right), false_rate(estimated), false_rate(TOO_SMALL * right), uncorrected)


@dataclass(frozen=True)
class MonitorResult:
    """How well the monitor detects a creep and steps, for one noise and one number of pairs a night."""

    creep: Detection
    steps: dict[float, tuple[float, float]]
    """Median and 90th percentile of the nights until the alarm, by the size of the step in percent."""


STEPS_PCT = (1.0, 2.0)


def measure_monitor(pair_sd: float, pairs: int, histories: int, seed: np.random.SeedSequence) -> MonitorResult:
    rng = np.random.default_rng(seed)

    def alarms(truth: Array) -> NDArray[np.int64]:
        return monitor_alarms(simulate_means(truth, pair_sd, pairs, histories, rng), pairs, [pair_sd] * histories)

    creep = detection(alarms(creep_truth()))
    if creep is None:
        raise AssertionError("the monitor alarmed in nearly all quiet nights")
    return MonitorResult(creep, {percent: delays(alarms(step_truth(percent))) for percent in STEPS_PCT})


def measure_policies(
    pair_sd: float, histories: int, seed: np.random.SeedSequence
) -> dict[str, tuple[float, Detection | None]]:
    """Return for each policy the share of quiet histories with a false alarm, and how well it detects a creep.

    All policies judge the same nights.
    """
    rng = np.random.default_rng(seed)
    alarms: dict[str, list[NDArray[np.int64]]] = {}
    for truth in (quiet_truth(), creep_truth()):
        nights = simulate_means(truth, pair_sd, NIGHT_PAIRS, histories, rng)
        extended = np.concatenate([np.zeros(EARLIER), truth])
        stored = extended + rng.normal(0, PAIR_SDS[pair_sd], (histories, len(extended)))
        for name, policy in POLICIES.items():
            alarms.setdefault(name, []).append(first_alarms(policy(nights, stored)))
        own = monitor_alarms(nights, NIGHT_PAIRS, [pair_sd] * histories)
        alarms.setdefault(f"regbot, {NIGHT_PAIRS} pairs a night", []).append(own)
    return {name: (float((quiet >= 0).mean()), detection(creep)) for name, (quiet, creep) in alarms.items()}


def measure_gate(pair_sd: float, histories: int, seed: np.random.SeedSequence) -> tuple[float, Detection | None]:
    """Return the same for the gate of pull requests alone. The gate judges one pull request a night.

    A pull request of the creep is judged in the night in which it is merged.
    """
    rng, thresholds = np.random.default_rng(seed), Thresholds.from_percent(2, 1)

    def flagged(effects: Array) -> NDArray[np.int64]:
        ratios = effects[:, None] + rng.normal(0, pair_sd, (histories, len(effects), LOOKS[-1]))
        alarms = []
        for history in ratios.tolist():
            decisions = ((sequential_test({"median": pairs}, 1, thresholds), pairs) for pairs in history)
            alarms.append([test is not None and test.decision == "regressed" for test, _ in decisions])
        return first_alarms(np.array(alarms))

    return float((flagged(quiet_truth()) >= 0).mean()), detection(flagged(np.diff(creep_truth(), prepend=0.0)))


NOISE_KINDS = ("normal", "t, 4 degrees", "own noise")
"""Kinds of noise of the nights. normal: as the monitor assumes. t: heavy tails. own noise: all pairs of a night share a
noise with half their standard error. ``correlated_nights.py`` has nights that are correlated."""


def measure_noise_kind(kind: str, histories: int, seed: np.random.SeedSequence) -> Rate:
    """Return the rate of false alarms in quiet nights with one of ``NOISE_KINDS``. The known sd of a pair is 1.4%."""
    rng, pair_sd = np.random.default_rng(seed), NOISY[0]
    shape, error = (histories, QUIET_NIGHTS), pair_sd / NIGHT_PAIRS**0.5
    nights = rng.normal(0, error, shape)
    if kind == "t, 4 degrees":
        nights = error * rng.standard_t(4, shape) / 2**0.5
    elif kind == "own noise":
        nights += rng.normal(0, error / 2, shape)
    return estimate_rate(int((monitor_alarms(nights, NIGHT_PAIRS, [pair_sd] * histories) >= 0).sum()), histories)


def measure_family(histories: int, seed: np.random.SeedSequence) -> Rate:
    """Return the rate of families of ``FAMILY`` workloads with any false alarm, on a noisy node."""
    pair_sd = NOISY[-1]
    nights = simulate_means(quiet_truth(), pair_sd, NIGHT_PAIRS, histories * FAMILY, np.random.default_rng(seed))
    alarms = monitor_alarms(nights, NIGHT_PAIRS, [pair_sd] * len(nights), FAMILY) >= 0
    return estimate_rate(int(alarms.reshape(histories, FAMILY).any(axis=1).sum()), histories)


def settings() -> list[tuple[float, int]]:
    """Return all measured combinations of a noise and a number of pairs a night.

    The numbers are the minimum and the number that the noise needs, and on a noisy node two numbers between them.
    """
    combinations = []
    for sd in PAIR_SDS:
        combinations += [(sd, pairs) for pairs in sorted({NIGHT_PAIRS, night_pairs(sd)})]
    return [*combinations, (0.024, 8), (0.024, 16)]


def false_alarm_promise(rate: Rate, name: str) -> Promise:
    """Compare the one-sided 95% bound of a rate of false alarms with its limit."""
    upper = rate_upper_bound(rate.count, rate.total)
    text = f"{name}: false alarms in {QUIET_NIGHTS} quiet nights, upper 95% bound, at most {MOST_FALSE:.0%}"
    return Promise(text, f"{upper:.1%}", upper <= MOST_FALSE)


def promises(
    false_alarms: dict[float, FalseAlarms], families: Rate, results: dict[tuple[float, int], MonitorResult]
) -> list[Promise]:
    promises = []
    for sd, rates in false_alarms.items():
        promises += [false_alarm_promise(rates.known, f"pair sd {sd:.1%}, known")]
        promises += [false_alarm_promise(rates.calibrated, f"pair sd {sd:.1%}, from {CALIBRATION_PAIRS} pairs")]
    # On noisy nodes the minimum slack has no effect, and nights are measured in standard errors. The rate is then the
    # same for all noises, so the histories of these nodes are pooled.
    worst = [false_alarms[sd].too_small for sd in NOISY]
    pooled = estimate_rate(sum(rate.count for rate in worst), sum(rate.total for rate in worst))
    promises.append(false_alarm_promise(pooled, "pair sd 1.4% and 2.4%, 30% too small"))
    promises.append(false_alarm_promise(families, f"{FAMILY} series together"))
    for sd in PAIR_SDS:
        pairs, creep = night_pairs(sd), results[sd, night_pairs(sd)].creep
        in_time = creep.in_time.count / creep.in_time.total
        text = f"pair sd {sd:.1%}, {pairs} pairs a night: alarm before +{TOO_LATE_PCT}% in at least {LEAST_IN_TIME:.0%}"
        promises.append(Promise(text, f"{in_time:.1%}", in_time >= LEAST_IN_TIME))
    return promises


def share(rate: Rate) -> str:
    return f"{rate.count / rate.total:.1%} [{rate.low:.1%}, {rate.high:.1%}]"


def format_detection(creep: Detection | None) -> str:
    """Return the cells of a table: in time, ever, and median and 90th percentile of the sum at the alarm."""
    if creep is None:
        return f"{'-':>8} {'-':>6} {'-':>6} {'-':>6}"
    sums = " ".join(f"{'never':>6}" if np.isinf(pct) else f"{pct:>5.1f}%" for pct in (creep.median_pct, creep.p90_pct))
    return f"{creep.in_time.count / creep.in_time.total:>8.1%} {creep.ever:>6.0%} {sums}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=HISTORIES, help="simulated for each cell")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    many, few = options.histories, max(options.histories // 4, 1)
    seeds = iter(np.random.SeedSequence(SEED).spawn(64))
    with ProcessPoolExecutor(options.jobs) as pool:
        false_alarm_jobs = {sd: pool.submit(measure_false_alarms, sd, many, next(seeds)) for sd in PAIR_SDS}
        monitor_jobs = {
            (sd, pairs): pool.submit(measure_monitor, sd, pairs, few, next(seeds)) for sd, pairs in settings()
        }
        peer_jobs = {sd: pool.submit(measure_policies, sd, few, next(seeds)) for sd in PAIR_SDS}
        gate_jobs = {sd: pool.submit(measure_gate, sd, max(few // 5, 1), next(seeds)) for sd in PAIR_SDS}
        family_job = pool.submit(measure_family, few, next(seeds))
        kind_jobs = {kind: pool.submit(measure_noise_kind, kind, few, next(seeds)) for kind in NOISE_KINDS}
        false_alarms = {key: job.result() for key, job in false_alarm_jobs.items()}
        results = {key: job.result() for key, job in monitor_jobs.items()}
        policy_results = {
            sd: {**job.result(), "the gate of each pull request alone": gate_jobs[sd].result()}
            for sd, job in peer_jobs.items()
        }
        families = family_job.result()
        kind_rates = {key: job.result() for key, job in kind_jobs.items()}

    print(f"False alarms in {QUIET_NIGHTS} quiet nights, {many} histories, exact 95% interval; the sd of a pair is\n")
    names = ("known", f"from {CALIBRATION_PAIRS} pairs", "30% too small", "same, uncorrected")
    print(f"{'pair sd':>8}", *(f"{name:>20}" for name in names))
    for sd, rates in false_alarms.items():
        columns = (rates.known, rates.calibrated, rates.too_small, rates.uncorrected)
        print(f"{sd:>8.1%}", *(f"{share(rate):>20}" for rate in columns))
    print(f"any of {FAMILY} series, pair sd {NOISY[-1]:.1%}, {few} families: {share(families)}")

    heads = (f"{f'+{percent:g}% step':>12}" for percent in STEPS_PCT)
    print(f"\n+{CHANGE_PCT}% every {EVERY} nights, {TIMES} times; one step: nights until the alarm. {few} histories\n")
    print(f"{'pair sd':>8} {'pairs':>6} {'in time':>8} {'ever':>6} {'median':>6} {'90th':>6}", *heads)
    for (sd, pairs), result in sorted(results.items()):
        steps = (f"{f'{median:g}, 90th {p90:g}':>12}" for median, p90 in result.steps.values())
        print(f"{sd:>8.1%} {pairs:>6} {format_detection(result.creep)}", *steps)

    print(f"\nThe same with other policies; false: histories of {QUIET_NIGHTS} quiet nights with an alarm\n")
    print(f"{'pair sd':>8} {'policy':<44} {'false':>6} {'in time':>8} {'ever':>6} {'median':>6} {'90th':>6}")
    for sd, rows in policy_results.items():
        for name, (false, creep) in rows.items():
            print(f"{sd:>8.1%} {name:<44} {false:>6.1%} {format_detection(creep)}")

    print(f"\nFalse alarms in quiet nights that are not as assumed, pair sd {NOISY[0]:.1%}\n")
    for kind, rate in kind_rates.items():
        print(f"{kind:<18} {share(rate):>20}")
    print()
    return report_promises(promises(false_alarms, families, results))


if __name__ == "__main__":
    sys.exit(main())
