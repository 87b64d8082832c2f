"""Whether what is said beside the gate is right as often as it says: extra runs, several metrics, early calibration.

    python benchmarks/error_rates.py [--sessions 4000] [--jobs 2]

*Extra runs*: five sessions of twelve pairs on a node of ``nodes.py``, looked at after every block. The peer is the t
interval of one look. *Several metrics*: twenty normal metrics that hang together, each tested on twelve pairs. The
peers are no adjustment, and Benjamini and Hochberg's. *Early calibration*: sessions drawn from a pool of placebo pairs,
beside what the node really does. *The vote*: how often enough placebos take it away, exact.

Exit code 1 where a promise is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
from math import log1p

import numpy as np
from gate import PAIRS, PRIMARY, STEADY, THRESHOLDS, log_ratios, summaries
from nodes import NODES, Array, Flags, Node, abba, levels, steps_of_runs
from promises import Promise, told
from scipy import stats

from regbot.stats import (
    ANYTIME_ALPHA,
    LOOK_ALPHA,
    LOOKS,
    SECONDARY_Q,
    Rate,
    combine,
    contradicted,
    decide,
    decide_anytime,
    interval,
    rate_bounds,
    resampled,
    secondary,
    sequential,
)
from regbot.stats.anytime import anytime
from regbot.stats.calibration import BLOCK

SEED = 20260806
SESSIONS = 4000
CHUNK = 100
REPEATS = 5
"""Sessions of twelve pairs: the first and four that were asked for."""

AFTER = range(LOOKS[0], REPEATS * PAIRS + 1, BLOCK)
"""Pairs at which it is looked: after every block."""

EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)

METRICS, CHANGED, CHANGE_SD, TOGETHER = 20, 5, 1.5, 0.5
"""Metrics; how many change, by how many sd of a pair; the correlation of any two."""

POOLS, POOL_PAIRS = 100, (20, 60, 200)
VOTES = (20, 60, 200)
FLAG_RATES, COVERAGES = (0.002, 0.05, 0.10, 0.20), (0.98, 0.95, 0.90, 0.80)


def placebos(node: Node, sessions: int, repeats: int, rng: np.random.Generator) -> dict[str, Array]:
    """(sessions, repeats x 12) log-ratios of one commit against itself by summary, each repeat on a node of its own."""
    count = sessions * repeats
    shape = (count, 2 * PAIRS)
    logs = levels(node, *shape, rng)[..., None] + steps_of_runs(node, shape, STEADY, rng)
    is_head = abba(count, PAIRS, rng)
    return {name: log_ratios(found, is_head).reshape(sessions, -1) for name, found in summaries(logs).items()}


@dataclass
class Asked:
    """Sessions that somebody kept asking for, at one effect, until they passed or 60 pairs were spent."""

    sessions: int = 0
    missed: int = 0
    """An interval of either summary did not hold the truth at some look."""
    missed_t: int = 0
    """The same of t intervals of the same alpha."""
    failed: int = 0
    """Regressed at some look, by the always-valid interval;"""
    failed_t: int = 0
    """by the t interval of one look of the paired test."""
    passed: int = 0
    """No change or improved at some look from 12 pairs on, likewise."""
    passed_t: int = 0
    decided: int = 0
    """Not undecided, always valid, with one more session of 12;"""
    decided_all: int = 0
    """with four more."""

    def add(self, other: "Asked") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def ask(node: Node, sessions: int, seed: np.random.SeedSequence) -> dict[float, Asked]:
    """``sessions`` series of sessions of one node, judged at every effect."""
    ratios = placebos(node, sessions, REPEATS, np.random.default_rng(seed))
    found = {percent: Asked() for percent in EFFECTS_PCT}
    for session in range(sessions):
        for percent in EFFECTS_PCT:
            effect = log1p(percent / 100)
            shifted = {name: (values[session] + effect).tolist() for name, values in ratios.items()}
            found[percent].add(_asked(shifted, effect, misses=percent == 0))
    return found


def _asked(ratios: Mapping[str, Sequence[float]], effect: float, misses: bool) -> Asked:
    """One series. Misses do not depend on the effect, so that one is enough."""
    asked = Asked(sessions=1)
    for pairs in AFTER:
        seen = {name: values[:pairs] for name, values in ratios.items()}
        decision, alpha, tests = decide_anytime(seen, PRIMARY, THRESHOLDS)
        fixed = [interval(values, LOOK_ALPHA / PRIMARY) for values in seen.values()]
        decision_t = combine([(decide(each, THRESHOLDS), each) for each in fixed], THRESHOLDS)
        asked.failed |= decision == "regressed"
        asked.failed_t |= decision_t == "regressed"
        if pairs >= PAIRS:
            asked.passed |= decision in ("no_change", "improved")
            asked.passed_t |= decision_t in ("no_change", "improved")
        if pairs == 2 * PAIRS:
            asked.decided = decision != "undecided"
        if pairs == REPEATS * PAIRS:
            asked.decided_all = decision != "undecided"
        if misses:
            asked.missed |= any(not each.low <= effect <= each.high for _, each in tests.values())
            singles = [interval(values, alpha) for values in seen.values()]
            asked.missed_t |= any(not each.low <= effect <= each.high for each in singles)
    return asked


def ask_all(sessions: int, jobs: int) -> dict[str, dict[float, Asked]]:
    """Every node, in chunks on ``jobs`` processes. The answer does not depend on ``jobs``."""
    sizes = [end - start for start, end in pairwise([*range(0, sessions, CHUNK), sessions])]
    work = [(node, size) for node in NODES for size in sizes]
    seeds = np.random.SeedSequence(SEED).spawn(len(work))
    found = {node.name: {percent: Asked() for percent in EFFECTS_PCT} for node in NODES}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(ask, [node for node, _ in work], [size for _, size in work], seeds)
        for (node, _), result in zip(work, results, strict=True):
            for percent, asked in result.items():
                found[node.name][percent].add(asked)
    return found


def extra_runs(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of extra runs."""
    print(
        f"extra runs: {REPEATS} sessions of {PAIRS} pairs, looked at after every block; always-valid at {ANYTIME_ALPHA}"
        f" / {PRIMARY} beside\nt intervals: of the same alpha for 'ever missed', of one look for the rest"
    )
    print(
        f"{'node':>8} {'effect':>7} {'ever missed the truth':>23} {'ever regressed':>16} {'ever passed from 12':>20}"
        f" {'decided at 24':>14} {'at 60':>6}"
    )
    worst = (0.0, "")
    for node, by_effect in ask_all(sessions, jobs).items():
        for percent, each in by_effect.items():
            missed = ""
            if percent == 0:
                _, high = rate_bounds(each.missed, each.sessions)
                worst = max(worst, (high, node))
                missed = f"{each.missed / sessions:.4f} ..{high:.4f} {each.missed_t / sessions:.3f}"
            failed = f"{each.failed / sessions:.3f} {each.failed_t / sessions:.3f}"
            passed = f"{each.passed / sessions:.3f} {each.passed_t / sessions:.3f}"
            print(
                f"{node:>8} {percent:>6g}% {missed:>23} {failed:>16} {passed:>20}"
                f" {each.decided / sessions:>14.3f} {each.decided_all / sessions:>6.3f}"
            )
    yield Promise(
        f"always-valid: ever missed the truth, upper 95% bound, at most {ANYTIME_ALPHA:.0%}",
        f"{worst[0]:.2%} ({worst[1]})",
        worst[0] <= ANYTIME_ALPHA,
    )


