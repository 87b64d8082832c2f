"""Cost and error rates of the gate: regbot's pairs with and without look 0, beside the rules of other tools.

    python benchmarks/gate.py [--sessions 10000] [--jobs 2] [--run-min 2] [--warm-min 0.5] [--row NAME]

The benchmark simulates pull requests with a known true effect on the four kinds of node of ``nodes.py``, and in cases
in which stored sessions mislead (``ROWS``). All rules judge the same pull requests. For each pull request there are 40
stored sessions with three runs each, 40 placebo pairs of five sessions, one head session, and one session of twelve
pairs. Each session has its own node and day. The rules of other tools (``practice.py``) use the part of this data that
the tools would have. regbot's rules are those of ``regbot.stats`` for one workload with two primary tests, median and
mean. The screen of version 0.1.0, which look 0 replaced, is judged beside them.

A run costs ``--run-min`` node-minutes, and a discarded warm launch costs ``--warm-min``. There is one warm launch
before runs of head alone, and one for each arm before pairs. The rules of other tools have no warm launches.

The exit code is 1 if a promise is not kept.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import log1p

import numpy as np
from nodes import BIMODAL, NOISY, QUIET, TYPICAL, Array, Flags, Node, abba, levels, steps_of_runs
from practice import RULES, Measured
from promises import Promise, report_promises

from regbot.records.calibration_summary import PairNoise
from regbot.stats.arm_luck import DRAW_PAIRS, LuckEstimate, SharedLuck, estimate_luck
from regbot.stats.calibration import rate_bounds
from regbot.stats.correlation import lag_correlation
from regbot.stats.look0 import LOOK0_PAIRS, look0, pool_noise
from regbot.stats.paired import (
    LOOK_ALPHA,
    LOOKS,
    SequentialTest,
    Thresholds,
    combine,
    decide,
    interval,
    sequential_test,
)
from regbot.stats.prediction import SESSION_RUNS, prediction_interval, stored_gate
from regbot.stats.summary import summarise

SEED = 20260804
SESSIONS = 10_000
CHUNK = 100
"""Number of pull requests that are simulated at once. They have 24,700 runs and 14 MB of random numbers."""

STEADY = 40
STORED = 40
"""Number of stored sessions."""
BATCH = 10
"""Number of runs of each arm for benchstat's rule."""
PAIRS = LOOKS[-1]
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0, 5.0)
THRESHOLDS = Thresholds.from_percent(2.0, 1.0)
BOUND = log1p(0.05)
SUMMARIES = ("median", "mean")
PRIMARY = len(SUMMARIES)
PLACEBO_SESSIONS, PLACEBO_PAIRS = 5, 8
"""Sessions of one commit against itself, and their pairs. They give look 0 the noise of the class."""

