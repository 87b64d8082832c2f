"""Timing again after a verdict: somebody who pushes until the check is green, and more pairs after slow launches.

A part of ``error_rates.py``. *Pushes*: a pull request with a true slowdown is pushed up to five times, until it passes.
If a commit changes only comments, the same program runs, and the pairs of all pushes are judged together by the
always-valid interval. If it also has real but harmless changes, another program runs, and a new session begins. The
version before took both for a new session, and had a screen against stored sessions. *More pairs*: one launch in 20
takes 30% longer, and the pairs of five sessions are judged together, now and before, when the always-valid interval
left out no slow launches.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
from math import log1p

import numpy as np
from disturbed_sessions import SLOW_BY_PCT, SLOW_RATE, simulate_pairs
from gate import (
    BOUND,
    PAIRS,
    PLACEBO_PAIRS,
    PLACEBO_SESSIONS,
    PRIMARY,
    STORED,
    THRESHOLDS,
    judge_before,
    log_ratios,
    simulate_level_runs,
    simulate_session,
    summaries,
)
from nodes import NODES, Node
from promises import Promise

from regbot.records.calibration_summary import PairNoise
from regbot.records.verdict import Decision
from regbot.stats.anytime import ANYTIME_ALPHA, anytime_interval, decide_anytime
from regbot.stats.calibration import BLOCK_PAIRS, rate_bounds
from regbot.stats.look0 import LOOK0_PAIRS, look0, pool_noise
from regbot.stats.paired import PASSING, combine, decide, sequential_test
from regbot.stats.prediction import SESSION_RUNS, prediction_interval

SEED = 20261124
CHUNK = 100
PUSHES = 5
SESSIONS = 5
"""Number of sessions of twelve pairs whose pairs are judged together."""

EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0)
MAX_ERROR = 0.035
"""Largest share called slower at a true 1%, and passed at a true 2% (upper 95% bounds), over all pushes or looks."""

FEWER_PULL_REQUESTS, FEWER_SERIES = 2, 4
"""One in so many of the sessions is simulated, because each has five sessions and many looks."""

BEFORE, COMMENTS, CHANGES = "before", "now, comments only", "now, harmless changes"
GREEN: tuple[Decision, ...] = (*PASSING, "within_bound")

Ratios = dict[str, list[float]]
"""Log-ratios of pairs by summary."""


@dataclass(frozen=True)
class PullRequest:
    """The data of one pull request without an effect."""

    stored: Mapping[str, list[float]]
    """Levels of the stored sessions by summary."""
    noise: PairNoise
    levels: Mapping[str, list[float]]
    """Levels of head alone by summary, one for each push."""
    sessions: list[Ratios]
    """Twelve pairs for each push."""


@dataclass
class Counts:
    """Counts over pull requests, or over series of sessions, at one effect."""

    total: int = 0
    slower: int = 0
    """The decision was "regressed" at the last push, or at some look."""
    passed: int = 0
    """The decision was a pass at some push, or at some look from 12 pairs on."""
    missed: int = 0
    """At some look, an interval did not contain the true effect."""
    passed_24: int = 0
    """A pass with 24 pairs."""
    passed_60: int = 0
    """A pass with 60 pairs."""

    def add(self, other: "Counts") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


Outcome = dict[tuple[str, float], Counts]
"""Counts by the rule and by the effect in percent."""


def shift(ratios: Mapping[str, list[float]], effect: float) -> Ratios:
    return {name: [value + effect for value in values] for name, values in ratios.items()}


def simulate_pull_requests(node: Node, count: int, rng: np.random.Generator) -> Iterator[PullRequest]:
    """Simulate pull requests without an effect. Each push has a node and a day of its own."""
    stored = summaries(simulate_level_runs(node, (count, STORED, SESSION_RUNS), rng))
    heads = summaries(simulate_level_runs(node, (count, PUSHES, SESSION_RUNS), rng))
    placebos, is_second = simulate_session(node, count * PLACEBO_SESSIONS, PLACEBO_PAIRS, rng)
    placebo_ratios = {
        name: log_ratios(values, is_second).reshape(count, -1) for name, values in summaries(placebos).items()
    }
    runs, is_head = simulate_session(node, count * PUSHES, PAIRS, rng)
    ratios = {name: log_ratios(values, is_head).reshape(count, PUSHES, -1) for name, values in summaries(runs).items()}
    for i in range(count):
        noise = pool_noise([{name: values[i].tolist() for name, values in placebo_ratios.items()}])
        assert noise is not None
        yield PullRequest(
            {name: values[i].mean(axis=-1).tolist() for name, values in stored.items()},
            noise,
            {name: values[i].mean(axis=-1).tolist() for name, values in heads.items()},
            [{name: values[i, push].tolist() for name, values in ratios.items()} for push in range(PUSHES)],
        )


def decide_before(change: PullRequest, push: int, effect: float) -> Decision:
    """Decide on one push by the rule before: the screen, then Student's t interval at every look."""
    predictions = [
        prediction_interval(change.stored[name], levels[push] + effect) for name, levels in change.levels.items()
    ]
    if all(bounds.low <= 0 <= bounds.high <= BOUND for bounds in predictions):
        return "within_bound"
    return judge_before(shift(change.sessions[push], effect)).decision


