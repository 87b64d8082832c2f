"""Records of the calibration of a node class. A placebo session compares a commit with itself, in the same way as a
check compares a pull request with its base. In an injected session, every step of head is also slowed down by a known
share. All rates are computed from the stored log-ratios and decisions."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from regbot.records.base import Record
from regbot.records.baseline import (
    EntryName,
    EnvironmentKey,
    LogRatios,
    NonEmptyText,
    Positive,
    Provenance,
    VariantName,
    require_canonical_time,
)
from regbot.records.ledger import Digest, Text
from regbot.records.run import Clock
from regbot.records.verdict import Decision


class CalibrationSession(Record):
    """One placebo or injected session, with the gate's decision."""

    session: Digest = Field(description="identity of the session; sessions with the same identity count once")
    injected_pct: Annotated[float, Field(ge=0, le=1000)] = Field(description="slowdown of head; 0 for a placebo")
    decision: Decision
    pairs: NonNegativeInt = Field(description="pairs that the decision used")
    covered: bool | None = Field(description="whether all intervals of the last look contain the true effect")
    log_ratios: LogRatios = Field(description="log(head / base) of all valid pairs, in session order")
    draws: list[PositiveInt] | None = Field(None, description="draw of caches of each pair; None: all share one")


class Calibration(Record):
    """Placebo and injected sessions of one workload on one node class in one environment."""

    schema_id: Literal["regbot/calibration@1"] = Field("regbot/calibration@1", alias="schema")
    measured: Text = Field(description="when the first session began, UTC")
    session: Digest = Field(description="identity of all its sessions together")
    workload: EntryName
    variant: VariantName
    shape_version: Positive
    node_class: NonEmptyText
    world_size: Positive
    steps: Positive
    cut: Annotated[int, Field(ge=0)]
    clock: Clock
    dispatcher: Text
    environment: EnvironmentKey
    provenance: Provenance
    sessions: Annotated[list[CalibrationSession], Field(min_length=1, max_length=10_000)]

    _measured = field_validator("measured")(require_canonical_time)
