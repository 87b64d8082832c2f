"""Decide whether the session of one night may join the rolling reference, or would let it absorb a slowdown.

A session is held back if one of these conditions holds:

- its collectives or its Program are worse than those of the anchor;
- tonight's pairs prove a slowdown;
- the last nights together prove a slowdown above the budget;
- the monitor of slow creep raises an alarm;
- the estimate is undecided and larger than the threshold;
- the session has too few pairs.

A held-back session is stored as evidence only. If a named person accepts the slowdown, the session joins the rolling
reference and the anchor moves to its commit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import variance

from regbot.check.conclusion import CheckResult
from regbot.records.baseline import Acceptance, Anchor, AnchorComparison, IntervalEstimate
from regbot.records.config import Config
from regbot.records.refresh import Drift, WorkloadRefresh
from regbot.records.text.clip import clip_message
from regbot.records.verdict import Status, Throughput, WorkloadVerdict
from regbot.stats.drift import Creep, budget_interval, cusum
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, Thresholds, sequential_test
from regbot.stats.summary import percent
from regbot.workloads.task import Task

MIN_PAIR_SD = 1e-4
"""Lower limit for the standard deviation of a pair's log-ratio, because the monitor divides by the standard deviation.
The noise of every real node is larger."""
DEFAULT_PAIR_SD = 0.01
"""Assumed standard deviation of a pair's log-ratio (1%) if no calibration is stored and too few pairs exist to
estimate it."""
MIN_DEGREES_OF_FREEDOM = 6


@dataclass(frozen=True)
class MeasuredNight:
    """Measurement of one workload in one night: its session, and the decision on this session."""

    task: Task
    entries: list[str]
    """The entry of ``task``, and the entries of its workload on other meshes, which were traced in the same
    session."""
    node_class: str
    anchor: Anchor | None
    """The anchor before this night; None if the store has no anchor."""
    checked: CheckResult
    night: WorkloadRefresh
    tonight: AnchorComparison | None
    """The anchor's commit, and the log-ratios of main's step times over the anchor's; None without a valid pair."""


@dataclass(frozen=True)
class NightHistory:
    nights: Sequence[AnchorComparison]
    """The stored nights against the same anchor in the same environment, oldest first."""
    pair_sd: float | None
    """Standard deviation of a pair's log-ratio, from calibrations; None if unknown."""
    monitors: int
    """Number of workloads whose monitors share one false alarm rate."""
    luck: float = 0.0
    """Standard deviation of the luck of an arm, from calibrations; 0 if it is unknown or small."""


