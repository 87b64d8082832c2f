"""Rules of other tools that decide whether a pull request made a program slower, beside ``gate = "stored"``.

    python benchmarks/practice.py [--sessions 4000]

The rules judge the same simulated pull requests on the four kinds of node of ``nodes.py``. For each there are 40 stored
sessions of three runs, one head session, a pair, and ten runs of base that are followed by ten of head. Every session
has its own node and day.

Each rule uses the data that its tool has: stored runs of the target branch, one or ten new runs, or the steps of two
runs. A rule is not the whole tool: runners, statistics over many benchmarks and reviewers are left out. A rule raises
an alarm if the tool would report "slower". Reports of faster programs are not counted. Each docstring names the source
of its rule, as of 2026."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import log1p

import numpy as np
from nodes import NODES, Array, Flags, Node, levels, steps_of_runs
from paired_sessions import CHUNK, PRIMARY, STEADY, SUMMARIES, THRESHOLDS, summarise_runs
from scipy import stats

from regbot.stats.paired import PASSING
from regbot.stats.prediction import SESSION_RUNS, stored_gate

SEED = 20260804
SESSIONS = 4000
STORED, BATCH = 40, 10
"""Stored sessions, and runs of each arm for benchstat's rule."""
EFFECTS_PCT = (0.0, 1.0, 2.0, 3.0, 5.0)
SCREEN_BOUND = log1p(0.05)

GOLDEN_TOLERANCE = 0.05
ALERTS = (1.5, 2.0)
BOUNDARY = 0.99
COMMITS, FENCE = 30, 3.0
LEVEL = 0.05


@dataclass(frozen=True)
class Measured:
    """The data that the rules have of ``n`` pull requests without an effect, as logs of seconds.

    An effect is added to the values of head.
    """

    history: Array
    """Median step time of one run of each stored session, (n, sessions), oldest first."""
    head: Array
    """Median step time of one head run in a session of its own, (n,)."""
    stored_runs: Array
    """Median step times of all runs of all stored sessions, (n, runs)."""
    head_runs: Array
    """Median step times of all runs of head's session, (n, 3)."""
    base_steps: Array
    """Step times of a base run, (n, steps)."""
    head_steps: Array
    """Step times of the head run that was paired with this base run on the same node, (n, steps)."""
    before: Array
    """Median step times of ten base runs, (n, 10)."""
    after: Array
    """Median step times of the ten head runs that followed them on the same node, (n, 10)."""
    stored_levels: Array
    """Levels of the stored sessions, (n, sessions, summaries)."""
    head_levels: Array
    """Level of head's session, (n, summaries)."""


@dataclass(frozen=True)
class Rule:
    """A rule. ``alarms`` takes the data and the log effect of head. ``runs`` is the number of runs for a pull
    request."""

    name: str
    runs: int
    alarms: Callable[[Measured, float], Flags]


def golden_value(measured: Measured, effect: float) -> Flags:
    """Megatron-LM: the iteration time of one run may differ by 5% from that of a stored run.

    Source: tests/functional_tests/python_test_utils/test_pretraining_regular_pipeline.py, "iteration-time", rtol 0.05.
    """
    return np.asarray(_ratio(measured, effect) - 1 > GOLDEN_TOLERANCE)


def alert(limit: float) -> Callable[[Measured, float], Flags]:
    """github-action-benchmark: one run is compared with the last stored run.

    Source: src/write.ts, findAlerts. ``alert-threshold`` is 200% by default, and 150% in the examples.
    """
    return lambda measured, effect: np.asarray(_ratio(measured, effect) > limit)


def t_boundary(measured: Measured, effect: float) -> Flags:
    """Bencher: one run is compared with the upper limit of a t threshold with boundary 0.99.

    This is the prediction interval of version 0.6.3 and later. Source: bencher.dev/docs/explanation/thresholds.
    """
    sessions = measured.history.shape[1]
    reach = float(stats.t.ppf(BOUNDARY, sessions - 1)) * (1 + 1 / sessions) ** 0.5
    times = np.exp(measured.history)
    limit = times.mean(axis=1) + reach * times.std(axis=1, ddof=1)
    return np.asarray(np.exp(measured.head + effect) > limit)


def interquartile_fence(measured: Measured, effect: float) -> Flags:
    """rustc-perf: a change is significant beyond Q3 + 3 IQR of the last 30 changes from commit to commit.

    Source: site/src/comparison.rs, IQR_MULTIPLIER and NUM_PREVIOUS_COMMITS. The tool applies the rule to instruction
    counts; here it is applied to times.
    """
    times = np.exp(measured.history[:, -COMMITS - 1 :])
    changes = np.abs(np.diff(times, axis=1)) / times[:, :-1]
    low, high = np.quantile(changes, [0.25, 0.75], axis=1)
    return np.asarray(_ratio(measured, effect) - 1 >= high + FENCE * (high - low))


def u_test(measured: Measured, effect: float) -> Flags:
    """benchstat: the exact test of Mann and Whitney with ten runs of each arm, two-sided at 0.05.

    All base runs come first, as in its documentation. Source: golang.org/x/perf, benchmath/anone.go.
    """
    after = measured.after + effect
    p = stats.mannwhitneyu(measured.before, after, axis=1, method="exact").pvalue
    return np.asarray((p < LEVEL) & (np.median(after, axis=1) > np.median(measured.before, axis=1)))