DRAWS = [pair // DRAW_PAIRS for pair in range(PAIRS)]
"""Draw of the compiler caches of each pair of a session."""

PAIRED, LOOK0 = "regbot: pairs", "regbot: look 0, then pairs"
STORED_GATE = 'regbot: gate = "stored"'
SCREENED = "0.1.0: screen, then pairs"


@dataclass(frozen=True)
class Row:
    """One kind of pull request: the node class that stored sessions and placebos are of, and how this session
    differs."""

    name: str
    node: Node
    noisier: float = 1.0
    """Noise of this session, of its steps and its runs, over the noise of its class."""
    stored_pct: float = 0.0
    """Stored sessions are slower than base by this: main has become faster since, or the node has."""
    luck_pct: float = 0.0
    """Standard deviation of what an arm draws with its compiler caches. Without it, calibration has proven that it is
    small."""
    is_calibrated: bool = True
    """If not, the placebo pairs give look 0 the noise of the class, as nights do, but do not show any luck."""

    @property
    def session_node(self) -> Node:
        return replace(self.node, step_sd=self.noisier * self.node.step_sd, run_sd=self.noisier * self.node.run_sd)


CLASSES = tuple(Row(node.name, node) for node in (QUIET, TYPICAL, BIMODAL, NOISY))
ROWS = (
    *CLASSES,
    Row("a revert of a 3% gain", TYPICAL, stored_pct=3.0),
    Row("a revert of a 5% gain", TYPICAL, stored_pct=5.0),
    Row("a node that is 1% faster", TYPICAL, stored_pct=1.0),
    Row("noise of twice the class", TYPICAL, noisier=2.0),
    Row("luck of an arm of 0.3%", TYPICAL, luck_pct=0.3),
    Row("luck of an arm of 0.5%", TYPICAL, luck_pct=0.5),
    Row("typical, no calibration", TYPICAL, is_calibrated=False),
    Row("quiet, no calibration", QUIET, is_calibrated=False),
    Row("quiet, no calibration, luck of 0.3%", QUIET, luck_pct=0.3, is_calibrated=False),
    Row("quiet, no calibration, luck of 0.5%", QUIET, luck_pct=0.5, is_calibrated=False),
)


@dataclass
class Tally:
    """Counts of what a rule decided on the pull requests of one node at one effect."""

    changes: int = 0
    alarms: int = 0
    """Number of pull requests that were called slower."""
    false_passes: int = 0
    """Number of passes with a false statement: "no change" although the effect reaches the threshold, or a bound below
    the effect."""
    undecided: int = 0
    withheld: int = 0
    """Number of pull requests that are undecided because of slow launches of head, or only because of a luck of the
    arms that is assumed."""
    covered: int = 0
    """Number of pull requests of which every interval of the last look contains the effect."""
    runs: int = 0
    warm: int = 0

    def add(self, other: "Tally") -> None:
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))

    def minutes(self, run_min: float, warm_min: float) -> float:
        """Return the mean node-minutes of one pull request."""
        return (self.runs * run_min + self.warm * warm_min) / self.changes


Outcome = dict[tuple[str, float], Tally]
"""Results of one row, by the rule and by the effect in percent."""


@dataclass(frozen=True)
class Change:
    """The data that regbot has of one pull request without an effect: levels and log-ratios by summary."""

    stored: Mapping[str, list[float]]
    """Levels of the stored sessions."""
    noise: PairNoise
    head: Mapping[str, float]
    log_ratios: Mapping[str, list[float]]
    one_draw: Mapping[str, list[float]]
    """Log-ratios of the same pairs if each arm uses one compiler cache for the whole session, as before."""
    luck: SharedLuck | None
    """What the placebo pairs show of the luck of an arm, or the assumed luck."""
    fresh_caches: bool
    """Whether every look has two warm launches, because the caches are drawn anew."""


def summaries(logs: Array) -> dict[str, Array]:
    """Summarise many runs at once, as ``regbot.stats.summarise`` does: logs of the shape (..., steps) -> (...)."""
    return {"median": np.median(logs, axis=-1), "mean": np.log(np.exp(logs).mean(axis=-1))}


