"""The ledger: the exact collectives of one steady step. Bytes are those of the tensor on rank 0: the input for all-to-
all, reduce-scatter and all-reduce, the output for all-gather. Groups of size 1 have none."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from regbot.records.base import Record
from regbot.records.text.clip import LABEL_CHARACTERS, MESSAGE_CHARACTERS

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
CollectiveBackend = Literal[
    "nccl", "gloo", "deepep", "hybridep", "nccl-ep", "uccl", "mori", "trtllm", "symm-mem", "copy-engine", "xla", "fake"
]

Text = Annotated[str, Field(max_length=LABEL_CHARACTERS)]
Message = Annotated[str, Field(max_length=MESSAGE_CHARACTERS)]
SourceLine = Annotated[str, Field(max_length=LABEL_CHARACTERS, pattern=r"^([^:\x00-\x1f]+:[1-9][0-9]{0,8})?$")]
"""'path:number' in the checkout; '' if unknown."""
Count = Annotated[int, Field(ge=0, le=2**53)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GuessKind = Literal["finite", "assertion", "value", "execution"]
"""What a guess assumes. finite: one float is finite. assertion: an assertion on the device holds. value: a value that
can decide a size. execution: a region of code runs in another way than on a real GPU."""
Scalar = str | int | float | bool | None
ExposedSeconds = Annotated[float, Field(ge=0, le=1e7)]


class Entry(Record):
    """All collectives of one step that agree in every field up to ``via``."""

    kind: Kind
    axis: Text = Field(description="name of the mesh axis; 'a|b' for two with the same ranks; else the ranks")
    group_size: Annotated[int, Field(ge=2)]
    dtype: Text
    phase: Phase
    role: Role
    where: Text = Field(description="path of the issuing module, or op name in a compiled program; '' if unknown")
    via: CollectiveBackend
    count: Annotated[int, Field(ge=1, le=2**53)]
    bytes: Count
    line: SourceLine = Field("", description="see ``Ledger.frames``")
    static_count: Count | None = Field(None, description="how many of them a compiled program's text has; else None")
    exposed_s: ExposedSeconds | None = Field(None, description="without overlapping compute; None if unknown")
    hidden_s: ExposedSeconds | None = Field(None, description="seconds in which compute overlapped the collectives")


class Axis(Record):
    """One mesh axis as rank 0 sees it."""

    size: Annotated[int, Field(ge=1)]
    ranks: Annotated[list[int], Field(max_length=65536)] = Field(description="of the process group of rank 0")


class UnclassifiedCommunication(Record):
    """Communication that is no known kind of collective. It is never counted as zero."""

    name: Text = Field(description="name of the kernel, operator or range in the source")
    count: Count
    seconds: ExposedSeconds | None = None


class Liveness(Record):
    """Proof that the counter works: it saw all planted collectives (of a single rank, an operator), and its count
    agrees with the backend's sequence numbers, if any."""

    planted: Count
    seen: Count = Field(description="number of planted collectives that the counter saw")
    sequence_advance: Count | None = Field(None, description="of all sequence numbers in the counted step")
    sequence_counted: Count | None = Field(None, description="collectives of these groups that the counter saw")

    @property
    def proven(self) -> bool:
        return self.planted > 0 and self.seen == self.planted and self.sequence_advance == self.sequence_counted


FlopClass = Literal["matmul", "grouped", "attention", "other"]
"""matmul: matrix products. grouped: products of many small matrices in one kernel, such as grouped_mm."""
WaitKind = Literal["read", "size", "synchronize", "event"]
"""read: a value read by the host. size: an output size that depends on data, such as nonzero's."""
HolderKind = Literal["parameter", "gradient", "optimizer", "activation", "temporary", "other"]
"""activation: kept from forward for backward. other: kept from before the step, and none of the others."""


class ComputeRow(Record):
    """All kernels of one step that agree in every field up to ``line``."""

    flop_class: FlopClass
    dtype: Text = Field(description="of the first floating-point input, such as bfloat16")
    phase: Phase
    where: Text = Field(description="path of the module; '' if unknown")
    line: SourceLine = ""
    flops: Count
    recomputed_flops: Count = Field(0, description="part of flops that repeats work of the forward")
    bytes: Count = Field(description="that the kernels read and write")
    launches: Count


