"""One night: main beside the anchor's commit. May the session join the rolling reference, or would that absorb a loss?

Three things speak against it: tonight's own pairs prove a slowdown, the nights since the anchor add up to more than the
budget, or the monitor of slow creep alarms. Then the session is kept as evidence and held back, until somebody accepts
the slowdown by name, which moves the anchor. An estimate that is large and undecided is held back too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regbot.judge.estimates import percent
from regbot.records.baseline import Acceptance, AgainstAnchor, Baseline
from regbot.records.refresh import Drift, RefreshedWorkload, Span
from regbot.records.verdict import Status, WorkloadVerdict
from regbot.stats.drift import Creep, budget, cusum
from regbot.stats.launch import SUMMARIES
from regbot.stats.paired import LOOKS, Interval, Thresholds, sequential
from regbot.stats.screen import SCREEN_RUNS, Prediction, level, prediction

LEAST_SD = 1e-4
"""Of a pair, log scale: nobody's node is quieter, and the monitor divides by it."""


@dataclass(frozen=True)
class Limits:
    """What a refresh may absorb, in percent."""

    budget_pct: float
    threshold_pct: float


@dataclass(frozen=True)
class History:
    """What is stored of the workload: nights against the same anchor here, oldest first, and the noise of a pair."""

    nights: Sequence[AgainstAnchor]
    pair_sd: float | None
    monitors: int = 1
    """Workloads that are watched: they share one promise of false alarms."""
    before: Sequence[Baseline] = ()
    """Sessions of the anchor's commit in the environment that was there before this one."""
    changes: Sequence[str] = ()
    """In what this environment differs from that."""


def judge_night(
    verdict: WorkloadVerdict,
    variant: str,
    anchor: str | None,
    tonight: AgainstAnchor | None,
    history: History,
    limits: Limits,
    accepted: Acceptance | None = None,
    anchor_levels: Sequence[float] = (),
) -> RefreshedWorkload:
    """What becomes of tonight's session. ``anchor_levels``: log seconds of a usual step of the anchor's runs in it."""
    section = verdict.throughput
    if verdict.validity.status in ("INVALID", "FAIL") or section is None or tonight is None or not _pairs(tonight):
        why = verdict.validity.reasons or (section.reasons if section is not None else ["nothing was timed"])
        status: Status = "FAIL" if verdict.validity.status == "FAIL" else "INVALID"
        return RefreshedWorkload(
            name=verdict.name,
            variant=variant,
            status=status,
            reasons=[f"nothing is proposed: {reason}"[:4000] for reason in why],
            anchor=anchor,
            decision=None,
            budget_pct=limits.budget_pct,
        )
    nights = [*history.nights, tonight]
    creeps = {name: _creep(nights, name, history) for name in SUMMARIES}
    worst = max(creeps.values(), key=lambda each: each.value / each.limit)
    together = budget(_nights(nights, "median"))
    shift = _shift(history.before, anchor_levels)
    found = _against(verdict, creeps, together, limits)
    if too_few := _pairs(tonight) < LOOKS[0]:
        found.append(("INCONCLUSIVE", f"{_pairs(tonight)} valid pairs decide nothing; {LOOKS[0]} are the least"))
    against = [text for _, text in found]
    held, status = bool(found), found[0][0] if found else "PASS"
    if held and accepted is not None and not too_few:
        if (least := _to_accept(section.estimate_pct, together)) <= accepted.slowdown_pct:
            against.append(f"accepted by {accepted.who}, up to {accepted.slowdown_pct:g}%: {accepted.why}")
            held, status = False, "PASS"
        else:
            against.append(f"{accepted.slowdown_pct:g}% was accepted, and it is {least:.2g}%")
    return RefreshedWorkload(
        name=verdict.name,
        variant=variant,
        status=status,
        reasons=[reason[:4000] for reason in against] or ["no slowdown against the anchor that this would absorb"],
        anchor=anchor,
        decision=section.decision,
        tonight=_span_of(section.estimate_pct, section.low_pct, section.high_pct),
        pairs=_pairs(tonight),
        since_anchor=_span(together),
        budget_pct=limits.budget_pct,
        drift=_drift(worst),
        environment_shift=_span(shift),
        environment_changes=list(history.changes),
        sharding=verdict.sharding.status if verdict.sharding is not None else None,
        series="held" if held else "rolling",
        accepted=accepted if against and not held else None,
    )


