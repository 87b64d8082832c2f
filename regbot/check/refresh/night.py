"""Decide whether the session of one night may join the rolling reference, or would let it absorb a slowdown.

A session is held back if one of these conditions holds:

- its collectives are worse than the collectives of the anchor;
- tonight's pairs prove a slowdown;
- the last nights together prove a slowdown above the budget;
- the monitor of slow creep raises an alarm;
- the estimate is undecided and larger than the threshold;
- the session has too few pairs.

A held-back session is stored as evidence only. If a named person accepts the slowdown, the session joins the rolling
reference and the anchor moves to its commit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regbot.judge.estimates import percent
from regbot.records.baseline import Acceptance, AnchorComparison, IntervalEstimate
from regbot.records.refresh import Drift, WorkloadRefresh
from regbot.records.text.clip import clip_message
from regbot.records.verdict import Status, WorkloadVerdict
from regbot.stats.drift import Creep, budget_interval, cusum
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, Thresholds, sequential_test

MIN_PAIR_SD = 1e-4
"""Lower limit for the standard deviation of a pair's log-ratio, because the monitor divides by the standard deviation.
The noise of every real node is larger."""
DEFAULT_PAIR_SD = 0.01
"""Assumed standard deviation of a pair's log-ratio (1%) if no calibration is stored and too few pairs exist to
estimate it."""
MIN_DEGREES_OF_FREEDOM = 6


@dataclass(frozen=True)
class NightLimits:
    """Limits of the slowdown against the anchor, in percent."""

    budget_pct: float
    """Largest slowdown since the anchor that the rolling reference may absorb (``baselines.creep_budget_pct``)."""
    threshold_pct: float


@dataclass(frozen=True)
class NightHistory:
    nights: Sequence[AnchorComparison]
    """The stored nights against the same anchor in the same environment, oldest first."""
    pair_sd: float | None
    """Standard deviation of a pair's log-ratio, from calibrations; None if unknown."""
    monitors: int = 1


class _Objection(NamedTuple):
    """A reason to hold a session back, with the status that the night has because of it."""

    status: Status
    text: str


def judge_night(
    verdict: WorkloadVerdict,
    variant: str,
    anchor: str | None,
    tonight: AnchorComparison | None,
    history: NightHistory,
    limits: NightLimits,
    *,
    accepted: Acceptance | None = None,
) -> WorkloadRefresh:
    """Decide whether tonight's session joins the rolling reference (series ``rolling``) or is held back (series
    ``held``). Without a valid measurement it gets no series.

    ``anchor`` is the anchor's commit; None before the first anchor. ``tonight`` has the log-ratios of main against the
    anchor's commit; None without a valid pair.
    """
    throughput = verdict.throughput
    # The validity is FAIL if the program of main fails and the anchor's does not.
    is_measured = verdict.validity.status not in ("INVALID", "FAIL")
    if not is_measured or throughput is None or tonight is None or not _count_pairs(tonight):
        return _report_unmeasured(verdict, variant, anchor, limits)
    nights = [*history.nights, tonight]
    creep_by_summary = {summary: _monitor_creep(nights, summary, history) for summary in SUMMARIES}
    nearest_to_alarm = max(creep_by_summary.values(), key=lambda creep: creep.value / creep.limit)
    recent_interval = budget_interval(_night_means(nights, "median"))
    objections = _find_objections(verdict, creep_by_summary, recent_interval, limits)
    has_too_few_pairs = _count_pairs(tonight) < LOOKS[0]  # the number of pairs of the first look
    if has_too_few_pairs:
        text = f"{_count_pairs(tonight)} valid pairs are too few; a decision needs at least {LOOKS[0]}"
        objections.append(_Objection("INCONCLUSIVE", text))
    texts = [objection.text for objection in objections]
    is_accepted = False
    if objections and accepted is not None and not has_too_few_pairs:
        required_pct = _required_acceptance(throughput.estimate_pct, recent_interval)
        is_accepted = required_pct <= accepted.slowdown_pct
        if is_accepted:
            texts.append(f"accepted by {accepted.who}, up to {accepted.slowdown_pct:g}%: {accepted.why}")
        else:
            texts.append(f"{accepted.slowdown_pct:g}% was accepted, but the slowdown is {required_pct:.2g}%")
    is_withheld = bool(objections) and not is_accepted
    return WorkloadRefresh(
        name=verdict.name,
        variant=variant,
        status=objections[0].status if is_withheld else "PASS",  # objections with the status FAIL come first
        reasons=[clip_message(text) for text in texts] or ["no slowdown against the anchor would be absorbed"],
        anchor=anchor,
        decision=throughput.decision,
        tonight=_percent_estimate(throughput.estimate_pct, throughput.low_pct, throughput.high_pct),
        pairs=_count_pairs(tonight),
        since_anchor=_to_estimate(recent_interval),
        budget_pct=limits.budget_pct,
        drift=_to_drift(nearest_to_alarm),
        sharding=verdict.sharding.status if verdict.sharding is not None else None,
        series="held" if is_withheld else "rolling",
        accepted=accepted if is_accepted else None,
    )


