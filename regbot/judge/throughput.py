"""Judge the timed runs of one workload: build its throughput section and the validity of its timed runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbot.judge.backends import DISPATCHER, backend_warnings, dispatcher_problems, unmet_dispatcher_request
from regbot.judge.estimates import percent_fields, primary_test, thresholds
from regbot.judge.expert_share import find_expert_share
from regbot.judge.health import describe_node_effects
from regbot.judge.identity import first_difference
from regbot.judge.interim import InterimDecision, decide_so_far
from regbot.judge.pairs import PairSet, is_head_only, is_sound, is_warm
from regbot.judge.reasons import describe_slow_launches, explain_decision, explain_luck
from regbot.judge.run_verdicts import compare_ranks, run_verdicts, step_s
from regbot.judge.steadiness import has_gpus, warn_of_unsteady_arms
from regbot.judge.stored_times import compare_times, judge_by_stored, select_reference
from regbot.judge.stragglers import warn_of_stragglers
from regbot.judge.timed_validity import (
    describe_run_failure,
    distrust_timed,
    find_last_good,
    judge_failures,
    list_failures,
)
from regbot.judge.training import compare_training
from regbot.judge.validity import environment_warnings, make_validity
from regbot.judge.walls import find_wall
from regbot.records.run import Run
from regbot.records.session import Session, SessionHeader, TimedPlan
from regbot.records.text.clip import clip, clip_message
from regbot.records.verdict import Cost, Decision, RunRole, Status, StoredTimes, Throughput, Validity
from regbot.stats.paired import LOOKS, session_mde
from regbot.stats.summary import percent

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
    stored: StoredTimes | None = None
    """Comparison of the pairs with stored sessions, beside the decision."""


def judge_timed(session: Session, plan: TimedPlan, traced: tuple[Run, Run] | None) -> TimedResult:
    """Return the result for the entry of ``plan``. ``traced`` has the static runs of base and head if both are good."""
    header, runs = session.header, session.timed_runs(plan.entry)
    if not runs:
        return _judge_untimed(header, plan, traced) if traced is not None else TimedResult(None)
    warnings = [
        *list_failures(runs),
        *describe_node_effects([run for run in runs if not is_warm(run)]),
        *warn_of_stragglers(runs),
        *(warning for run in runs for warning in run.warnings),
    ]
    paired_runs = [run for run in runs if not is_head_only(run)]
    interim = decide_so_far(paired_runs, header, plan)
    result = _judge_paired(header, plan, runs, interim) if paired_runs else _judge_head_only(header, plan, runs)
    section = result.throughput
    assert section is not None
    # A section without a number of pairs shows all of them.
    verdicts = run_verdicts(runs, interim.pair_set, section.pairs or None)
    role: RunRole = "pair" if paired_runs else "stored"
    fields = {
        "void_pairs": interim.pair_set.void,
        "node": next((run.node.node_class for run in runs if run.node is not None), ""),
        "variant": plan.variant,
        "expert_flops_share": find_expert_share(plan, runs),
        "cost": Cost(runs=len(runs), minutes=sum(run.wall_s for run in runs) / 60),
        "base_step_s": section.base_step_s or step_s(verdicts, "base", role),
        "head_step_s": step_s(verdicts, "head", role),
        "runs": verdicts,
        "ranks": compare_ranks(verdicts),
    }
    stored, drift = compare_times(header, plan, interim.pair_set.valid) if section.status != "INVALID" else (None, ())
    all_warnings = (*dict.fromkeys(warnings), *result.warnings, *drift)
    return replace(result, throughput=section.model_copy(update=fields), warnings=all_warnings, stored=stored)


def _judge_paired(
    header: SessionHeader, plan: TimedPlan, all_runs: Sequence[Run], interim: InterimDecision
) -> TimedResult:
    """Failed runs, runs that cannot be trusted, and another dispatcher than the requested one come before the pairs.
    There may be runs of head alone beside those of pairs."""
    runs = [run for run in all_runs if not is_head_only(run)]
    if validity := judge_failures(runs):
        return _result("INVALID", "not timed to the end, because runs failed", validity=validity)
    base, head = find_last_good(runs, "base"), find_last_good(runs, "head")
    if base is None or head is None:
        return _undecided("an arm has no good run yet; go on with --resume")
    warnings = [*environment_warnings(base, head), *backend_warnings(base, head)]
    if invalid := _distrust(header, plan, all_runs, (base, head), interim.pair_set):
        return replace(invalid, base=base, head=head, warnings=tuple(warnings))
    valid = interim.pair_set.valid
    training = compare_training(valid)
    warnings += training.undecided
    if interim.test is not None and interim.test.outliers:  # pairs with a slow launch
        warnings.append(describe_slow_launches(interim.test.outliers, interim.pairs))
    # With GPUs, pairs without a steady state decide nothing (``interim``). Without GPUs, this is only a warning.
    if valid and not has_gpus(valid[-1].head):
        warnings += warn_of_unsteady_arms(valid)
    validity = make_validity("REVIEW", *training.proven) if training.proven else None
    result = _judge_pairs(header, plan, interim, runs)
    return replace(result, validity=validity, base=base, head=head, warnings=tuple(warnings))


def _judge_head_only(header: SessionHeader, plan: TimedPlan, runs: Sequence[Run]) -> TimedResult:
    if header.throughput.gate != "stored":
        return _undecided("head was run alone, and only pairs of base and head decide: run the check again")
    result = judge_by_stored(header, plan, runs)
    if result is None:  # more runs of head are needed
        return _undecided("the comparison with stored sessions is incomplete: go on with --resume", by="stored")
    if result.decision is None:  # head may not be compared with the stored sessions
        if failures := list(dict.fromkeys(describe_run_failure(run) for run in runs if not is_sound(run))):
            return _result("INVALID", *result.reasons, validity=make_validity("INVALID", *failures))
        reason = f"stored sessions cannot decide: {result.reasons[0]}; pairs on one node can (gate = 'pairs')"
        return _undecided(reason, by="stored")
    head = find_last_good(runs, "head")
    if head is not None and (invalid := _distrust(header, plan, runs, (head,), PairSet(()))):
        return replace(invalid, head=head)
    judged = _result(STATUS[result.decision], *result.reasons, decision=result.decision, by="stored", **result.fields)
    return replace(judged, head=head, warnings=tuple(result.warnings))


def _distrust(
    header: SessionHeader, plan: TimedPlan, runs: Sequence[Run], last_runs: Sequence[Run], pair_set: PairSet
) -> TimedResult | None:
    """Return the INVALID result of runs that cannot be trusted, or that ran another dispatcher than the requested one;
    None if there is no such reason. ``last_runs`` has the last good run of each arm that was timed."""
    if reasons := [*dict.fromkeys(distrust_timed(header, plan, runs))]:
        return _result("INVALID", "the timed runs cannot be trusted", validity=make_validity("INVALID", *reasons))
    is_pair = len(last_runs) == 2
    problems = [*(dispatcher_problems(*last_runs) if is_pair else unmet_dispatcher_request(last_runs[0]))]
    if not problems:
        return None
    backends = [run.backends[DISPATCHER] for run in last_runs if DISPATCHER in run.backends]
    unmet = next(backend for backend in backends if backend.executed != backend.requested)
    request = f"but {unmet.requested} was requested" if is_pair else "which was not requested"
    reason = f"the runs used {unmet.executed}, {request}, so their times cannot be used"
    # ``fallback``: the times are of another dispatcher than the requested one.
    validity = make_validity("INVALID", *problems)
    return _result("INVALID", reason, validity=validity, fallback=True, **_estimate_fields(pair_set))


def _judge_untimed(header: SessionHeader, plan: TimedPlan, traced: tuple[Run, Run]) -> TimedResult:
    """PASS if both arms provably run the same program, unless the user asked to time it even so; else INCONCLUSIVE."""
    difference = first_difference(header, *traced)
    if not difference and not plan.even_if_identical:
        reason = (
            "nothing was timed, because everything that can change a step time is the same; device program, code that "
            "ran (without comments), configuration, packages and every other changed file were compared"
        )
        if header.inert_files:
            reason += f", except files that count as inert: {clip(', '.join(header.inert_files), 300)}"
        return _result("PASS", reason, decision="no_change", by="identity", estimate_pct=0.0, bound_pct=0.0)
    if header.throughput.gate == "stored" and not plan.references:
        cause = plan.no_reference or "no session of this workload is stored"
        reason = f"stored sessions cannot decide, because there is none to compare head with: {cause}"
        return _undecided(reason, by="stored")
    cause = f", and timing is needed because {difference}" if difference else ""
    return _undecided(f"nothing has been timed yet{cause}; go on with --resume")


def _judge_pairs(header: SessionHeader, plan: TimedPlan, interim: InterimDecision, runs: Sequence[Run]) -> TimedResult:
    test, limits, log_ratios = interim.test, thresholds(header.throughput), interim.pair_set.log_ratios()
    if test is None:
        too_few = f"{len(interim.pair_set.valid)} valid pairs are too few to decide; at least {LOOKS[0]} are needed"
        advice = "go on with --resume, or set a larger budget"
        return _undecided(too_few, advice, **_estimate_fields(interim.pair_set))
    used_pairs = interim.pair_set.valid[: test.pairs]
    median_decision, median_interval = test.tests["median"]
    reference = select_reference(plan, used_pairs[-1].head)
    calibrated = None if isinstance(reference, str) else reference.calibrated
    section: dict[str, Any] = {
        **percent_fields(median_interval),
        "decision": test.decision,
        "by": "pairs",
        "class_noise": interim.class_noise,
        "pairs": test.pairs,
        "unused_pairs": test.unused,
        "alpha": test.alpha,
        "tests": [primary_test(name, *result, log_ratios[name][: test.pairs]) for name, result in test.tests.items()],
        "calibrated": calibrated,
        "slow_launches": list(test.outliers),
        "pass_withheld": test.withheld,
        "assumed_luck_pct": 100 * interim.assumed_luck,
        "decision_without_luck": interim.decision_without_luck,
    }
    # ``continued``: an always-valid interval decided, because pairs of an earlier session are included. The smallest
    # detectable slowdowns hold for the looks only: ``mde_pct`` with these pairs, ``mde_full_pct`` with those of a full
    # session. ``eps`` is the slowdown above which an interval proves a regression.
    if not interim.continued:
        section["mde_pct"] = percent(session_mde(interim.intervals, test.pairs, limits.eps))
        section["mde_full_pct"] = percent(session_mde(interim.intervals, LOOKS[-1], limits.eps))
    reason = test.barred
    if calibrated is not None and calibrated.contradicted:  # the gate has no vote on this node class
        reason = f"regbot judges no step times on this node class: {calibrated.contradicted}; see 'regbot calibrate'"
    if reason:
        section |= {"decision": "undecided", "pass_withheld": False, "decision_without_luck": None}
        return _result("INCONCLUSIVE", reason, **section)
    if STATUS[test.decision] == "PASS":
        section["bound_pct"] = percent(interim.bound)
    if test.decision in ("regressed", "improved"):
        # Stalls change the mean step time but not the median.
        summary = "median" if median_decision == test.decision else "mean"
        section["wall_kind"], section["wall"] = find_wall(used_pairs, summary, test.decision == "regressed")
    reasons = (*explain_decision(interim, test, header, runs), *explain_luck(interim))
    return _result(STATUS[test.decision], *reasons, **section)


def _estimate_fields(pair_set: PairSet) -> dict[str, Any]:
    log_ratios = pair_set.log_ratios()["median"]
    estimate_pct = percent(sum(log_ratios) / len(log_ratios)) if log_ratios else None
    return {"pairs": len(log_ratios), "estimate_pct": estimate_pct}


def _result(status: Status, *reasons: str, validity: Validity | None = None, **fields: Any) -> TimedResult:
    return TimedResult(Throughput(status=status, reasons=[*map(clip_message, reasons)], **fields), validity)


def _undecided(*reasons: str, by: str = "pairs", **fields: Any) -> TimedResult:
    return _result("INCONCLUSIVE", *reasons, decision="undecided", by=by, **fields)
