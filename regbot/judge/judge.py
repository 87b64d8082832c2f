"""One session of records -> one verdict. Pure and deterministic: the same records always give the same answer.

Sharding is judged on the traces, throughput on the timed runs; either may find that the answer cannot be trusted.
"""

from collections.abc import Iterable

from regbot.config import Config
from regbot.judge.backends import dispatcher_change
from regbot.judge.expect import Expectation
from regbot.judge.sharding import judge_sharding
from regbot.judge.stored_ledger import against_stored
from regbot.judge.throughput import judge_timed
from regbot.judge.validity import examine
from regbot.records.run import Arm
from regbot.records.session import Session
from regbot.records.verdict import GRAVITY, Validity, Verdict, WorkloadVerdict, overall

MESSAGE_CHARACTERS = 4000


def judge(session: Session, config: Config, expectations: Iterable[Expectation] = ()) -> Verdict:
    """The verdict on every workload that was planned; throughput is null for those that were not to be timed."""
    header, rules = session.header, list(expectations)
    plans = {plan.entry: plan for plan in header.timed}
    workloads: list[WorkloadVerdict] = []
    warnings: list[str] = list(header.warnings)
    needed: set[Expectation] = set()
    for name in dict.fromkeys(header.workloads):
        examined = examine(session, name)
        sharding, throughput, validity = None, None, examined.validity
        base, head = examined.base, examined.head
        off = dispatcher_change(base, head) if base is not None and head is not None else None
        if plan := plans.get(name):
            timed = judge_timed(session, plan, (base, head) if base is not None and head is not None else None)
            throughput, validity = timed.throughput, _worse(validity, timed.validity)
            warnings += [f"{name}: {warning}" for warning in timed.warnings]
            if off is None and timed.base is not None and timed.head is not None:
                off = dispatcher_change(timed.base, timed.head)
        if base is not None and head is not None and base.ledger is not None and head.ledger is not None:
            sharding = judge_sharding(
                base.ledger,
                head.ledger,
                config,
                dispatcher=off,
                workload=name,
                expectations=rules,
                configurations_only=_configurations_only(header.base, header.head),
            )
            sharding = sharding.model_copy(update={"variant": head.variant})
            sharding, notes = against_stored(sharding, base, header.stored, config)
            warnings += [f"{name}: {note}" for note in notes]
            needed |= {rule for rule in rules if any(rule.covers(finding, name) for finding in sharding.findings)}
        warnings += [f"{name}: {warning}" for warning in examined.warnings]
        workloads.append(WorkloadVerdict(name=name, sharding=sharding, throughput=throughput, validity=validity))
    warnings += [
        f"--expect {rule}: nothing of that kind was found; remove the rule, or it will cover a later change unseen"
        for rule in rules
        if rule not in needed
    ]
    return Verdict(
        verdict=overall(workloads),
        base=header.base,
        head=header.head,
        workloads=workloads,
        warnings=[warning[:MESSAGE_CHARACTERS] for warning in warnings],
    )


def _worse(traced: Validity, timed: Validity | None) -> Validity:
    """The validity of both halves: the worse status, its reasons first; what the other half found is kept beside."""
    if timed is None:
        return traced
    first, second = sorted((timed, traced), key=lambda section: GRAVITY.index(section.status))
    told = first.reasons if second.status == "PASS" else [*first.reasons, *second.reasons]
    return Validity(status=first.status, reasons=told)


def _configurations_only(base: Arm, head: Arm) -> bool:
    """One commit under two configurations: the difference was asked for."""
    return base.commit == head.commit and base.overrides != head.overrides
