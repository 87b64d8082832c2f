"""What placebo sessions say of the gate on a node class, in the few numbers that a verdict cites."""

from typing import Annotated

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Text


class Rate(Record):
    """How often something happened, with its exact 95% interval (Clopper and Pearson)."""

    count: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=0)]
    low: float
    high: float


class Calibrated(Record):
    """What calibrations say of the gate on a node class, as a verdict cites it."""

    measured: Text = Field(description="when the newest placebo session began, UTC")
    pairs: Annotated[int, Field(ge=0)] = Field(description="placebo pairs")
    sd_pct: Annotated[float, Field(ge=0)] = Field(description="of the log-ratio of one placebo pair, by its median")
    sd_low_pct: Annotated[float, Field(ge=0)]
    sd_high_pct: Annotated[float, Field(ge=0)]
    false_flags: Rate = Field(description="placebo sessions that were said to be regressed or improved")
    covered: Rate = Field(description="sessions, injected ones among them, whose intervals held the truth")
    injected_pct: float | None = Field(description="the slowdown that was injected; None where none was")
    found: Rate | None = Field(description="sessions with it that were said to be regressed")
    resampled_false: float | None = Field(
        description="share of sessions resampled from the placebo pairs that are flagged: early, and optimistic"
    )
    contradicted: Text = Field(default="", description="why the gate has no vote here; '' where it has")
