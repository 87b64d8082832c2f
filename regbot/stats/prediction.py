"""Prediction interval of one more session from stored sessions, and the gate that decides by it.

The effects of node and day do not cancel here as they do in a pair. So each session is reduced to its *level*, the mean
of its runs' step times on the log scale, and head's level is compared with the interval for one more session. Welch's
test of the runs would mistake the shared effects for an effect of the code: it calls 8 to 22% of harmless changes
slower, at a nominal error of 2.5%.

The interval assumes that stored levels are roughly normal, and that head's session has the same distribution. It
cannot detect that head undoes a gain that main made since. All values are on the log scale; positive means slower.
"""

import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtr, stdtrit

from regbot.records.verdict import Decision
from regbot.stats.paired import Interval, Thresholds, combine, decide
from regbot.stats.summary import mean_and_squares

SESSION_RUNS = 3
"""Runs of a session that make its level, after one discarded warm launch. More hardly narrow the interval: levels
scatter more with node and day than with the single run."""

MIN_SESSIONS = 8
"""Minimum number of stored sessions for a decision. With fewer, the 95% interval of their standard deviation reaches to
more than twice the estimate."""

MIN_NODES = 6
"""If no stored session is from head's node, they must come from at least this many other nodes."""

SESSION_ALPHA = 0.05
"""Two-sided error of the prediction intervals of all summaries together."""


def session_level(run_values: Sequence[float], runs: int = SESSION_RUNS) -> float:
    """Return the level of a session: the mean over its first ``runs`` runs, log scale. Only as many runs are used as
    head's session has, because a mean over more runs scatters less. Raises ValueError for fewer runs."""
    if len(run_values) < runs:
        raise ValueError(f"a session's level needs {runs} runs; there are {len(run_values)}")
    return math.fsum(run_values[:runs]) / runs


def prediction_interval(
    stored: Sequence[float], head: float, alpha: float = SESSION_ALPHA, nodes: Sequence[str] = ()
) -> Interval:
    """Return the interval of head - mean(stored): the difference +- t(1 - alpha/2, n - 1) s sqrt(1 + 1/n), from the
    levels of n stored sessions with the standard deviation s.

    ``nodes`` are the nodes of the stored sessions if head's is none of them. A node is then a random effect: n counts
    nodes, and s^2 is the variance of their mean levels, plus what a single session varies more than such a mean. Raises
    ValueError for fewer than two sessions or nodes, or a level that is not finite."""
    levels, excess = list(stored), 0.0
    if nodes:
        by_node: dict[str, list[float]] = {}
        for node, level in zip(nodes, stored, strict=True):
            by_node.setdefault(node, []).append(level)
        levels = [math.fsum(group) / len(group) for group in by_node.values()]
        if within_df := len(stored) - len(levels):
            within = math.fsum(mean_and_squares(group)[1] for group in by_node.values()) / within_df
            excess = within * (1 - math.fsum(1 / len(group) for group in by_node.values()) / len(levels))
    count = len(levels)
    if count < 2:
        raise ValueError(f"a prediction interval needs 2 stored {'nodes' if nodes else 'sessions'}; there are {count}")
    mean, squares = mean_and_squares(levels)
    sd, estimate = math.sqrt(squares / (count - 1) + excess), head - mean
    half_width = float(stdtrit(count - 1, 1 - alpha / 2)) * sd * math.sqrt(1 + 1 / count)
    return Interval(estimate, estimate - half_width, estimate + half_width, sd, count, alpha)


def p_value(prediction: Interval) -> float:
    """Return the two-sided p-value of a prediction, in [0, 1]. It is below ``alpha`` exactly if the interval does not
    contain 0."""
    if prediction.sd == 0:
        return 1.0 if prediction.estimate == 0 else 0.0
    distance = abs(prediction.estimate) / (prediction.sd * math.sqrt(1 + 1 / prediction.count))
    return 2 * float(stdtr(prediction.count - 1, -distance))


def stored_gate(
    stored: Mapping[str, Sequence[float]],
    head: Mapping[str, float],
    primary_tests: int,
    thresholds: Thresholds,
    bound: float,
    nodes: Sequence[str] = (),
) -> tuple[Decision, dict[str, tuple[Decision, Interval]]]:
    """Return the decision of the workload by stored sessions, and the decision and interval of each summary.

    ``stored`` has the levels of the stored sessions by summary, at least ``MIN_SESSIONS``; ``head`` has that of head's
    session, and ``nodes`` see ``prediction_interval``. Each interval has alpha ``SESSION_ALPHA`` / ``primary_tests``
    and is judged like an interval of pairs. If the workload is then undecided, but every interval contains 0 and no
    upper end exceeds ``bound``, a log-ratio, the decision is ``within_bound``."""
    alpha = SESSION_ALPHA / primary_tests
    predictions = {name: prediction_interval(stored[name], value, alpha, nodes) for name, value in head.items()}
    tests = {name: (decide(prediction, thresholds), prediction) for name, prediction in predictions.items()}
    decision = combine(tests.values(), thresholds)
    are_within_bound = all(prediction.low <= 0 <= prediction.high <= bound for prediction in predictions.values())
    if decision == "undecided" and are_within_bound:
        decision = "within_bound"
    return decision, tests
