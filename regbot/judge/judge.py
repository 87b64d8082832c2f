"""Judge one session. The same records always give the same verdict.

Sharding is judged by the traced runs, and throughput by the timed runs. If the step is compiled, the timed runs have
profiles of it, and sharding is also judged by these profiles. Both kinds of runs can make the verdict INVALID.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from regbot.judge.backends import dispatcher_change
from regbot.judge.expectations import Expectation
from regbot.judge.profiled_steps import examine_profiles
from regbot.judge.sharding import judge_sharding
from regbot.judge.stored_comparison import compare_times
from regbot.judge.stored_ledger import compare_head_with_stored, compare_with_stored
from regbot.judge.throughput import judge_timed
from regbot.judge.validity import TracedRuns, examine_traced_runs
from regbot.ledgers.expert import DispatcherChange
from regbot.records.config import Config
from regbot.records.run import Arm
from regbot.records.session import Session, UnconcernedWorkload
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


class _WorkloadResult(NamedTuple):
    """Result of one workload: its verdict, all findings in it, and warnings."""

    verdict: WorkloadVerdict
    findings: list[Finding]
    """Findings of the traces, followed by those of the profiles. The verdict may show only one of these two groups."""
    warnings: list[str]


def judge(session: Session, config: Config, expectations: Iterable[Expectation] = ()) -> Verdict:
    """Return the verdict of a session, with a section for every planned workload."""
    header, rules = session.header, list(expectations)
    workloads: list[WorkloadVerdict] = []
    warnings: list[str] = list(header.warnings)
    used_rules: set[Expectation] = set()
    unconcerned = _index_unconcerned(session)
    for name in dict.fromkeys(header.workloads):
        if name in unconcerned:
            workloads.append(_judge_unconcerned(unconcerned[name]))
            continue
        result = _judge_workload(session, name, config, rules)
        workloads.append(result.verdict)
        warnings += [f"{name}: {warning}" for warning in result.warnings]
        used_rules |= {rule for rule in rules if any(rule.covers(finding, name) for finding in result.findings)}
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


def _judge_workload(session: Session, name: str, config: Config, rules: Sequence[Expectation]) -> _WorkloadResult:
    """Return the result of one workload that was run. Its throughput section is None if it was not planned to be timed.
    ``rules`` are the declared changes (``--expect``).

    The sharding section comes from the traces. If the timed steps are compiled, profiles of them are compared too, and
    both results are combined. If base differs from the stored ledger of its own git tree, a PASS becomes REVIEW. All
    other comparisons with stored sessions and ledgers are only shown beside the verdict.
    """
    header = session.header
    warnings: list[str] = []
    traces = examine_traced_runs(session, name)
    profiles = examine_profiles(session, name, traces)  # None if the step is not compiled
    validity = traces.validity
    if profiles is not None:
        # If the traces failed because the step is compiled, only the profiles count.
        validity = _combine_validity(profiles.validity, None if traces.needs_profile else traces.validity)
    base, head = traces.base, traces.head
    traced_arms = (base, head) if base is not None and head is not None else None
    # Set if both arms request the same dispatcher and only one of them executes it, else None.
    change_of_dispatcher = dispatcher_change(*traced_arms) if traced_arms is not None else None

    throughput, stored_times = None, None
    plan = next((plan for plan in reversed(header.timed) if plan.entry == name), None)  # the last plan counts
    if plan is not None:
        timed = judge_timed(session, plan, traced_arms)
        throughput, validity = timed.throughput, _combine_validity(validity, timed.validity)
        warnings += timed.warnings
        if throughput is not None and throughput.status != "INVALID":
            stored_times, drift_warnings = compare_times(header, plan, session.timed_runs(name))
            warnings += drift_warnings
        if change_of_dispatcher is None and timed.base is not None and timed.head is not None:
            change_of_dispatcher = dispatcher_change(timed.base, timed.head)

    compare = partial(
        _compare_runs,
        config=config,
        change_of_dispatcher=change_of_dispatcher,
        workload=name,
        expectations=rules,
        configurations_only=_is_one_commit_configured_twice(header.base, header.head),
    )
    stored_collectives = None
    sharding = compare(traces)
    if base is not None and head is not None and sharding is not None:
        sharding, stored_warnings = compare_with_stored(sharding, base, header.stored, config)
        warnings += stored_warnings
        stored_collectives = compare_head_with_stored(header, head, config)
    findings = list(sharding.findings) if sharding is not None else []
    if profiles is not None:
        warnings += profiles.warnings
        if (profiles_sharding := compare(profiles)) is not None:
            findings += profiles_sharding.findings
            sharding = _combine_sharding(sharding, profiles_sharding)
    warnings += traces.warnings

    stored = None
    if stored_times is not None or stored_collectives is not None:
        stored = StoredComparison(times=stored_times, collectives=stored_collectives)
    verdict = WorkloadVerdict(name=name, sharding=sharding, throughput=throughput, validity=validity, stored=stored)
    return _WorkloadResult(verdict, findings, warnings)


def _index_unconcerned(session: Session) -> dict[str, UnconcernedWorkload]:
    """Return the workloads that were not run because the change does not affect them, by name. A workload that has runs
    all the same is left out, because its runs are judged."""
    measured = {run.workload for run in session.runs}
    return {workload.entry: workload for workload in session.header.unconcerned if workload.entry not in measured}


def _judge_unconcerned(workload: UnconcernedWorkload) -> WorkloadVerdict:
    """Return the verdict on a workload that was not run. It is PASS if a proof shows that the change cannot affect the
    workload, else INCONCLUSIVE."""
    validity = Validity(status="PASS" if workload.proof is not None else "INCONCLUSIVE", reasons=[workload.reason])
    return WorkloadVerdict(name=workload.entry, sharding=None, throughput=None, validity=validity, unconcerned=True)


def _compare_runs(
    runs: TracedRuns,
    config: Config,
    change_of_dispatcher: DispatcherChange | None,
    workload: str,
    expectations: Sequence[Expectation],
    configurations_only: bool,
) -> Sharding | None:
    """Return the sharding section of the base and head run in ``runs``, None if one of them is missing or has no
    ledger. ``configurations_only``: base and head are one commit with two configurations, so the section only shows
    the differences. ``change_of_dispatcher`` is given if only one arm executes the dispatcher that both
    request, else None."""
    base, head = runs.base, runs.head
    if base is None or head is None or base.ledger is None or head.ledger is None:
        return None
    sharding = judge_sharding(
        base.ledger,
        head.ledger,
        config,
        dispatcher=change_of_dispatcher,
        workload=workload,
        expectations=expectations,
        configurations_only=configurations_only,
    )
    return sharding.model_copy(update={"variant": head.variant, "tier": head.tier})


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


def _is_one_commit_configured_twice(base: Arm, head: Arm) -> bool:
    """Whether only configurations are compared: both arms have the same commit, with different overrides. The
    differences are then intended."""
    return base.commit == head.commit and base.overrides != head.overrides
