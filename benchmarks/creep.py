"""How soon the creep monitor alarms, and how often for nothing: simulated nights of head against the anchor.

    python benchmarks/creep.py [--histories 4000] [--jobs 2]

A night has pairs of head and the anchor's commit, whose log-ratios are normal, and one stored session of head, which
the other policies judge. The nights are the model's; what becomes of them is regbot's own code, ``regbot.stats.drift``
and for the gate ``regbot.stats.paired``. *Quiet*: 200 nights of a head that is not slower. *Creep*: after 30 quiet
nights a pull request of +0.5% is accepted every ten nights, ten times. *Step*: one change after 30 quiet nights.

The promises are printed last. Exit code 1 where one is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log1p

import numpy as np
from numpy.typing import NDArray
from promises import Promise, told
from scipy.signal import lfilter

from regbot.stats.calibration import Rate, upper_bound
from regbot.stats.drift import LEAST_SLACK, LIMIT, NIGHT_PAIRS, REACH, SLACK, night_pairs, standings
from regbot.stats.paired import LOOKS, Thresholds, sequential

Array = NDArray[np.float64]

SEED = 20260805
HISTORIES = 4000
QUIET_NIGHTS = 200
LEAD_IN = 30
EVERY, TIMES, CHANGE_PCT = 10, 10, 0.5
TOO_LATE_PCT = 1.5
CALIBRATION_PAIRS = 20
TOO_SMALL = 0.7
FAMILY = 8

PAIR_SDS = {0.004: 0.005, 0.008: 0.010, 0.014: 0.013, 0.024: 0.023}
"""Sd of a pair -> sd of a stored session, on quiet, typical, bimodal and noisy nodes (``benchmarks/nodes.py``)."""

NOISY = (0.014, 0.024)

MOST_FALSE = 0.05
LEAST_IN_TIME = 0.95


def quiet_truth() -> Array:
    return np.zeros(QUIET_NIGHTS)


def creep_truth() -> Array:
    """Log of head over the anchor, night by night."""
    steps = np.concatenate([np.zeros(LEAD_IN), np.repeat(np.arange(1, TIMES + 1), EVERY)])
    return log1p(CHANGE_PCT / 100) * steps


def step_truth(percent: float) -> Array:
    return log1p(percent / 100) * np.concatenate([np.zeros(LEAD_IN), np.ones(QUIET_NIGHTS)])


def means(truth: Array, pair_sd: float, pairs: int, histories: int, rng: np.random.Generator) -> Array:
    """What the nights show, (histories, nights)."""
    return truth + rng.normal(0, pair_sd / pairs**0.5, (histories, len(truth)))


def first(alarms: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The night of the first alarm of each history, -1 where there is none."""
    found: NDArray[np.int64] = np.where(alarms.any(axis=1), alarms.argmax(axis=1), -1)
    return found


def monitored(nights: Array, pairs: int, pair_sd: Iterable[float], series: int = 1) -> NDArray[np.int64]:
    """The night of the monitor's first alarm in each history, -1 where there is none."""
    found = []
    for means_of_one, sd in zip(nights.tolist(), pair_sd, strict=True):
        told = standings(((mean, pairs) for mean in means_of_one), sd, series)
        found.append(next((night for night, standing in enumerate(told) if standing.alarm), -1))
    return np.array(found)


# The other policies: (nights' means, levels of stored sessions with EARLIER before the first night) -> alarms.

EARLIER = 20
"""Stored sessions before the first night, which a frozen or a rolling baseline starts from."""


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


def plain(scores: Array, slack: float, limit: float) -> NDArray[np.bool_]:
    """Page's CUSUM without anything else: whether it stands above the limit, night by night."""
    total, alarms = np.zeros(len(scores)), np.zeros(scores.shape, dtype=bool)
    for night in range(scores.shape[1]):
        total = np.maximum(0, total + scores[:, night] - slack)
        alarms[:, night] = total > limit
    return alarms


def unscaled(nights: Array, _: Array) -> NDArray[np.bool_]:
    return plain(nights, 0.005, 0.02)


POLICIES: dict[str, Callable[[Array, Array], NDArray[np.bool_]]] = {
    "latest run is the baseline, +2%": latest_run,
    "rolling mean of 20 sessions, +2%": rolling_mean,
    "frozen stored baseline, +2% in one night": frozen,
    "frozen stored baseline, 7-night mean +1.5%": frozen_week,
    "anchor's pairs of one night, +2%": one_night,
    "CUSUM with k 0.5% and h 2% on every node": unscaled,
}


