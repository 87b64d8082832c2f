"""Where the pairs of a workload stand: by the planned looks, or always-valid where an earlier session is joined.

The looks at 4, 8 and 12 pairs are paid for once. Whoever times the same trees again, until it is green, has no further
looks left: the pairs of both sessions are then judged together, by an interval that may be looked at any number of
times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from regbot.judge.pairs import Paired, pair_up
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.settings import Throughput
from regbot.records.verdict import Decision
from regbot.stats.anytime import decide_anytime
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, Thresholds, sequential


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
    ratios = paired.log_ratios()
    if any(run.joined is not None for run in runs):
        return _continued(paired, ratios, header)
    found = sequential(ratios, primary_tests(header), thresholds(header))
    if found is None:
        return Standing(paired)
    return Standing(paired, found.decision, found.pairs, found.unused, found.final, False, found.alpha, found.tests)


def _continued(paired: Paired, ratios: dict[str, list[float]], header: SessionHeader) -> Standing:
    pairs = len(paired.valid)
    if pairs < LOOKS[0]:
        return Standing(paired, continued=True)
    decision, alpha, tests = decide_anytime(ratios, primary_tests(header), thresholds(header))
    if not all(math.isfinite(each.low) and math.isfinite(each.high) for _, each in tests.values()):
        return Standing(paired, continued=True)
    return Standing(paired, decision, pairs, 0, decision != "undecided", True, alpha, tests)