def _report_unmeasured(
    verdict: WorkloadVerdict, variant: str, anchor: str | None, limits: NightLimits
) -> WorkloadRefresh:
    """Return the report on a night without a valid measurement. Its session is not stored.

    ``variant`` is the timed size of the shape. ``anchor`` is the anchor's commit; None before the first anchor.
    """
    # The validity is FAIL if the program of main fails and the anchor's does not.
    reasons = verdict.validity.reasons
    if not reasons:
        reasons = verdict.throughput.reasons if verdict.throughput is not None else ["nothing was timed"]
    return WorkloadRefresh(
        name=verdict.name,
        variant=variant,
        status="FAIL" if verdict.validity.status == "FAIL" else "INVALID",
        reasons=[clip_message(f"nothing is proposed: {reason}") for reason in reasons],
        anchor=anchor,
        decision=None,
        budget_pct=limits.budget_pct,
    )


def describe_absorbed_slowdown(nights: Sequence[AnchorComparison], thresholds: Thresholds, budget_pct: float) -> str:
    """Return, as a sentence, the proven slowdown that the rolling reference would absorb if the newest of ``nights``
    joined it. Return '' if no slowdown is proven.

    Two tests are made: a sequential test on the pairs of the newest night, and a test of the last nights together
    against the budget. The monitor of creep is not used.
    """
    sequential = sequential_test(nights[-1].log_ratios, len(SUMMARIES), thresholds)
    if sequential is not None and sequential.decision == "regressed":
        # ``tests`` has a decision and an interval for the median and for the mean step time.
        proven_slowdown = max(interval.low for _, interval in sequential.tests.values())
        return f"tonight's pairs prove that main is slower than the anchor by {percent(proven_slowdown):.2g}% or more"
    recent_interval = budget_interval(_night_means(nights, "median"))
    if recent_interval is not None and percent(recent_interval.low) > budget_pct:
        slowdown_pct = percent(recent_interval.low)
        return f"the last nights prove that main is slower than the anchor by {slowdown_pct:.2g}% or more"
    return ""


def night_slowdown_pct(tonight: AnchorComparison, thresholds: Thresholds) -> float | None:
    """Return the slowdown of the median step time of main against the anchor in percent, estimated from the pairs of
    one night. Return None if the night has fewer pairs than the first look needs."""
    sequential = sequential_test(tonight.log_ratios, len(SUMMARIES), thresholds)
    if sequential is None:
        return None
    _decision, median_interval = sequential.tests["median"]
    return percent(median_interval.estimate)


def pair_sd(nights: Sequence[AnchorComparison]) -> float | None:
    """Return the pooled standard deviation of a pair's log-ratio within a night, which leaves out differences between
    nights. None if the estimate has too few degrees of freedom (number of pairs minus number of nights)."""
    log_ratios_by_night = [night.log_ratios.get("median", []) for night in nights]
    squared_deviations, degrees_of_freedom = 0.0, 0
    for log_ratios in log_ratios_by_night:
        if len(log_ratios) > 1:
            mean = sum(log_ratios) / len(log_ratios)
            squared_deviations += sum((log_ratio - mean) ** 2 for log_ratio in log_ratios)
            degrees_of_freedom += len(log_ratios) - 1
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return None
    return max(math.sqrt(squared_deviations / degrees_of_freedom), MIN_PAIR_SD)


