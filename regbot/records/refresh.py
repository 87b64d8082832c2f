"""What a refresh of the stored references found and proposes."""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import Acceptance
from regbot.records.ledger import Message, Text
from regbot.records.run import Commit
from regbot.records.verdict import Decision, Status


class Span(Record):
    """An estimate with its interval in percent; positive means slower."""

    estimate_pct: float
    low_pct: float
    high_pct: float


class Drift(Record):
    """Where the monitor of slow creep stands after this night."""

    value_pct: float = Field(description="the sum of what the nights showed beyond the slack")
    limit_pct: float = Field(description="at which it is an alarm")
    alarm: bool
    nights: Annotated[int, Field(ge=0)]
    estimate_pct: float | None = Field(description="the creep so far; None where nothing speaks for one")


class RefreshedWorkload(Record):
    """One workload: main against the anchor's commit, and what becomes of the session."""

    name: Text
    variant: Text
    status: Status
    reasons: list[Message]
    anchor: Commit | None = Field(description="that main was run beside; None where there was none")
    decision: Decision | None
    tonight: Span | None = None
    pairs: Annotated[int, Field(ge=0)] = 0
    since_anchor: Span | None = Field(default=None, description="over the last nights together")
    budget_pct: float
    drift: Drift | None = None
    environment_shift: Span | None = Field(
        default=None, description="the anchor's commit here against the same in the environment stored before"
    )
    environment_changes: list[Message] = Field(default_factory=list)
    sharding: Status | None = Field(default=None, description="main's collectives against the anchor's")
    series: Literal["rolling", "held"] | None = Field(
        default=None, description="as what the session is proposed to be stored; None where it is not"
    )
    accepted: Acceptance | None = None


class Refreshed(Record):
    """What ``baseline refresh`` prints."""

    schema_id: Literal["regbot/refresh@1"] = Field(default="regbot/refresh@1", alias="schema")
    status: Status
    commit: Commit = Field(description="of main")
    branch: Text | None = Field(description="with the proposal; None where there is nothing to propose, or no branch")
    proposal: Commit | None = Field(description="the branch's commit")
    files: list[Text]
    workloads: list[RefreshedWorkload]
    warnings: list[Message] = Field(default_factory=list)
