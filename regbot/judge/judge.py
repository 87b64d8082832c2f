"""Judge one session. The same records always give the same verdict.

Sharding is judged by the traced runs, and also by profiles of the timed runs if the step is compiled. Throughput is
judged by the timed runs. Both kinds of runs can make the verdict INVALID.
"""

from collections.abc import Iterable, Sequence

from regbot.judge.backends import dispatcher_change
from regbot.judge.expectations import Expectation
from regbot.judge.profiled_steps import examine_profiles
from regbot.judge.program import judge_program
from regbot.judge.sharding import judge_sharding
from regbot.judge.stored_ledgers import compare_head_with_stored, compare_with_stored
from regbot.judge.throughput import judge_timed
from regbot.judge.validity import TracedRuns, examine_traced_runs, make_validity
from regbot.records.config import Config
from regbot.records.session import Session, SessionHeader
from regbot.records.text.clip import clip_message
from regbot.records.verdict import (
    GRAVITY,
    Finding,
    Sharding,
    StoredComparison,
    Validity,
    Verdict,
    WorkloadVerdict,
    compute_overall_status,
)


def judge(session: Session, config: Config, expectations: Iterable[Expectation] = ()) -> Verdict:
    """Return the verdict of a session, with a section for every planned workload."""
    header, rules = session.header, list(expectations)
    workloads: list[WorkloadVerdict] = []
    warnings: list[str] = list(header.warnings)
    used_rules: set[Expectation] = set()
    # Workloads that the change does not affect were not run. One that has runs all the same is judged by them.
    measured = {run.workload for run in session.runs}
    unconcerned = {workload.entry: workload for workload in header.unconcerned if workload.entry not in measured}
    for name in dict.fromkeys(header.workloads):
        if (workload := unconcerned.get(name)) is not None:
            # With a proof, the change cannot affect the workload.
            validity = make_validity("PASS" if workload.proof is not None else "INCONCLUSIVE", workload.reason)
            workloads.append(
                WorkloadVerdict(name=name, sharding=None, throughput=None, validity=validity, unconcerned=True)
            )
            continue
        verdict, findings, workload_warnings = _judge_workload(session, name, config, rules)
        workloads.append(verdict)
        warnings += [f"{name}: {warning}" for warning in workload_warnings]
        used_rules |= {rule for rule in rules if any(rule.covers(finding, name) for finding in findings)}
    warnings += [
        f"--expect {rule}: no finding matches; remove the rule, or it will silently accept a later change"
        for rule in rules
        if rule not in used_rules
    ]
    return Verdict(
        verdict=compute_overall_status(workloads),
        base=header.base,
        head=header.head,
        workloads=workloads,
        warnings=[clip_message(warning) for warning in warnings],
    )


