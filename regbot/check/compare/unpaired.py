"""The throughput section of unpaired files.

Unpaired files decide only if they show that all runs are of one session: by Welch's interval, or by the normal interval
if the noise is given. Otherwise a difference between the sessions looks like a difference between the commits, and the
section says what would decide.

The field ``by`` of the section says what was compared: "runs", and not "pairs".
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from regbot.check.compare.launches import CommonSession, find_common_session
from regbot.check.compare.run_files import StepFile
from regbot.check.compare.sections import (
    ALPHA,
    MAX_NOISE_RATIO,
    SETTINGS,
    THRESHOLDS,
    correct_known_noise,
    decision_sentences,
    estimate_sentences,
    given_noise_note,
    pairs_advice,
    section_with_intervals,
    section_without_intervals,
    unsteady_section,
)
from regbot.check.compare.steady_cut import find_unsteady
from regbot.judge.estimates import percent
from regbot.judge.throughput import primary_test
from regbot.records.text.words import count
from regbot.records.verdict import Throughput
from regbot.stats.known_noise import known_noise_difference, observed_pair_sd
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import combine, decide, pairs_needed
from regbot.stats.unpaired import MIN_RUNS, Difference, welch

ArmValues = dict[str, tuple[list[float], list[float]]]
"""Summary (median, mean) -> its value for each base run, and its value for each head run, on the log scale."""

Files = Sequence[StepFile]


def unpaired_section(base: Files, head: Files, given_sd: float | None) -> tuple[Throughput, list[str]]:
    """Return the throughput section of unpaired runs, and warnings.

    The test has the error rate of one look, so it is valid once. Testing again after adding files would be a second
    look. ``given_sd`` is the standard deviation of a pair's log-ratio that the user gave with --noise; None if not
    given.
    """
    values = _collect_values(base, head)
    session = find_common_session(base, head)
    if session is not None:
        return _common_session_section(base, head, values, session, given_sd)
    warnings = []
    if given_sd is not None:
        warnings.append(
            f"--noise {100 * given_sd:.2g}% is not used: it is the noise of pairs in one session, and nothing in the "
            "files shows that base and head ran in one"
        )
    estimates = _estimate_pct(values)
    if unsteady_reasons := find_unsteady(base, head):
        return unsteady_section(base, head, unsteady_reasons, estimates, {"by": "runs"}), warnings
    return _undecided_section(base, head, estimates), warnings


def _collect_values(base: Files, head: Files) -> ArmValues:
    base_summaries, head_summaries = ([file.summaries() for file in files] for files in (base, head))
    return {name: ([run[name] for run in base_summaries], [run[name] for run in head_summaries]) for name in SUMMARIES}


def _estimate_pct(values: ArmValues) -> dict[str, float]:
    """Return by how many percent head's mean over its runs is above base's, for each summary."""
    return {
        name: percent(fmean(head_values) - fmean(base_values)) for name, (base_values, head_values) in values.items()
    }


def _common_session_section(
    base: Files, head: Files, values: ArmValues, session: CommonSession, given_sd: float | None
) -> tuple[Throughput, list[str]]:
    """Judge the runs of one session by Welch's interval, or by the normal interval if the noise is known.

    Returns the throughput section, and warnings. ``given_sd`` has the same meaning as in ``unpaired_section``.
    """
    estimates = _estimate_pct(values)
    has_enough_runs = min(len(base), len(head)) >= MIN_RUNS
    warnings: list[str] = []
    known_sd = given_sd  # the noise that the intervals use; None: the noise that the runs show
    if given_sd is not None:
        # The observed standard deviation is None if an arm has one run. Such runs contradict no given noise.
        observed_sd = max(observed_pair_sd(*base_and_head) or 0.0 for base_and_head in values.values())
        if observed_sd > MAX_NOISE_RATIO * given_sd:
            warning = (
                f"the runs scatter by {100 * observed_sd:.2g}% per pair, but --noise says "
                f"{100 * given_sd:.2g}%; the observed scatter is used"
            )
            warnings = [warning]
            known_sd = None
        elif not has_enough_runs:
            known_sd, warnings = correct_known_noise(given_sd, base, head)
    if known_sd is None and not has_enough_runs:
        runs = f"{count(len(base), 'base run')} and {count(len(head), 'head run')}"
        reasons = [
            f"{runs} decide nothing; at least {MIN_RUNS} runs of each arm are needed",
            *estimate_sentences(estimates),
            _describe_session(session),
            pairs_advice(estimates),
        ]
        return section_without_intervals(base, head, estimates["median"], reasons, {"by": "runs"}), warnings
    if unsteady_reasons := find_unsteady(base, head):
        return unsteady_section(base, head, unsteady_reasons, estimates, {"by": "runs"}), warnings
    if known_sd is None:
        intervals = _welch_intervals(values)
    else:
        intervals = _known_noise_intervals(values, known_sd)
    tests = {name: (decide(interval, THRESHOLDS), interval) for name, interval in intervals.items()}
    decision = combine(tests.values(), THRESHOLDS)
    worst_sd = max(interval.sd for interval in intervals.values())
    reasons = [*decision_sentences(tests, decision)]
    if known_sd is not None:
        reasons.append(given_noise_note(worst_sd))
    reasons.append(_describe_session(session))
    if decision == "undecided":
        needed = pairs_needed(worst_sd, ALPHA, THRESHOLDS, known=known_sd is not None)
        effort = f"about {needed} runs" if needed is not None else "more runs than is practical"
        reasons.append(
            f"with this noise, to detect {SETTINGS.threshold_pct:g}% takes {effort} of each arm; pairs on one node "
            "(--paired) take fewer"
        )
    fields: dict[str, Any] = {
        "by": "runs",
        "tests": [
            primary_test(name, test_decision, interval, ratios=[]) for name, (test_decision, interval) in tests.items()
        ],
    }
    return section_with_intervals(decision, intervals["median"], ALPHA, reasons, base, head, fields=fields), warnings


def _undecided_section(base: Files, head: Files, estimates: dict[str, float]) -> Throughput:
    """Return the undecided section of runs whose sessions are not known. It says what would decide."""
    runs = f"{count(len(base), 'base run')} and {count(len(head), 'head run')}"
    why = "nothing in the files shows that base and head ran in turn in one session"
    reasons = [
        f"{runs} decide nothing: {why}, so the difference may be one of nodes or days",
        *estimate_sentences(estimates),
        pairs_advice(estimates),
    ]
    return section_without_intervals(base, head, estimates["median"], reasons, {"by": "runs"})


def _welch_intervals(values: ArmValues) -> dict[str, Difference]:
    return {name: welch(base_values, head_values, ALPHA) for name, (base_values, head_values) in values.items()}


def _known_noise_intervals(values: ArmValues, pair_sd: float) -> dict[str, Difference]:
    """Return the normal interval of each summary. ``pair_sd`` is the standard deviation of a pair's log-ratio."""
    return {
        name: known_noise_difference(base_values, head_values, pair_sd, ALPHA)
        for name, (base_values, head_values) in values.items()
    }


def _describe_session(session: CommonSession) -> str:
    """Return the evidence that all runs are of one session."""
    start, end = (datetime.fromtimestamp(moment, UTC) for moment in (session.start_s, session.end_s))
    return (
        f"the records show one session: all runs on {', '.join(session.hosts)} from {start:%Y-%m-%d %H:%M} to "
        f"{end:%Y-%m-%d %H:%M} UTC, and base and head alternated {session.turns} times"
    )
