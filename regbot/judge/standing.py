"""Where the pairs of a workload stand: by the planned looks, or always-valid where an earlier session is joined.

The looks at 4, 8 and 12 pairs are paid for once. Whoever times the same trees again, until it is green, has no further
looks left: the pairs of both sessions are then judged together, by an interval that may be looked at any number of
times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from regbot.judge.pairs import Paired, pair_up
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.settings import Throughput
from regbot.records.verdict import Decision
from regbot.stats.anytime import decide_anytime
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import Interval, Thresholds, sequential


@dataclass(frozen=True)
class Standing:
    """The decision so far. ``tests`` is empty where no interval could be taken."""

    paired: Paired
    decision: Decision = "undecided"
    pairs: int = 0
    """That the decision used."""
    unused: int = 0
    final: bool = False
    """No more pairs of this session can change the answer."""
    continued: bool = False
    """Pairs of an earlier session are among them, and the interval is the always-valid one."""
    alpha: float | None = None
    tests: dict[str, tuple[Decision, Interval]] = field(default_factory=dict)


def primary_tests(header: SessionHeader) -> int:
    """Primary tests of the whole check: each workload that is timed has one for each summary."""
    return max(1, len(header.timed)) * len(SUMMARIES)


def thresholds(header: SessionHeader) -> Thresholds:
    """The check's thresholds on the log scale."""
    return thresholds_of(header.throughput)


def thresholds_of(settings: Throughput) -> Thresholds:
    """The same of settings."""
    return Thresholds.from_percent(settings.threshold_pct, settings.indifference_pct)


def standing_of(runs: Sequence[Run], header: SessionHeader) -> Standing:
    """Where ``runs``, the timed runs of one workload in order, stand."""
    paired = pair_up(runs)
    sessions = list(dict.fromkeys(pair.head.joined for pair in paired.valid))
    if len(sessions) > 1:
        return _continued(paired, sum(pair.head.joined == sessions[0] for pair in paired.valid), header)
    found = _looks(paired, len(paired.valid), header)
    if any(run.joined is None for run in runs) and sessions and sessions[0] is not None:
        return replace(found, final=False)  # this session has just begun; what the earlier one said stands until then
    return found


def _looks(paired: Paired, pairs: int, header: SessionHeader) -> Standing:
    """The planned looks at the first ``pairs`` pairs, which are those of one session."""
    ratios = {name: values[:pairs] for name, values in paired.log_ratios().items()}
    found = sequential(ratios, primary_tests(header), thresholds(header))
    if found is None:
        return Standing(paired)
    return Standing(paired, found.decision, found.pairs, found.unused, found.final, False, found.alpha, found.tests)


def _continued(paired: Paired, first: int, header: SessionHeader) -> Standing:
    """All pairs by the always-valid interval. What the ``first`` session's own looks decided stands until it decides:
    trying again with a few pairs more does not undo an answer."""
    pairs = len(paired.valid)
    decision, alpha, tests = decide_anytime(paired.log_ratios(), primary_tests(header), thresholds(header))
    finite = all(math.isfinite(each.low) and math.isfinite(each.high) for _, each in tests.values())
    before = _looks(paired, first, header)
    if decision == "undecided" and before.decision != "undecided":
        return replace(before, unused=pairs - before.pairs, final=False)
    if not finite:
        return Standing(paired, continued=True)
    return Standing(paired, decision, pairs, 0, decision != "undecided", True, alpha, tests)
