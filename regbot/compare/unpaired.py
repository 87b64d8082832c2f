"""The throughput section of unpaired files.

Unpaired files decide in two cases. If the files show that all runs are of one session, Welch's interval decides, or the
normal interval if the noise is given. If the base files are of enough separate sessions, the prediction interval of one
more session decides. In all other cases, a difference between the sessions looks like a difference between the commits.
The section then says what the interval of these runs is worth, and what would decide.

The field ``by`` of the section says what was compared: "runs", and not "pairs".
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from regbot.compare.advice import (
    PREDICTION_ALPHA,
    pairs_advice,
    sessions_advice,
    single_pair_power,
    tipping_point,
)
from regbot.compare.launches import (
    CommonSession,
    find_common_session,
    has_unknown_host,
    read_hosts,
    read_times,
    select_separate_sessions,
)
from regbot.compare.run_files import StepFile
from regbot.compare.sections import (
    ALPHA,
    MAX_NOISE_RATIO,
    NOT_CONTROLLED,
    SETTINGS,
    THRESHOLDS,
    correct_known_noise,
    decision_sentences,
    estimate_sentences,
    given_noise_note,
    pair_noise_from_steps,
    section_with_intervals,
    section_without_intervals,
    unsteady_section,
)
from regbot.compare.steady_cut import find_unsteady
from regbot.judge.estimates import percent
from regbot.judge.throughput import primary_test
from regbot.records.verdict import Throughput
from regbot.stats.known_noise import known_noise_difference, observed_pair_sd
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import combine, decide, pairs_needed
from regbot.stats.prediction import MIN_SESSIONS
from regbot.stats.unpaired import MIN_RUNS, Difference, detectable_excess, predict_head, welch
from regbot.text.percentages import round_up_percent
from regbot.text.words import count

ArmValues = dict[str, tuple[list[float], list[float]]]
"""Summary (median, mean) -> its value for each base run, and its value for each head run, on the log scale."""

Files = Sequence[StepFile]


def unpaired_section(
    base: Files, head: Files, given_sd: float | None, separate_sessions: bool = False
) -> tuple[Throughput, list[str]]:
    """Return the throughput section of unpaired runs, and warnings.

    The test has the error rate of one look, so it is valid once. Testing again after adding files would be a second
    look. ``given_sd`` is the standard deviation of a pair's log-ratio that the user gave with --noise; None if not
    given. ``separate_sessions``: the user says that each base file is of a session of its own.
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
    if unsteady_reasons := find_unsteady(base, head):
        return unsteady_section(base, head, unsteady_reasons, _estimate_pct(values), {"by": "runs"}), warnings
    sessions = select_separate_sessions(base, separate_sessions)
    if len(sessions) >= MIN_SESSIONS and not has_unknown_host(sessions, head):
        return _prediction_section(sessions, base, head), warnings
    has_undeclared = not separate_sessions and any(read_times(file) is None for file in base)
    return _undecided_section(base, head, values, len(sessions), has_undeclared), warnings


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


