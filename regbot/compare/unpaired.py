"""The throughput section of files that are no pairs: Welch's interval, or the normal one where the noise is known."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from regbot.compare.answer import (
    ALPHA,
    NOISIER,
    NOT_CONTROLLED,
    SETTINGS,
    THRESHOLDS,
    decided,
    enough,
    given,
    no_steady_state,
    outcome,
    raised,
    shown,
    undecided,
)
from regbot.compare.cut import unsteady
from regbot.compare.read import StepFile
from regbot.judge.estimates import percent
from regbot.judge.throughput import primary_test
from regbot.records.verdict import Throughput
from regbot.stats.known_noise import known_difference, seen_pair_sd
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import combine, decide, pairs_needed
from regbot.stats.unpaired import LEAST_RUNS, Difference, welch

Columns = dict[str, tuple[list[float], list[float]]]
"""Summary -> its values of the base and of the head runs."""


def unpaired_section(
    base: Sequence[StepFile], head: Sequence[StepFile], known_sd: float | None
) -> tuple[Throughput, list[str]]:
    """Runs are looked at once with the error of one look: whoever adds files looks again. And warnings.

    ``known_sd`` of a pair's log-ratio; without it four runs of each arm are the least.
    """
    values = [[file.summaries() for file in files] for files in (base, head)]
    columns: Columns = {
        name: ([run[name] for run in values[0]], [run[name] for run in values[1]]) for name in SUMMARIES
    }
    enough_runs = min(len(base), len(head)) >= LEAST_RUNS
    warnings: list[str] = []
    if known_sd is not None:
        seen = max(seen_pair_sd(*column) or 0.0 for column in columns.values())
        if seen > NOISIER * known_sd:
            warning = (
                f"the runs scatter so much that a pair of them does by {100 * seen:.2g}%, and --noise says "
                f"{100 * known_sd:.2g}%; what was seen is used, not what was said"
            )
            warnings = [warning]
            known_sd = None
        elif not enough_runs:
            known_sd, warnings = raised(known_sd, base, head)
    estimates = {name: percent(fmean(theirs) - fmean(ours)) for name, (ours, theirs) in columns.items()}
    if known_sd is None and not enough_runs:
        return _too_few(base, head, estimates), warnings
    if told := unsteady(base, head):
        return no_steady_state(base, head, told, estimates, {"by": "runs"}), warnings
    intervals = {
        name: welch(*column, ALPHA) if known_sd is None else known_difference(*column, known_sd, ALPHA)
        for name, column in columns.items()
    }
    return _looked(base, head, intervals, known_sd is not None), warnings


def _looked(
    base: Sequence[StepFile], head: Sequence[StepFile], intervals: dict[str, Difference], known: bool
) -> Throughput:
    tests = {name: (decide(found, THRESHOLDS), found) for name, found in intervals.items()}
    decision = combine(tests.values(), THRESHOLDS)
    worst = max(found.sd for found in intervals.values())
    reasons = [*outcome(tests, decision)]
    if known:
        reasons.append(given(worst))
    reasons.append(f"{NOT_CONTROLLED}: what they add to all runs of one arm is in the estimate")
    if decision == "undecided":
        needed = pairs_needed(worst, ALPHA, THRESHOLDS, known=known)
        words = f"about {needed} runs" if needed is not None else "more runs than anybody makes"
        reasons.append(
            f"with this noise {SETTINGS.threshold_pct:g}% would take {words} of each arm; pairs on one node "
            "(--paired) take fewer"
        )
    fields: dict[str, Any] = {
        "by": "runs",
        "tests": [primary_test(name, verdict, found, []) for name, (verdict, found) in tests.items()],
    }
    return decided(decision, intervals["median"], ALPHA, reasons, base, head, fields)


def _too_few(base: Sequence[StepFile], head: Sequence[StepFile], estimates: dict[str, float]) -> Throughput:
    least = f"{LEAST_RUNS} runs of each arm are the least"
    reasons = [
        f"{len(base)} base and {len(head)} head decide nothing, whatever is seen; {least}",
        *shown(estimates),
        f"{NOT_CONTROLLED}: what they add is in the estimate",
        enough(estimates),
    ]
    return undecided(base, head, estimates["median"], reasons, {"by": "runs"})