def decide_session(change: PullRequest, push: int, effect: float) -> Decision:
    """Decide on one push by a session of its own: look 0, then pairs."""
    ratios = shift(change.sessions[push], effect)
    first = look0({name: values[:LOOK0_PAIRS] for name, values in ratios.items()}, change.noise, PRIMARY, THRESHOLDS)
    if first.final:
        return first.decision
    test = sequential_test(ratios, PRIMARY, THRESHOLDS)
    assert test is not None
    return test.decision


def decide_together(change: PullRequest, push: int, effect: float) -> Decision:
    """Decide on the pairs of all pushes so far. The first push has a session of its own. Its decision stays until the
    always-valid interval decides after some block."""
    first = decide_session(change, 0, effect)
    if push == 0:
        return first
    ratios: Ratios = {name: [] for name in change.sessions[0]}
    for session in change.sessions[: push + 1]:
        for name, values in shift(session, effect).items():
            ratios[name] += values
    for pairs in range(PAIRS * push + BLOCK_PAIRS, PAIRS * (push + 1) + 1, BLOCK_PAIRS):
        test = decide_anytime({name: values[:pairs] for name, values in ratios.items()}, PRIMARY, THRESHOLDS)
        if test.decision != "undecided":
            return test.decision
    return first


DECIDE = {BEFORE: decide_before, COMMENTS: decide_together, CHANGES: decide_session}


def push_until_green(node: Node, count: int, seed: np.random.SeedSequence) -> Outcome:
    """Simulate ``count`` pull requests, and push each until it passes, by every rule and at every effect."""
    outcome: Outcome = {(rule, percent): Counts() for rule in DECIDE for percent in EFFECTS_PCT}
    for change in simulate_pull_requests(node, count, np.random.default_rng(seed)):
        for (rule, percent), counts in outcome.items():
            added = Counts(total=1)
            for push in range(PUSHES):
                decision = DECIDE[rule](change, push, log1p(percent / 100))
                added.slower = decision == "regressed"
                if decision in GREEN:
                    added.passed = 1
                    break
            counts.add(added)
    return outcome


def time_again(node: Node, count: int, seed: np.random.SeedSequence) -> Outcome:
    """Simulate ``count`` series of sessions with slow launches, and judge their pairs together after every block."""
    rng = np.random.default_rng(seed)
    simulated = [simulate_pairs(node, count, SLOW_RATE, rng) for _ in range(SESSIONS)]
    ratios = {name: np.concatenate([session[name] for session in simulated], axis=1) for name in simulated[0]}
    outcome: Outcome = {(rule, percent): Counts() for rule in (BEFORE, "now") for percent in EFFECTS_PCT}
    for series in range(count):
        for (rule, percent), counts in outcome.items():
            effect = log1p(percent / 100)
            without_effect = {name: values[series].tolist() for name, values in ratios.items()}
            counts.add(_judge_series(shift(without_effect, effect), rule, effect))
    return outcome


def _judge_series(ratios: Ratios, rule: str, effect: float) -> Counts:
    counts = Counts(total=1)
    for pairs in range(PAIRS, SESSIONS * PAIRS + 1, BLOCK_PAIRS):
        so_far = {name: values[:pairs] for name, values in ratios.items()}
        if rule == BEFORE:
            intervals = [anytime_interval(values, ANYTIME_ALPHA / PRIMARY) for values in so_far.values()]
            decision = combine([(decide(bounds, THRESHOLDS), bounds) for bounds in intervals], THRESHOLDS)
        else:
            test = decide_anytime(so_far, PRIMARY, THRESHOLDS)
            decision, intervals = test.decision, [bounds for _, bounds in test.tests.values()]
        has_passed = decision in PASSING
        counts.slower |= decision == "regressed"
        counts.passed |= has_passed
        counts.missed |= any(not bounds.low <= effect <= bounds.high for bounds in intervals)
        counts.passed_24 |= pairs == 2 * PAIRS and has_passed
        counts.passed_60 |= pairs == SESSIONS * PAIRS and has_passed
    return counts