class HostWait(Record):
    """Waits of the host for the device, equal in every field up to ``line``."""

    kind: WaitKind
    phase: Phase
    where: Text
    line: SourceLine = ""
    count: Annotated[int, Field(ge=1, le=2**53)]


class Holder(Record):
    """Storages that are live at the peak of the step, equal in every field up to ``line``."""

    kind: HolderKind
    where: Text
    line: SourceLine = ""
    bytes: Count = Field(description="allocated, each storage rounded up to 512")
    count: Count


class Program(Record):
    """The Program of one step. ``flops`` is at least the true number where ``without_formula`` names operators."""

    flops: Count
    flops_by: dict[FlopClass, Count]
    bytes_moved: Count = Field(description="bytes that kernels read and write")
    launches: Count = Field(description="number of kernels")
    recomputed_flops: Count = 0
    without_formula: dict[Text, Count] = Field({}, description="operators whose FLOPs are unknown, with their number")
    peak_bytes: Count = Field(description="most allocated bytes in the step")
    peak_phase: Phase = "unknown"
    peak_where: Text = ""
    live_by: dict[HolderKind, Count] = Field({}, description="live bytes at the peak")
    holders: Annotated[list[Holder], Field(max_length=10)] = Field([], description="largest first")
    live_curve: Annotated[list[tuple[Phase, Count]], Field(max_length=400)] = Field(
        [], description="the highest live bytes in each of equal parts of the step's kernels, in order"
    )
    rows: Annotated[list[ComputeRow], Field(max_length=100_000)] = Field([])
    waits: Annotated[list[HostWait], Field(max_length=20_000)] = Field([])

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        """Check that no part is more than its whole, because the differences and the sums are amounts too."""
        flops = [self.flops, *(row.flops for row in self.rows)]
        recomputed = [self.recomputed_flops, *(row.recomputed_flops for row in self.rows)]
        if any(part > whole for part, whole in zip(recomputed, flops, strict=True)):
            raise ValueError("recomputed_flops is more than flops")
        for name, parts, whole in (
            ("flops", flops[1:], self.flops),
            ("recomputed_flops", recomputed[1:], self.recomputed_flops),
            ("bytes", (row.bytes for row in self.rows), self.bytes_moved),
            ("launches", (row.launches for row in self.rows), self.launches),
            ("waits", (wait.count for wait in self.waits), 2**53),
            ("without_formula", self.without_formula.values(), 2**53),
        ):
            if sum(parts) > whole:
                raise ValueError(f"the sum of {name} is more than the total")
        return self

    @property
    def host_waits(self) -> int:
        return sum(wait.count for wait in self.waits)


class Frame(Record):
    """The function around a source line, and the lines that called it."""

    function: Text
    last_line: Count = Field(0, description="of the call, which may have several lines; 0 if unknown")
    function_lines: tuple[Count, Count] = Field((0, 0), description="first and last line of the function")
    callers: Annotated[list[SourceLine], Field(max_length=32)] = Field(
        [], description="'path:number' in the checkout, of each call from the inside out"
    )


PaperGpu = Literal["h100", "h200", "b200", "a100", "mi300x"]
"""GPUs that a paper GPU can imitate. ``guest/regbot_guest/paper/gpus.py`` has their data."""
DEFAULT_PAPER_GPU: PaperGpu = "h100"
GPU_MEMORY_BYTES: Mapping[PaperGpu, int] = {
    "h100": 85_031_124_992,
    "h200": 150_110_011_392,
    "b200": 191_500_000_000,
    "a100": 85_097_971_712,
    "mi300x": 206_141_652_992,
}
"""Memory of each GPU, as the driver reports it: the same as in ``guest/regbot_guest/paper/gpus.py``."""


