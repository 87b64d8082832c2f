"""The verdict: per workload did the sharding change, did throughput change, can the answer be trusted."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Kind, Message, Scalar, Text
from regbot.records.run import Arm

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "REVIEW"]

EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "REVIEW": 5}
USAGE_ERROR = 2


class Volume(Record):
    """Count and bytes of one kind in one step."""

    count: int
    bytes: int


class Finding(Record):
    """One thing that changed, with the name of its pattern and what that means."""

    pattern: Text
    status: Status
    axis: Text
    base: dict[Kind, Volume]
    head: dict[Kind, Volume]
    text: Message
    modules: list[Text] = Field(default_factory=list, description="where, layer numbers as '*', at most a few")
    accepted: Message | None = Field(default=None, description="the reason somebody declared with --expect")


class Wire(Record):
    """Modelled wire time of one step. A model that ranks, never a measurement."""

    base_s: float
    head_s: float


class Roles(Record):
    """Counts of one kind."""

    payload: int
    control: int


class Sharding(Record):
    """Did the sharding change?"""

    status: Status
    reasons: list[Message]
    findings: list[Finding] = Field(default_factory=list)
    base: dict[Kind, Roles] = Field(default_factory=dict)
    head: dict[Kind, Roles] = Field(default_factory=dict)
    source: Text
    identical_program: bool = False
    wire: Wire | None = None
    config_changes: dict[str, tuple[Scalar, Scalar]] = Field(default_factory=dict)


class LedgerDiff(Sharding):
    """What ``ledger diff`` prints: two ledgers compared, without a check around them."""

    schema_id: Literal["regbot/ledger-diff@1"] = Field(default="regbot/ledger-diff@1", alias="schema")


class Throughput(Record):
    """Did throughput change? The static half leaves it null; the fields of a measured one come with it."""

    status: Status
    reasons: list[Message]


class Validity(Record):
    """Can the answer be trusted?"""

    status: Status
    reasons: list[Message]


class WorkloadVerdict(Record):
    """The verdict on one workload entry."""

    name: Text
    sharding: Sharding | None
    throughput: Throughput | None
    validity: Validity


class Verdict(Record):
    """The answer to one check."""

    schema_id: Literal["regbot/verdict@1"] = Field(default="regbot/verdict@1", alias="schema")
    verdict: Status
    base: Arm
    head: Arm
    workloads: list[WorkloadVerdict]
    warnings: list[Message] = Field(default_factory=list)


def overall(workloads: Iterable[WorkloadVerdict]) -> Status:
    """FAIL of sharding or of correctness, then INVALID, FAIL of throughput, REVIEW, INCONCLUSIVE, PASS.

    A verdict on nothing is INVALID: a gate that measured nothing is never green.
    """
    entries = list(workloads)
    sharding = {entry.sharding.status for entry in entries if entry.sharding}
    validity = {entry.validity.status for entry in entries}
    throughput = {entry.throughput.status for entry in entries if entry.throughput}
    everything = sharding | validity | throughput
    unmeasured = any(entry.sharding is None and entry.throughput is None for entry in entries)
    if "FAIL" in sharding | validity:
        return "FAIL"
    if not entries or unmeasured or "INVALID" in everything:
        return "INVALID"
    if "FAIL" in throughput:
        return "FAIL"
    for status in ("REVIEW", "INCONCLUSIVE"):
        if status in everything:
            return status
    return "PASS"
