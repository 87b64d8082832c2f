"""The verdict on one trace of head, beside a base that ran."""

from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.run import Run
from regbot.records.verdict import Validity
from support.judge_cases import A2A, BASE
from support.ledger_builder import smoke_run, smoke_session


def judge_head(head: Run) -> Validity:
    """Return the validity of head's workload. Head failed twice in the same way if it failed, and base ran."""
    same = {"workload": head.workload, "adapter": head.adapter, "shape": head.shape, "variant": head.variant}
    ledger = A2A.model_copy(update={"workload": head.workload, "variant": head.variant})
    heads = [head.model_copy(update={"attempt": attempt}) for attempt in (1, 2)]
    session = smoke_session(smoke_run(BASE, ledger, **same), *heads, workloads=(head.workload,))
    (entry,) = judge(session, Config()).workloads
    return entry.validity
