"""Records of the report of ``baseline refresh``, which updates the stored references."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from regbot.records.base import Record
from regbot.records.baseline import Acceptance, IntervalEstimate
from regbot.records.ledger import Message, Text
from regbot.records.run import Commit
from regbot.records.verdict import Decision, Status


class Drift(Record):
    """State of the monitor for slow creep after tonight's session."""

    value_pct: float = Field(description="cumulative sum (CUSUM) of each night's slowdown above a small slack")
    limit_pct: float = Field(description="sum at which the monitor raises an alarm")
    alarm: bool
    nights: NonNegativeInt = Field(description="number of nights that the monitor has seen")
    correlation: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="of neighbouring nights")
    estimate_pct: float | None = Field(description="estimated creep so far; None without evidence of one")


class WorkloadRefresh(Record):
    """Result of one workload's session of the night: main compared with the anchor's commit. A session of the series
    ``held`` is stored as evidence. ``accepted`` lets a slower session join the rolling reference."""

    name: Text
    variant: Text
    status: Status
    reasons: list[Message]
    anchor: Commit | None = Field(description="the anchor that main was timed beside; None without one")
    decision: Decision | None
    tonight: IntervalEstimate | None = Field(None, description="main compared with the anchor, over tonight's pairs")
    pairs: NonNegativeInt = Field(0, description="number of tonight's pairs")
    since_anchor: IntervalEstimate | None = Field(None, description="the same over the last nights combined")
    budget_pct: float = Field(description="largest slowdown against the anchor that is tolerated, in percent")
    drift: Drift | None = None
    sharding: Status | None = Field(None, description="main's collectives compared with the anchor's")
    series: Literal["rolling", "held"] | None = Field(None, description="to store it in; None where it is not stored")
    accepted: Acceptance | None = None
    not_stored: Message = Field("", description="why the session was not stored although it should be")


class RefreshReport(Record):
    """Output of ``baseline refresh``."""

    schema_id: Literal["regbot/refresh@1"] = Field("regbot/refresh@1", alias="schema")
    status: Status
    commit: Commit = Field(description="of main")
    branch: Text | None = Field(description="branch with the proposal; None without a proposal or branch")
    proposal: Commit | None = Field(description="commit of ``branch`` with the proposed baselines")
    files: list[Text]
    workloads: list[WorkloadRefresh]
    warnings: list[Message] = Field([])