def pushes(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of pull requests that are pushed until they pass, and yield its promises."""
    count = -(-sessions // FEWER_PULL_REQUESTS)
    print(
        f"\npushes: share of {count} pull requests that are called slower at the end / that pass, if they are pushed up"
        f" to {PUSHES} times, until they pass.\n'before': screen, then Student's t; every commit gave a new session"
    )
    print(f"{'node':>8} {'rule':>22}" + "".join(f"{f'at {percent:g}%':>16}" for percent in EFFECTS_PCT))
    outcomes = _simulate(push_until_green, count, jobs)
    for (node, rule), by_effect in outcomes.items():
        cells = (f"{f'{c.slower / c.total:.3f} / {c.passed / c.total:.3f}':>16}" for c in by_effect.values())
        print(f"{node:>8} {rule:>22}{''.join(cells)}")
    yield from _promises("pushes", {key: value for key, value in outcomes.items() if key[1] != BEFORE})


def more_pairs(sessions: int, jobs: int) -> Iterator[Promise]:
    """Print the table of more pairs in sessions with slow launches, and yield its promises."""
    count = -(-sessions // FEWER_SERIES)
    print(
        f"\nmore pairs: {SESSIONS} sessions judged together after every block, if {SLOW_RATE:.0%} of launches take"
        f" {SLOW_BY_PCT:g}% longer: share ever called slower /\never passed, and passed with 24 / 60 pairs at 0%."
        f" 'before': no slow launch left out. {count} series"
    )
    effects = "".join(f"{f'at {percent:g}%':>16}" for percent in EFFECTS_PCT)
    print(f"{'node':>8} {'rule':>22}{effects}{'ever missed':>13}{'24 / 60 pairs':>16}")
    outcomes = _simulate(time_again, count, jobs)
    for (node, rule), by_effect in outcomes.items():
        cells = (f"{f'{c.slower / c.total:.3f} / {c.passed / c.total:.3f}':>16}" for c in by_effect.values())
        missed = max(c.missed / c.total for c in by_effect.values())
        none = by_effect[0.0]
        passed = f"{none.passed_24 / none.total:.3f} / {none.passed_60 / none.total:.3f}"
        print(f"{node:>8} {rule:>22}{''.join(cells)}{missed:>13.4f}{passed:>16}")
    yield from _promises("more pairs", {key: value for key, value in outcomes.items() if key[1] == "now"})


def _simulate(
    simulate: Callable[[Node, int, np.random.SeedSequence], Outcome], count: int, jobs: int
) -> dict[tuple[str, str], dict[float, Counts]]:
    """Run ``simulate`` in chunks on ``jobs`` processes. Return the counts by node and rule, then by effect."""
    sizes = [end - start for start, end in pairwise([*range(0, count, CHUNK), count])]
    work = [(node, size) for node in NODES for size in sizes]
    seeds = np.random.SeedSequence(SEED).spawn(len(work))
    outcomes: dict[tuple[str, str], dict[float, Counts]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(simulate, [node for node, _ in work], [size for _, size in work], seeds)
        for (node, _), result in zip(work, results, strict=True):
            for (rule, percent), counts in result.items():
                outcomes.setdefault((node.name, rule), {}).setdefault(percent, Counts()).add(counts)
    return outcomes


def _promises(name: str, outcomes: Mapping[tuple[str, str], Mapping[float, Counts]]) -> Iterator[Promise]:
    for error, percent in (("slower", 1.0), ("passed", 2.0)):
        high, node = max(
            (rate_bounds(getattr(by_effect[percent], error), by_effect[percent].total)[1], node)
            for (node, _), by_effect in outcomes.items()
        )
        yield Promise(
            f"{name}: {error} at a true {percent:g}%, upper 95% bound, at most {MAX_ERROR:.1%}",
            f"{high:.2%} ({node})",
            high <= MAX_ERROR,
        )