def absorbed(nights: Sequence[AgainstAnchor], thresholds: Thresholds, budget_pct: float) -> str:
    """What the numbers of ``nights``, tonight's last, prove that the reference would absorb with it; '' for nothing.

    The pairs of one night that are looked at by themselves, and the sum of the nights; not the monitor of creep.
    """
    looked = sequential(nights[-1].log_ratios, len(SUMMARIES), thresholds)
    if looked is not None and looked.decision == "regressed":
        worst = max(interval.low for _, interval in looked.tests.values())
        return f"tonight's pairs prove main slower than the anchor by {percent(worst):.2g}% or more"
    together = budget(_nights(nights, "median"))
    if together is not None and percent(together.low) > budget_pct:
        return f"the last nights prove main slower than the anchor by {percent(together.low):.2g}% or more"
    return ""


def tonight_pct(tonight: AgainstAnchor, thresholds: Thresholds) -> float | None:
    """How much slower than the anchor the pairs of one night show main to be; None below the first look."""
    looked = sequential(tonight.log_ratios, len(SUMMARIES), thresholds)
    return None if looked is None else percent(looked.tests["median"][1].estimate)


def pair_sd(nights: Sequence[AgainstAnchor]) -> float | None:
    """The sd of a pair as the pairs within each night show it; None below eight pairs."""
    values = [night.log_ratios.get("median", []) for night in nights]
    freedom = sum(len(each) - 1 for each in values if len(each) > 1)
    if freedom < 6:
        return None
    squares = sum(sum((x - sum(each) / len(each)) ** 2 for x in each) for each in values if len(each) > 1)
    return max(math.sqrt(squares / freedom), LEAST_SD)


def _creep(nights: Sequence[AgainstAnchor], name: str, history: History) -> Creep:
    sd = history.pair_sd or pair_sd(nights) or LEAST_SD * 100
    return cusum(_nights(nights, name), max(sd, LEAST_SD), history.monitors * len(SUMMARIES))


def _nights(nights: Sequence[AgainstAnchor], name: str) -> list[tuple[float, int]]:
    values = [night.log_ratios.get(name, []) for night in nights]
    return [(math.fsum(each) / len(each), len(each)) for each in values if each]


def _against(
    verdict: WorkloadVerdict, creeps: dict[str, Creep], together: Interval | None, limits: Limits
) -> list[tuple[Status, str]]:
    """Everything that speaks against taking the session in, the gravest first."""
    section = verdict.throughput
    found: list[tuple[Status, str]] = []
    assert section is not None
    if verdict.sharding is not None and verdict.sharding.status == "FAIL":
        found.append(("FAIL", "collectives are worse than the anchor's: " + "; ".join(verdict.sharding.reasons[:2])))
    if section.decision == "regressed":
        found.append(("FAIL", f"slower than the anchor: {section.reasons[0]}"))
    if together is not None and percent(together.low) > limits.budget_pct:
        sofar = f"{percent(together.estimate):+.2g}% over the last nights"
        found.append(("FAIL", f"slower than the anchor by {sofar}, and the budget is {limits.budget_pct:g}%"))
    for name, creep in creeps.items():
        if creep.alarm:
            sofar = f", about {percent(creep.estimate):+.2g}% so far" if creep.estimate is not None else ""
            found.append(("FAIL", f"slow creep by the {name} step time{sofar}: 'regbot baseline history' shows when"))
    estimate = section.estimate_pct or 0.0
    if not found and section.decision == "undecided" and estimate > limits.threshold_pct:
        said = f"undecided, and the estimate of {estimate:+.2g}% is more than {limits.threshold_pct:g}%"
        found.append(("INCONCLUSIVE", said))
    return found


def _to_accept(tonight_pct: float | None, together: Interval | None) -> float:
    """Percent that an acceptance has to cover: tonight's estimate, or that of the last nights where it is larger."""
    return max(tonight_pct or 0.0, percent(together.estimate) if together is not None else 0.0)


def _shift(before: Sequence[Baseline], anchor_levels: Sequence[float]) -> Prediction | None:
    """How the anchor's own step time moved with the environment; None where too little is stored."""
    stored = [level([run.log_median for run in each.runs]) for each in before if len(each.runs) >= SCREEN_RUNS]
    if len(stored) < 2 or len(anchor_levels) < SCREEN_RUNS:
        return None
    return prediction(stored, level(anchor_levels))


def _pairs(tonight: AgainstAnchor) -> int:
    return len(tonight.log_ratios.get("median", []))


def _span(found: Interval | Prediction | None) -> Span | None:
    if found is None:
        return None
    return _span_of(percent(found.estimate), percent(found.low), percent(found.high))


def _span_of(estimate: float | None, low: float | None, high: float | None) -> Span | None:
    if estimate is None or low is None or high is None:
        return None
    return Span(estimate_pct=estimate, low_pct=low, high_pct=high)


def _drift(creep: Creep) -> Drift:
    return Drift(
        value_pct=100 * creep.value,
        limit_pct=100 * creep.limit,
        alarm=creep.alarm,
        nights=creep.nights,
        estimate_pct=None if creep.estimate is None else percent(creep.estimate),
    )
