"""Error rates of the tests besides the gate.

    python benchmarks/error_rates.py [--sessions 4000] [--jobs 2] [--part NAME]

*Extra runs*: five sessions of twelve pairs on a node of ``nodes.py``, with a look after every block. The peer is the t
interval of one look. *The vote*: the exact probability that placebo sessions contradict the gate, so that it may no
longer decide on the node. *Correlated nights*: the creep monitor, now and before
(``correlated_nights.py``). *Calibrations*, *pushes* and *training*: see ``calibrations.py``,
``repeated_timing.py`` and ``training.py``.

The exit code is 1 if a promise is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
from math import log1p

import numpy as np
from calibrations import calibrations
from correlated_nights import correlated_nights
from nodes import NODES, Array, Node
from paired_sessions import BLOCK_PAIRS, PAIRS, PRIMARY, STEADY, SUMMARIES, THRESHOLDS, simulate_sessions
from promises import Promise, report_promises
from repeated_timing import pushes
from scipy import stats
from training import training

from regbot.records.calibration_summary import Rate
from regbot.stats.anytime import ANYTIME_ALPHA, anytime_interval, decide_anytime
from regbot.stats.calibration import contradiction, estimate_rate, rate_bounds
from regbot.stats.paired import LOOKS, PASSING, combine, decide, interval, look_alpha

SEED = 20260806
SESSIONS = 4000
CHUNK = 100
REPEATS = 5
"""Number of sessions of twelve pairs: the first session, and four with extra runs."""

LOOK_PAIRS = range(LOOKS[0], REPEATS * PAIRS + 1, BLOCK_PAIRS)
"""Numbers of pairs at the looks. There is a look after every block."""

EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)
PARTS = ("extra-runs", "nights", "calibrations", "pushes", "training")

VOTE_PLACEBOS = (20, 60, 200)
FLAG_RATES, COVERAGES = (0.002, 0.05, 0.10, 0.20), (0.98, 0.95, 0.90, 0.80)


def placebos(node: Node, sessions: int, repeats: int, seed: int) -> dict[str, Array]:
    """Return log-ratios of one commit against itself by summary, (sessions, repeats x 12). Each repeat is on a node of
    its own."""
    ratios = simulate_sessions(node, sessions * repeats, seed).ratios.reshape(sessions, -1, PRIMARY)
    return {name: ratios[..., index] for index, name in enumerate(SUMMARIES)}


@dataclass
class ExtraRunCounts:
    """Counts over series of sessions with extra runs up to 60 pairs, at one effect.

    The counts that end with ``_t`` are for t intervals; all others are for the always-valid interval.
    """

    sessions: int = 0
    missed: int = 0
    """At some look, an interval of a summary did not contain the true effect."""
    missed_t: int = 0
    """The same for t intervals with the same alpha."""
    failed: int = 0
    """The decision was "regressed" at some look."""
    failed_t: int = 0
    """The same for the t interval of one look of the paired test."""
    passed: int = 0
    """The decision was a pass at some look with 12 or more pairs."""
    passed_t: int = 0
    """The same for the t interval of one look."""
    decided: int = 0
    """There was a decision after one more session, with 24 pairs."""
    decided_all: int = 0
    """There was a decision after four more sessions, with 60 pairs."""

    def add(self, other: "ExtraRunCounts") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def simulate_series(node: Node, sessions: int, seed: np.random.SeedSequence) -> dict[float, ExtraRunCounts]:
    """Simulate ``sessions`` series of sessions of one node, and judge them at every effect."""
    ratios = placebos(node, sessions, REPEATS, int(seed.generate_state(1)[0]))
    counts = {percent: ExtraRunCounts() for percent in EFFECTS_PCT}
    for session in range(sessions):
        for percent in EFFECTS_PCT:
            effect = log1p(percent / 100)
            shifted = {name: (values[session] + effect).tolist() for name, values in ratios.items()}
            counts[percent].add(_judge_series(shifted, effect, count_misses=percent == 0))
    return counts


def _judge_series(ratios: Mapping[str, Sequence[float]], effect: float, count_misses: bool) -> ExtraRunCounts:
    """Judge one series. Misses do not depend on the effect, so they are counted at one effect only."""
    counts = ExtraRunCounts(sessions=1)
    for pairs in LOOK_PAIRS:
        so_far = {name: values[:pairs] for name, values in ratios.items()}
        test = decide_anytime(so_far, PRIMARY, THRESHOLDS)
        one_look_intervals = [interval(values, look_alpha(PAIRS, PRIMARY)) for values in so_far.values()]
        decision_t = combine([(decide(bounds, THRESHOLDS), bounds) for bounds in one_look_intervals], THRESHOLDS)
        counts.failed |= test.decision == "regressed"
        counts.failed_t |= decision_t == "regressed"
        if pairs >= PAIRS:
            counts.passed |= test.decision in PASSING
            counts.passed_t |= decision_t in PASSING
        if pairs == 2 * PAIRS:
            counts.decided = test.decision != "undecided"
        if pairs == REPEATS * PAIRS:
            counts.decided_all = test.decision != "undecided"
        if count_misses:
            counts.missed |= any(not bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())
            t_intervals = [interval(values, test.alpha) for values in so_far.values()]
            counts.missed_t |= any(not bounds.low <= effect <= bounds.high for bounds in t_intervals)
    return counts


def simulate_all(sessions: int, jobs: int) -> dict[str, dict[float, ExtraRunCounts]]:
    """Simulate all nodes, in chunks on ``jobs`` processes. The results do not depend on ``jobs``."""
    sizes = [end - start for start, end in pairwise([*range(0, sessions, CHUNK), sessions])]
    work = [(node, size) for node in NODES for size in sizes]
    seeds = np.random.SeedSequence(SEED).spawn(len(work))
    counts = {node.name: {percent: ExtraRunCounts() for percent in EFFECTS_PCT} for node in NODES}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate_series, [node for node, _ in work], [size for _, size in work], seeds)
        for (node, _), result in zip(work, results, strict=True):
            for percent, series_counts in result.items():
                counts[node.name][percent].add(series_counts)
    return counts


def extra_runs(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of extra runs, and yield its promise."""
    print(
        f"extra runs: {REPEATS} sessions of {PAIRS} pairs, looked at after every block; always-valid at {ANYTIME_ALPHA}"
        f" / {PRIMARY} beside\nt intervals: of the same alpha for 'ever missed', of one look for the rest"
    )
    print(
        f"{'node':>8} {'effect':>7} {'ever missed the truth':>23} {'ever regressed':>16} {'ever passed from 12':>20}"
        f" {'decided at 24':>14} {'at 60':>6}"
    )
    worst = (0.0, "")
    for node, by_effect in simulate_all(sessions, jobs).items():
        for percent, counts in by_effect.items():
            missed = ""
            if percent == 0:
                _, high = rate_bounds(counts.missed, counts.sessions)
                worst = max(worst, (high, node))
                missed = f"{counts.missed / sessions:.4f} ..{high:.4f} {counts.missed_t / sessions:.3f}"
            failed = f"{counts.failed / sessions:.3f} {counts.failed_t / sessions:.3f}"
            passed = f"{counts.passed / sessions:.3f} {counts.passed_t / sessions:.3f}"
            print(
                f"{node:>8} {percent:>6g}% {missed:>23} {failed:>16} {passed:>20}"
                f" {counts.decided / sessions:>14.3f} {counts.decided_all / sessions:>6.3f}"
            )
    yield Promise(
        f"always-valid: ever missed the truth, upper 95% bound, at most {ANYTIME_ALPHA:.0%}",
        f"{worst[0]:.2%} ({worst[1]})",
        worst[0] <= ANYTIME_ALPHA,
    )


