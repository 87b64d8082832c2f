"""The settings that a verdict depends on, stored with every session so that it can be judged again anywhere."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regbot.records.base import Record


class Sharding(Record):
    """Thresholds of the sharding verdict."""

    bytes_rise_pct: Annotated[float, Field(ge=0)] = 5.0
    wire_rise_pct: Annotated[float, Field(ge=0)] = 5.0


class Wire(Record):
    """The bandwidths of the wire-time model, in GB/s per GPU and direction, and where nodes end."""

    gpus_per_node: Annotated[int, Field(ge=1)] = 8
    node_local_gb_s: Annotated[float, Field(gt=0)] = 450.0
    inter_node_gb_s: Annotated[float, Field(gt=0)] = 50.0


Gate = Literal["screen", "pairs", "stored"]


class Throughput(Record):
    """The throughput verdict's thresholds. Percentages are 100 (ratio - 1); decisions are made on the log scale."""

    threshold_pct: Annotated[float, Field(gt=0, le=50)] = Field(
        default=2.0, description="no change is proven where the interval lies inside this, both ways"
    )
    indifference_pct: Annotated[float, Field(gt=0, le=50)] = Field(
        default=1.0, description="regressed where the interval lies above it"
    )
    gate: Gate = Field(
        default="screen",
        description="screen: runs of head against stored sessions first, pairs where that does not settle it; pairs: "
        "always pairs; stored: stored sessions alone, which may then fail a change too",
    )
    screen_bound_pct: Annotated[float, Field(gt=0, le=100)] = Field(
        default=5.0, description="a screen passes where slowdowns above this are excluded"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.indifference_pct > self.threshold_pct:
            raise ValueError(
                f"indifference_pct {self.indifference_pct:g} is above threshold_pct {self.threshold_pct:g}: what is "
                "proven to be no change would be larger than what counts as a regression"
            )
        return self