def pooled_steps(measured: Measured, effect: float) -> Flags:
    """Welch's t test on the steps of one run of each arm. It is no tool, but common in scripts for training jobs."""
    base, head = np.exp(measured.base_steps), np.exp(measured.head_steps + effect)
    p = stats.ttest_ind(base, head, axis=1, equal_var=False).pvalue
    return np.asarray((p < LEVEL) & (head.mean(axis=1) > base.mean(axis=1)))


def pooled_runs(measured: Measured, effect: float) -> Flags:
    """Welch's t test of head's runs against all stored runs, as if each run had its own node and day. It is no tool."""
    head = measured.head_runs + effect
    p = stats.ttest_ind(measured.stored_runs, head, axis=1, equal_var=False).pvalue
    return np.asarray((p < LEVEL) & (head.mean(axis=1) > measured.stored_runs.mean(axis=1)))


def is_regressed(measured: Measured, effect: float) -> Flags:
    """regbot's ``gate = "stored"``: the prediction interval of one more session."""
    return np.array([decision == "regressed" for decision in decide_stored(measured, effect)])


def decide_stored(measured: Measured, effect: float, gain: float = 0.0) -> list[str]:
    """Decide by ``gate = "stored"``. Main has become faster by the log ``gain`` since it was stored."""
    decisions = []
    for stored, head in zip(measured.stored_levels + gain, measured.head_levels + effect, strict=True):
        by_name = dict(zip(SUMMARIES, stored.T.tolist(), strict=True))
        head_by_name = dict(zip(SUMMARIES, head.tolist(), strict=True))
        decisions.append(stored_gate(by_name, head_by_name, PRIMARY, THRESHOLDS, SCREEN_BOUND)[0])
    return decisions


RULES = (
    Rule("Megatron-LM: 5% of a golden run", 1, golden_value),
    *(Rule(f"github-action-benchmark: {limit:.0%}", 1, alert(limit)) for limit in ALERTS),
    Rule("Bencher: t .99", 1, t_boundary),
    Rule("rustc-perf: Q3 + 3 IQR", 1, interquartile_fence),
    Rule("benchstat: U test, 10 then 10 runs", 20, u_test),
    Rule("Welch on the steps of 1 + 1 runs", 2, pooled_steps),
    Rule("Welch on 3 runs against 120 stored", 3, pooled_runs),
    Rule('**regbot: `gate = "stored"`**', SESSION_RUNS, is_regressed),
)


def _ratio(measured: Measured, effect: float) -> Array:
    """Return the time of head's run divided by that of the newest stored run."""
    return np.asarray(np.exp(measured.head + effect - measured.history[:, -1]))


def simulate(node: Node, count: int, rng: np.random.Generator) -> Measured:
    def runs(sessions: int, runs_of_session: int) -> Array:
        shape = (count, sessions, runs_of_session)
        of_runs = levels(node, count * sessions, runs_of_session, rng).reshape(shape)
        return of_runs[..., None] + steps_of_runs(node, shape, STEADY, rng)

    stored = summarise_runs(runs(STORED, SESSION_RUNS))
    head = summarise_runs(runs(1, SESSION_RUNS))[:, 0]
    pair = runs(1, 2)[:, 0]
    batches = np.median(runs(1, 2 * BATCH)[:, 0], axis=-1)
    return Measured(
        history=stored[:, :, 0, 0],
        head=head[:, 0, 0],
        stored_runs=stored[..., 0].reshape(count, -1),
        head_runs=head[..., 0],
        base_steps=pair[:, 0],
        head_steps=pair[:, 1],
        before=batches[:, :BATCH],
        after=batches[:, BATCH:],
        stored_levels=stored.mean(axis=2),
        head_levels=head.mean(axis=1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="pull requests simulated per node")
    count = parser.parse_args().sessions
    alarms = {rule.name: {node.name: np.zeros(len(EFFECTS_PCT)) for node in NODES} for rule in RULES}
    reverts = 0
    for index, node in enumerate(NODES):
        rng = np.random.default_rng((SEED, index))
        for start in range(0, count, CHUNK):
            measured = simulate(node, min(CHUNK, count - start), rng)
            for rule in RULES:
                for column, percent in enumerate(EFFECTS_PCT):
                    alarms[rule.name][node.name][column] += rule.alarms(measured, log1p(percent / 100)).sum()
            if node.name == "typical":  # head takes back a gain of 5% that main has made since
                decisions = decide_stored(measured, log1p(0.05), gain=log1p(0.05))
                reverts += sum(decision in PASSING for decision in decisions)
    effects = " / ".join(f"{percent:g}%" for percent in EFFECTS_PCT)
    print(f"{count} pull requests per node, {STORED} stored sessions, seed {SEED}: share called slower\n")
    print(f"| rule | runs | typical node, true slowdown of {effects} | quiet / bimodal / noisy, 0% | the same, 5% |")
    print("|---|---|---|---|---|")
    others = [node.name for node in NODES if node.name != "typical"]
    for rule in RULES:
        by_node = {name: counts / count for name, counts in alarms[rule.name].items()}
        typical = " / ".join(f"{share:.3f}" for share in by_node["typical"])
        none, large = (" / ".join(f"{by_node[name][column]:.3f}" for name in others) for column in (0, -1))
        print(f"| {rule.name} | {rule.runs} | {typical} | {none} | {large} |")
    share = f"{reverts / count:.3f}"
    print(f'\nheads that take back a gain of 5%, which stored sessions do not show, and pass gate = "stored": {share}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
