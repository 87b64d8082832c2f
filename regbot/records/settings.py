"""Settings that a verdict depends on. Every session stores them, so that it can be judged again anywhere."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from regbot.records.base import Record
from regbot.records.ledger import PaperGpu


class ShardingThresholds(Record):
    """Thresholds of the sharding verdict."""

    bytes_rise_pct: NonNegativeFloat = Field(5.0, description="more payload bytes of a kind FAIL from this rise on")
    wire_rise_pct: NonNegativeFloat = Field(5.0, description="a finding that adds to it FAILs from this rise on")


class ProgramThresholds(Record):
    """Thresholds of the Program verdict, in percent of the step's smaller amount, and the GPU that a step must fit."""

    device: PaperGpu | None = Field(None, description="GPU that the peak must fit; default: the one of the trace")
    reserve_gb: NonNegativeFloat = Field(6.0, description="of its memory, kept free for CUDA, NCCL and fragmentation")
    flops_pct: NonNegativeFloat = Field(1.0, description="change of the FLOPs that is a finding")
    flops_fail_pct: NonNegativeFloat = Field(5.0, description="more FLOPs FAIL from this rise on")
    peak_pct: NonNegativeFloat = Field(2.0, description="change of the peak memory that is a finding")
    peak_fail_pct: NonNegativeFloat = Field(5.0, description="more peak memory FAILs from this rise on")
    launches_pct: NonNegativeFloat = Field(10.0, description="change of the kernel launches that is a finding")


class WireBandwidths(Record):
    """Bandwidths of the wire-time model per GPU and direction: of a group of ranks within one node, or over several."""

    gpus_per_node: PositiveInt = 8
    node_local_gb_s: PositiveFloat = 450.0
    inter_node_gb_s: PositiveFloat = 50.0


Gate = Literal["pairs", "stored"]
"""Rule that decides on throughput."""


class ThroughputThresholds(Record):
    """Thresholds of the throughput verdict. Percentages are 100 (ratio - 1); decisions use the log scale."""

    threshold_pct: Annotated[float, Field(gt=0, le=50)] = Field(2.0, description="no change within plus and minus it")
    indifference_pct: Annotated[float, Field(gt=0, le=50)] = Field(1.0, description="regressed above it")
    gate: Gate = Field("pairs", description="rule that decides on throughput (docs/configuration.md)")
    screen_bound_pct: Annotated[float, Field(gt=0, le=100)] = Field(5.0, description='what gate = "stored" excludes')

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Check that one interval cannot prove both a regression and no change."""
        if self.indifference_pct > self.threshold_pct:
            raise ValueError(
                f"indifference_pct {self.indifference_pct:g} is above threshold_pct {self.threshold_pct:g}: a change "
                "could count as a regression and still be proven to be none"
            )
        return self
