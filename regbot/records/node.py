"""Records of the reference probe, which measures how fast a node runs fixed operations."""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Message, Text

MAX_HOSTS = 10_000

ProbeSeconds = Annotated[float, Field(gt=0, le=1e4)]
Measure = Literal["gemm", "local_all_to_all", "all_to_all", "copy"]
"""gemm: a matrix product. local_all_to_all: among the ranks of one host. all_to_all: among those of all hosts."""


class RepeatedTiming(Record):
    """Seconds of a repeated measurement."""

    n: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="number of repetitions")
    median_s: ProbeSeconds
    mad_s: Annotated[float, Field(ge=0, le=1e4)] = Field(description="median absolute deviation")
    fast_s: ProbeSeconds = Field(description="10th percentile of the repetitions")


class Sizes(Record):
    """Sizes of the probe's computations and transfers."""

    gemm: Annotated[int, Field(ge=8, le=65536)] = Field(description="rows and columns of square matrices")
    dtype: Literal["bfloat16", "float32"]
    all_to_all_bytes: Annotated[int, Field(ge=64, le=2**40)] = Field(description="bytes that each rank sends")
    copy_bytes: Annotated[int, Field(ge=64, le=2**40)]


class _Timings(Record):
    def get_timing(self, measure: Measure) -> RepeatedTiming | None:
        """Return the timing of one measurement; None where the probe did not make this measurement."""
        timing: RepeatedTiming | None = getattr(self, "copy_" if measure == "copy" else measure)
        return timing


class RawNodeProbe(_Timings):
    """Result of one rank. ``refusal`` says why it could not measure; '' if it could."""

    schema_id: Literal["regbot/node-probe-raw@1"] = Field("regbot/node-probe-raw@1", alias="schema")
    request: Text = Field(description="the request's nonce")
    rank: Annotated[int, Field(ge=0, le=10_000_000)]
    refusal: Message = ""
    device: Literal["cpu", "cuda"] | None = None
    device_name: Text = ""
    driver: Text | None = None
    torch: Text = ""
    gemm: RepeatedTiming | None = None
    local_all_to_all: RepeatedTiming | None = Field(None, description="None for a host of one rank")
    all_to_all: RepeatedTiming | None = Field(None, description="None where all ranks are on one host")
    copy_: RepeatedTiming | None = Field(None, alias="copy")


class NodeProbe(_Timings):
    """One probe of one node. Each measurement is that of the node's slowest rank."""

    host: Text
    unix_s: Annotated[float, Field(ge=0, le=1e11)] = Field(description="by the clock of the requesting machine")
    driver: Text | None = Field(description="'none' where there are no GPUs")
    container: Text | None
    software: Text = Field(description="version of torch, which supplies the kernels")
    device_name: Text
    ranks: Annotated[int, Field(ge=1, le=10_000_000)] = Field(description="number of ranks on this host")
    hosts: Annotated[list[Text], Field(min_length=1, max_length=MAX_HOSTS)] = Field(description="by rank")
    sizes: Sizes
    gemm: RepeatedTiming
    local_all_to_all: RepeatedTiming | None = Field(description="None for a host of one rank")
    all_to_all: RepeatedTiming | None = Field(description="None where all ranks are on one host")
    copy_: RepeatedTiming = Field(alias="copy")
    disturbance: Message = Field("", description="other work or a fault during the probe, so that it is not judged")


class NodeHistory(Record):
    """The last probes of every node, oldest first. The cache folder has one such file."""

    schema_id: Literal["regbot/node-history@1"] = Field("regbot/node-history@1", alias="schema")
    probes: list[NodeProbe] = Field([])
