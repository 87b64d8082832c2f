"""Decide about the session of one night: may it join the rolling reference, or would the reference absorb a slowdown?

A session is held back if its collectives are worse than those of the anchor, if tonight's pairs prove a slowdown, if
the last nights together prove a slowdown above the budget, or if the monitor of slow creep raises an alarm. A session
is also held back if its estimate is large but undecided, or if it has too few pairs. A held-back session is stored as
evidence only. When a named person accepts the slowdown, the session joins the reference and the anchor moves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regbot.judge.estimates import percent
from regbot.records.baseline import Acceptance, AnchorComparison, Baseline
from regbot.records.refresh import Drift, IntervalEstimate, WorkloadRefresh
from regbot.records.verdict import Status, WorkloadVerdict
from regbot.stats.drift import Creep, budget_interval, cusum
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, Thresholds, sequential_test
from regbot.stats.prediction import SESSION_RUNS, PredictionInterval, prediction_interval, session_level
from regbot.text.clip import clip_message

MIN_PAIR_SD = 1e-4
"""Lower limit for the standard deviation of a pair's log-ratio. No node has less noise. The limit is needed because the
monitor divides by the standard deviation."""


@dataclass(frozen=True)
class NightLimits:
    """Limits of the slowdown that a refresh may absorb, in percent."""

    budget_pct: float
    threshold_pct: float


@dataclass(frozen=True)
class NightHistory:
    """Earlier nights of a workload.

    ``nights`` has the stored nights against the same anchor, oldest first. ``pair_sd`` is the standard deviation of a
    pair's log-ratio; None if unknown.
    """

    nights: Sequence[AnchorComparison]
    pair_sd: float | None
    monitors: int = 1
    """Number of monitored workloads. All of them together have one false alarm rate."""
    earlier_sessions: Sequence[Baseline] = ()
    """Sessions of the anchor's commit that were measured in the previous environment."""
    environment_changes: Sequence[str] = ()
    """Differences of this environment from the previous one."""


def judge_night(
    verdict: WorkloadVerdict,
    variant: str,
    anchor: str | None,
    tonight: AnchorComparison | None,
    history: NightHistory,
    limits: NightLimits,
    *,
    accepted: Acceptance | None = None,
    anchor_levels: Sequence[float] = (),
) -> WorkloadRefresh:
    """Decide about tonight's session.

    ``anchor_levels`` has one value for each run of the anchor's commit in the session: the log of its median step time
    in seconds.
    """
    section = verdict.throughput
    if (
        verdict.validity.status in ("INVALID", "FAIL")
        or section is None
        or tonight is None
        or not _count_pairs(tonight)
    ):
        reasons = verdict.validity.reasons or (section.reasons if section is not None else ["nothing was timed"])
        status: Status = "FAIL" if verdict.validity.status == "FAIL" else "INVALID"
        return WorkloadRefresh(
            name=verdict.name,
            variant=variant,
            status=status,
            reasons=[clip_message(f"nothing is proposed: {reason}") for reason in reasons],
            anchor=anchor,
            decision=None,
            budget_pct=limits.budget_pct,
        )
    nights = [*history.nights, tonight]
    creeps = {summary: _monitor_creep(nights, summary, history) for summary in SUMMARIES}
    worst = max(creeps.values(), key=lambda creep: creep.value / creep.limit)
    recent = budget_interval(_night_means(nights, "median"))
    shift = _environment_shift(history.earlier_sessions, anchor_levels)
    objections = _find_objections(verdict, creeps, recent, limits)
    has_too_few_pairs = _count_pairs(tonight) < LOOKS[0]
    if has_too_few_pairs:
        objections.append(
            ("INCONCLUSIVE", f"{_count_pairs(tonight)} valid pairs decide nothing; at least {LOOKS[0]} are needed")
        )
    texts = [text for _, text in objections]
    is_withheld, status = bool(objections), objections[0][0] if objections else "PASS"
    if is_withheld and accepted is not None and not has_too_few_pairs:
        if (required_pct := _required_acceptance(section.estimate_pct, recent)) <= accepted.slowdown_pct:
            texts.append(f"accepted by {accepted.who}, up to {accepted.slowdown_pct:g}%: {accepted.why}")
            is_withheld, status = False, "PASS"
        else:
            texts.append(f"{accepted.slowdown_pct:g}% was accepted, but the slowdown is {required_pct:.2g}%")
    return WorkloadRefresh(
        name=verdict.name,
        variant=variant,
        status=status,
        reasons=[clip_message(reason) for reason in texts] or ["no slowdown against the anchor would be absorbed"],
        anchor=anchor,
        decision=section.decision,
        tonight=_percent_estimate(section.estimate_pct, section.low_pct, section.high_pct),
        pairs=_count_pairs(tonight),
        since_anchor=_to_estimate(recent),
        budget_pct=limits.budget_pct,
        drift=_to_drift(worst),
        environment_shift=_to_estimate(shift),
        environment_changes=list(history.environment_changes),
        sharding=verdict.sharding.status if verdict.sharding is not None else None,
        series="held" if is_withheld else "rolling",
        accepted=accepted if texts and not is_withheld else None,
    )