def simulate(row: Row, count: int, rng: np.random.Generator) -> tuple[Measured, list[Change]]:
    """Simulate ``count`` pull requests. Return the data for the rules of other tools, and the data for regbot."""
    stored = simulate_level_runs(row.node, (count, STORED, SESSION_RUNS), rng) + log1p(row.stored_pct / 100)
    head_runs = simulate_level_runs(row.session_node, (count, 1, SESSION_RUNS), rng)
    runs = summaries(np.concatenate([stored, head_runs], axis=1))
    session, is_head = simulate_session(row.session_node, count, PAIRS, rng)
    ratios = {name: log_ratios(values, is_head) for name, values in summaries(session).items()}
    placebos, is_second = simulate_session(row.node, count * PLACEBO_SESSIONS, PLACEBO_PAIRS, rng)
    placebo_ratios = {
        name: log_ratios(values, is_second).reshape(count, -1) for name, values in summaries(placebos).items()
    }
    batches = levels(row.node, count, 2 * BATCH, rng)[..., None] + steps_of_runs(
        row.node, (count, 2 * BATCH), STEADY, rng
    )
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
    shared = {name: (ratios[name], ratios[name], placebo_ratios[name]) for name in SUMMARIES}
    if row.luck_pct:
        luck_sd = row.luck_pct / 100
        stored_luck = rng.normal(0, luck_sd, (count, STORED + 1, 1))
        runs = {name: values + stored_luck for name, values in runs.items()}
        session_luck, one_draw = draw_luck(luck_sd, (count, PAIRS), rng), rng.normal(0, 2**0.5 * luck_sd, (count, 1))
        placebo_luck = draw_luck(luck_sd, (count, PLACEBO_SESSIONS * PLACEBO_PAIRS), rng)
        shared = {
            name: (drawn + session_luck, drawn + one_draw, placebo + placebo_luck)
            for name, (drawn, _, placebo) in shared.items()
        }
    level_of = {name: values.mean(axis=-1) for name, values in runs.items()}  # a session has SESSION_RUNS runs
    changes = []
    for i in range(count):
        noise = pool_noise([{name: placebo[i].tolist() for name, (_, _, placebo) in shared.items()}])
        assert noise is not None
        estimate = _estimate_luck(shared["median"][2][i]) if row.luck_pct and row.is_calibrated else None
        luck = SharedLuck(estimate.counted, estimate.draws, DRAWS) if estimate is not None else None
        changes.append(
            Change(
                {name: session_levels[i, :STORED].tolist() for name, session_levels in level_of.items()},
                noise,
                {name: float(session_levels[i, STORED]) for name, session_levels in level_of.items()},
                {name: drawn[i].tolist() for name, (drawn, _, _) in shared.items()},
                {name: one_draw[i].tolist() for name, (_, one_draw, _) in shared.items()},
                luck if row.is_calibrated else SharedLuck.assume(DRAWS),
                row.luck_pct > 0 or not row.is_calibrated,
            )
        )
    return measured, changes


def _estimate_luck(placebo_ratios: Array) -> LuckEstimate | None:
    """Return the luck that the log-ratios of ``PLACEBO_SESSIONS`` sessions show."""
    lag = lag_correlation(placebo_ratios.reshape(-1, PLACEBO_PAIRS).tolist())
    return estimate_luck(placebo_ratios.reshape(-1, DRAW_PAIRS).tolist(), lag.value if lag is not None else 0.0)


