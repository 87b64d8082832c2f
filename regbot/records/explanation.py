"""What one step of one workload spends, by module, and what it has that its shape does not need."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from regbot.records.base import Record
from regbot.records.ledger import Count, Kind, PaperGpu, Phase, Program, Text
from regbot.records.text.clip import MESSAGE_CHARACTERS


class ModuleShare(Record):
    """What all modules with one template, such as ``layers.*.moe``, spend together in one step of one rank."""

    where: Text = Field(description="template of the module paths; '' for work outside of any module")
    line: Text = Field("", description="the source line with most of its FLOPs, else of its bytes; '' if unknown")
    flops: Count = 0
    recomputed_flops: Count = Field(0, description="part of flops that repeats work of the forward")
    bytes_moved: Count = Field(0, description="that its kernels read and write")
    launches: Count = 0
    waits: Count = Field(0, description="waits of the host for the device")
    collectives: Count = Field(0, description="number of collectives")
    collective_bytes: Count = 0


class CollectiveShare(Record):
    """Collectives of one kind, axis and phase that one source line issues."""

    kind: Kind
    axis: Text
    phase: Phase
    where: Text
    line: Text = ""
    count: Count
    bytes: Count
    wire_s: float | None = Field(None, description="seconds by the model of wire time; None for control exchanges")


class Remark(Record):
    """Something that the step has and its shape does not need. A remark is no verdict."""

    pattern: Text
    where: Text = ""
    line: Text = ""
    text: Annotated[str, Field(max_length=MESSAGE_CHARACTERS)]


class Explanation(Record):
    """Output of ``regbot explain``."""

    schema_id: Literal["regbot/explanation@1"] = Field("regbot/explanation@1", alias="schema")
    workload: Text
    variant: Text
    world_size: PositiveInt
    rank: Count = 0
    gpu: PaperGpu | None = None
    program: Program | None = Field(
        None, description="without rows; waits by module template and line. None if the trace has no Program"
    )
    modules: list[ModuleShare] = Field([], description="most FLOPs first")
    collectives: list[CollectiveShare] = Field([], description="most bytes first")
    remarks: list[Remark] = Field([])
    patches: list[Text] = Field([], description="differences from a run on GPUs, such as parts that were replaced")


class ExplainedPair(Record):
    """The steps of two commits side by side, of one workload."""

    base: Explanation
    head: Explanation
    changes: list[Annotated[str, Field(max_length=MESSAGE_CHARACTERS)]] = Field(
        [], description="what a check would say"
    )


class ExplainedChange(Record):
    """Output of ``regbot explain A B``."""

    schema_id: Literal["regbot/explained-change@1"] = Field("regbot/explained-change@1", alias="schema")
    pairs: list[ExplainedPair]
    untraced: list[Annotated[str, Field(max_length=MESSAGE_CHARACTERS)]] = Field([], description="with the reason")