def _judge_workload(
    session: Session, name: str, config: Config, rules: Sequence[Expectation]
) -> tuple[WorkloadVerdict, list[Finding], list[str]]:
    """Return the verdict on one workload that was run, all findings of its traces and profiles, and warnings. The
    verdict may show only the findings of the traces or those of the profiles."""
    header = session.header
    traces = examine_traced_runs(session, name)
    profiles = examine_profiles(session, name, traces)  # None if the step is not compiled
    validity = traces.validity
    if profiles is not None:
        # If the traces failed because the step is compiled, only the profiles count.
        validity = _combine_validity(profiles.validity, None if traces.needs_profile else traces.validity)
    base, head = traces.base, traces.head
    # Set if both arms request the same dispatcher and only one of them executes it, else None.
    change_of_dispatcher = dispatcher_change(base, head)

    warnings: list[str] = []
    throughput, times, collectives = None, None, None
    plan = next((plan for plan in reversed(header.timed) if plan.entry == name), None)  # the last plan counts
    if plan is not None:
        timed = judge_timed(session, plan, (base, head) if base is not None and head is not None else None)
        throughput, times = timed.throughput, timed.stored
        validity = _combine_validity(validity, timed.validity)
        warnings += timed.warnings
        change_of_dispatcher = change_of_dispatcher or dispatcher_change(timed.base, timed.head)

    # One commit with two configurations: the differences are intended, so they are shown and not judged.
    configurations_only = header.base.commit == header.head.commit and header.base.overrides != header.head.overrides

    def compare(runs: TracedRuns) -> Sharding | None:
        if runs.base is None or runs.head is None or runs.base.ledger is None or runs.head.ledger is None:
            return None
        section = judge_sharding(
            runs.base.ledger,
            runs.head.ledger,
            config,
            dispatcher=change_of_dispatcher,
            workload=name,
            expectations=rules,
            configurations_only=configurations_only,
            changed_lines=header.changed_lines,
        )
        section = section.model_copy(update={"variant": runs.head.variant, "tier": runs.head.tier})
        return _review_stand_ins(section, header)

    sharding, program = compare(traces), None
    if sharding is not None and base is not None and base.ledger and head is not None and head.ledger:
        program = judge_program(
            base.ledger,
            head.ledger,
            config,
            workload=name,
            expectations=rules,
            configurations_only=configurations_only,
            changed_lines=header.changed_lines,
        )
    if base is not None and head is not None and sharding is not None:
        sharding, stored_warnings = compare_with_stored(sharding, base, header, config)
        warnings += stored_warnings
        collectives = compare_head_with_stored(header, head, config)
    findings = [finding for section in (sharding, program) if section is not None for finding in section.findings]
    if profiles is not None:
        warnings += profiles.warnings
        if (profiles_sharding := compare(profiles)) is not None:
            findings += profiles_sharding.findings
            sharding = _combine_sharding(sharding, profiles_sharding)
    verdict = WorkloadVerdict(
        name=name,
        sharding=sharding,
        program=program,
        throughput=throughput,
        validity=validity,
        stored=StoredComparison(times=times, collectives=collectives) if times or collectives else None,
    )
    return verdict, findings, [*warnings, *traces.warnings]


def _review_stand_ins(section: Sharding, header: SessionHeader) -> Sharding:
    """Turn PASS into REVIEW if the pull request changes a file that declares stand-ins for compiled extensions."""
    changed = header.changed_files
    files = [file for file in sorted(set(header.stand_ins)) if changed is None or file in changed]
    if section.status != "PASS" or not files:
        return section
    differs = "differs" if changed is not None else "may differ"
    reason = f"{', '.join(files)} declares stand-ins and {differs} in head; both arms were traced with the base's"
    return section.model_copy(update={"status": "REVIEW", "reasons": [reason, *section.reasons]})


def _combine_sharding(traced: Sharding | None, profiled: Sharding) -> Sharding:
    """Return the section with the graver status, and add the first reason of the other section. If both have the same
    status, return the section of the traces, because a profile does not show which module issued a collective."""
    if traced is None:
        return profiled
    if GRAVITY.index(profiled.status) < GRAVITY.index(traced.status):  # GRAVITY begins with the gravest status
        graver, other, other_name = profiled, traced, "the traces, in which compiled code runs eagerly"
    else:
        graver, other, other_name = traced, profiled, "the profiles of the timed steps"
    reasons = [*graver.reasons, *(clip_message(f"{other_name}: {reason}") for reason in other.reasons[:1])]
    return graver.model_copy(update={"reasons": reasons})


def _combine_validity(first: Validity, second: Validity | None) -> Validity:
    """Return the validity of two kinds of runs together, such as traced and timed runs. It has the worse status, and
    the reasons of that status come first. If both have the same status, the reasons of ``second`` come first. The
    reasons of a PASS are left out beside another status."""
    if second is None:
        return first
    worse, other = sorted((second, first), key=lambda section: GRAVITY.index(section.status))
    reasons = worse.reasons if other.status == "PASS" else dict.fromkeys([*worse.reasons, *other.reasons])
    return Validity(status=worse.status, reasons=list(reasons))
