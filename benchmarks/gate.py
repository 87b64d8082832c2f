"""What the gate costs and how often it errs: regbot's screen, pairs and both in turn, beside the rules of others.

    python benchmarks/gate.py [--sessions 20000] [--jobs 2] [--run-min 2] [--warm-min 0.5]

Pull requests whose true effect is known are simulated on the four kinds of node of ``nodes.py``. All rules see the same
ones. Each pull request has 40 stored sessions, on a node and a day of their own, of three runs each; a head session
like them; and a session of twelve pairs. The rules of others (``practice.py``) take from that what their tools would
have. What is regbot's is judged by ``regbot.stats``: one workload, median and mean, so two primary tests.

A run costs ``--run-min`` node-minutes, a discarded warm launch ``--warm-min``: one before a screen, one for each arm
before pairs. The rules of others launch none.

Exit code 1 where a promise is not kept.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import expm1, log1p

import numpy as np
from nodes import NODES, Array, Flags, Node, abba, levels, steps_of_runs
from practice import RULES, Measured
from promises import Promise, told

from regbot.stats import (
    LEAST_SESSIONS,
    LOOKS,
    SCREEN_RUNS,
    Thresholds,
    rate_bounds,
    sequential,
    stored_gate,
    summarise,
)
from regbot.stats.screen import screen

SEED = 20260804
SESSIONS = 20_000
CHUNK = 100
"""Pull requests simulated at once: 14,400 runs, 8 MB of random numbers."""

STEADY = 40
STORED = 40
BATCH = 10
PAIRS = LOOKS[-1]
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0, 5.0)
THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
BOUND = log1p(0.05)
SUMMARIES = ("median", "mean")
PRIMARY = len(SUMMARIES)
FEW_NODES = 2
"""Nodes that all stored sessions come from, in the case that the screen's assumption is broken."""

PAIRED, FUNNEL, STORED_GATE = "regbot: pairs", "regbot: screen, then pairs", 'regbot: gate = "stored"'
SCREENS = (f"{STORED} stored sessions", f"{LEAST_SESSIONS} stored sessions", f"{STORED} sessions of {FEW_NODES} nodes")


@dataclass
class Tally:
    """What a rule did with the pull requests of one node at one effect."""

    changes: int = 0
    alarms: int = 0
    """Called slower."""
    false_passes: int = 0
    """Passed with a statement that is false: no change at an effect of the threshold, or a bound below the effect."""
    undecided: int = 0
    runs: int = 0
    warm: int = 0

    def add(self, other: "Tally") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def minutes(self, run_min: float, warm_min: float) -> float:
        """Node-minutes of one pull request, in the mean."""
        return (self.runs * run_min + self.warm * warm_min) / self.changes


@dataclass
class Passes:
    """What a screen did at one effect."""

    changes: int = 0
    passed: int = 0
    outside: int = 0
    """An interval did not hold 0."""
    false_bounds: int = 0
    """Passed with a bound below the effect."""
    bounds_pct: float = 0.0
    """Sum of the bounds stated."""

    def add(self, other: "Passes") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class Outcome:
    """One node: tallies by rule and effect in percent, screens by what was stored and effect."""

    rules: dict[tuple[str, float], Tally] = field(default_factory=dict)
    screens: dict[tuple[str, float], Passes] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        for rule, tally in other.rules.items():
            self.rules.setdefault(rule, Tally()).add(tally)
        for stored, passes in other.screens.items():
            self.screens.setdefault(stored, Passes()).add(passes)


@dataclass(frozen=True)
class Change:
    """One pull request that changes nothing, in regbot's terms: levels and log-ratios by summary."""

    stored: Mapping[str, Mapping[str, list[float]]]
    """By what was stored (``SCREENS``)."""
    head: Mapping[str, float]
    log_ratios: Mapping[str, list[float]]


