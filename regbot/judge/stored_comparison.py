"""Compare the pairs of a session with the stored sessions of its node class and environment, beside the verdict.

The comparison decides nothing. If base is not as fast as main was when it was stored, the node or the environment has
drifted since, or main has changed, and the stored sessions are out of date.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from regbot.judge.estimates import format_estimate, percent
from regbot.judge.interim import count_primary_tests
from regbot.judge.pairs import Pair, pair_up, summarise_timing
from regbot.judge.references import (
    explain_other_dispatcher,
    explain_unknown_node,
    find_age_days,
    select_reference,
    stored_levels,
)
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.text.clip import clip_message
from regbot.records.text.words import count
from regbot.records.verdict import StoredTest, StoredTimes
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
    base_predictions = _predict(reference, pairs, "base", alpha) if not header.base.overrides else {}
    head_predictions = _predict(reference, pairs, "head", alpha) if not header.head.overrides else {}
    # The first interval of base (median or mean) that shows base outside of the predicted range; None if there is none.
    outside_prediction = next(
        (prediction for prediction in base_predictions.values() if prediction.p_value < alpha), None
    )
    is_drifted = outside_prediction is not None and len(reference.sessions) >= MIN_SESSIONS
    times = StoredTimes(
        sessions=len(reference.sessions),
        newest=reference.sessions[-1].measured,
        age_days=find_age_days(reference.sessions[-1].measured, header),
        runs=len(pairs),
        alpha=alpha,
        tests=[*_stored_tests("base", base_predictions), *_stored_tests("head", head_predictions)],
        base_drifted=is_drifted,
    )
    if not is_drifted or outside_prediction is None:
        return times, ()
    return times, (_describe_drift(header, reference, outside_prediction),)


def _explain_incomparable(reference: Reference, pairs: Sequence[Pair]) -> str:
    if (stored := len(reference.sessions)) < MIN_INTERVAL_SESSIONS:
        verb = "is" if stored == 1 else "are"
        return f"{count(stored, 'comparable session')} {verb} stored, and {MIN_INTERVAL_SESSIONS} are needed"
    base_runs = [pair.base for pair in pairs]
    return explain_unknown_node(reference, base_runs[-1]) or explain_other_dispatcher(reference, base_runs)


def _predict(reference: Reference, pairs: Sequence[Pair], arm: str, alpha: float) -> dict[str, PredictionInterval]:
    # All step times are on the log scale, by summary (median and mean).
    stored_step_times = stored_levels(reference, len(pairs))
    run_summaries = []  # median and mean step time of each run
    for pair in pairs:
        run = pair.base if arm == "base" else pair.head
        assert run.timing is not None
        run_summaries.append(summarise_timing(run.timing, pair.cut))
    arm_step_times = {name: fmean(summary[name] for summary in run_summaries) for name in SUMMARIES}
    return {name: prediction_interval(stored_step_times[name], arm_step_times[name], alpha) for name in SUMMARIES}


def _stored_tests(arm: str, predictions: dict[str, PredictionInterval]) -> Iterator[StoredTest]:
    for name, prediction in predictions.items():
        yield StoredTest.model_validate(
            {
                "arm": arm,
                "summary": name,
                "estimate_pct": percent(prediction.estimate),
                "low_pct": percent(prediction.low),
                "high_pct": percent(prediction.high),
                "p_value": prediction.p_value,
            }
        )


def _describe_drift(header: SessionHeader, reference: Reference, prediction: PredictionInterval) -> str:
    is_same_commit = reference.sessions[-1].commit == header.base.commit
    cause = "probably the node has changed since, in a way that regbot does not record"
    cause += "" if is_same_commit else ", or main has changed"
    return (
        f"base's step time differs by {format_estimate(prediction)} from the last "
        f"{count(len(reference.sessions), 'session')} of main, more than these sessions scatter: {cause}. The verdict "
        "compares base and head in this session, so it still holds. 'regbot baseline refresh' measures main again"
    )
