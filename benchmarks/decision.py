"""How often the throughput verdict is right: ``regbot.stats`` judges simulated sessions with a known true effect.

    python benchmarks/decision.py [--sessions 20000] [--jobs 2]

A session has twelve pairs of runs in ABBA or BAAB blocks on one node. The step times come from the generative model of
``nodes.py``. Everything else is regbot's own code: the summaries of a run, the log-ratios of the pairs, the looks and
the decision rule. An effect multiplies every step time of head, so it adds the same log to the median and to the mean.
Each simulated session is therefore judged at every effect.

Each figure is compared with a promise. The exit code is 1 if a promise is not kept.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log1p

import numpy as np
from nodes import NODES, Array, Flags, Node, abba, levels, steps_of_runs, warm_up
from promises import Promise, report_promises

from regbot.stats.calibration import rate_bounds
from regbot.stats.paired import LOOK_ALPHA, LOOKS, Thresholds, interval, sequential_test
from regbot.stats.summary import summarise

SEED = 20260801
SESSIONS = 20_000
CHUNK = 500
"""Number of sessions that are simulated at once. They have 120 MB of step times."""

PAIRS = LOOKS[-1]
CUT, STEADY = 10, 40
STEPS = CUT + STEADY
WARM_UP_STEPS = 12
"""Length of the simulated warm-up. It is longer than the cut: the first step that counts is still up to 1.2% slower."""

EFFECTS_PCT = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
TESTS: dict[int, tuple[str, ...]] = {1: ("median",), 2: ("median", "mean"), 4: ("median", "mean")}
"""Tested summaries of one workload, by the number of primary tests of the check.

A check with four tests has two workloads. The printed rates are those of one workload. The error rate of the whole
check is at most twice as high, and this upper limit is compared with the promise.
"""


def step_times(node: Node, sessions: int, rng: np.random.Generator) -> tuple[Array, Flags]:
    """Return steady step times in seconds, (sessions, runs, STEADY) in launch order, and flags for the runs of head."""
    head = abba(sessions, PAIRS, rng)
    logs = levels(node, sessions, 2 * PAIRS, rng)[..., None] + steps_of_runs(node, head.shape, STEPS, rng)
    logs += warm_up(head.shape, STEPS, WARM_UP_STEPS, rng)
    return np.exp(logs[..., CUT:]), head


def log_ratios(node: Node, sessions: int, rng: np.random.Generator) -> Iterator[dict[str, list[float]]]:
    """Yield for each session the log(head / base) of its twelve pairs, by summary. They have no effect yet."""
    times, heads = step_times(node, sessions, rng)
    for session, head in zip(times.tolist(), heads.tolist(), strict=True):
        summaries = [summarise(run) for run in session]
        ratios: dict[str, list[float]] = {name: [] for name in summaries[0]}
        for slot in range(0, len(summaries), 2):
            sign = 1 if head[slot + 1] else -1
            for name, values in ratios.items():
                values.append(sign * (summaries[slot + 1][name] - summaries[slot][name]))
        yield ratios


@dataclass
class Tally:
    """Counts of the decisions on the sessions of one node, for one effect and one number of primary tests."""

    sessions: int = 0
    runs: int = 0
    decisions: dict[str, int] = field(default_factory=dict)
    covered: int = 0
    """Number of sessions in which every interval of the last look contains the true effect."""

    def add(self, other: "Tally") -> None:
        self.sessions += other.sessions
        self.runs += other.runs
        self.covered += other.covered
        for decision, count in other.decisions.items():
            self.decisions[decision] = self.decisions.get(decision, 0) + count

    def rate(self, decision: str) -> float:
        return self.decisions.get(decision, 0) / self.sessions

    def bounds(self, decision: str) -> tuple[float, float]:
        """Return the exact 95% interval of the rate (Clopper and Pearson)."""
        return rate_bounds(self.decisions.get(decision, 0), self.sessions)

    def coverage(self) -> float:
        return self.covered / self.sessions


Key = tuple[int, float]
"""Number of primary tests, and effect in percent."""


@dataclass
class Outcome:
    """Results of one node: tallies, and the variance of a pair's log-ratio by summary."""

    tallies: dict[Key, Tally]
    pair_variance: dict[str, float]


def simulate(node: Node, sessions: int, seed: np.random.SeedSequence) -> Outcome:
    """Simulate ``sessions`` sessions of ``node`` and judge each at every effect."""
    rng = np.random.default_rng(seed)
    tallies: dict[Key, Tally] = {(tests, effect): Tally() for tests in TESTS for effect in EFFECTS_PCT}
    variance: dict[str, float] = {}
    for ratios in log_ratios(node, sessions, rng):
        for name, values in ratios.items():
            variance[name] = variance.get(name, 0.0) + interval(values, LOOK_ALPHA).sd ** 2 / sessions
        for (tests, effect), tally in tallies.items():
            judge(ratios, tests, log1p(effect / 100), tally)
    return Outcome(tallies, variance)


