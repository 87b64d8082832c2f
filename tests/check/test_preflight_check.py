"""Preflight in a check: the configuration that a framework resolved must pass the rules before its ledgers count."""

import pytest

from regbot.judge import judge
from regbot.records.config import FRAMEWORKS, Config
from regbot.records.ledger import Scalar
from regbot.records.run import Backend
from regbot.records.verdict import Verdict
from support.ledger_builder import backend, smoke_arm, smoke_ledger, smoke_run, smoke_session

SOUND: dict[str, Scalar] = {
    "moe_token_dispatcher_type": "alltoall",
    "moe_enable_deepep": False,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "tp_comm_overlap": True,
}
CONFLICT: dict[str, Scalar] = {**SOUND, "moe_enable_deepep": True}
COSTLY: dict[str, Scalar] = {**SOUND, "tensor_model_parallel_size": 1}

CONFLICT_TEXT = "moe_enable_deepep is on, and the dispatcher is not flex"
COST_TEXT = "tp_comm_overlap is on, and Bridge turns it off with a warning"


def check(
    base: dict[str, Scalar],
    head: dict[str, Scalar],
    adapter: str = "megatron",
    dispatchers: tuple[Backend, Backend] | None = None,
) -> Verdict:
    """Return the verdict on two runs that differ only in the resolved configuration and dispatcher."""
    ours, theirs = dispatchers or (backend("alltoall"), backend("alltoall"))
    runs = (
        smoke_run(
            arm,
            smoke_ledger().model_copy(update={"config": config}),
            adapter=adapter,
            backends={"dispatcher": dispatcher},
        )
        for arm, config, dispatcher in ((smoke_arm("base"), base, ours), (smoke_arm("head"), head, theirs))
    )
    return judge(smoke_session(*runs), Config(), [])


def reasons(verdict: Verdict) -> list[str]:
    return verdict.workloads[0].validity.reasons


def preflight(verdict: Verdict) -> list[str]:
    return [warning.partition("preflight")[2] for warning in verdict.warnings if "preflight" in warning]


@pytest.mark.parametrize(
    ("base", "head", "adapter", "invalid", "warning"),
    [
        (SOUND, SOUND, "megatron", "", ""),
        *((SOUND, CONFLICT, adapter, f"preflight of head: {CONFLICT_TEXT}", "") for adapter in FRAMEWORKS),
        *((SOUND, CONFLICT, adapter, "", "") for adapter in ("smoke", "module", "command")),
        (CONFLICT, SOUND, "megatron", "", f" of base, repaired in head: {CONFLICT_TEXT}"),
        (CONFLICT, CONFLICT, "megatron", f"preflight: {CONFLICT_TEXT}", ""),
        (COSTLY, COSTLY, "megatron", "", f": {COST_TEXT}"),
    ],
)
def test_a_conflict_of_head_is_invalid_and_every_other_hit_a_warning(
    base: dict[str, Scalar], head: dict[str, Scalar], adapter: str, invalid: str, warning: str
) -> None:
    verdict = check(base, head, adapter)
    assert verdict.workloads[0].validity.status == ("INVALID" if invalid else "PASS")
    assert not invalid or [reason.startswith(invalid) for reason in reasons(verdict)] == [True]
    assert [text.startswith(warning) for text in preflight(verdict)] == [True] * bool(warning)


def test_a_dispatcher_that_head_alone_does_not_resolve_is_invalid() -> None:
    """The requested dispatcher is a fact of the run, not a key of its configuration."""
    dispatchers = backend("alltoall"), backend("alltoall", requested="hybridep")
    texts = reasons(check(SOUND, SOUND, dispatchers=dispatchers))
    assert any("preflight of head: the workload requests one dispatcher" in reason for reason in texts)
    assert any("requested_dispatcher = hybridep, moe_token_dispatcher_type = alltoall" in reason for reason in texts)