def _monitor_creep(nights: Sequence[AnchorComparison], summary: str, history: NightHistory) -> Creep:
    # From calibrations, or else from the pairs of these nights, or else an assumption.
    sd = history.pair_sd or pair_sd(nights) or DEFAULT_PAIR_SD
    # Every workload has one monitor per summary. All of them share one false alarm rate.
    return cusum(_night_means(nights, summary), max(sd, MIN_PAIR_SD), series=history.monitors * len(SUMMARIES))


def _night_means(nights: Sequence[AnchorComparison], summary: str) -> list[tuple[float, int]]:
    """Return (mean log-ratio, number of pairs) of each night that has pairs. ``summary`` is "median" or "mean",
    the summary of a run's step times from which the log-ratios were computed."""
    log_ratios_by_night = [night.log_ratios.get(summary, []) for night in nights]
    return [(math.fsum(ratios) / len(ratios), len(ratios)) for ratios in log_ratios_by_night if ratios]


def _find_objections(
    verdict: WorkloadVerdict, creep_by_summary: dict[str, Creep], recent: Interval | None, limits: NightLimits
) -> list[_Objection]:
    """Return the reasons to hold the session back: all that have the status FAIL or, if none has it, one INCONCLUSIVE.

    The list is empty if there is no reason.

    ``recent`` is the interval of the slowdown over the last nights; None if there are too few nights.
    """
    throughput = verdict.throughput
    assert throughput is not None
    failures: list[str] = []
    if verdict.sharding is not None and verdict.sharding.status == "FAIL":
        failures.append("collectives are worse than at the anchor: " + "; ".join(verdict.sharding.reasons[:2]))
    if throughput.decision == "regressed":
        failures.append(f"slower than the anchor: {throughput.reasons[0]}")
    if recent is not None and percent(recent.low) > limits.budget_pct:
        change = f"{percent(recent.estimate):+.2g}% over the last nights"
        failures.append(f"slower than the anchor by {change}; the budget is {limits.budget_pct:g}%")
    for summary, creep in creep_by_summary.items():
        if creep.alarm:
            change = f", about {percent(creep.estimate):+.2g}% so far" if creep.estimate is not None else ""
            failures.append(f"slow creep by the {summary} step time{change}: 'regbot baseline history' shows when")
    if failures:
        return [_Objection("FAIL", text) for text in failures]
    estimate_pct = throughput.estimate_pct or 0.0
    if throughput.decision == "undecided" and estimate_pct > limits.threshold_pct:
        text = f"undecided, and the estimate of {estimate_pct:+.2g}% is more than {limits.threshold_pct:g}%"
        return [_Objection("INCONCLUSIVE", text)]
    return []


def _required_acceptance(night_pct: float | None, recent: Interval | None) -> float:
    """Return the slowdown in percent that an acceptance must cover: the larger of tonight's estimate and the estimate
    over the last nights. An unknown estimate counts as 0."""
    recent_pct = percent(recent.estimate) if recent is not None else 0.0
    return max(night_pct or 0.0, recent_pct)


def _count_pairs(night: AnchorComparison) -> int:
    return len(night.log_ratios.get("median", []))


def _to_estimate(interval: Interval | None) -> IntervalEstimate | None:
    """Convert an interval of log-ratios to percent."""
    if interval is None:
        return None
    return _percent_estimate(percent(interval.estimate), percent(interval.low), percent(interval.high))


def _percent_estimate(estimate: float | None, low: float | None, high: float | None) -> IntervalEstimate | None:
    """Return the record of an estimate in percent; None if the verdict has no estimate."""
    if estimate is None or low is None or high is None:
        return None
    return IntervalEstimate(estimate_pct=estimate, low_pct=low, high_pct=high)


def _to_drift(creep: Creep) -> Drift:
    """Return the record of the creep monitor's state, in percent."""
    return Drift(
        value_pct=100 * creep.value,
        limit_pct=100 * creep.limit,
        alarm=creep.alarm,
        nights=creep.nights,
        correlation=creep.correlation,
        estimate_pct=None if creep.estimate is None else percent(creep.estimate),
    )