def judge(ratios: dict[str, list[float]], primary_tests: int, effect: float, tally: Tally) -> None:
    """Judge one session whose head is slower by the log ``effect``, and add the decision to ``tally``."""
    shifted = {name: [value + effect for value in ratios[name]] for name in TESTS[primary_tests]}
    test = sequential_test(shifted, primary_tests, THRESHOLDS)
    assert test is not None
    tally.sessions += 1
    tally.runs += 2 * test.pairs
    tally.decisions[test.decision] = tally.decisions.get(test.decision, 0) + 1
    tally.covered += all(bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())


def simulate_all(sessions: int, jobs: int) -> dict[str, Outcome]:
    """Simulate all nodes, in chunks on ``jobs`` processes. The results do not depend on ``jobs``."""
    starts = [*range(0, sessions, CHUNK), sessions]
    sizes = [end - start for start, end in pairwise(starts)]
    seeds = np.random.SeedSequence(SEED).spawn(len(NODES) * len(sizes))
    work = [(node, size) for node in NODES for size in sizes]
    outcomes: dict[str, Outcome] = {}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate, [node for node, _ in work], [size for _, size in work], seeds)
        for (node, size), result in zip(work, results, strict=True):
            outcome = outcomes.setdefault(node.name, Outcome({}, {}))
            for key, tally in result.tallies.items():
                outcome.tallies.setdefault(key, Tally()).add(tally)
            for name, value in result.pair_variance.items():
                outcome.pair_variance[name] = outcome.pair_variance.get(name, 0.0) + value * size / sessions
    return outcomes


MAX_FALSE = 0.035
MIN_COVERAGE = 0.95
MIN_POWER = {1: 0.89, 2: 0.85, 4: 0.75}


def promises(outcomes: dict[str, Outcome]) -> list[Promise]:
    """Compare the results with the promises of the documentation. The worst node and the worst effect count."""
    made = []
    for tests in TESTS:
        workloads = tests // len(TESTS[tests])
        upper, worst = max(
            (workloads * outcome.tallies[tests, 1.0].bounds("regressed")[1], name) for name, outcome in outcomes.items()
        )
        made.append(
            Promise(
                f"{tests} primary: regressed at a true 1%, upper 95% bound, at most {MAX_FALSE:.1%}",
                f"{upper:.2%} ({worst})",
                upper <= MAX_FALSE,
            )
        )
        coverage, worst = min(
            (tally.coverage(), f"{name} at {effect:g}%")
            for name, outcome in outcomes.items()
            for (number, effect), tally in outcome.tallies.items()
            if number == tests
        )
        made.append(
            Promise(
                f"{tests} primary: coverage at the stop at least {MIN_COVERAGE:.0%}",
                f"{coverage:.2%} ({worst})",
                coverage >= MIN_COVERAGE,
            )
        )
        tally = outcomes["typical"].tallies[tests, 2.0]
        made.append(
            Promise(
                f"{tests} primary: power at a true 2% on the typical node at least {MIN_POWER[tests]:.2f}",
                f"{tally.rate('regressed'):.3f}, {tally.runs / tally.sessions:.1f} runs in the mean",
                tally.rate("regressed") >= MIN_POWER[tests],
            )
        )
    return made


def report(outcomes: dict[str, Outcome]) -> None:
    """Print every rate as a table."""
    for name, outcome in outcomes.items():
        deviations = ", ".join(f"{summary} {100 * value**0.5:.2f}%" for summary, value in outcome.pair_variance.items())
        print(f"\n{name}: standard deviation of a pair: {deviations}")
        print(
            f"{'primary':>7} {'effect':>6} {'regressed':>10} {'95% bounds':>15} {'improved':>9} {'no change':>10}"
            f" {'undecided':>10} {'runs':>5} {'coverage':>9}"
        )
        for (tests, effect), tally in outcome.tallies.items():
            low, high = tally.bounds("regressed")
            bounds = f"{low:.4f}..{high:.4f}" if effect == 1.0 else ""
            print(
                f"{tests:>7} {effect:>5g}% {tally.rate('regressed'):>10.4f} {bounds:>15}"
                f" {tally.rate('improved'):>9.4f} {tally.rate('no_change'):>10.4f} {tally.rate('undecided'):>10.4f}"
                f" {tally.runs / tally.sessions:>5.1f} {tally.coverage():>9.4f}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="simulated per node")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    delta, eps = 100 * (exp(THRESHOLDS.delta) - 1), 100 * (exp(THRESHOLDS.eps) - 1)
    print(
        f"{options.sessions} sessions per node, {STEADY} steady steps a run after a cut of {CUT},"
        f" looks at {LOOKS} pairs, alpha {LOOK_ALPHA} / primary tests,\n"
        f"threshold {delta:g}%, indifference {eps:g}%, seed {SEED}"
    )
    outcomes = simulate_all(options.sessions, options.jobs)
    report(outcomes)
    print()
    return report_promises(promises(outcomes))


if __name__ == "__main__":
    sys.exit(main())