@dataclass(frozen=True)
class Noticed:
    """What became of the histories of a creep."""

    in_time: Rate
    """Alarmed after the first change and before the sum is ``TOO_LATE_PCT``; of those silent until the first."""
    ever: float
    median_pct: float
    p90_pct: float
    """The sum of the changes at the alarm. Infinite where there is none."""


def noticed(nights: NDArray[np.int64]) -> Noticed | None:
    """None where hardly a history was silent before the first change."""
    after = nights[(nights >= LEAD_IN) | (nights < 0)]
    if len(after) < 0.1 * len(nights):
        return None
    sums = np.where(after < 0, np.inf, ((after - LEAD_IN) // EVERY + 1) * CHANGE_PCT)
    in_time = Rate.of(int((sums < TOO_LATE_PCT).sum()), len(sums))
    median, p90 = np.quantile(sums, [0.5, 0.9], method="inverted_cdf")
    return Noticed(in_time, float(np.isfinite(sums).mean()), float(median), float(p90))


def delays(nights: NDArray[np.int64]) -> tuple[float, float]:
    """Median and 90th percentile of the nights that a step had been there at the alarm."""
    after = nights[(nights >= LEAD_IN) | (nights < 0)]
    waited = np.where(after < 0, np.inf, after - LEAD_IN + 1.0)
    median, p90 = np.quantile(waited, [0.5, 0.9], method="inverted_cdf")
    return float(median), float(p90)


@dataclass(frozen=True)
class Quiet:
    """False alarms in 200 quiet nights."""

    known: Rate
    """The sd of a pair is right,"""
    calibrated: Rate
    """estimated from 20 pairs,"""
    too_small: Rate
    """30% too small,"""
    uncorrected: Rate
    """30% too small, by a monitor that never corrects it."""


def quiet(pair_sd: float, histories: int, seed: np.random.SeedSequence) -> Quiet:
    rng = np.random.default_rng(seed)
    nights = means(quiet_truth(), pair_sd, NIGHT_PAIRS, histories, rng)
    free = CALIBRATION_PAIRS - 1
    estimated = pair_sd * np.sqrt(rng.chisquare(free, histories) / free)

    def false(sds: Array) -> Rate:
        return Rate.of(int((monitored(nights, NIGHT_PAIRS, sds.tolist()) >= 0).sum()), histories)

    right = np.full(histories, pair_sd)
    error = TOO_SMALL * pair_sd / NIGHT_PAIRS**0.5
    excess = np.clip((nights - max(SLACK * error, LEAST_SLACK)) / error, -REACH, REACH)
    trusting = Rate.of(int(plain(excess, 0.0, LIMIT).any(axis=1).sum()), histories)
    return Quiet(false(right), false(estimated), false(TOO_SMALL * right), trusting)


@dataclass(frozen=True)
class Seen:
    """One noise and number of pairs a night: what the monitor sees, and when."""

    creep: Noticed
    steps: dict[float, tuple[float, float]]


STEPS_PCT = (1.0, 2.0)


def seen(pair_sd: float, pairs: int, histories: int, seed: np.random.SeedSequence) -> Seen:
    rng = np.random.default_rng(seed)

    def alarms(truth: Array) -> NDArray[np.int64]:
        return monitored(means(truth, pair_sd, pairs, histories, rng), pairs, [pair_sd] * histories)

    creep = noticed(alarms(creep_truth()))
    if creep is None:
        raise AssertionError("the monitor alarmed in nearly all quiet nights")
    return Seen(creep, {percent: delays(alarms(step_truth(percent))) for percent in STEPS_PCT})


def peers(pair_sd: float, histories: int, seed: np.random.SeedSequence) -> dict[str, tuple[float, Noticed | None]]:
    """The other policies on the same nights: share of quiet histories with a false alarm, and the creep."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[NDArray[np.int64]]] = {}
    for truth in (quiet_truth(), creep_truth()):
        nights = means(truth, pair_sd, NIGHT_PAIRS, histories, rng)
        before = np.concatenate([np.zeros(EARLIER), truth])
        stored = before + rng.normal(0, PAIR_SDS[pair_sd], (histories, len(before)))
        for name, policy in POLICIES.items():
            found.setdefault(name, []).append(first(policy(nights, stored)))
        own = monitored(nights, NIGHT_PAIRS, [pair_sd] * histories)
        found.setdefault(f"regbot, {NIGHT_PAIRS} pairs a night", []).append(own)
    return {name: (float((calm >= 0).mean()), noticed(creep)) for name, (calm, creep) in found.items()}


def gate_only(pair_sd: float, histories: int, seed: np.random.SeedSequence) -> tuple[float, Noticed | None]:
    """The gate of each pull request alone: one a night is judged, those of the creep at the night they come."""
    rng, thresholds = np.random.default_rng(seed), Thresholds.from_percent(2, 1)

    def flagged(effects: Array) -> NDArray[np.int64]:
        ratios = effects[:, None] + rng.normal(0, pair_sd, (histories, len(effects), LOOKS[-1]))
        alarms = []
        for history in ratios.tolist():
            decisions = ((sequential({"median": pairs}, 1, thresholds), pairs) for pairs in history)
            alarms.append([found is not None and found.decision == "regressed" for found, _ in decisions])
        return first(np.array(alarms))

    return float((flagged(quiet_truth()) >= 0).mean()), noticed(flagged(np.diff(creep_truth(), prepend=0.0)))


STRAINS = ("normal", "t, 4 degrees", "own noise", "correlated 0.1", "correlated 0.3")
"""What nights may be: as assumed; heavy-tailed; with noise that all pairs of a night share, half as large as their
standard error; correlated with the night before."""


def strained(strain: str, histories: int, seed: np.random.SeedSequence) -> Rate:
    """False alarms in quiet nights of one of ``STRAINS``, whose pair sd was calibrated as 1.4%."""
    rng, pair_sd = np.random.default_rng(seed), NOISY[0]
    shape, error = (histories, QUIET_NIGHTS), pair_sd / NIGHT_PAIRS**0.5
    nights = rng.normal(0, error, shape)
    if strain == "t, 4 degrees":
        nights = error * rng.standard_t(4, shape) / 2**0.5
    elif strain == "own noise":
        nights += rng.normal(0, error / 2, shape)
    elif strain.startswith("correlated"):
        rho = float(strain.split()[1])
        noise = rng.normal(0, error * (1 - rho**2) ** 0.5, (histories, QUIET_NIGHTS + LEAD_IN))
        nights = lfilter([1.0], [1.0, -rho], noise)[:, LEAD_IN:]
    return Rate.of(int((monitored(nights, NIGHT_PAIRS, [pair_sd] * histories) >= 0).sum()), histories)


def family(histories: int, seed: np.random.SeedSequence) -> Rate:
    """Families of ``FAMILY`` series in which any alarms falsely, on a noisy node."""
    pair_sd = NOISY[-1]
    nights = means(quiet_truth(), pair_sd, NIGHT_PAIRS, histories * FAMILY, np.random.default_rng(seed))
    alarms = monitored(nights, NIGHT_PAIRS, [pair_sd] * len(nights), FAMILY) >= 0
    return Rate.of(int(alarms.reshape(histories, FAMILY).any(axis=1).sum()), histories)


def settings() -> list[tuple[float, int]]:
    """Noise and pairs a night: the least, what the noise needs, and the middle between them on a noisy node."""
    found = []
    for sd in PAIR_SDS:
        found += [(sd, pairs) for pairs in sorted({NIGHT_PAIRS, night_pairs(sd)})]
    return [*found, (0.024, 8), (0.024, 12)]


def most(rate: Rate, words: str) -> Promise:
    """Hardly ever a false alarm: the one-sided 95% bound of ``rate``."""
    upper = upper_bound(rate.count, rate.total)
    text = f"{words}: false alarms in {QUIET_NIGHTS} quiet nights, upper 95% bound, at most {MOST_FALSE:.0%}"
    return Promise(text, f"{upper:.1%}", upper <= MOST_FALSE)


def promises(calm: dict[float, Quiet], families: Rate, watched: dict[tuple[float, int], Seen]) -> list[Promise]:
    made = []
    for sd, each in calm.items():
        made += [most(each.known, f"pair sd {sd:.1%}, known")]
        made += [most(each.calibrated, f"pair sd {sd:.1%}, from {CALIBRATION_PAIRS} pairs")]
    # On nodes too noisy for the least slack to matter the rate is one and the same: nights count in standard errors.
    worst = [calm[sd].too_small for sd in NOISY]
    together = Rate.of(sum(rate.count for rate in worst), sum(rate.total for rate in worst))
    made.append(most(together, "pair sd 1.4% and 2.4%, 30% too small"))
    made.append(most(families, f"{FAMILY} series together"))
    for sd in PAIR_SDS:
        pairs, creep = night_pairs(sd), watched[sd, night_pairs(sd)].creep
        in_time = creep.in_time.count / creep.in_time.total
        text = f"pair sd {sd:.1%}, {pairs} pairs a night: alarm before +{TOO_LATE_PCT}% in at least {LEAST_IN_TIME:.0%}"
        made.append(Promise(text, f"{in_time:.1%}", in_time >= LEAST_IN_TIME))
    return made


def share(rate: Rate) -> str:
    return f"{rate.count / rate.total:.1%} [{rate.low:.1%}, {rate.high:.1%}]"


def reached(creep: Noticed | None) -> str:
    """Three cells: in time, ever, the sum at the alarm."""
    if creep is None:
        return f"{'-':>8} {'-':>6} {'-':>6} {'-':>6}"
    sums = " ".join(f"{'never':>6}" if np.isinf(of) else f"{of:>5.1f}%" for of in (creep.median_pct, creep.p90_pct))
    return f"{creep.in_time.count / creep.in_time.total:>8.1%} {creep.ever:>6.0%} {sums}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=HISTORIES, help="simulated for each cell")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    many, few = options.histories, max(options.histories // 4, 1)
    seeds = iter(np.random.SeedSequence(SEED).spawn(64))
    with ProcessPoolExecutor(options.jobs) as pool:
        calm_jobs = {sd: pool.submit(quiet, sd, many, next(seeds)) for sd in PAIR_SDS}
        seen_jobs = {(sd, pairs): pool.submit(seen, sd, pairs, few, next(seeds)) for sd, pairs in settings()}
        peer_jobs = {sd: pool.submit(peers, sd, few, next(seeds)) for sd in PAIR_SDS}
        gate_jobs = {sd: pool.submit(gate_only, sd, max(few // 5, 1), next(seeds)) for sd in PAIR_SDS}
        family_job = pool.submit(family, few, next(seeds))
        strain_jobs = {strain: pool.submit(strained, strain, few, next(seeds)) for strain in STRAINS}
        calm = {key: job.result() for key, job in calm_jobs.items()}
        watched = {key: job.result() for key, job in seen_jobs.items()}
        others = {
            sd: {**job.result(), "the gate of each pull request alone": gate_jobs[sd].result()}
            for sd, job in peer_jobs.items()
        }
        families = family_job.result()
        strains = {key: job.result() for key, job in strain_jobs.items()}

    print(f"False alarms in {QUIET_NIGHTS} quiet nights, {many} histories, exact 95% interval; the sd of a pair is\n")
    names = ("known", f"from {CALIBRATION_PAIRS} pairs", "30% too small", "so and uncorrected")
    print(f"{'pair sd':>8}", *(f"{name:>20}" for name in names))
    for sd, each in calm.items():
        rates = (each.known, each.calibrated, each.too_small, each.uncorrected)
        print(f"{sd:>8.1%}", *(f"{share(rate):>20}" for rate in rates))
    print(f"any of {FAMILY} series, pair sd {NOISY[-1]:.1%}, {few} families: {share(families)}")

    heads = (f"{f'+{percent:g}% step':>12}" for percent in STEPS_PCT)
    print(f"\n+{CHANGE_PCT}% every {EVERY} nights, {TIMES} times; one step: nights until the alarm. {few} histories\n")
    print(f"{'pair sd':>8} {'pairs':>6} {'in time':>8} {'ever':>6} {'median':>6} {'90th':>6}", *heads)
    for (sd, pairs), found in sorted(watched.items()):
        steps = (f"{f'{median:g}, 90th {p90:g}':>12}" for median, p90 in found.steps.values())
        print(f"{sd:>8.1%} {pairs:>6} {reached(found.creep)}", *steps)

    print(f"\nThe same with other policies; false: histories of {QUIET_NIGHTS} quiet nights with an alarm\n")
    print(f"{'pair sd':>8} {'policy':<44} {'false':>6} {'in time':>8} {'ever':>6} {'median':>6} {'90th':>6}")
    for sd, rows in others.items():
        for name, (false, creep) in rows.items():
            print(f"{sd:>8.1%} {name:<44} {false:>6.1%} {reached(creep)}")

    print(f"\nFalse alarms in quiet nights that are not as assumed, pair sd {NOISY[0]:.1%}\n")
    for strain, rate in strains.items():
        print(f"{strain:<18} {share(rate):>20}")
    print()
    made = promises(calm, families, watched)
    return told(made)


if __name__ == "__main__":
    sys.exit(main())
