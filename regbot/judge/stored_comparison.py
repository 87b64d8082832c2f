"""Compare the runs of a session with the stored sessions and ledgers of main, beside the verdict.

Of times the comparison decides nothing. If base is not as fast as main was when it was stored, the node or the
environment has drifted since, or main has changed, and the stored sessions are out of date.

Of ledgers only the comparison with base can change the verdict. If the stored ledger was traced from the same git tree
as base, the cause of a difference is other software (torch or XLA), not the pull request, and a PASS becomes REVIEW. If
it has another tree, a merged change may be the cause, and the difference is only a warning.
"""

from collections.abc import Sequence
from statistics import fmean

from regbot.baselines.intake import environment_of
from regbot.judge.estimates import format_estimate, percent
from regbot.judge.interim import count_primary_tests
from regbot.judge.pairs import Pair, pair_up, summarise_timing
from regbot.judge.references import (
    explain_other_dispatcher,
    explain_unknown_node,
    find_age_days,
    other_nodes,
    select_reference,
    stored_levels,
)
from regbot.judge.sharding import judge_sharding
from regbot.judge.validity import not_comparable
from regbot.records.config import Config
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, StoredTrace, TimedPlan
from regbot.records.text.clip import clip_message, short_commit
from regbot.records.text.words import count
from regbot.records.verdict import Sharding, StoredCollectives, StoredTest, StoredTimes
from regbot.stats.launch import SUMMARIES
from regbot.stats.prediction import MIN_SESSIONS, SESSION_ALPHA, SESSION_RUNS, PredictionInterval, prediction_interval

MIN_INTERVAL_SESSIONS = 2
"""Minimum number of stored sessions for an interval. A warning needs ``MIN_SESSIONS``."""


def compare_times(
    header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]
) -> tuple[StoredTimes | None, tuple[str, ...]]:
    """Compare the step times of base and head with the range that the stored sessions predict. Also return a warning if
    base is outside and at least ``MIN_SESSIONS`` are stored. None if nothing is stored, or without a valid pair. An arm
    with overrides is left out, because stored sessions have none."""
    own_pairs = [pair for pair in pair_up(runs).valid if not pair.head.is_from_earlier_session]
    pairs = own_pairs[:SESSION_RUNS]  # stored sessions are summarised over the same number of runs
    # ``no_reference`` is the reason why stored sessions are not comparable. It is '' if nothing is stored.
    has_stored_sessions = bool(plan.references or plan.no_reference)
    if not pairs or not has_stored_sessions or (header.base.overrides and header.head.overrides):
        return None, ()
    reference = select_reference(plan, pairs[-1].head)
    if isinstance(reference, str):
        return StoredTimes(reason=clip_message(reference)), ()
    if reason := _explain_incomparable(reference, pairs):
        return StoredTimes(reason=clip_message(reason), sessions=len(reference.sessions)), ()
    alpha = SESSION_ALPHA / count_primary_tests(header)
    predictions = {
        arm.name: _predict(reference, pairs, arm.name, alpha) if not arm.overrides else {}
        for arm in (header.base, header.head)
    }
    # The first interval of base (median or mean) that shows base outside of the predicted range.
    outside = next((prediction for prediction in predictions["base"].values() if prediction.p_value < alpha), None)
    is_drifted = outside is not None and len(reference.sessions) >= MIN_SESSIONS
    times = StoredTimes(
        sessions=len(reference.sessions),
        newest=reference.sessions[-1].measured,
        age_days=find_age_days(reference.sessions[-1].measured, header),
        runs=len(pairs),
        alpha=alpha,
        tests=[
            StoredTest.model_validate(
                {
                    "arm": arm,
                    "summary": name,
                    "estimate_pct": percent(prediction.estimate),
                    "low_pct": percent(prediction.low),
                    "high_pct": percent(prediction.high),
                    "p_value": prediction.p_value,
                }
            )
            for arm, by_summary in predictions.items()
            for name, prediction in by_summary.items()
        ],
        base_drifted=is_drifted,
    )
    return times, (_describe_drift(header, reference, outside),) if is_drifted and outside is not None else ()


def _explain_incomparable(reference: Reference, pairs: Sequence[Pair]) -> str:
    if (stored := len(reference.sessions)) < MIN_INTERVAL_SESSIONS:
        verb = "is" if stored == 1 else "are"
        return f"{count(stored, 'comparable session')} {verb} stored, and {MIN_INTERVAL_SESSIONS} are needed"
    base_runs = [pair.base for pair in pairs]
    return explain_unknown_node(reference, base_runs[-1]) or explain_other_dispatcher(reference, base_runs)