def _prediction_section(sessions: Files, base: Files, head: Files) -> Throughput:
    """Judge head by the prediction interval from ``sessions``, which has one base file of each session.

    ``base`` has all base files, also those that do not count because their session has an earlier file.
    """
    predictions = {
        name: predict_head(base_values, head_values, PREDICTION_ALPHA)
        for name, (base_values, head_values) in _collect_values(sessions, head).items()
    }
    tests = {name: (decide(prediction, THRESHOLDS), prediction) for name, prediction in predictions.items()}
    decision = combine(tests.values(), THRESHOLDS)
    against = f"the base files of {len(sessions)} sessions"
    reasons = [*decision_sentences(tests, decision, against)]
    unused = len(base) - len(sessions)
    if unused:
        reasons.append(
            f"one file of each session counts; {count(unused, 'base file')} {'is' if unused == 1 else 'are'} left out"
        )
    undated = sum(read_times(file) is None for file in sessions)  # files that do not show when they ran
    source = f"--separate-sessions declares it for {undated}" if undated else "the times at which they ran show it"
    reasons.append(f"{len(sessions)} base files are of separate sessions: {source}")
    worst_sd = max(prediction.sd for prediction in predictions.values())
    reasons.append(
        f"base's step time differs by {100 * worst_sd:.2g}% from session to session (standard deviation), "
        f"{_describe_scatter(sessions)}"
    )
    if decision == "undecided":
        detectable = THRESHOLDS.eps + detectable_excess(worst_sd, len(sessions), PREDICTION_ALPHA)
        provable = round_up_percent(percent(detectable))
        estimates = {name: percent(prediction.estimate) for name, prediction in predictions.items()}
        reasons += [
            f"with this noise, {len(sessions)} base sessions can detect a slowdown of {provable} or more",
            pairs_advice(estimates),
        ]
    fields: dict[str, Any] = {
        "by": "runs",
        "sessions": len(sessions),
        "tests": [
            primary_test(name, test_decision, prediction, ratios=[])
            for name, (test_decision, prediction) in tests.items()
        ],
    }
    return section_with_intervals(
        decision, predictions["median"], PREDICTION_ALPHA, reasons, sessions, head, fields=fields
    )


def _describe_scatter(sessions: Files) -> str:
    """Return which effects the scatter of base files of separate sessions contains, and where head must have run.

    If all base files name the same host, head ran on this host: ``unpaired_section`` excludes unknown hosts.
    """
    hosts = {read_hosts(file) for file in sessions}  # () for a file that does not name its hosts
    same_kind = "The result holds only if head ran on the same kind of node, with the same software"
    if len(hosts - {()}) > 1:
        return f"which includes differences between nodes. {same_kind}"
    if () in hosts:  # some files do not name their hosts
        return f"which includes differences between nodes only if the files are of several nodes. {same_kind}"
    same_host = "Head ran on this host too; the result holds only if head had the same software"
    return f"all on one host. {same_host}"


def _undecided_section(base: Files, head: Files, values: ArmValues, sessions: int, has_undeclared: bool) -> Throughput:
    """Return the undecided section of runs whose sessions are not known. It says what the interval of these runs is
    worth, and what would decide.

    ``sessions`` is the number of base files that are known to be of separate sessions. ``has_undeclared``: some base
    files do not show when they ran, and the user has not said that their sessions are separate.
    """
    estimates = _estimate_pct(values)
    intervals = _intervals_of_these_runs(base, head, values)
    has_single_launch = min(len(base), len(head)) == 1
    why = "nothing in the files shows that base and head ran in turn in one session"
    if sessions >= MIN_SESSIONS:
        why = (
            "nothing in the files shows that head ran on a host of base, and base has too few hosts to show how much "
            "hosts differ"
        )
    reasons = [
        f"{count(len(base), 'base run')} and {count(len(head), 'head run')} decide nothing: {why}",
        *estimate_sentences(estimates),
    ]
    reasons.append(
        f"the interval holds for these {len(base) + len(head)} runs only: {NOT_CONTROLLED}, so the estimate may "
        "include them"
    )
    reasons.append(tipping_point(intervals, has_single_launch))
    if len(base) == len(head) == 1:
        reasons += [
            single_pair_power(),
            pairs_advice(estimates, " and compare with --paired: without --noise it takes"),
        ]
    else:
        reasons.append(pairs_advice(estimates))
    if sessions < MIN_SESSIONS:
        reasons.append(sessions_advice(estimates, sessions, has_undeclared))
    fields: dict[str, Any] = {
        "by": "runs",
        "tests": [primary_test(name, "undecided", interval, ratios=[]) for name, interval in intervals.items()],
    }
    return section_with_intervals("undecided", intervals["median"], ALPHA, reasons, base, head, fields=fields)


def _intervals_of_these_runs(base: Files, head: Files, values: ArmValues) -> dict[str, Difference]:
    """Return an interval for each summary, without the effects of sessions: Welch's interval, or an interval from the
    noise of the steps if an arm has one run."""
    if min(len(base), len(head)) > 1:
        return _welch_intervals(values)
    return _known_noise_intervals(values, pair_noise_from_steps(base, head))


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
