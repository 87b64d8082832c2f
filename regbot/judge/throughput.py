"""Judge the timed runs of one workload: build its throughput section and the validity of its timed runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems, unmet_dispatcher_request
from regbot.judge.estimates import LogEstimate, percent
from regbot.judge.expert_share import find_expert_share
from regbot.judge.health import describe_node_effects
from regbot.judge.identity import first_difference
from regbot.judge.interim import InterimDecision, decide_so_far, thresholds
from regbot.judge.pairs import PairSet, is_head_only, is_sound
from regbot.judge.reasons import describe_slow_launches, explain_decision, explain_luck
from regbot.judge.references import select_reference
from regbot.judge.run_verdicts import compare_ranks, run_verdicts, step_s
from regbot.judge.secondary_measures import run_secondary_tests
from regbot.judge.steadiness import has_gpus, measure_warmup_steps, warn_of_unsteady_arms
from regbot.judge.stored_gate import explain_stored, judge_by_stored, stored_numbers
from regbot.judge.stragglers import warn_of_stragglers
from regbot.judge.timed_validity import (
    collect_run_warnings,
    describe_run_failure,
    distrust_timed,
    find_last_good,
    judge_failures,
    list_failures,
    make_validity,
)
from regbot.judge.training import compare_training
from regbot.judge.validity import environment_warnings
from regbot.judge.walls import Summary, find_wall
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.text.clip import clip, clip_message
from regbot.records.verdict import Cost, Decision, PrimaryTest, SlowLaunch, Status, Throughput, Validity
from regbot.stats.paired import LOOKS, session_mde
from regbot.stats.slow_launches import PairOutlier

STATUS: dict[Decision, Status] = {
    "regressed": "FAIL",
    "improved": "PASS",
    "no_change": "PASS",
    "within_bound": "PASS",
    "undecided": "INCONCLUSIVE",
}
"""Status of the throughput section for each decision."""


@dataclass(frozen=True)
class TimedResult:
    throughput: Throughput | None
    """None if the workload has neither timed runs nor a good trace of each arm."""
    validity: Validity | None = None
    """Validity of the timed runs, if they make the workload INVALID, FAIL or REVIEW; else None."""
    base: Run | None = None
    head: Run | None = None
    """The last good run of each arm, None if there is none."""
    warnings: tuple[str, ...] = ()


def judge_timed(session: Session, plan: TimedPlan, traced: tuple[Run, Run] | None) -> TimedResult:
    """Return the result for the entry of ``plan``. ``traced`` has the static runs of base and head if both are good.
    Failed runs, runs that cannot be trusted, and another dispatcher than the requested one come before the pairs."""
    header, all_runs = session.header, session.timed_runs(plan.entry)
    if not all_runs:
        return TimedResult(_judge_untimed(header, plan, traced) if traced is not None else None)
    run_warnings = [
        *list_failures(all_runs),
        *describe_node_effects(all_runs),
        *warn_of_stragglers(all_runs),
        *collect_run_warnings(all_runs),
    ]
    warnings = tuple(dict.fromkeys(run_warnings))
    paired_runs = [run for run in all_runs if not is_head_only(run)]
    if not paired_runs:
        return _judge_head_only(header, plan, all_runs, warnings)
    interim = decide_so_far(paired_runs, header, plan)
    fields = _common_fields(plan, all_runs, interim.pair_set)
    if validity_of_failures := judge_failures(paired_runs):
        section = _build_section("INVALID", ["not timed to the end, because runs failed"], **fields)
        return TimedResult(section, validity_of_failures, warnings=warnings)
    base, head = find_last_good(paired_runs, "base"), find_last_good(paired_runs, "head")
    if base is None or head is None:
        return TimedResult(_undecided("an arm has no good run yet; go on with --resume", **fields), warnings=warnings)
    warnings += (*environment_warnings(base, head), *backend_warnings(base, head))
    if invalid := _distrust(header, plan, all_runs, (base, head), interim.pair_set, fields):
        return replace(invalid, base=base, head=head, warnings=warnings)
    valid = interim.pair_set.valid
    training = compare_training(valid)
    warnings += tuple(training.undecided)
    has_enough_pairs = bool(interim.tests)  # with too few pairs, there are no tests
    fields = _common_fields(plan, all_runs, interim.pair_set, interim.pairs if has_enough_pairs else None)
    section = _judge_pairs(header, plan, interim, paired_runs, fields)
    if interim.outliers:  # pairs with a slow launch
        warnings += (describe_slow_launches(interim.outliers, interim.pairs),)
    # With GPUs, pairs without a steady state decide nothing (``interim``). Without GPUs, this is only a warning.
    if valid and not has_gpus(valid[-1].head):
        warnings += warn_of_unsteady_arms(valid)
    validity = make_validity("REVIEW", training.proven) if training.proven else None
    return TimedResult(section, validity, base, head, warnings)


def _judge_head_only(
    header: SessionHeader, plan: TimedPlan, runs: Sequence[Run], warnings: tuple[str, ...]
) -> TimedResult:
    fields = _common_fields(plan, runs, PairSet(()))
    fields["head_step_s"] = step_s(fields["runs"], "head", role="stored")  # the role of runs of head alone
    if header.throughput.gate != "stored":
        reason = "head was run alone, and only pairs of base and head decide: run the check again"
        return TimedResult(_undecided(reason, **fields), warnings=warnings)
    result = judge_by_stored(header, plan, runs)
    if result is None:  # more runs of head are needed
        reason = "the comparison with stored sessions is incomplete: go on with --resume"
        return TimedResult(_undecided(reason, by="stored", **fields), warnings=warnings)
    if result.decision is None:  # head may not be compared with the stored sessions
        if failures := list(dict.fromkeys(describe_run_failure(run) for run in runs if not is_sound(run))):
            section = _build_section("INVALID", [result.reason], **fields)
            return TimedResult(section, make_validity("INVALID", failures), warnings=warnings)
        reason = f"stored sessions cannot decide: {result.reason}; pairs on one node can (gate = 'pairs')"
        return TimedResult(_undecided(reason, by="stored", **fields), warnings=warnings)
    head = find_last_good(runs, "head")
    if head is not None and (invalid := _distrust(header, plan, runs, (head,), PairSet(()), fields)):
        return replace(invalid, head=head, warnings=warnings)
    section_fields = fields | stored_numbers(result)
    if result.reference is not None:
        warnings += tuple(result.reference.warnings)
        section_fields["calibrated"] = result.reference.calibrated
    section_fields["tests"] = [
        primary_test(name, decision, prediction, ratios=[])
        for name, (decision, prediction) in (result.tests or {}).items()
    ]
    section = _build_section(
        STATUS[result.decision], explain_stored(result), decision=result.decision, by="stored", **section_fields
    )
    return TimedResult(section, head=head, warnings=warnings)


def _distrust(
    header: SessionHeader,
    plan: TimedPlan,
    runs: Sequence[Run],
    last_runs: Sequence[Run],
    pair_set: PairSet,
    fields: dict[str, Any],
) -> TimedResult | None:
    """Return the INVALID result of runs that cannot be trusted, or that ran another dispatcher than the requested one;
    None if there is no such reason. ``last_runs`` has the last good run of each arm that was timed."""
    if reasons := [*dict.fromkeys(distrust_timed(header, plan, runs))]:
        section = _build_section("INVALID", ["the timed runs cannot be trusted"], **fields)
        return TimedResult(section, make_validity("INVALID", reasons))
    is_pair = len(last_runs) == 2
    problems = [*(dispatcher_problems(*last_runs) if is_pair else unmet_dispatcher_request(last_runs[0]))]
    if not problems:
        return None
    backends = [run.backends[DISPATCHER] for run in last_runs if DISPATCHER in run.backends]
    unmet = next(backend for backend in backends if backend.executed != backend.requested)
    reason = (
        f"the runs used {unmet.executed}, but {unmet.requested} was requested, so their times cannot be used"
        if is_pair
        else f"the runs used {unmet.executed}, which was not requested, so their times cannot be used"
    )
    estimate = _estimate_fields(pair_set) if is_pair else {}
    # ``fallback``: the times are of another dispatcher than the requested one.
    section = _build_section("INVALID", [reason], fallback=True, **fields, **estimate)
    return TimedResult(section, make_validity("INVALID", problems))


def _judge_untimed(header: SessionHeader, plan: TimedPlan, traced: tuple[Run, Run]) -> Throughput:
    """PASS if both arms provably run the same program, unless the user asked to time it even so; else INCONCLUSIVE."""
    difference = first_difference(header, *traced)
    if not difference and not plan.even_if_identical:
        reason = (
            "nothing was timed, because everything that can change a step time is the same; device program, code that "
            "ran (without comments), configuration, packages and every other changed file were compared"
        )
        if header.inert_files:
            reason += f", except files that count as inert: {clip(', '.join(header.inert_files), 300)}"
        return _build_section("PASS", [reason], decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0)
    if header.throughput.gate == "stored" and not plan.references:
        cause = plan.no_reference or "no session of this workload is stored"
        reason = f"stored sessions cannot decide, because there is none to compare head with: {cause}"
        return _undecided(reason, by="stored")
    cause = f", and timing is needed because {difference}" if difference else ""
    return _undecided(f"nothing has been timed yet{cause}; go on with --resume")


def _common_fields(plan: TimedPlan, runs: Sequence[Run], pair_set: PairSet, used: int | None = None) -> dict[str, Any]:
    """Return the fields that every section with timed runs has. ``used``: number of pairs that the decision used,
    counted from the first one; None for all."""
    verdicts = run_verdicts(runs, pair_set, used)
    return {
        "void_pairs": pair_set.void,
        "node": next((run.node.node_class for run in runs if run.node is not None), ""),
        "variant": plan.variant,
        "expert_flops_share": find_expert_share(plan, runs),
        "cost": Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
        "base_step_s": step_s(verdicts, "base"),
        "head_step_s": step_s(verdicts, "head"),
        "runs": verdicts,
        "ranks": compare_ranks(verdicts),
    }


def _judge_pairs(
    header: SessionHeader, plan: TimedPlan, interim: InterimDecision, runs: Sequence[Run], fields: dict[str, Any]
) -> Throughput:
    limits, log_ratios = thresholds(header), interim.pair_set.log_ratios()
    if not interim.tests:
        too_few = f"{len(interim.pair_set.valid)} valid pairs are too few to decide; at least {LOOKS[0]} are needed"
        advice = "go on with --resume, or set a larger budget"
        return _undecided(too_few, advice, **fields, **_estimate_fields(interim.pair_set))
    assert interim.alpha is not None
    used_pairs = interim.pair_set.valid[: interim.pairs]
    median_interval = interim.median_interval
    reference = select_reference(plan, used_pairs[-1].head)
    calibrated = None if isinstance(reference, str) else reference.calibrated
    section: dict[str, Any] = {
        **fields,
        "base_warmup_steps": measure_warmup_steps(pair.base for pair in used_pairs),
        "head_warmup_steps": measure_warmup_steps(pair.head for pair in used_pairs),
        "decision": interim.decision,
        "by": "pairs",
        "class_noise": interim.class_noise,
        "estimate_pct": percent(median_interval.estimate),
        "low_pct": percent(median_interval.low),
        "high_pct": percent(median_interval.high),
        "pairs": interim.pairs,
        "unused_pairs": interim.unused,
        "alpha": interim.alpha,
        "tests": [
            primary_test(name, decision, interval, log_ratios[name][: interim.pairs])
            for name, (decision, interval) in interim.tests.items()
        ],
        "calibrated": calibrated,
        "slow_launches": slow_launches(interim.outliers),
        "pass_withheld": interim.withheld,
        "assumed_luck_pct": 100 * interim.assumed_luck,
        "decision_without_luck": interim.decision_without_luck,
    }
    # ``continued``: an always-valid interval decided, because pairs of an earlier session are included. The smallest
    # detectable slowdowns hold for the looks only: ``mde_pct`` with these pairs, ``mde_full_pct`` with those of a full
    # session. ``eps`` is the slowdown above which an interval proves a regression.
    if not interim.continued:
        section["mde_pct"] = percent(session_mde(interim.intervals, interim.pairs, limits.eps))
        section["mde_full_pct"] = percent(session_mde(interim.intervals, LOOKS[-1], limits.eps))
    reason = interim.barred
    if calibrated is not None and calibrated.contradicted:  # the gate has no vote on this node class
        reason = f"regbot judges no step times on this node class: {calibrated.contradicted}; see 'regbot calibrate'"
    if reason:
        section |= {"decision": "undecided", "pass_withheld": False, "decision_without_luck": None}
        return _build_section("INCONCLUSIVE", [reason], **section)
    if STATUS[interim.decision] == "PASS":
        section["bound_pct"] = percent(interim.bound)
    if interim.decision in ("regressed", "improved"):
        median_decision, _ = interim.tests["median"]
        deciding_summary: Summary = "median" if median_decision == interim.decision else "mean"
        if wall := find_wall(used_pairs, deciding_summary, is_slowdown=interim.decision == "regressed"):
            section["wall"], section["wall_kind"] = wall.sentence, wall.kind
        section["secondary"] = run_secondary_tests(used_pairs)
    reasons = [*explain_decision(interim, limits, header, runs), *explain_luck(interim)]
    return _build_section(STATUS[interim.decision], reasons, **section)


def _estimate_fields(pair_set: PairSet) -> dict[str, Any]:
    log_ratios = pair_set.log_ratios()["median"]
    estimate_pct = percent(sum(log_ratios) / len(log_ratios)) if log_ratios else None
    return {"pairs": len(log_ratios), "estimate_pct": estimate_pct}


def slow_launches(outliers: Iterable[PairOutlier]) -> list[SlowLaunch]:
    """Return the records of the slow launches of a session. Records number the pairs from 1."""
    return [
        SlowLaunch(pair=outlier.pair + 1, arm=outlier.arm, slower_pct=percent(outlier.excess)) for outlier in outliers
    ]


def primary_test(name: str, decision: Decision, estimate: LogEstimate, ratios: Sequence[float]) -> PrimaryTest:
    return PrimaryTest.model_validate(
        {
            "summary": name,
            "decision": decision,
            "estimate_pct": percent(estimate.estimate),
            "low_pct": percent(estimate.low),
            "high_pct": percent(estimate.high),
            "sd_pct": 100 * estimate.sd,
            "log_ratios": list(ratios),
        }
    )


def _build_section(status: Status, reasons: Sequence[str], **fields: Any) -> Throughput:
    return Throughput(status=status, reasons=[clip_message(reason) for reason in reasons], **fields)


def _undecided(*reasons: str, by: str = "pairs", **fields: Any) -> Throughput:
    return _build_section("INCONCLUSIVE", reasons, decision="undecided", by=by, **fields)
