"""What placebo sessions have shown of a node class: its noise, and how often the gate errs on it.

A placebo session compares a commit with itself, through everything that a pull request goes through; an injected one
is the same with every step of one arm made slower by a known share. What is stored are the pairs' log-ratios and what
each session was said to show; every rate is computed from them again.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.baseline import EntryName, EnvironmentKey, Named, Positive, Provenance, VariantName, canonical
from regbot.records.ledger import Digest, Text
from regbot.records.run import Clock
from regbot.records.verdict import Decision

LogRatios = dict[Annotated[str, Field(pattern="^(median|mean)$")], list[float]]


class PlaceboSession(Record):
    """One session of a commit against itself, as the gate judged it."""

    session: Digest = Field(description="identity: of one session nothing counts twice")
    injected_pct: Annotated[float, Field(ge=0, le=1000)] = Field(
        description="by which head was made slower; 0 for none"
    )
    decision: Decision
    pairs: Annotated[int, Field(ge=0)] = Field(description="that the decision used")
    covered: bool | None = Field(
        description="whether all intervals of the last look held the true effect; None where no look was taken"
    )
    log_ratios: LogRatios = Field(description="log(head / base) of all valid pairs, in session order")


class Calibration(Record):
    """Placebo and injected sessions of one workload on one node class in one environment."""

    schema_id: Literal["regbot/calibration@1"] = Field(default="regbot/calibration@1", alias="schema")
    measured: Text = Field(description="when the first session began, UTC")
    session: Digest = Field(description="identity of all its sessions together")
    workload: EntryName
    variant: VariantName
    shape_version: Positive
    node_class: Named
    world_size: Positive
    steps: Positive
    cut: Annotated[int, Field(ge=0)]
    clock: Clock
    dispatcher: Text
    primary_tests: Positive = Field(description="by which the error of a look was divided")
    environment: EnvironmentKey
    provenance: Provenance
    sessions: Annotated[list[PlaceboSession], Field(min_length=1, max_length=10_000)]

    _measured = field_validator("measured")(canonical)