def vote_probabilities() -> None:
    """Print the probability that the gate may not decide any more after a number of placebo sessions."""
    print("\nthe vote: probability that it is lost, judged once after so many placebos, and ever up to the last; exact")
    header = "".join(f"{placebos:>8}" for placebos in VOTE_PLACEBOS) + f"{'ever':>8}"
    print(f"{'true rate of false flags':>26}{header}   {'true coverage':>14}{header}")
    sound = estimate_rate(0, 0)
    for flags, coverage in zip(FLAG_RATES, COVERAGES, strict=True):
        by_flags = _vote_loss_probabilities(flags, lambda rate: contradiction(rate, sound))
        by_coverage = _vote_loss_probabilities(coverage, lambda rate: contradiction(sound, rate))
        cells = ["".join(f"{value:>8.4f}" for value in values) for values in (by_flags, by_coverage)]
        print(f"{flags:>26.3f}{cells[0]}   {coverage:>14.2f}{cells[1]}")


def _vote_loss_probabilities(probability: float, why: Callable[[Rate], str]) -> list[float]:
    """Return the probability that the vote is lost at each of ``VOTE_PLACEBOS``, and that it is ever lost.

    Each placebo is counted with this probability. ``why`` returns why the vote is lost for such a count, or ''.
    """
    at_votes, ever = [], 0.0
    counts = np.ones(1)  # probability of each count, without the cases in which the vote was lost before
    for total in range(1, VOTE_PLACEBOS[-1] + 1):
        counts = np.append(counts, 0) * (1 - probability) + np.append(0, counts) * probability
        lost = np.array([bool(why(estimate_rate(count, total))) for count in range(total + 1)])
        if total in VOTE_PLACEBOS:
            at_votes.append(float(stats.binom.pmf(np.arange(total + 1), total, probability)[lost].sum()))
        ever += float(counts[lost].sum())
        counts[lost] = 0
    return [*at_votes, ever]


def widths() -> None:
    """Print how much wider the always-valid interval is than a t interval."""
    print("\nhalf the always-valid interval over half a t interval of the same alpha, by pairs")
    for alpha in (ANYTIME_ALPHA, ANYTIME_ALPHA / 2, ANYTIME_ALPHA / 4):
        cells = []
        for pairs in (6, 8, 12, 16, 20, 24, 36, 60):
            values = [(-1.0) ** i for i in range(pairs)]
            wide, narrow = anytime_interval(values, alpha), interval(values, alpha)
            cells.append(f"{pairs}: {(wide.high - wide.estimate) / (narrow.high - narrow.estimate):.2f}")
        print(f"{alpha:>8}  {'  '.join(cells)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="series of sessions simulated per node")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    options = parser.parse_args(arguments)
    print(f"{options.sessions} simulated for each figure, {STEADY} steady steps a run, seed {SEED}\n")
    parts: dict[str, Callable[[], Iterator[Promise]]] = {
        "extra-runs": lambda: extra_runs(options.sessions, options.jobs),
        "nights": lambda: correlated_nights(options.sessions, options.jobs),
        "calibrations": lambda: calibrations(options.sessions, options.jobs),
        "pushes": lambda: pushes(options.sessions, options.jobs),
        "training": lambda: training(options.sessions),
    }
    made = [promise for part in options.part or parts for promise in parts[part]()]
    if not options.part:
        widths()
        vote_probabilities()
    print()
    return report_promises(made)


if __name__ == "__main__":
    sys.exit(main())
