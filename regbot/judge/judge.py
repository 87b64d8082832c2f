"""One session of records -> one verdict. Pure and deterministic: the same records always give the same answer."""

from collections.abc import Iterable

from regbot.config import Config
from regbot.judge.backends import dispatcher_change
from regbot.judge.expect import Expectation
from regbot.judge.sharding import judge_sharding
from regbot.judge.validity import examine
from regbot.records.run import Arm
from regbot.records.session import Session
from regbot.records.verdict import Verdict, WorkloadVerdict, overall

MESSAGE_CHARACTERS = 4000


def judge(session: Session, config: Config, expectations: Iterable[Expectation] = ()) -> Verdict:
    """The verdict on every workload that was planned. Throughput is not measured by static runs and stays null."""
    header, rules = session.header, list(expectations)
    workloads: list[WorkloadVerdict] = []
    warnings: list[str] = list(header.warnings)
    needed: set[Expectation] = set()
    for name in dict.fromkeys(header.workloads):
        examined = examine(session, name)
        sharding = None
        base, head = examined.base, examined.head
        if base is not None and head is not None and base.ledger is not None and head.ledger is not None:
            sharding = judge_sharding(
                base.ledger,
                head.ledger,
                config,
                dispatcher=dispatcher_change(base, head),
                workload=name,
                expectations=rules,
                configurations_only=_configurations_only(header.base, header.head),
            )
            needed |= {rule for rule in rules if any(rule.covers(finding, name) for finding in sharding.findings)}
        warnings += [f"{name}: {warning}" for warning in examined.warnings]
        workloads.append(WorkloadVerdict(name=name, sharding=sharding, throughput=None, validity=examined.validity))
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


def _configurations_only(base: Arm, head: Arm) -> bool:
    """One commit under two configurations: the difference was asked for."""
    return base.commit == head.commit and base.overrides != head.overrides