def draw_luck(luck_sd: float, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Return the difference of the luck of two arms, (sessions, pairs). ``DRAW_PAIRS`` pairs share a draw."""
    sessions, pairs = shape
    draws = rng.normal(0, 2**0.5 * luck_sd, (sessions, pairs // DRAW_PAIRS))
    return np.repeat(draws, DRAW_PAIRS, axis=1)


def simulate_level_runs(node: Node, shape: tuple[int, int, int], rng: np.random.Generator) -> Array:
    """Return the steps of the runs of one commit, (pull requests, sessions, runs, steps)."""
    count, sessions, runs = shape
    return levels(node, count * sessions, runs, rng).reshape(shape)[..., None] + steps_of_runs(node, shape, STEADY, rng)


def simulate_session(node: Node, count: int, pairs: int, rng: np.random.Generator) -> tuple[Array, Flags]:
    """Return the steps of ``count`` sessions without an effect, (count, 2 pairs, steps), and which runs are head's."""
    steps = levels(node, count, 2 * pairs, rng)[..., None] + steps_of_runs(node, (count, 2 * pairs), STEADY, rng)
    return steps, abba(count, pairs, rng)


def log_ratios(runs: Array, is_head: Flags) -> Array:
    """Return head minus base, (..., pairs), from the summaries of runs in launch order, (..., 2 pairs)."""
    first, second = runs[..., 0::2], runs[..., 1::2]
    return np.where(is_head[..., 1::2], second - first, first - second)


def judge_before(ratios: Mapping[str, list[float]]) -> SequentialTest:
    """Judge pairs by the rule of version 0.1.0: Student's t interval at every look."""
    result = None
    for look, pairs in enumerate(LOOKS, start=1):
        alpha = LOOK_ALPHA / PRIMARY
        intervals = {name: interval(values[:pairs], alpha) for name, values in ratios.items()}
        tests = {name: (decide(bounds, THRESHOLDS), bounds) for name, bounds in intervals.items()}
        result = SequentialTest(combine(tests.values(), THRESHOLDS), pairs, look, alpha, tests, PAIRS - pairs)
        if result.final:
            break
    assert result is not None
    return result


def tally_pairs(test: SequentialTest, effect: float) -> Tally:
    """Return the counts of one session of pairs with the log ``effect``."""
    return Tally(
        changes=1,
        alarms=test.decision == "regressed",
        false_passes=test.decision == "improved" or (test.decision == "no_change" and effect >= THRESHOLDS.delta),
        undecided=test.decision == "undecided",
        withheld=test.withheld,
        covered=is_covered(test, effect),
        runs=2 * test.pairs,
        warm=2,
    )


def is_covered(test: SequentialTest, effect: float) -> bool:
    """Return whether every interval of the last look contains the log ``effect``."""
    return all(bounds.low <= effect <= bounds.high for _, bounds in test.tests.values())


def judge(change: Change, effect: float) -> Iterator[tuple[str, Tally]]:
    """Yield what each rule of regbot decides on a pull request whose head is slower by the log ``effect``."""
    shifted = {name: [value + effect for value in values] for name, values in change.log_ratios.items()}
    test = sequential_test(shifted, PRIMARY, THRESHOLDS, luck=change.luck)
    assert test is not None
    paired = tally_pairs(test, effect)
    if test.decision == "undecided" and change.luck is not None and change.luck.is_assumed:
        without_luck = sequential_test(shifted, PRIMARY, THRESHOLDS)
        assert without_luck is not None
        paired = replace(paired, withheld=test.withheld or without_luck.decision != "undecided")
    if change.fresh_caches:
        paired = replace(paired, warm=2 * test.look)
    yield PAIRED, paired
    first_block = {name: values[:LOOK0_PAIRS] for name, values in shifted.items()}
    first = look0(first_block, change.noise, PRIMARY, THRESHOLDS, change.luck)
    if first.final:
        false = max(bounds.high for _, bounds in first.tests.values()) < effect
        yield LOOK0, Tally(1, 0, false, covered=is_covered(first, effect), runs=2 * LOOK0_PAIRS, warm=2)
    else:
        yield LOOK0, paired
    head = {name: value + effect for name, value in change.head.items()}
    predictions = [prediction_interval(change.stored[name], value) for name, value in head.items()]
    bound = max(bounds.high for bounds in predictions)
    if all(bounds.low <= 0 <= bounds.high for bounds in predictions) and bound <= BOUND:
        yield SCREENED, Tally(1, 0, bound < effect, runs=SESSION_RUNS, warm=1)
    else:
        one_draw = {name: [value + effect for value in values] for name, values in change.one_draw.items()}
        before = tally_pairs(judge_before(one_draw), effect)
        yield SCREENED, replace(before, runs=before.runs + SESSION_RUNS, warm=before.warm + 1)
    decision, tests = stored_gate(change.stored, head, PRIMARY, THRESHOLDS, BOUND)
    bound = max(bounds.high for _, bounds in tests.values())
    false = (
        decision == "improved"
        or (decision == "no_change" and effect >= THRESHOLDS.delta)
        or (decision == "within_bound" and bound < effect)
    )
    undecided = decision == "undecided"
    yield STORED_GATE, Tally(1, decision == "regressed", false, undecided, runs=SESSION_RUNS, warm=1)


def simulate_and_judge(row: Row, count: int, seed: np.random.SeedSequence) -> Outcome:
    """Simulate ``count`` pull requests of ``row``, and judge them by every rule at every effect."""
    rng = np.random.default_rng(seed)
    measured, changes = simulate(row, count, rng)
    outcome: Outcome = {}
    for percent in EFFECTS_PCT:
        effect = log1p(percent / 100)
        for rule in RULES:
            alarms = int(rule.alarms(measured, effect).sum())
            outcome[rule.name, percent] = Tally(count, alarms, runs=rule.runs * count)
        for change in changes:
            for name, tally in judge(change, effect):
                outcome.setdefault((name, percent), Tally()).add(tally)
    return outcome


def simulate_all(rows: Sequence[Row], sessions: int, jobs: int) -> dict[str, Outcome]:
    """Simulate all rows, in chunks on ``jobs`` processes. The results do not depend on ``jobs`` or the other rows."""
    sizes = [end - start for start, end in pairwise([*range(0, sessions, CHUNK), sessions])]
    work = [(row, size) for row in rows for size in sizes]
    seeds = [seed for row in rows for seed in np.random.SeedSequence((SEED, ROWS.index(row))).spawn(len(sizes))]
    outcomes: dict[str, Outcome] = {row.name: {} for row in rows}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate_and_judge, [row for row, _ in work], [size for _, size in work], seeds)
        for (row, _), result in zip(work, results, strict=True):
            for rule, tally in result.items():
                outcomes[row.name].setdefault(rule, Tally()).add(tally)
    return outcomes