def judge_night(
    verdict: WorkloadVerdict,
    variant: str,
    anchor: str | None,
    tonight: AnchorComparison | None,
    history: NightHistory,
    config: Config,
    accepted: Acceptance | None,
) -> WorkloadRefresh:
    """Decide whether tonight's session joins the rolling reference (series ``rolling``) or is held back (series
    ``held``). Without a valid measurement it gets no series.

    ``anchor`` is the anchor's commit; None before the first anchor. ``tonight`` has the log-ratios of main against the
    anchor's commit; None without a valid pair.
    """
    throughput = verdict.throughput
    report = partial(
        WorkloadRefresh,
        name=verdict.name,
        variant=variant,
        anchor=anchor,
        budget_pct=config.baselines.creep_budget_pct,
    )
    # The validity is FAIL if the program of main fails and the anchor's does not.
    if verdict.validity.status in ("INVALID", "FAIL") or throughput is None or tonight is None:
        no_times = throughput.reasons if throughput is not None else ["nothing was timed"]
        return report(
            status="FAIL" if verdict.validity.status == "FAIL" else "INVALID",
            reasons=[clip_message(f"nothing is proposed: {reason}") for reason in verdict.validity.reasons or no_times],
            decision=None,
        )
    nights = [*history.nights, tonight]
    # From calibrations, or else from the pairs of these nights, or else an assumption.
    sd = max(history.pair_sd or pair_sd(nights) or DEFAULT_PAIR_SD, MIN_PAIR_SD)
    # Every workload has one monitor per summary. All of them share one false alarm rate.
    series, means = history.monitors * len(SUMMARIES), {name: _night_means(nights, name) for name in SUMMARIES}
    creep_by_summary = {name: [*cusum(nights_of, sd, series, history.luck)][-1] for name, nights_of in means.items()}
    nearest_to_alarm = max(creep_by_summary.values(), key=lambda creep: creep.value / creep.limit)
    recent = budget_interval(means["median"])  # None if there are too few nights
    objections = list(_find_failures(verdict, throughput, creep_by_summary, recent, config))
    status: Status = "FAIL" if objections else "INCONCLUSIVE"
    estimate_pct, pairs = throughput.estimate_pct or 0.0, len(tonight.log_ratios["median"])
    threshold_pct = config.throughput.threshold_pct
    if not objections and throughput.decision == "undecided" and estimate_pct > threshold_pct:
        objections.append(f"undecided, and the estimate of {estimate_pct:+.2g}% is more than {threshold_pct:g}%")
    has_too_few_pairs = pairs < LOOKS[0]  # the number of pairs of the first look
    if has_too_few_pairs:
        objections.append(f"{pairs} valid pairs are too few; a decision needs at least {LOOKS[0]}")
    is_withheld = bool(objections)
    if objections and accepted is not None and not has_too_few_pairs:
        # The acceptance must cover tonight's estimate and the estimate over the last nights.
        required_pct = max(estimate_pct, percent(recent.estimate) if recent is not None else 0.0)
        is_withheld = required_pct > accepted.slowdown_pct
        too_little = f"{accepted.slowdown_pct:g}% was accepted, but the slowdown is {required_pct:.2g}%"
        acceptance = f"accepted by {accepted.who}, up to {accepted.slowdown_pct:g}%: {accepted.why}"
        objections.append(too_little if is_withheld else acceptance)
    return report(
        status=status if is_withheld else "PASS",
        reasons=[clip_message(text) for text in objections] or ["no slowdown against the anchor would be absorbed"],
        decision=throughput.decision,
        tonight=_to_estimate(throughput.estimate_pct, throughput.low_pct, throughput.high_pct),
        pairs=pairs,
        since_anchor=_to_estimate(*map(percent, (recent.estimate, recent.low, recent.high))) if recent else None,
        drift=Drift(
            value_pct=100 * nearest_to_alarm.value,
            limit_pct=100 * nearest_to_alarm.limit,
            alarm=nearest_to_alarm.alarm,
            nights=nearest_to_alarm.nights,
            correlation=nearest_to_alarm.correlation,
            estimate_pct=None if nearest_to_alarm.estimate is None else percent(nearest_to_alarm.estimate),
        ),
        sharding=verdict.sharding.status if verdict.sharding is not None else None,
        series="held" if is_withheld else "rolling",
        accepted=accepted if objections and not is_withheld else None,
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
    recent = budget_interval(_night_means(nights, "median"))
    if recent is not None and percent(recent.low) > budget_pct:
        return f"the last nights prove that main is slower than the anchor by {percent(recent.low):.2g}% or more"
    return ""


def pair_sd(nights: Sequence[AnchorComparison]) -> float | None:
    """Return the pooled standard deviation of a pair's log-ratio within a night, which leaves out differences between
    nights. None if the estimate has too few degrees of freedom (number of pairs minus number of nights)."""
    samples = [night.log_ratios.get("median", []) for night in nights]
    samples = [sample for sample in samples if len(sample) > 1]
    degrees_of_freedom = sum(len(sample) - 1 for sample in samples)
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return None
    squared_deviations = sum((len(sample) - 1) * variance(sample) for sample in samples)
    return max(math.sqrt(squared_deviations / degrees_of_freedom), MIN_PAIR_SD)


def _night_means(nights: Sequence[AnchorComparison], summary: str) -> list[tuple[float, int]]:
    """Return (mean log-ratio, number of pairs) of each night that has pairs. ``summary`` is "median" or "mean",
    the summary of a run's step times from which the log-ratios were computed."""
    log_ratios_by_night = [night.log_ratios.get(summary, []) for night in nights]
    return [(math.fsum(ratios) / len(ratios), len(ratios)) for ratios in log_ratios_by_night if ratios]


def _find_failures(
    verdict: WorkloadVerdict,
    throughput: Throughput,
    creep_by_summary: dict[str, Creep],
    recent: Interval | None,
    config: Config,
) -> Iterator[str]:
    """Yield the reasons to hold the session back with the status FAIL.

    ``recent`` is the interval of the slowdown over the last nights; None if there are too few nights.
    """
    budget_pct = config.baselines.creep_budget_pct
    for name, section in (("collectives are", verdict.sharding), ("the Program is", verdict.program)):
        if section is not None and section.status == "FAIL":
            yield f"{name} worse than at the anchor: {'; '.join(section.reasons[:2])}"
    if throughput.decision == "regressed":
        yield f"slower than the anchor: {throughput.reasons[0]}"
    if recent is not None and percent(recent.low) > budget_pct:
        change = f"{percent(recent.estimate):+.2g}% over the last nights"
        yield f"slower than the anchor by {change}; the budget is {budget_pct:g}%"
    for summary, creep in creep_by_summary.items():
        if creep.alarm:
            change = f", about {percent(creep.estimate):+.2g}% so far" if creep.estimate is not None else ""
            yield f"slow creep by the {summary} step time{change}: 'regbot baseline history' shows when"


def _to_estimate(estimate: float | None, low: float | None, high: float | None) -> IntervalEstimate | None:
    """Return the record of an estimate in percent; None if the verdict has no estimate."""
    if estimate is None or low is None or high is None:
        return None
    return IntervalEstimate(estimate_pct=estimate, low_pct=low, high_pct=high)
