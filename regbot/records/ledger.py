"""The ledger: the collectives that one steady step issues, exact, as kind x mesh axis x count x bytes.

Bytes are those of the tensor on rank 0: the input of all-to-all, reduce-scatter and all-reduce, the output of
all-gather. Groups of size 1 are not collectives and never stand in a ledger.
"""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record

Kind = Literal[
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "permute",
    "send_recv",
    "barrier",
]
Phase = Literal["forward", "backward", "optimizer", "unknown"]
Role = Literal["payload", "control"]
Via = Literal["nccl", "gloo", "deepep", "hybridep", "nccl-ep", "symm-mem", "copy-engine", "xla", "fake"]

Text = Annotated[str, Field(max_length=500)]
Message = Annotated[str, Field(max_length=4000)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Scalar = str | int | float | bool | None
ExposedSeconds = Annotated[float, Field(ge=0, le=1e7)]


class Entry(Record):
    """All collectives of one step that share every word below."""

    kind: Kind
    axis: Text = Field(description="name of the mesh axis, 'a|b' where two axes are the same ranks, else the ranks")
    group_size: Annotated[int, Field(ge=2)]
    dtype: Text
    phase: Phase
    role: Role
    where: Text = Field(
        description="path of the module that issued it, or the op name of a compiled program; '' where none is known"
    )
    via: Via
    count: Annotated[int, Field(ge=1, le=2**53)]
    bytes: Count
    static_count: Count | None = Field(
        default=None, description="lines in a compiled program, where count is executions"
    )
    exposed_s: ExposedSeconds | None = Field(
        default=None, description="seconds that no compute hid, by interval unions; None where the source has no times"
    )
    hidden_s: ExposedSeconds | None = Field(default=None, description="seconds that ran under compute")


class Axis(Record):
    """One mesh axis as rank 0 sees it."""

    size: Annotated[int, Field(ge=1)]
    ranks: Annotated[list[int], Field(max_length=65536)]


class Unclassified(Record):
    """Communication that was seen and could not be told to be a collective of any kind. It is never counted as zero."""

    name: Text = Field(description="kernel, operator or range as the source names it")
    count: Count
    seconds: ExposedSeconds | None = None


class Liveness(Record):
    """Proof that the counter could see: planted collectives, and the sequence numbers where a backend keeps them."""

    planted: Count
    seen: Count
    sequence_advance: Count | None = Field(default=None, description="of all groups over the counted step")
    sequence_counted: Count | None = Field(default=None, description="what the counter saw of the same groups")

    @property
    def proven(self) -> bool:
        return self.planted > 0 and self.seen == self.planted and self.sequence_advance == self.sequence_counted


class Ledger(Record):
    """The collectives of one steady step of one workload at one arm, as rank ``rank`` issues them."""

    schema_id: Literal["regbot/ledger@1"] = Field(default="regbot/ledger@1", alias="schema")
    source: Text = Field(description="how it was counted, e.g. 'dispatch-mode'")
    device: Literal["cpu", "cuda"] | None = Field(default=None, description="what the program was traced or run on")
    scope: Literal["step", "whole"]
    steps: Annotated[int, Field(ge=1)] = Field(description="steps covered; counts are per step where scope is 'step'")
    workload: Text | None = Field(default=None, description="entry name, e.g. 'qwen3-30b-a3b@1/ep'")
    variant: Text | None = None
    world_size: Annotated[int, Field(ge=1)] | None = None
    rank: Annotated[int, Field(ge=0)] = 0
    axes: dict[str, Axis] = Field(default_factory=dict)
    entries: Annotated[list[Entry], Field(max_length=200_000)]
    host_reads: dict[str, Count] | None = Field(
        default=None,
        description="values that the host read from the device in forward and backward, by module; None if unknown",
    )
    rank_digests: dict[str, Digest] = Field(
        default_factory=dict, description="digest of every other rank's entries, by rank, where ranks were run"
    )
    liveness: Liveness | None = None
    program: Digest | None = Field(default=None, description="fingerprint of the dispatched operators")
    config: dict[str, Scalar] = Field(default_factory=dict, description="the resolved configuration")
    software: dict[str, Text] = Field(default_factory=dict, description="versions of what was traced: framework, torch")
    unclassified: Annotated[list[Unclassified], Field(max_length=1000)] = Field(default_factory=list)
    patches: list[Text] = Field(default_factory=list, description="what had to be replaced to count without a GPU")
    guesses: list[Message] = Field(default_factory=list, description="values that depend on data and were guessed")
    warnings: list[Message] = Field(default_factory=list)
