"""Did throughput change? The timed runs of one workload -> its throughput section, and what they say of its validity.

The decision is the sequential test's (``regbot.stats.paired``) on the valid pairs, in the order they were measured.
What is not a matter of statistics is decided here: runs that broke, clocks or nodes that differ, a dispatcher that was
not the one asked for, training that is not the same, and identity, which needs no pairs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems, not_honoured
from regbot.judge.estimates import Estimate, percent
from regbot.judge.health import health_findings
from regbot.judge.identity import difference
from regbot.judge.pairs import Paired, is_screen, is_warm, sound, summaries, timed_runs
from regbot.judge.reasons import reasons
from regbot.judge.screen import Screening, numbers, reference_for, screen_reasons, screening
from regbot.judge.secondary import secondary_tests
from regbot.judge.settled import has_gpus, no_vote, unsettled_arms, warmup_steps
from regbot.judge.standing import Standing, standing_of, thresholds
from regbot.judge.stragglers import straggler_warnings
from regbot.judge.timed_validity import (
    broken,
    distrust_timed,
    failure_of,
    last_good,
    own_warnings,
    setbacks,
    validity_of,
)
from regbot.judge.training import differences
from regbot.judge.validity import environment_warnings
from regbot.judge.walls import wall
from regbot.records.calibrated import Calibrated
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.verdict import Cost, Decision, PrimaryTest, Status, Throughput, Validity
from regbot.stats.launch import SUMMARIES, cut_of
from regbot.stats.paired import LOOKS, mde

STATUS: dict[Decision, Status] = {
    "regressed": "FAIL",
    "improved": "PASS",
    "no_change": "PASS",
    "within_bound": "PASS",
    "undecided": "INCONCLUSIVE",
}


@dataclass(frozen=True)
class Timed:
    """What the timed runs of one workload say. ``validity`` is given where they decide it, ``base`` and ``head`` are
    the last good run of each arm."""

    throughput: Throughput | None
    validity: Validity | None = None
    base: Run | None = None
    head: Run | None = None
    warnings: tuple[str, ...] = ()


def judge_timed(session: Session, plan: TimedPlan, traced: tuple[Run, Run] | None) -> Timed:
    """The throughput section of the entry that ``plan`` times. ``traced``: its static runs, where both are good."""
    header, runs = session.header, timed_runs(session, plan.entry)
    if not runs:
        return Timed(_not_timed(header, plan, traced) if traced is not None else None)
    of_ranks = straggler_warnings(runs)
    warnings = tuple(dict.fromkeys([*setbacks(runs), *health_findings(runs), *of_ranks, *own_warnings(runs)]))
    screen, runs = [run for run in runs if is_screen(run)], [run for run in runs if not is_screen(run)]
    if not runs:
        return _screened(header, plan, screen, warnings)
    warnings += _not_screened(header, plan, screen)
    stands = standing_of(runs, header)
    known = _known(plan, [*screen, *runs], stands.paired)
    if fault := broken(runs):
        return Timed(_section("INVALID", ["the session could not be finished"], **known), fault, warnings=warnings)
    base, head = last_good(runs, "base"), last_good(runs, "head")
    if base is None or head is None:
        waiting = ["not every arm has a run yet; go on with --resume"]
        return Timed(_section("INCONCLUSIVE", waiting, decision="undecided", by="pairs", **known), warnings=warnings)
    warnings += (*environment_warnings(base, head), *backend_warnings(base, head))
    if faults := [*distrust_timed(header, plan, [*screen, *runs])]:
        section = _section("INVALID", ["the timed runs cannot be believed"], **known)
        return Timed(section, validity_of("INVALID", faults), base, head, warnings)
    if problems := [*dispatcher_problems(base, head)]:
        told = [run.backends[DISPATCHER] for run in (base, head) if DISPATCHER in run.backends]
        asked = next(each for each in told if each.executed != each.requested)
        said = f"times of {asked.executed} where {asked.requested} was asked for: shown, they decide nothing"
        section = _section("INVALID", [said], fallback=True, **known, **_estimate(stands.paired))
        return Timed(section, validity_of("INVALID", problems), base, head, warnings)
    valid = stands.paired.valid
    changed = [*differences([pair.base for pair in valid], [pair.head for pair in valid])]
    section = _decided(header, plan, stands, runs, known)
    if valid and not has_gpus(valid[-1].head):
        warnings += unsettled_arms(valid)
    return Timed(section, validity_of("REVIEW", changed) if changed else None, base, head, warnings)


def _not_screened(header: SessionHeader, plan: TimedPlan, screen: Sequence[Run]) -> tuple[str, ...]:
    """Why stored sessions did not settle it, where there are some."""
    found = screening(header, plan, screen) if screen else None
    why = found.why if found is not None else plan.no_reference if header.throughput.gate == "screen" else ""
    return (f"stored sessions did not settle it, pairs did: {why}",) if why else ()


def _screened(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run], warnings: tuple[str, ...]) -> Timed:
    """Only head was timed: stored sessions decide, or pairs are still to come."""
    counted = [run for run in runs if sound(run) and not is_warm(run)]
    known = _known(plan, runs, Paired((), 0)) | {"head_step_s": _step_s(counted)}
    found = screening(header, plan, runs)
    if header.throughput.gate == "stored" and found is not None and found.decision is None:
        return _without_an_answer(found, runs, known, warnings)
    if found is None or found.decision is None:
        why = f"held against stored sessions, {found.why}" if found is not None else "the screen has not ended"
        section = _section(
            "INCONCLUSIVE",
            [f"{why}; pairs have to decide, and none was run yet: go on with --resume"],
            decision="undecided",
            by="screen",
            **known | numbers(found) if found is not None else known,
        )
        return Timed(section, warnings=warnings)
    head = last_good(runs, "head")
    if faults := [*distrust_timed(header, plan, runs)]:
        section = _section("INVALID", ["the timed runs cannot be believed"], **known)
        return Timed(section, validity_of("INVALID", faults), None, head, warnings)
    if head is not None and (problems := [*not_honoured(head)]):
        said = f"times of {head.backends[DISPATCHER].executed}, which was not asked for: shown, they decide nothing"
        section = _section("INVALID", [said], fallback=True, **known)
        return Timed(section, validity_of("INVALID", problems), None, head, warnings)
    gate = header.throughput.gate
    fields = known | numbers(found)
    if found.reference is not None:
        warnings += tuple(found.reference.warnings)
        fields["calibrated"] = found.reference.calibrated
    fields["tests"] = [primary_test(name, *each, []) for name, each in (found.tests or {}).items()]
    by = "stored" if gate == "stored" else "screen"
    section = _section(STATUS[found.decision], screen_reasons(found, gate), decision=found.decision, by=by, **fields)
    return Timed(section, None, None, head, warnings)


def _without_an_answer(
    found: Screening, runs: Sequence[Run], known: dict[str, Any], warnings: tuple[str, ...]
) -> Timed:
    """Stored sessions alone were to decide, and cannot."""
    if failed := [run for run in runs if not sound(run)]:
        reasons = list(dict.fromkeys(failure_of(run) for run in failed))
        section = _section("INVALID", [found.why], **known)
        return Timed(section, validity_of("INVALID", reasons), warnings=warnings)
    said = f"stored sessions were to decide, and cannot: {found.why}; pairs on one node could (gate = 'screen')"
    return Timed(_section("INCONCLUSIVE", [said], decision="undecided", by="stored", **known), warnings=warnings)


def _not_timed(header: SessionHeader, plan: TimedPlan, traced: tuple[Run, Run]) -> Throughput:
    """Identity, or a session that has not begun."""
    differs = difference(header, *traced)
    if not differs and not plan.even_if_identical:
        said = (
            "nothing was timed, because nothing that could change a step time differs: device program, code that ran "
            "(comments aside), configuration, packages, and every other changed file are accounted for"
        )
        return _section("PASS", [said], decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0)
    if header.throughput.gate == "stored" and not plan.references:
        why = plan.no_reference or "no session of it is stored"
        said = f"stored sessions were to decide, and there is nothing to hold head against: {why}"
        return _section("INCONCLUSIVE", [said], decision="undecided", by="stored")
    why = f" ({differs})" if differs else ""
    return _section(
        "INCONCLUSIVE", [f"nothing has been timed yet{why}; go on with --resume"], decision="undecided", by="pairs"
    )


def _known(plan: TimedPlan, runs: Sequence[Run], paired: Paired) -> dict[str, Any]:
    """What can be said whatever was decided."""
    return {
        "void_pairs": paired.void,
        "node": next((run.node.node_class for run in runs if run.node is not None), ""),
        "variant": plan.variant,
        "cost": Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
        "base_step_s": _step_s(pair.base for pair in paired.valid),
        "head_step_s": _step_s(pair.head for pair in paired.valid),
    }


def _decided(
    header: SessionHeader, plan: TimedPlan, stands: Standing, runs: Sequence[Run], known: dict[str, Any]
) -> Throughput:
    limits, ratios = thresholds(header), stands.paired.log_ratios()
    if not stands.tests:
        return _too_few(stands, known)
    assert stands.alpha is not None
    used = stands.paired.valid[: stands.pairs]
    centre = stands.tests["median"][1]
    sd = max(each.sd for _, each in stands.tests.values())
    calibrated = _calibrated(plan, used[-1].head)
    section: dict[str, Any] = {
        **known,
        "base_step_s": _step_s(pair.base for pair in used),
        "head_step_s": _step_s(pair.head for pair in used),
        "base_warmup_steps": warmup_steps(pair.base for pair in used),
        "head_warmup_steps": warmup_steps(pair.head for pair in used),
        "decision": stands.decision,
        "by": "pairs",
        "estimate_pct": percent(centre.estimate),
        "low_pct": percent(centre.low),
        "high_pct": percent(centre.high),
        "pairs": stands.pairs,
        "unused_pairs": stands.unused,
        "alpha": stands.alpha,
        "tests": [primary_test(name, *stands.tests[name], ratios[name][: stands.pairs]) for name in SUMMARIES],
        "calibrated": calibrated,
    }
    if not stands.continued:
        section["mde_pct"] = percent(mde(sd, stands.pairs, stands.alpha, limits.eps))
        section["mde_full_pct"] = percent(mde(sd, LOOKS[-1], stands.alpha, limits.eps))
    if why := no_vote(used, calibrated):
        return _section("INCONCLUSIVE", [why], **section | {"decision": "undecided"})
    if STATUS[stands.decision] == "PASS":
        section["bound_pct"] = percent(max(each.high for _, each in stands.tests.values()))
    if stands.decision in ("regressed", "improved"):
        by_median = stands.tests["median"][0] == stands.decision
        arms = [pair.base for pair in used], [pair.head for pair in used]
        section["wall"] = wall(*arms, "median" if by_median else "mean", stands.decision == "regressed")
        section["secondary"] = secondary_tests(used)
    return _section(STATUS[stands.decision], [*reasons(stands, limits, header, runs)], **section)


def _calibrated(plan: TimedPlan, head: Run) -> Calibrated | None:
    """What placebo sessions in the environment of ``head`` have shown of the gate."""
    found = reference_for(plan, head)
    return None if isinstance(found, str) else found.calibrated


def _estimate(paired: Paired) -> dict[str, Any]:
    """What the pairs show, without an interval: for times that decide nothing."""
    values = paired.log_ratios()["median"]
    return {"pairs": len(values), "estimate_pct": percent(sum(values) / len(values)) if values else None}


def _too_few(stands: Standing, known: dict[str, Any]) -> Throughput:
    pairs = len(stands.paired.valid)
    section: dict[str, Any] = {**known, **_estimate(stands.paired), "decision": "undecided", "by": "pairs"}
    said = f"{pairs} valid pairs decide nothing, whatever they show; {LOOKS[0]} are the least"
    return _section("INCONCLUSIVE", [said, "go on with --resume, or give it a larger budget"], **section)


def primary_test(name: str, decision: Decision, each: Estimate, ratios: Sequence[float]) -> PrimaryTest:
    """One test as the record holds it. ``ratios`` are those of the pairs used, [] where there are no pairs."""
    return PrimaryTest.model_validate(
        {
            "summary": name,
            "decision": decision,
            "estimate_pct": percent(each.estimate),
            "low_pct": percent(each.low),
            "high_pct": percent(each.high),
            "sd_pct": 100 * each.sd,
            "log_ratios": list(ratios),
        }
    )


def _step_s(runs: Iterable[Run]) -> float | None:
    """Median over runs of the run's median step time, the one that is compared."""
    found = [summaries(run.timing, cut_of(run.timing))["median"] for run in runs if run.timing is not None]
    return math.exp(median(found)) if found else None


def _section(status: Status, reasons: Sequence[str], **fields: Any) -> Throughput:
    return Throughput(status=status, reasons=[reason[:4000] for reason in reasons], **fields)