MOST_FALSE = 0.035
MOST_SLOWER = 0.035
LEAST_POWER = 0.85
LEAST_COVERED = 0.95
MOST_WITHHELD = 0.10
LEAST_SAVED = {"quiet": 0.25, "typical": 0.25}
"""Share of the node-minutes of pairs that look 0 saves on harmless changes."""


def promises(outcomes: Mapping[str, Outcome], run_min: float, warm_min: float) -> list[Promise]:
    """Compare the results with the promises of the documentation."""
    made = []
    for rule in (PAIRED, LOOK0):
        for percent in (2.0, 3.0, 5.0):
            tallies = {name: outcome[rule, percent] for name, outcome in outcomes.items()}
            upper, worst = max((rate_bounds(t.false_passes, t.changes)[1], name) for name, t in tallies.items())
            text = f"{rule}: pass at a true {percent:g}%, upper 95% bound, at most {MOST_FALSE:.1%}"
            made.append(Promise(text, f"{upper:.2%} ({worst})", upper <= MOST_FALSE))
        tallies = {name: outcome[rule, 1.0] for name, outcome in outcomes.items()}
        upper, worst = max((rate_bounds(t.alarms, t.changes)[1], name) for name, t in tallies.items())
        text = f"{rule}: called slower at a true 1%, upper 95% bound, at most {MOST_SLOWER:.1%}"
        made.append(Promise(text, f"{upper:.2%} ({worst})", upper <= MOST_SLOWER))
        least, worst = min(
            (min(outcome[rule, percent].covered / outcome[rule, percent].changes for percent in EFFECTS_PCT), name)
            for name, outcome in outcomes.items()
        )
        text = f"{rule}: coverage at least {LEAST_COVERED:.0%}"
        made.append(Promise(text, f"{least:.2%} ({worst})", least >= LEAST_COVERED))
        limited = [row.name for row in ROWS if row.name in outcomes and row.is_calibrated]
        if limited:
            share, worst = max((_share_withheld(outcomes[name], rule), name) for name in limited)
            text = f"{rule}: withheld in a calibrated class, at most {MOST_WITHHELD:.0%}"
            made.append(Promise(text, f"{share:.2%} ({worst})", share <= MOST_WITHHELD))
    if "typical" in outcomes:
        tally = outcomes["typical"][LOOK0, 2.0]
        power = tally.alarms / tally.changes
        text = f"typical node: look 0 and pairs find at least {LEAST_POWER:.0%} of true 2% losses"
        made.append(Promise(text, f"{power:.2%}", power >= LEAST_POWER))
    for name, least in LEAST_SAVED.items():
        if name in outcomes:
            pairs, both = (outcomes[name][rule, 0.0].minutes(run_min, warm_min) for rule in (PAIRED, LOOK0))
            text = f"{name} node: look 0 saves at least {least:.0%} of the node-minutes of pairs at 0%"
            made.append(Promise(text, f"{both:.1f} of {pairs:.1f}, {1 - both / pairs:.0%}", 1 - both / pairs >= least))
    return made