def several_metrics(sessions: int) -> Iterator[Promise]:
    """Print the table of several metrics."""
    print(
        f"\nseveral metrics: {METRICS} normal metrics, any two correlated by {TOGETHER}, {PAIRS} pairs, those that"
        f" change do by {CHANGE_SD} sd of a pair"
    )
    print(f"{'changed':>8} {'adjustment':>12} {'any false':>10} {'false of those named':>21} {'changes named':>14}")
    rng = np.random.default_rng(SEED)
    worst = 0.0
    for changed in (0, CHANGED):
        truth = np.arange(METRICS) < changed
        named: dict[str, list[Flags]] = {"none": [], "BH": [], "BY": []}
        for _ in range(sessions):
            common = rng.normal(0, TOGETHER**0.5, (1, PAIRS))
            values = common + rng.normal(0, (1 - TOGETHER) ** 0.5, (METRICS, PAIRS)) + CHANGE_SD * truth[:, None]
            found = secondary({str(metric): row.tolist() for metric, row in enumerate(values)})
            p = np.array([each.p for each in found])
            named["none"].append(np.asarray(p <= SECONDARY_Q))
            named["BH"].append(np.asarray(stats.false_discovery_control(p, method="bh") <= SECONDARY_Q))
            named["BY"].append(np.array([each.significant for each in found]))
        for adjustment, rows in named.items():
            said = np.array(rows)
            false = (said & ~truth).sum(axis=1)
            rate = float((false / np.maximum(said.sum(axis=1), 1)).mean())
            power = f"{said[:, truth].mean():.3f}" if changed else "-"
            print(f"{changed:>8} {adjustment:>12} {(false > 0).mean():>10.3f} {rate:>21.4f} {power:>14}")
            if adjustment == "BY":
                worst = max(worst, rate)
    yield Promise(
        f"several metrics: false of those named, BY, at most {SECONDARY_Q:.0%}", f"{worst:.2%}", worst <= SECONDARY_Q
    )