def describe_absorbed_slowdown(nights: Sequence[AnchorComparison], thresholds: Thresholds, budget_pct: float) -> str:
    """Return the slowdown that the reference would absorb with the session of the last night, as a sentence; '' if no
    slowdown is proven.

    Two tests are made: one on the pairs of the last night, and one on the last nights together. The monitor of creep is
    not used.
    """
    test = sequential_test(nights[-1].log_ratios, len(SUMMARIES), thresholds)
    if test is not None and test.decision == "regressed":
        worst = max(interval.low for _, interval in test.tests.values())
        return f"tonight's pairs prove main slower than the anchor by {percent(worst):.2g}% or more"
    recent = budget_interval(_night_means(nights, "median"))
    if recent is not None and percent(recent.low) > budget_pct:
        return f"the last nights prove main slower than the anchor by {percent(recent.low):.2g}% or more"
    return ""


def night_slowdown_pct(tonight: AnchorComparison, thresholds: Thresholds) -> float | None:
    """Return the slowdown of main against the anchor in percent, from the pairs of one night. None if the night has
    fewer pairs than the first look needs."""
    test = sequential_test(tonight.log_ratios, len(SUMMARIES), thresholds)
    return None if test is None else percent(test.tests["median"][1].estimate)


def pair_sd(nights: Sequence[AnchorComparison]) -> float | None:
    """Return the standard deviation of a pair's log-ratio, estimated within each night. None if the estimate has fewer
    than six degrees of freedom (number of pairs minus number of nights)."""
    values = [night.log_ratios.get("median", []) for night in nights]
    degrees_of_freedom = sum(len(night_values) - 1 for night_values in values if len(night_values) > 1)
    if degrees_of_freedom < 6:
        return None
    squares = sum(
        sum((value - sum(night_values) / len(night_values)) ** 2 for value in night_values)
        for night_values in values
        if len(night_values) > 1
    )
    return max(math.sqrt(squares / degrees_of_freedom), MIN_PAIR_SD)


def _monitor_creep(nights: Sequence[AnchorComparison], summary: str, history: NightHistory) -> Creep:
    sd = history.pair_sd or pair_sd(nights) or MIN_PAIR_SD * 100
    return cusum(_night_means(nights, summary), max(sd, MIN_PAIR_SD), history.monitors * len(SUMMARIES))


def _night_means(nights: Sequence[AnchorComparison], summary: str) -> list[tuple[float, int]]:
    """Return the mean log-ratio and the number of pairs of each night that has pairs."""
    values = [night.log_ratios.get(summary, []) for night in nights]
    return [(math.fsum(night_values) / len(night_values), len(night_values)) for night_values in values if night_values]


def _find_objections(
    verdict: WorkloadVerdict, creeps: dict[str, Creep], recent: Interval | None, limits: NightLimits
) -> list[tuple[Status, str]]:
    """Return every reason to hold the session back, with its status, the gravest first."""
    section = verdict.throughput
    objections: list[tuple[Status, str]] = []
    assert section is not None
    if verdict.sharding is not None and verdict.sharding.status == "FAIL":
        objections.append(
            ("FAIL", "collectives are worse than the anchor's: " + "; ".join(verdict.sharding.reasons[:2]))
        )
    if section.decision == "regressed":
        objections.append(("FAIL", f"slower than the anchor: {section.reasons[0]}"))
    if recent is not None and percent(recent.low) > limits.budget_pct:
        change = f"{percent(recent.estimate):+.2g}% over the last nights"
        objections.append(("FAIL", f"slower than the anchor by {change}, but the budget is {limits.budget_pct:g}%"))
    for summary, creep in creeps.items():
        if creep.alarm:
            change = f", about {percent(creep.estimate):+.2g}% so far" if creep.estimate is not None else ""
            objections.append(
                ("FAIL", f"slow creep by the {summary} step time{change}: 'regbot baseline history' shows when")
            )
    estimate = section.estimate_pct or 0.0
    if not objections and section.decision == "undecided" and estimate > limits.threshold_pct:
        reason = f"undecided, and the estimate of {estimate:+.2g}% is more than {limits.threshold_pct:g}%"
        objections.append(("INCONCLUSIVE", reason))
    return objections


def _required_acceptance(night_pct: float | None, recent: Interval | None) -> float:
    """Return the slowdown in percent that an acceptance must cover: the larger of the night's estimate and the estimate
    of the last nights."""
    return max(night_pct or 0.0, percent(recent.estimate) if recent is not None else 0.0)


def _environment_shift(before: Sequence[Baseline], anchor_levels: Sequence[float]) -> PredictionInterval | None:
    """Return how the step time of the anchor's commit changed when the environment changed. None if too few sessions
    are stored, or if the anchor's commit has too few runs tonight."""
    stored = [
        session_level([run.log_median for run in baseline.runs])
        for baseline in before
        if len(baseline.runs) >= SESSION_RUNS
    ]
    if len(stored) < 2 or len(anchor_levels) < SESSION_RUNS:
        return None
    return prediction_interval(stored, session_level(anchor_levels))


def _count_pairs(tonight: AnchorComparison) -> int:
    return len(tonight.log_ratios.get("median", []))


def _to_estimate(interval: Interval | PredictionInterval | None) -> IntervalEstimate | None:
    if interval is None:
        return None
    return _percent_estimate(percent(interval.estimate), percent(interval.low), percent(interval.high))


def _percent_estimate(estimate: float | None, low: float | None, high: float | None) -> IntervalEstimate | None:
    if estimate is None or low is None or high is None:
        return None
    return IntervalEstimate(estimate_pct=estimate, low_pct=low, high_pct=high)


def _to_drift(creep: Creep) -> Drift:
    return Drift(
        value_pct=100 * creep.value,
        limit_pct=100 * creep.limit,
        alarm=creep.alarm,
        nights=creep.nights,
        correlation=creep.correlation,
        estimate_pct=None if creep.estimate is None else percent(creep.estimate),
    )