class Ledger(Record):
    """The collectives of one steady step of one workload at one arm, as rank ``rank`` issues them."""

    schema_id: Literal["regbot/ledger@1"] = Field("regbot/ledger@1", alias="schema")
    source: Text = Field(description="how it was counted, e.g. 'dispatch-mode'")
    device: Literal["cpu", "cuda"] | None = Field(None, description="device of the traced or executed program")
    gpu: PaperGpu | None = Field(None, description="GPU that the trace's paper GPU imitated")
    scope: Literal["step", "whole"] = Field(description="whole: of a file, whose number of steps may be unknown")
    steps: PositiveInt = Field(description="number of counted steps; the counts of scope 'step' are divided by it")
    workload: Text | None = Field(None, description="entry name, e.g. 'qwen3-30b-a3b@1/ep'")
    variant: Text | None = None
    world_size: PositiveInt | None = Field(None, description="number of all ranks; null if unknown")
    rank: NonNegativeInt = Field(0, description="the rank whose collectives were counted")
    axes: dict[str, Axis] = Field({}, description="axes of the mesh, by name")
    entries: Annotated[list[Entry], Field(max_length=200_000)]
    rank_digests: dict[str, Digest] = Field({}, description="digests of the entries of the other ranks, by rank")
    liveness: Liveness | None = None
    fingerprint: Digest | None = Field(None, description="hash of the dispatched operators")
    program: Program | None = Field(None, description="what else the step does; None if it was not observed")
    frames: Annotated[dict[SourceLine, Frame], Field(max_length=50_000)] = Field(
        {},
        description="by source line: 'path:number' of the innermost frame in the checkout, relative to it; of a "
        "backward without such a frame, the line of the forward that it undoes",
    )
    config: dict[str, Scalar] = Field({}, description="the resolved configuration")
    software: dict[str, Text] = Field({}, description="versions of framework and torch")
    unclassified: Annotated[list[UnclassifiedCommunication], Field(max_length=1000)] = Field([])
    patches: list[Text] = Field([], description="differences from a run on GPUs, such as parts that were replaced")
    guesses: list[Message] = Field([], description="guessed values that depend on data")
    guess_kinds: dict[Message, GuessKind] = Field({}, description="kind of a guess; without one it may decide a size")
    warnings: list[Message] = Field([])

    def without_lines(self) -> "Ledger":
        """Return the ledger without source lines. Entries and rows that differ only by their line become one."""
        program = self.program
        if program is not None:
            holders = sorted(_merge(program.holders), key=lambda holder: (-holder.bytes, holder.kind, holder.where))
            rows, waits = _merge(program.rows), _merge(program.waits)
            program = program.model_copy(update={"rows": rows, "waits": waits, "holders": holders})
        return self.model_copy(update={"entries": _merge(self.entries), "frames": {}, "program": program})

    def relative_to(self, root: str) -> "Ledger":
        """Return the ledger with lines relative to the folder ``root``, and without lines elsewhere."""
        prefix = root.rstrip("/") + "/"

        def shorten(line: str) -> str:
            return line.removeprefix(prefix) if line.startswith(prefix) else ""

        frames = {
            shorten(line): frame.model_copy(update={"callers": list(filter(None, map(shorten, frame.callers)))})
            for line, frame in self.frames.items()
            if shorten(line)
        }
        entries = [entry.model_copy(update={"line": shorten(entry.line)}) for entry in self.entries]
        return self.model_copy(update={"entries": entries, "frames": frames})


Row = TypeVar("Row", bound=Record)
_SUMMED_FIELDS = {"count", "bytes", "static_count", "exposed_s", "hidden_s", "flops", "recomputed_flops", "launches"}


def _merge(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without their lines. Those that differ only by their line become one."""
    groups: dict[Row, list[Row]] = {}
    for row in rows:
        key = row.model_copy(update={"line": "", **dict.fromkeys(_SUMMED_FIELDS & type(row).model_fields.keys())})
        groups.setdefault(key, []).append(row)
    return [key.model_copy(update=_sum_fields(rows)) for key, rows in groups.items()]


def _sum_fields(rows: Sequence[Record]) -> dict[str, float | None]:
    names = _SUMMED_FIELDS & type(rows[0]).model_fields.keys()
    values = {name: [getattr(row, name) for row in rows] for name in names}
    return {name: None if None in numbers else sum(numbers) for name, numbers in values.items()}