def summaries(logs: Array) -> dict[str, Array]:
    """``regbot.stats.summarise`` of many runs at once: (..., steps) logs -> (...)."""
    return {"median": np.median(logs, axis=-1), "mean": np.log(np.exp(logs).mean(axis=-1))}


def simulate(node: Node, count: int, rng: np.random.Generator) -> tuple[Measured, list[Change]]:
    """``count`` pull requests: what the rules of others see, and what regbot sees."""
    shape = (count, STORED + 1, SCREEN_RUNS)
    # The node's part is drawn apart, so that the same sessions can be had from few nodes.
    placed = rng.normal(0, node.node_sd, shape[:2])
    level = levels(replace(node, node_sd=0.0), count * (STORED + 1), SCREEN_RUNS, rng).reshape(shape)
    runs = summaries((level + placed[..., None])[..., None] + steps_of_runs(node, shape, STEADY, rng))
    moved = placed[:, np.arange(STORED) % FEW_NODES] - placed[:, :STORED]
    session = levels(node, count, 2 * PAIRS, rng)[..., None] + steps_of_runs(node, (count, 2 * PAIRS), STEADY, rng)
    is_head = abba(count, PAIRS, rng)
    ratios = {name: log_ratios(found, is_head) for name, found in summaries(session).items()}
    batches = levels(node, count, 2 * BATCH, rng)[..., None] + steps_of_runs(node, (count, 2 * BATCH), STEADY, rng)
    medians = np.median(batches, axis=-1)
    measured = Measured(
        history=runs["median"][:, :STORED, 0],
        head=runs["median"][:, STORED, 0],
        stored_runs=runs["median"][:, :STORED].reshape(count, -1),
        head_runs=runs["median"][:, STORED],
        base_steps=np.where(is_head[:, :1], session[:, 1], session[:, 0]),
        head_steps=np.where(is_head[:, :1], session[:, 0], session[:, 1]),
        before=medians[:, :BATCH],
        after=medians[:, BATCH:],
    )
    level_of = {name: found.mean(axis=-1) for name, found in runs.items()}  # all runs: there are SCREEN_RUNS of them
    changes = []
    for i in range(count):
        stored = {name: found[i, :STORED] for name, found in level_of.items()}
        kinds = (
            {name: found.tolist() for name, found in stored.items()},
            {name: found[:LEAST_SESSIONS].tolist() for name, found in stored.items()},
            {name: (found + moved[i]).tolist() for name, found in stored.items()},
        )
        head = {name: float(found[i, STORED]) for name, found in level_of.items()}
        pairs = {name: found[i].tolist() for name, found in ratios.items()}
        changes.append(Change(dict(zip(SCREENS, kinds, strict=True)), head, pairs))
    return measured, changes


def log_ratios(runs: Array, is_head: Flags) -> Array:
    """(..., 2 pairs) summaries of runs in launch order -> (..., pairs) of head minus base."""
    first, second = runs[..., 0::2], runs[..., 1::2]
    return np.where(is_head[..., 1::2], second - first, first - second)


def judge(change: Change, effect: float) -> Iterator[tuple[str, Tally | Passes]]:
    """What regbot says of a pull request whose head is slower by the log ``effect``."""
    shifted = {name: [value + effect for value in values] for name, values in change.log_ratios.items()}
    found = sequential(shifted, PRIMARY, THRESHOLDS)
    assert found is not None
    paired = Tally(
        1,
        found.decision == "regressed",
        found.decision == "improved" or (found.decision == "no_change" and effect >= THRESHOLDS.delta),
        found.decision == "undecided",
        2 * found.pairs,
        2,
    )
    yield PAIRED, paired
    head = {name: value + effect for name, value in change.head.items()}
    for kind, stored in change.stored.items():
        screened = screen(stored, head, BOUND)
        outside = any(not each.low <= 0 <= each.high for each in screened.tests.values())
        false = screened.passed and screened.bound < effect
        bound_pct = 100 * expm1(screened.bound) if screened.passed else 0.0
        yield kind, Passes(1, screened.passed, outside, false, bound_pct)
        if kind == SCREENS[0]:
            if screened.passed:
                yield FUNNEL, Tally(1, 0, false, 0, SCREEN_RUNS, 1)
            else:
                yield FUNNEL, replace(paired, runs=paired.runs + SCREEN_RUNS, warm=paired.warm + 1)
    decision, tests = stored_gate(change.stored[SCREENS[0]], head, PRIMARY, THRESHOLDS, BOUND)
    bound = max(each.high for _, each in tests.values())
    false = (
        decision == "improved"
        or (decision == "no_change" and effect >= THRESHOLDS.delta)
        or (decision == "within_bound" and bound < effect)
    )
    yield STORED_GATE, Tally(1, decision == "regressed", false, decision == "undecided", SCREEN_RUNS, 1)


