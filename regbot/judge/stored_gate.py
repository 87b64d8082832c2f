"""Judge ``gate = "stored"``: a few runs of head are compared with stored sessions, for users who cannot run pairs.

Their prediction interval decides, and may fail a change. If head trains differently, ran another dispatcher or has no
steady state, nothing is decided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from regbot.judge.estimates import format_estimate, percent
from regbot.judge.interim import count_primary_tests, thresholds
from regbot.judge.pairs import is_head_only, is_sound, summarise_timing
from regbot.judge.references import (
    explain_other_dispatcher,
    explain_unknown_node,
    other_nodes,
    select_reference,
    stored_levels,
)
from regbot.judge.steadiness import has_gpus
from regbot.judge.training import has_other_trajectory, loss_rounding
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.text.percentages import round_up_percent
from regbot.records.text.words import count
from regbot.records.verdict import Decision
from regbot.stats.launch import SUMMARIES, launch_cut, launch_steady_state
from regbot.stats.prediction import MIN_SESSIONS, SESSION_RUNS, PredictionInterval, stored_gate

HEAD_RUNS = 1 + SESSION_RUNS
"""Number of runs of head: the warm launch and the runs that count."""
MAX_ATTEMPTS = 2
"""If a run of head fails, all runs are repeated once."""


@dataclass(frozen=True)
class StoredVerdict:
    decision: Decision | None
    """None if head may not be compared with stored sessions, for ``reason``."""
    reason: str
    reference: Reference | None = None
    tests: dict[str, tuple[Decision, PredictionInterval]] | None = None
    """Decision and interval by summary; None if stored sessions cannot decide."""
    bound: float | None = None
    """Largest slowdown that is not excluded, as a log-ratio."""

    @property
    def median_prediction(self) -> PredictionInterval:
        assert self.tests is not None
        _, prediction = self.tests["median"]
        return prediction


def select_whole_comparison(runs: Sequence[Run]) -> list[Run]:
    """Return the sound runs of head alone from the last complete attempt, warm launch first; [] if there is none."""
    for attempt in range(MAX_ATTEMPTS, 0, -1):
        attempt_runs = [run for run in runs if is_head_only(run) and run.attempt == attempt]
        if len(attempt_runs) >= HEAD_RUNS and all(is_sound(run) for run in attempt_runs[:HEAD_RUNS]):
            return attempt_runs[:HEAD_RUNS]
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
        return StoredVerdict(decision=None, reason="the runs of head did not end well")
    if failed_runs or not attempt_runs:
        return None
    reference = select_reference(plan, attempt_runs[0])
    if isinstance(reference, str):
        return StoredVerdict(decision=None, reason=reference)  # a string says why there is no reference
    if len(reference.sessions) < MIN_SESSIONS:
        too_few = f"{len(reference.sessions)} comparable sessions are stored, and {MIN_SESSIONS} are needed"
        return StoredVerdict(decision=None, reason=too_few, reference=reference)
    if len(attempt_runs) < HEAD_RUNS:
        return None
    head = attempt_runs[1:HEAD_RUNS]  # without the warm launch
    doubt = explain_unknown_node(reference, head[-1])
    if doubt := doubt or _explain_difference(reference, head) or _explain_unsteady_head(head):
        return StoredVerdict(decision=None, reason=doubt, reference=reference)
    # Head's median and mean step time on the log scale, averaged over its runs.
    summaries = [summarise_timing(run.timing, launch_cut(run.timing)) for run in head if run.timing is not None]
    levels = {name: fmean(summary[name] for summary in summaries) for name in SUMMARIES}
    # The largest slowdown that a pass may leave possible.
    max_bound = math.log1p(header.throughput.screen_bound_pct / 100)
    decision, tests = stored_gate(
        stored_levels(reference),
        levels,
        count_primary_tests(header),
        thresholds(header),
        max_bound,
        other_nodes(reference, head[-1]),
    )
    bound = max(prediction.high for _, prediction in tests.values())
    return StoredVerdict(decision, reason="", reference=reference, tests=tests, bound=bound)


def explain_stored(result: StoredVerdict) -> list[str]:
    assert result.reference is not None
    assert result.tests is not None
    session_count = len(result.reference.sessions)
    median_prediction = result.median_prediction
    comparison_text = f"{SESSION_RUNS} runs of head against the last {count(session_count, 'session')} of main"
    spread_text = f"sessions of one commit differ by {100 * median_prediction.sd:.2g}%"
    if result.decision == "within_bound":
        assert result.bound is not None
        largest_slowdown = round_up_percent(percent(result.bound))
        sentence = f"head is within the stored baseline: {comparison_text} give {format_estimate(median_prediction)}"
        excluded_text = f"A slowdown above {largest_slowdown} against these sessions is ruled out"
        return [f"{sentence}. {excluded_text}. A smaller one is not, because {spread_text}"]
    if result.decision in ("regressed", "improved"):
        word = "slower" if result.decision == "regressed" else "faster"
        sentences = [
            f"head is {word} than the stored baseline by the {name} step time: {comparison_text} give "
            f"{format_estimate(prediction)}"
            for name, (decision, prediction) in result.tests.items()
            if decision == result.decision
        ]
        return [*sentences, f"{spread_text}; pairs on one node can detect smaller changes (gate = 'pairs')"]
    if result.decision == "no_change":
        return [f"no change: {comparison_text} give {format_estimate(median_prediction)}"]
    advice = "pairs on one node would settle it (gate = 'pairs')"
    return [f"undecided: {comparison_text} give {format_estimate(median_prediction)}, and {spread_text}; {advice}"]


def stored_numbers(result: StoredVerdict) -> dict[str, Any]:
    if result.tests is None or result.reference is None:
        return {}
    median_prediction = result.median_prediction
    fields: dict[str, Any] = {
        "estimate_pct": percent(median_prediction.estimate),
        "low_pct": percent(median_prediction.low),
        "high_pct": percent(median_prediction.high),
        "alpha": median_prediction.alpha,
        "sessions": len(result.reference.sessions),
        "base_step_s": math.exp(fmean(stored_levels(result.reference)["median"])),
    }
    if result.bound is not None and result.decision in ("within_bound", "no_change", "improved"):
        fields["bound_pct"] = percent(result.bound)
    return fields


def _explain_unsteady_head(head: Sequence[Run]) -> str:
    states = [launch_steady_state(run.timing) for run in head if run.timing is not None]
    unsteady_runs = sum(state is not None and not state.steady for state in states)
    if has_gpus(head[-1]) and unsteady_runs >= len(head) / 2:
        return f"{unsteady_runs} of {len(head)} runs of head have no steady state"
    return ""


def _explain_difference(reference: Reference, head: Sequence[Run]) -> str:
    if other_dispatcher := explain_other_dispatcher(reference, head):
        return other_dispatcher
    if has_other_trajectory(reference.loss, head, loss_rounding(head)):
        return "head does not train as the newest stored session did"
    head_drops = [run.timing.dropped_tokens for run in head if run.timing is not None]
    stored_drops = reference.dropped_tokens
    # A run of head that does not report its dropped tokens counts as dropping more.
    if stored_drops is not None and any(drops is None or drops > stored_drops for drops in head_drops):
        return "head drops more tokens than the newest stored session did"
    return ""
