"""Compare the step times of a session with the stored sessions of main, of the same node class, environment and clock.

With ``gate = "stored"``, for users who cannot run pairs, a few runs of head are compared, and the prediction interval
may fail a change. If head trains differently, ran another dispatcher or has no steady state, nothing is decided.

With pairs the comparison decides nothing. If base is not as fast as main was when it was stored, the node or the
environment has drifted since, or main has changed, and the stored sessions are out of date.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from statistics import fmean
from typing import Any, NamedTuple

from regbot.baselines.intake import environment_of, node_class_of
from regbot.judge.backends import DISPATCHER
from regbot.judge.estimates import count_primary_tests, format_estimate, percent_fields, primary_test, thresholds
from regbot.judge.pairs import Pair, is_head_only, is_sound
from regbot.judge.steadiness import has_gpus
from regbot.judge.training import has_other_trajectory, loss_rounding
from regbot.records.baseline import InvalidTime, parse_time
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Decision, StoredTest, StoredTimes
from regbot.stats.launch import SUMMARIES, launch_cut, launch_steady_state, summarise_timing
from regbot.stats.paired import Interval
from regbot.stats.prediction import (
    MIN_NODES,
    MIN_SESSIONS,
    SESSION_ALPHA,
    SESSION_RUNS,
    p_value,
    prediction_interval,
    session_level,
    stored_gate,
)
from regbot.stats.summary import percent

HEAD_RUNS = 1 + SESSION_RUNS
"""Number of runs of head: the warm launch and the runs that count."""
MAX_ATTEMPTS = 2
"""If a run of head fails, all runs are repeated once."""
MIN_INTERVAL_SESSIONS = 2
"""Minimum number of stored sessions for an interval beside pairs. A warning or a decision needs ``MIN_SESSIONS``."""


class StoredVerdict(NamedTuple):
    """Result of the comparison of head with stored sessions."""

    decision: Decision | None
    """None if head may not be compared with stored sessions."""
    reasons: Sequence[str]
    fields: Mapping[str, Any] = {}
    """Fields of the throughput section for a decision."""
    warnings: Sequence[str] = ()


def select_whole_comparison(runs: Sequence[Run]) -> list[Run]:
    """Return the sound runs of head alone from the last complete attempt, warm launch first; [] if there is none."""
    for attempt in range(MAX_ATTEMPTS, 0, -1):
        attempt_runs = [run for run in runs if is_head_only(run) and run.attempt == attempt][:HEAD_RUNS]
        if len(attempt_runs) == HEAD_RUNS and all(map(is_sound, attempt_runs)):
            return attempt_runs
    return []


def has_enough_sessions(header: SessionHeader, plan: TimedPlan) -> bool:
    """Whether head can be run alone for ``plan``. Stored sessions are of the committed configuration, without
    overrides."""
    has_overrides = bool(header.base.overrides or header.head.overrides)
    return not has_overrides and any(len(reference.sessions) >= MIN_SESSIONS for reference in plan.references)


def judge_by_stored(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> StoredVerdict | None:
    """Return the result of the comparison; None if more runs of head are needed."""
    attempt = max((run.attempt for run in runs), default=1)
    attempt_runs = [run for run in runs if run.attempt == attempt]
    failed_runs = [run for run in attempt_runs if not is_sound(run)]
    # "refused": the guest reported that this cannot be measured.
    if failed_runs and (attempt >= MAX_ATTEMPTS or failed_runs[0].outcome == "refused"):
        return StoredVerdict(None, ["the runs of head did not end well"])
    if failed_runs or not attempt_runs:
        return None
    reference = select_reference(plan, attempt_runs[0])
    if isinstance(reference, str):
        return StoredVerdict(None, [reference])  # a string says why there is no reference
    doubt = explain_few_sessions(reference, MIN_SESSIONS)
    if not doubt and len(attempt_runs) < HEAD_RUNS:
        return None
    head = attempt_runs[1:HEAD_RUNS]  # without the warm launch
    if doubt := doubt or _explain_difference(reference, head):
        return StoredVerdict(None, [doubt])
    levels = stored_levels(reference)
    decision, tests = stored_gate(
        levels,
        _level((run, None) for run in head),
        count_primary_tests(header),
        thresholds(header.throughput),
        math.log1p(header.throughput.screen_bound_pct / 100),  # the largest slowdown that a pass may leave possible
        other_nodes(reference, head[-1]),
    )
    # The largest slowdown that is not excluded.
    bound_pct = percent(max(prediction.high for _, prediction in tests.values()))
    _, median_prediction = tests["median"]
    fields = {
        **percent_fields(median_prediction),
        "alpha": median_prediction.alpha,
        "sessions": len(reference.sessions),
        "base_step_s": math.exp(fmean(levels["median"])),
        "bound_pct": bound_pct if decision in ("within_bound", "no_change", "improved") else None,
        "calibrated": reference.calibrated,
        "tests": [primary_test(name, *test, ratios=[]) for name, test in tests.items()],
    }
    reasons = _explain(decision, tests, count(len(reference.sessions), "session"), bound_pct)
    return StoredVerdict(decision, reasons, fields, reference.warnings)


def _explain(
    decision: Decision, tests: Mapping[str, tuple[Decision, Interval]], sessions: str, bound_pct: float
) -> list[str]:
    _, median_prediction = tests["median"]
    give = f"{SESSION_RUNS} runs of head against the last {sessions} of main give"
    spread = f"sessions of one commit differ by {100 * median_prediction.sd:.2g}%"
    if decision in ("regressed", "improved"):
        word = "slower" if decision == "regressed" else "faster"
        sentences = [
            f"head is {word} than the stored baseline by the {name} step time: {give} {format_estimate(prediction)}"
            for name, (test_decision, prediction) in tests.items()
            if test_decision == decision
        ]
        return [*sentences, f"{spread}; pairs on one node can detect smaller changes (gate = 'pairs')"]
    comparison = f"{give} {format_estimate(median_prediction)}"
    if decision == "within_bound":
        excluded = f"A slowdown above {round_up_percent(bound_pct)} against these sessions is ruled out"
        return [f"head is within the stored baseline: {comparison}. {excluded}. A smaller one is not, because {spread}"]
    if decision == "no_change":
        return [f"no change: {comparison}"]
    return [f"undecided: {comparison}, and {spread}; pairs on one node would settle it (gate = 'pairs')"]


def compare_times(
    header: SessionHeader, plan: TimedPlan, valid_pairs: Sequence[Pair]
) -> tuple[StoredTimes | None, tuple[str, ...]]:
    """Compare the step times of base and head with the range that the stored sessions predict. Also return a warning if
    base is outside and at least ``MIN_SESSIONS`` are stored. None if nothing is stored, or without a valid pair. An arm
    with overrides is left out, because stored sessions have none."""
    own_pairs = [pair for pair in valid_pairs if not pair.head.is_from_earlier_session]
    pairs = own_pairs[:SESSION_RUNS]  # stored sessions are summarised over the same number of runs
    # ``no_reference`` is the reason why stored sessions are not comparable. It is '' if nothing is stored.
    has_stored_sessions = bool(plan.references or plan.no_reference)
    if not pairs or not has_stored_sessions or (header.base.overrides and header.head.overrides):
        return None, ()
    reference = select_reference(plan, pairs[-1].head)
    if isinstance(reference, str):
        return StoredTimes(reason=clip_message(reference)), ()
    sessions, base_runs = reference.sessions, [pair.base for pair in pairs]
    if reason := explain_few_sessions(reference, MIN_INTERVAL_SESSIONS) or explain_other_place(reference, base_runs):
        return StoredTimes(reason=clip_message(reason), sessions=len(sessions)), ()
    alpha = SESSION_ALPHA / count_primary_tests(header)
    levels, nodes = stored_levels(reference, len(pairs)), other_nodes(reference, base_runs[-1])
    tests: list[StoredTest] = []
    outside: list[Interval] = []  # those of base that do not contain 0
    for arm in (header.base, header.head):
        if arm.overrides:
            continue
        level = _level((pair.base if arm.name == "base" else pair.head, pair.cut) for pair in pairs)
        for name in SUMMARIES:
            prediction = prediction_interval(levels[name], level[name], alpha, nodes)
            estimate = {**percent_fields(prediction), "p_value": p_value(prediction)}
            tests.append(StoredTest.model_validate({"arm": arm.name, "summary": name, **estimate}))
            if arm.name == "base" and p_value(prediction) < alpha:
                outside.append(prediction)
    is_drifted = bool(outside) and len(sessions) >= MIN_SESSIONS
    times = StoredTimes(
        sessions=len(sessions),
        newest=sessions[-1].measured,
        age_days=find_age_days(sessions[-1].measured, header),
        runs=len(pairs),
        alpha=alpha,
        tests=tests,
    )
    if not is_drifted:
        return times, ()
    cause = "" if sessions[-1].commit == header.base.commit else ", or main has changed"
    warning = (
        f"base's step time differs by {format_estimate(outside[0])} from the last {count(len(sessions), 'session')} of "
        "main, more than these sessions scatter: probably the node has changed since, in a way that regbot does not "
        f"record{cause}. The verdict compares base and head in this session, so it still holds. 'regbot baseline "
        "refresh' measures main again"
    )
    return times, (warning,)


def _level(runs: Iterable[tuple[Run, int | None]]) -> dict[str, float]:
    """Return the median and mean step time on the log scale, averaged over runs. ``runs`` has each run with its cut;
    None for its own."""
    summaries = [
        summarise_timing(run.timing, launch_cut(run.timing) if cut is None else cut)
        for run, cut in runs
        if run.timing is not None
    ]
    return {name: fmean(summary[name] for summary in summaries) for name in SUMMARIES}


def _explain_difference(reference: Reference, head: Sequence[Run]) -> str:
    """Return why head must not be judged by stored sessions, '' if it may."""
    if other_place := explain_other_place(reference, head):
        return other_place
    if has_other_trajectory(reference.loss, head, loss_rounding(head)):
        return "head does not train as the newest stored session did"
    timings = [run.timing for run in head if run.timing is not None]
    stored_drops, head_drops = reference.dropped_tokens, [timing.dropped_tokens for timing in timings]
    # A run of head that does not report its dropped tokens counts as dropping more.
    if stored_drops is not None and any(drops is None or drops > stored_drops for drops in head_drops):
        return "head drops more tokens than the newest stored session did"
    unsteady = sum(state is not None and not state.steady for state in map(launch_steady_state, timings))
    if has_gpus(head[-1]) and unsteady >= len(head) / 2:
        return f"{unsteady} of {len(head)} runs of head have no steady state"
    return ""


def select_reference(plan: TimedPlan, run: Run) -> Reference | str:
    """Return the reference with the node class, environment and clock of ``run``, or the reason why there is no such
    reference."""
    node_class, environment = node_class_of(run), environment_of(run)
    same_class = [reference for reference in plan.references if reference.node_class == node_class]
    if not same_class:  # ``no_reference`` says why stored sessions are not comparable; '' if nothing is stored
        return plan.no_reference or f"no session of this workload is stored for the node class {node_class}"
    for reference in same_class:
        if reference.environment == environment and run.timing is not None and reference.clock == run.timing.clock:
            return reference

    def describe(value: object) -> str:
        return "unknown" if value is None else clip(repr(value), 80)

    # Explain the reference whose environment differs from that of ``run`` in the fewest fields.
    differences: list[list[str]] = [
        [
            f"{name} is {describe(stored)} in stored sessions, {describe(own)} here"
            for name, stored in reference.environment.model_dump().items()
            if stored != (own := getattr(environment, name))
        ]
        for reference in same_class
    ]
    nearest = min(differences, key=len)
    return f"stored sessions of this node class cannot be compared: {'; '.join(nearest) or 'they used another clock'}"


def stored_levels(reference: Reference, runs: int = SESSION_RUNS) -> dict[str, list[float]]:
    """Return the levels of the stored sessions on the log scale, by summary, over the first ``runs`` runs of each."""
    return {
        "median": [session_level(session.log_median, runs) for session in reference.sessions],
        "mean": [session_level(session.log_mean, runs) for session in reference.sessions],
    }


def find_age_days(measured: str, header: SessionHeader) -> float | None:
    """Return the days from ``measured`` to the start of this session, at least 0. None if a time is unreadable."""
    try:
        age = parse_time(header.created) - parse_time(measured)
    except InvalidTime:
        return None
    return max(0.0, age / timedelta(days=1))


def other_nodes(reference: Reference, run: Run) -> list[str]:
    """Return the node of each stored session if none is that of ``run``, else []. Sessions without a node count as
    those of one node, which is never that of ``run``."""
    nodes = [session.node or "" for session in reference.sessions]
    return [] if run.node is not None and run.node.name in nodes else nodes


def explain_few_sessions(reference: Reference, needed: int) -> str:
    """Return a sentence if fewer than ``needed`` sessions are stored, else ''."""
    if (stored := len(reference.sessions)) >= needed:
        return ""
    return f"{count(stored, 'comparable session')} {'is' if stored == 1 else 'are'} stored, and {needed} are needed"


def explain_other_place(reference: Reference, runs: Sequence[Run]) -> str:
    """Return why stored sessions cannot be compared with ``runs``, all of one arm; '' if they can. One session must be
    from the node of the runs, or all from at least ``MIN_NODES`` nodes, and the executed dispatcher must be the same.
    """
    nodes = set(other_nodes(reference, runs[-1]))
    if nodes and len(nodes) < MIN_NODES:
        return f"stored sessions are of {count(len(nodes), 'other node')}, and at least {MIN_NODES} are needed"
    executed = {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends}
    if reference.executed is None or executed == {reference.executed}:
        return ""
    arm, arm_executed = runs[0].arm.name, ", ".join(sorted(executed)) or "an unknown one"
    return f"stored sessions executed the dispatcher {reference.executed!r}, and {arm} executed {arm_executed}"