def simulate_and_judge(node: Node, count: int, seed: np.random.SeedSequence) -> Outcome:
    """``count`` pull requests of ``node``, judged by every rule at every effect."""
    rng = np.random.default_rng(seed)
    measured, changes = simulate(node, count, rng)
    outcome = Outcome()
    for percent in EFFECTS_PCT:
        effect = log1p(percent / 100)
        for rule in RULES:
            alarms = int(rule.alarms(measured, effect).sum())
            outcome.rules[rule.name, percent] = Tally(count, alarms, runs=rule.runs * count)
        for change in changes:
            for name, found in judge(change, effect):
                if isinstance(found, Tally):
                    outcome.rules.setdefault((name, percent), Tally()).add(found)
                else:
                    outcome.screens.setdefault((name, percent), Passes()).add(found)
    return outcome


def simulate_all(sessions: int, jobs: int) -> dict[str, Outcome]:
    """Every node, in chunks on ``jobs`` processes. The answer does not depend on ``jobs``."""
    sizes = [end - start for start, end in pairwise([*range(0, sessions, CHUNK), sessions])]
    work = [(node, size) for node in NODES for size in sizes]
    seeds = np.random.SeedSequence(SEED).spawn(len(work))
    outcomes = {node.name: Outcome() for node in NODES}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate_and_judge, [node for node, _ in work], [size for _, size in work], seeds)
        for (node, _), result in zip(work, results, strict=True):
            outcomes[node.name].add(result)
    return outcomes


MOST_FALSE = 0.035
MOST_OF_MINUTES = 0.5
LEAST_FOUND = 0.95
GOOD_NODES = ("quiet", "typical")


def promises(outcomes: Mapping[str, Outcome], run_min: float, warm_min: float) -> list[Promise]:
    """What the documentation promises, against what was found."""
    made = []
    for rule in (PAIRED, FUNNEL, STORED_GATE):
        tallies = {name: outcome.rules[rule, 2.0] for name, outcome in outcomes.items()}
        upper, where = max((rate_bounds(each.false_passes, each.changes)[1], name) for name, each in tallies.items())
        text = f"{rule}: false pass at a true 2%, upper 95% bound, at most {MOST_FALSE:.1%}"
        made.append(Promise(text, f"{upper:.2%} ({where})", upper <= MOST_FALSE))
    for name in GOOD_NODES:
        tallies = {rule: outcomes[name].rules[rule, 0.0] for rule in (PAIRED, FUNNEL)}
        pairs, both = (tallies[rule].minutes(run_min, warm_min) for rule in (PAIRED, FUNNEL))
        text = f"{name} node: the screen leaves at most {MOST_OF_MINUTES:.0%} of the node-minutes of pairs at 0%"
        made.append(Promise(text, f"{both:.1f} of {pairs:.1f}, {both / pairs:.0%}", both <= MOST_OF_MINUTES * pairs))
        tally = outcomes[name].rules[FUNNEL, 5.0]
        low, _ = rate_bounds(tally.alarms, tally.changes)
        text = f"{name} node: screen and pairs find at least {LEAST_FOUND:.0%} of true 5% losses, lower 95% bound"
        made.append(Promise(text, f"{low:.2%}", low >= LEAST_FOUND))
    return made


