"""Rules of other tools that decide whether a pull request made a program slower, rewritten for ``gate.py``.

Each rule uses the data that its tool has: stored runs of the target branch, one or ten new runs, or the steps of two
runs. A rule is not the whole tool: runners, statistics over many benchmarks and reviewers are left out. A rule raises
an alarm if the tool would report "slower". Reports of faster programs are not counted. Each docstring names the source
of its rule, as of 2026."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from nodes import Array, Flags
from scipy import stats

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


RULES = (
    Rule("Megatron-LM: 5% of a golden run", 1, golden_value),
    *(Rule(f"github-action-benchmark: {limit:.0%}", 1, alert(limit)) for limit in ALERTS),
    Rule("Bencher: t .99", 1, t_boundary),
    Rule("rustc-perf: Q3 + 3 IQR", 1, interquartile_fence),
    Rule("benchstat: U test, 10 then 10 runs", 20, u_test),
    Rule("Welch on the steps of 1 + 1 runs", 2, pooled_steps),
    Rule("Welch on 3 runs against 120 stored", 3, pooled_runs),
)


def _ratio(measured: Measured, effect: float) -> Array:
    """Return the time of head's run divided by that of the newest stored run."""
    return np.asarray(np.exp(measured.head + effect - measured.history[:, -1]))