def _predict(reference: Reference, pairs: Sequence[Pair], arm: str, alpha: float) -> dict[str, PredictionInterval]:
    stored_step_times = stored_levels(reference, len(pairs))
    nodes = other_nodes(reference, pairs[-1].base)
    runs = [(pair.base if arm == "base" else pair.head, pair.cut) for pair in pairs]
    summaries = [summarise_timing(run.timing, cut) for run, cut in runs if run.timing is not None]
    return {
        name: prediction_interval(stored_step_times[name], fmean(summary[name] for summary in summaries), alpha, nodes)
        for name in SUMMARIES
    }


def _describe_drift(header: SessionHeader, reference: Reference, prediction: PredictionInterval) -> str:
    is_same_commit = reference.sessions[-1].commit == header.base.commit
    cause = "probably the node has changed since, in a way that regbot does not record"
    cause += "" if is_same_commit else ", or main has changed"
    return (
        f"base's step time differs by {format_estimate(prediction)} from the last "
        f"{count(len(reference.sessions), 'session')} of main, more than these sessions scatter: {cause}. The verdict "
        "compares base and head in this session, so it still holds. 'regbot baseline refresh' measures main again"
    )


def compare_with_stored(
    sharding: Sharding, base: Run, stored: Sequence[StoredTrace], config: Config
) -> tuple[Sharding, list[str]]:
    """Return ``sharding``, in which a PASS may have become REVIEW, and warnings."""
    stored_trace = _find_trace(stored, base)
    if stored_trace is None or base.ledger is None:
        return sharding, []
    software = stored_trace.environment.framework or "unknown software"
    stored_name = f"the stored ledger of {short_commit(stored_trace.commit)} ({software})"
    if reason := not_comparable(stored_trace.ledger, base.ledger, ("the stored ledger", "base")):
        is_outdated = _counting_method(stored_trace.ledger) != _counting_method(base.ledger)
        advice = "; replace it with 'regbot baseline refresh'" if is_outdated else ""
        return sharding, [f"{stored_name} and base's ledger cannot be compared: they {reason}{advice}"]
    comparison = judge_sharding(stored_trace.ledger, base.ledger, config, workload=base.workload)
    if not comparison.findings:
        return sharding, []
    names = ", ".join(dict.fromkeys(finding.pattern for finding in comparison.findings))
    if stored_trace.tree != base.arm.tree:
        return sharding, [
            f"{stored_name} differs from base: {names}; refresh the stored ledgers if this change was merged"
        ]
    warning = (
        f"base differs from the stored ledger of the same tree: {names}; the cause is other software, not this pull "
        f"request ({stored_name}; {environment_of(base).framework or 'other software'} here)"
    )
    status = "REVIEW" if sharding.status == "PASS" else sharding.status
    return sharding.model_copy(update={"status": status, "reasons": [*sharding.reasons, clip_message(warning)]}), []


def compare_head_with_stored(header: SessionHeader, head: Run, config: Config) -> StoredCollectives | None:
    """None if there is no stored ledger of this workload, or if head has overrides, which no stored ledger has."""
    stored_trace = _find_trace(header.stored, head)
    if stored_trace is None or head.ledger is None or header.head.overrides:
        return None
    reason = not_comparable(stored_trace.ledger, head.ledger, ("the stored ledger", "head"))
    comparison = None if reason else judge_sharding(stored_trace.ledger, head.ledger, config, workload=head.workload)
    findings = comparison.findings if comparison is not None else []
    return StoredCollectives(
        commit=stored_trace.commit,
        age_days=find_age_days(stored_trace.measured, header),
        patterns=list(dict.fromkeys(finding.pattern for finding in findings)),
        reason=clip_message(f"they {reason}") if reason else "",
    )


def _counting_method(ledger: Ledger) -> tuple[str, str | None, str]:
    """Return how a ledger was counted: its source, its device, and the paper GPU."""
    return ledger.source, ledger.device, ledger.gpu or DEFAULT_PAPER_GPU


def _find_trace(stored: Sequence[StoredTrace], run: Run) -> StoredTrace | None:
    return next((trace for trace in stored if trace.entry == run.workload), None)