def report(outcomes: Mapping[str, Outcome], run_min: float, warm_min: float) -> None:
    """Print every rate as tables."""
    names = [rule.name for rule in RULES] + [PAIRED, FUNNEL, STORED_GATE]
    for node, outcome in outcomes.items():
        print(f"\n{node} node: share called slower, by the true effect")
        effects = "".join(f"{percent:>7g}%" for percent in EFFECTS_PCT)
        print(f"{'':36}{effects}{'false pass at 2%':>20}{'undecided 0/2%':>16}{'runs 0/2%':>12}{'minutes 0/2%':>14}")
        for name in names:
            by_effect = [outcome.rules[name, percent] for percent in EFFECTS_PCT]
            shares = "".join(f"{each.alarms / each.changes:>8.3f}" for each in by_effect)
            none, two = outcome.rules[name, 0.0], outcome.rules[name, 2.0]
            claims, open_ = "-", "-"
            if name.startswith("regbot"):
                low, high = rate_bounds(two.false_passes, two.changes)
                claims = f"{two.false_passes / two.changes:.3f} {low:.3f}..{high:.3f}"
                open_ = f"{none.undecided / none.changes:.2f}/{two.undecided / two.changes:.2f}"
            runs = f"{none.runs / none.changes:.1f}/{two.runs / two.changes:.1f}"
            minutes = f"{none.minutes(run_min, warm_min):.1f}/{two.minutes(run_min, warm_min):.1f}"
            print(f"{name:36}{shares}{claims:>20}{open_:>16}{runs:>12}{minutes:>14}")
    print("\nthe screen: passed (which says no more than its bound), bound it states in the mean, bound that is false")
    columns = "".join(f"{f'at {percent:g}%':>20}" for percent in EFFECTS_PCT)
    print(f"{'':8} {'':24} {'outside at 0%':>14}{columns}")
    for node, outcome in outcomes.items():
        for kind in SCREENS:
            by_effect_ = [outcome.screens[kind, percent] for percent in EFFECTS_PCT]
            cells = "".join(
                f"{each.passed / each.changes:>8.3f}"
                f"{f' {each.bounds_pct / each.passed:.2f}%' if each.passed else '     -':>6}"
                f" {each.false_bounds / each.changes:.3f}"
                for each in by_effect_
            )
            print(f"{node:>8} {kind:24} {by_effect_[0].outside / by_effect_[0].changes:>14.3f}{cells}")


def same_summaries() -> None:
    """The arrays' summaries are regbot's, or there is nothing to print."""
    logs = np.random.default_rng(SEED).normal(0, 0.01, (3, STEADY))
    for run, *found in zip(logs, *summaries(logs).values(), strict=True):
        own = summarise(np.exp(run).tolist())
        if not np.allclose(found, [own[name] for name in SUMMARIES], rtol=0, atol=1e-12):
            raise AssertionError("summaries differ from regbot.stats.summarise")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="pull requests simulated per node")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--run-min", type=float, default=2.0, help="node-minutes of a run")
    parser.add_argument("--warm-min", type=float, default=0.5, help="node-minutes of a discarded warm launch")
    options = parser.parse_args(arguments)
    same_summaries()
    print(
        f"{options.sessions} pull requests per node, {STEADY} steady steps a run, {STORED} stored sessions of"
        f" {SCREEN_RUNS} runs, looks at {LOOKS} pairs,\nthreshold 2%, indifference 1%, screen bound 5%, a run"
        f" {options.run_min:g} and a warm launch {options.warm_min:g} node-minutes, seed {SEED}"
    )
    outcomes = simulate_all(options.sessions, options.jobs)
    report(outcomes, options.run_min, options.warm_min)
    print()
    made = promises(outcomes, options.run_min, options.warm_min)
    return told(made)


if __name__ == "__main__":
    sys.exit(main())
