"""The rules by which others decide whether a pull request made a program slower, written again for ``gate.py``.

Each takes what its tool would have at hand: stored runs of the target branch, one or ten new runs, or the steps of two
runs. None is the product: their runners, their statistics of many benchmarks and their reviewers are left out. A rule
alarms where the tool would say "slower"; that some also stop a change for being faster is not counted. The source of
each rule is named beside it, as it was in 2026.
"""

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
    """What the rules see of ``n`` pull requests that change nothing. Logs of seconds; an effect is added to head's."""

    history: Array
    """Median step time of one run of each stored session, (n, sessions), the oldest first."""
    head: Array
    """Of one head run in a session of its own, (n,)."""
    stored_runs: Array
    """Of all runs of all stored sessions, (n, runs),"""
    head_runs: Array
    """and of all runs of head's session, (n, 3)."""
    base_steps: Array
    """Steps of a base run, (n, steps)."""
    head_steps: Array
    """Of the head run that followed it on the same node, (n, steps)."""
    before: Array
    """Medians of ten base runs, (n, 10),"""
    after: Array
    """and of the ten head runs that followed them on the same node, (n, 10)."""


@dataclass(frozen=True)
class Rule:
    """``alarms`` takes what was measured and the log effect of head. ``runs`` are those that a pull request costs."""

    name: str
    runs: int
    alarms: Callable[[Measured, float], Flags]


def golden_value(measured: Measured, effect: float) -> Flags:
    """Megatron-LM: the iteration time of one run within 5% of a stored one. tests/functional_tests/python_test_utils/
    test_pretraining_regular_pipeline.py, "iteration-time", rtol 0.05."""
    return np.asarray(_ratio(measured, effect) - 1 > GOLDEN_TOLERANCE)


def alert(limit: float) -> Callable[[Measured, float], Flags]:
    """github-action-benchmark: one run against the last stored one. src/write.ts, findAlerts; alert-threshold is 200%
    by default, 150% in its examples."""
    return lambda measured, effect: np.asarray(_ratio(measured, effect) > limit)


def t_boundary(measured: Measured, effect: float) -> Flags:
    """Bencher: one run against the upper limit of a t threshold with boundary 0.99, the prediction interval of its
    version 0.6.3 and later. bencher.dev/docs/explanation/thresholds."""
    sessions = measured.history.shape[1]
    reach = float(stats.t.ppf(BOUNDARY, sessions - 1)) * (1 + 1 / sessions) ** 0.5
    times = np.exp(measured.history)
    limit = times.mean(axis=1) + reach * times.std(axis=1, ddof=1)
    return np.asarray(np.exp(measured.head + effect) > limit)


def interquartile_fence(measured: Measured, effect: float) -> Flags:
    """rustc-perf: a change beyond Q3 + 3 IQR of the changes from commit to commit, of the last 30. site/src/
    comparison.rs, IQR_MULTIPLIER and NUM_PREVIOUS_COMMITS. Made for counted instructions; here it has times."""
    times = np.exp(measured.history[:, -COMMITS - 1 :])
    changes = np.abs(np.diff(times, axis=1)) / times[:, :-1]
    low, high = np.quantile(changes, [0.25, 0.75], axis=1)
    return np.asarray(_ratio(measured, effect) - 1 >= high + FENCE * (high - low))


def u_test(measured: Measured, effect: float) -> Flags:
    """benchstat: Mann and Whitney's exact test of ten runs against ten, two-sided at 0.05 (golang.org/x/perf,
    benchmath/anone.go), the old ones first, as its documentation has it."""
    after = measured.after + effect
    p = stats.mannwhitneyu(measured.before, after, axis=1, method="exact").pvalue
    return np.asarray((p < LEVEL) & (np.median(after, axis=1) > np.median(measured.before, axis=1)))


def pooled_steps(measured: Measured, effect: float) -> Flags:
    """No product: Welch's t test on the steps of one run each, which most scripts for training jobs do."""
    base, head = np.exp(measured.base_steps), np.exp(measured.head_steps + effect)
    p = stats.ttest_ind(base, head, axis=1, equal_var=False).pvalue
    return np.asarray((p < LEVEL) & (head.mean(axis=1) > base.mean(axis=1)))


def pooled_runs(measured: Measured, effect: float) -> Flags:
    """No product: Welch's t test of head's runs against all stored runs, as if each had a node and a day of its own."""
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
    """Head's run over the newest stored one."""
    return np.asarray(np.exp(measured.head + effect - measured.history[:, -1]))