def early_calibration(sessions: int) -> None:
    """Print what sessions drawn from a pool say beside what the node does."""
    print(
        f"\nearly calibration: sessions drawn from a pool of placebo pairs, {POOLS} pools; mean, and 5th to 95th"
        " percentile of pools"
    )
    print(f"{'node':>8} {'pairs in pool':>14} {'flagged at 0%':>20} {'coverage at 0%':>22} {'regressed at 2%':>22}")
    for index, node in enumerate(NODES):
        rng = np.random.default_rng((SEED, index))
        truth = placebos(node, sessions, 1, rng)
        flagged, covered, power = 0, 0, 0
        for session in range(sessions):
            ratios = {name: values[session].tolist() for name, values in truth.items()}
            none = sequential(ratios, PRIMARY, THRESHOLDS)
            shifted = {name: [x + log1p(0.02) for x in values] for name, values in ratios.items()}
            slowed = sequential(shifted, PRIMARY, THRESHOLDS)
            assert none is not None
            assert slowed is not None
            flagged += none.decision in ("regressed", "improved")
            covered += all(each.low <= 0 <= each.high for _, each in none.tests.values())
            power += slowed.decision == "regressed"
        print(
            f"{node.name:>8} {'(the node)':>14} {flagged / sessions:>20.4f} {covered / sessions:>22.3f}"
            f" {power / sessions:>22.3f}"
        )
        for pairs in POOL_PAIRS:
            rows = []
            for _ in range(POOLS):
                pool = placebos(node, -(-pairs // PAIRS), 1, rng)
                values = {name: found.ravel()[:pairs].tolist() for name, found in pool.items()}
                at_0 = resampled(values, 0.0, PRIMARY, THRESHOLDS, sessions=400)
                at_2 = resampled(values, log1p(0.02), PRIMARY, THRESHOLDS, sessions=400)
                flags = at_0.decisions["regressed"] + at_0.decisions["improved"]
                rows.append((flags, at_0.coverage, at_2.decisions["regressed"]))
            found_ = np.array(rows)
            mean, (low, high) = found_.mean(axis=0), np.quantile(found_, [0.05, 0.95], axis=0)
            cells = [f"{m:.3f} ({a:.3f}-{b:.3f})" for m, a, b in zip(mean, low, high, strict=True)]
            print(f"{node.name:>8} {pairs:>14} {cells[0]:>20} {cells[1]:>22} {cells[2]:>22}")


def votes() -> None:
    """Print how probable it is that the gate has lost its vote after so many placebos."""
    print("\nthe vote: probability that it is lost, judged once after so many placebos, and ever up to the last; exact")
    header = "".join(f"{placebos:>8}" for placebos in VOTES) + f"{'ever':>8}"
    print(f"{'true rate of false flags':>26}{header}   {'true coverage':>14}{header}")
    sound = Rate.of(0, 0)
    for flags, coverage in zip(FLAG_RATES, COVERAGES, strict=True):
        by_flags = _lost(flags, lambda rate: contradicted(rate, sound))
        by_coverage = _lost(coverage, lambda rate: contradicted(sound, rate))
        cells = ["".join(f"{value:>8.4f}" for value in values) for values in (by_flags, by_coverage)]
        print(f"{flags:>26.3f}{cells[0]}   {coverage:>14.2f}{cells[1]}")


def _lost(probability: float, why: Callable[[Rate], str]) -> list[float]:
    """By a count whose every placebo adds one with this probability: lost at each of ``VOTES``, and ever."""
    found, ever = [], 0.0
    counts = np.ones(1)  # of those that have not lost it, by count
    for total in range(1, VOTES[-1] + 1):
        counts = np.append(counts, 0) * (1 - probability) + np.append(0, counts) * probability
        lost = np.array([bool(why(Rate.of(count, total))) for count in range(total + 1)])
        if total in VOTES:
            found.append(float(stats.binom.pmf(np.arange(total + 1), total, probability)[lost].sum()))
        ever += float(counts[lost].sum())
        counts[lost] = 0
    return [*found, ever]


def widths() -> None:
    """Print the price of being always valid: half the interval, in standard deviations of a pair."""
    print("\nhalf the always-valid interval over half a t interval of the same alpha, by pairs")
    for alpha in (ANYTIME_ALPHA, ANYTIME_ALPHA / 2, ANYTIME_ALPHA / 4):
        cells = []
        for pairs in (6, 8, 12, 16, 20, 24, 36, 60):
            values = [(-1.0) ** i for i in range(pairs)]
            wide, narrow = anytime(values, alpha), interval(values, alpha)
            cells.append(f"{pairs}: {(wide.high - wide.estimate) / (narrow.high - narrow.estimate):.2f}")
        print(f"{alpha:>8}  {'  '.join(cells)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="series of sessions simulated per node")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    print(f"{options.sessions} simulated for each figure, {STEADY} steady steps a run, seed {SEED}\n")
    made = [*extra_runs(options.sessions, options.jobs), *several_metrics(options.sessions)]
    widths()
    early_calibration(options.sessions)
    votes()
    print()
    return told(made)


if __name__ == "__main__":
    sys.exit(main())