def _share_withheld(outcome: Outcome, rule: str) -> float:
    """Return the largest share of withheld pull requests at any effect."""
    return max(outcome[rule, percent].withheld / outcome[rule, percent].changes for percent in EFFECTS_PCT)


def report(outcomes: Mapping[str, Outcome], run_min: float, warm_min: float) -> None:
    """Print every rate as tables. The rules of other tools are printed for the kinds of node."""
    classes = {row.name for row in CLASSES}
    for row, outcome in outcomes.items():
        print(f"\n{row}: share called slower, by the true effect")
        effects = "".join(f"{percent:>7g}%" for percent in EFFECTS_PCT)
        columns = f"{'false pass at 2/3/5%':>24}{'undecided 0/2%':>16}{'withheld':>10}{'coverage':>10}"
        columns += f"{'runs 0/2%':>12}{'minutes 0/2%':>14}"
        print(f"{'':36}{effects}{columns}")
        others = [rule.name for rule in RULES] if row in classes else []
        for name in [*others, PAIRED, LOOK0, SCREENED, STORED_GATE]:
            by_effect = [outcome[name, percent] for percent in EFFECTS_PCT]
            shares = "".join(f"{tally.alarms / tally.changes:>8.3f}" for tally in by_effect)
            none, two_percent = outcome[name, 0.0], outcome[name, 2.0]
            false_passes, undecided, withheld, covered = "-", "-", "-", "-"
            if name not in others:
                false_passes = " / ".join(f"{tally.false_passes / tally.changes:.3f}" for tally in by_effect[2:])
                undecided = f"{none.undecided / none.changes:.2f}/{two_percent.undecided / two_percent.changes:.2f}"
            if name in (PAIRED, LOOK0):
                withheld = f"{_share_withheld(outcome, name):.3f}"
                covered = f"{min(tally.covered / tally.changes for tally in by_effect):.3f}"
            runs = f"{none.runs / none.changes:.1f}/{two_percent.runs / two_percent.changes:.1f}"
            minutes = f"{none.minutes(run_min, warm_min):.1f}/{two_percent.minutes(run_min, warm_min):.1f}"
            print(
                f"{name:36}{shares}{false_passes:>24}{undecided:>16}{withheld:>10}{covered:>10}{runs:>12}{minutes:>14}"
            )


def check_summaries() -> None:
    """Check that ``summaries`` has the values of ``regbot.stats.summarise``. Raises AssertionError."""
    logs = np.random.default_rng(SEED).normal(0, 0.01, (3, STEADY))
    for run, *values in zip(logs, *summaries(logs).values(), strict=True):
        own = summarise(np.exp(run).tolist())
        if not np.allclose(values, [own[name] for name in SUMMARIES], rtol=0, atol=1e-12):
            raise AssertionError("summaries differ from regbot.stats.summarise")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="pull requests simulated per row")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--run-min", type=float, default=2.0, help="node-minutes of a run")
    parser.add_argument("--warm-min", type=float, default=0.5, help="node-minutes of a discarded warm launch")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="only this row; repeatable")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    check_summaries()
    print(
        f"{options.sessions} pull requests per row, {STEADY} steady steps a run, {STORED} stored sessions of"
        f" {SESSION_RUNS} runs, looks at {LOOKS} pairs,\nthreshold 2%, indifference 1%, a run"
        f" {options.run_min:g} and a warm launch {options.warm_min:g} node-minutes, seed {SEED}"
    )
    outcomes = simulate_all(rows, options.sessions, options.jobs)
    report(outcomes, options.run_min, options.warm_min)
    print()
    return report_promises(promises(outcomes, options.run_min, options.warm_min))


if __name__ == "__main__":
    sys.exit(main())
