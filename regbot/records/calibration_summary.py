"""Summary of the calibration of a node class, as it appears in a verdict."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from regbot.records.base import Record
from regbot.records.ledger import Text


class Rate(Record):
    """How often something happened, with the exact 95% interval (Clopper and Pearson)."""

    count: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=0)]
    low: float
    high: float


class PairNoise(Record):
    """Noise of a pair on a node class, from stored pairs whose true effect is known or constant."""

    df: PositiveInt = Field(description="number of stored pairs minus number of groups of pairs with the same effect")
    median_sd: NonNegativeFloat = Field(description="sd of the log-ratio of medians of one pair")
    mean_sd: NonNegativeFloat = Field(description="sd of the log-ratio of means of one pair")


class Correlation(Record):
    """Correlation between the log-ratios of two placebo pairs, with Fisher's 95% interval."""

    value: Annotated[float, Field(ge=-1, le=1)]
    low: Annotated[float, Field(ge=-1, le=1)]
    high: Annotated[float, Field(ge=-1, le=1)]
    count: NonNegativeInt = Field(description="number of products of two log-ratios in the estimate")


class ArmLuck(Record):
    """The part of an arm's speed that is drawn by chance, as an sd in percent."""

    sd_pct: Annotated[float, Field(ge=0)]
    low_pct: NonNegativeFloat = Field(description="low end of the 95% interval of sd_pct")
    high_pct: NonNegativeFloat = Field(description="high end of the 95% interval of sd_pct")
    counted_pct: NonNegativeFloat = Field(description="luck that widens intervals; 0 if none is proven, or little")
    draws: PositiveInt = Field(description="draws that were compared: of fresh compiler caches, or of allocations")
    allocations: NonNegativeInt = Field(description="allocations (days and nodes) with enough placebo pairs")
    lasts: bool = Field(description="whether emptied caches do not draw it anew, so that a session draws it once")


class CalibrationSummary(Record):
    """Summary of the calibrations of a node class."""

    measured: Text = Field(description="when the newest placebo session began, UTC")
    pairs: NonNegativeInt = Field(description="number of placebo pairs")
    sd_pct: NonNegativeFloat = Field(description="sd of a placebo pair's log-ratio of medians")
    sd_low_pct: NonNegativeFloat = Field(description="low end of the 95% interval of sd_pct")
    sd_high_pct: NonNegativeFloat = Field(description="high end of the 95% interval of sd_pct")
    false_flags: Rate = Field(description="placebo sessions that the gate called regressed or improved")
    covered: Rate = Field(description="placebo and injected sessions whose intervals contained the true effect")
    injected_pct: float | None = Field(description="the injected slowdown; None where none was injected")
    detected: Rate | None = Field(alias="found", description="injected sessions that the gate called regressed")
    lag_correlation: Correlation | None = Field(None, description="of neighbouring pairs; None if there are too few")
    block_correlation: Correlation | None = Field(None, description="of the two pairs of a block")
    arm_luck: ArmLuck | None = Field(None, description="None if the arms shared compiler caches, or after few draws")
    contradicted: Text = Field("", description="why the gate may not decide on this node class; '' where it may")
