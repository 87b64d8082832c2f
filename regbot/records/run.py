"""Records of a run, which is one launch of a workload at one arm, and the unit of replication. The process under test
writes a ``RawRun``, which is trusted only as far as it can be checked. The engine converts it into a ``Run``, with the
arm, its own clock, and the outcome as seen from outside the process."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from regbot.records.base import Record
from regbot.records.crash import Crash
from regbot.records.hang import Hang
from regbot.records.health import Health
from regbot.records.ledger import Axis, Count, Digest, Ledger, Message, Scalar, Text
from regbot.records.node import NodeProbe

Tier = Literal["static", "timed"]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Outcome = Literal["ok", "crashed", "hung", "no_record", "bad_record", "refused", "skipped", "short", "diverged", "lost"]
"""no_record, bad_record: it ended without a record, or with one that cannot be used. refused: the guest reported that
this cannot be measured. skipped: the same arm had hung before. short: fewer steps than requested. diverged: a loss was
not finite, or the optimizer skipped steps. lost: the node or its reservation was lost."""
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
GuestClock = Literal["perf_counter", "cuda_events"]
Clock = Literal["perf_counter", "cuda_events", "log"]
"""Source of step times. ``log``: the training code prints its step times, one series for all ranks."""


class Arm(Record):
    """One side of a comparison: a revision plus configuration overrides. ``tree`` is the git tree of ``commit``."""

    name: Literal["base", "head"]
    revision: Text = Field(description="as the user gave it")
    commit: Commit
    tree: Commit
    subject: Text = Field("", description="first line of the commit message; written by the PR's author")
    overrides: dict[str, Scalar] = Field({})
    behaviour: Digest | None = Field(
        None, description="of head: digest of all changes that may affect a run; None if unknown"
    )

    def behaves_like(self, other: "Arm") -> bool:
        """Whether this arm runs the same code and overrides as ``other``, which may be an arm of another session."""
        same_code = self.tree == other.tree or (self.behaviour is not None and self.behaviour == other.behaviour)
        return same_code and self.overrides == other.overrides


class Backend(Record):
    """An implementation that a library may replace silently, such as the dispatcher."""

    requested: Text = Field(description="what the configuration requests")
    resolved: Text = Field(description="what regbot chose on this machine before the step")
    executed: Text = Field(description="what ran in the step")
    evidence: Message = Field(description="how ``executed`` is known")


class FileLines(Record):
    """Lines of functions, as pairs of the first and the last one. Lines of modules and classes are in neither list."""

    ran: list[tuple[Count, Count]]
    idle: list[tuple[Count, Count]]


class CodeProof(Record):
    """Which code really ran: the source folder of each watched package, and a hash of every loaded file."""

    watched: dict[str, Text] = Field(description="package of the checkout -> folder in the worktree that it came from")
    foreign: dict[str, Text] = Field(description="package of the checkout -> path outside the worktree; must be empty")
    files: dict[str, Digest] = Field(description="loaded source file -> hash without comments and docstrings")
    lines: dict[str, FileLines] = Field({}, description="of loaded files; empty before Python 3.12")


class Environment(Record):
    """The software environment of a run."""

    python: Text
    torch: Text | None
    platform: Text
    packages: Digest = Field(description="hash over all installed distributions and versions")
    toolkit: Text | None = Field(None, description="that torch was built with: 'cuda 13.0'; 'none' for a CPU build")
    nccl: Text | None = Field(None, description="NCCL or RCCL version; 'none' where torch has none")
    jax: Text | None = Field(None, description="version of jax, for a framework on jax; None for torch")
    jaxlib: Text | None = Field(None, description="version of jaxlib, which has the compiler of jax")
    variables: Digest | None = Field(None, description="hash over the variables that affect speed, at the start")
    pinning: Literal["numa", "launcher", "off", "unknown"] | None = Field(
        None, description="who chose the cores of a rank with a GPU; unknown: the GPU's own cores are; None: no GPU"
    )
    model: Digest | None = Field(None, description="hash of regbot's own model code in the timed steps; else None")


class Refusal(Record):
    """Why the guest cannot measure. ``where`` is the failing line of the code under test."""

    kind: Text = Field(description="such as 'no_torch'; 'code' if the code under test failed")
    message: Message
    where: Text = ""
    crash: Crash | None = Field(None, description="traceback of an error in the code under test (kind 'code')")


class MeshAxis(Record):
    """One axis of the device mesh that a program was compiled for."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")] = Field(
        description="'ep' for the axis of the experts, else regbot's or the framework's name"
    )
    size: Annotated[int, Field(ge=2, le=65536)]


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CompiledProgram(Record):
    """A compiled program that the guest wrote beside its record. The trusted side counts collectives in its text."""

    program: FileName = Field(description="file in the record folder: optimized HLO text of the train step")
    planted: FileName = Field(description="file with a program of known collectives, compiled in the same process")
    target: Literal["cpu"] = Field(description="kind of device that it was compiled for")
    mesh: Annotated[list[MeshAxis], Field(max_length=16)] = Field(description="the slowest-varying axis first")
    config: dict[str, Scalar] = Field({}, description="the resolved configuration")
    software: dict[str, Text] = Field({})
    patches: list[Text] = Field([], description="changes that were needed to compile without accelerators")
    warnings: list[Message] = Field([])


class Profile(Record):
    """Profile of steps that could not be counted, because their code is compiled or captured in CUDA graphs."""

    reason: Message = Field(description="why no step was counted")
    problem: Message = Field("", description="why the profile gave no ledger; '' if it gave one")


class RawProfile(Profile):
    """What a rank reports about its profiled steps. Only rank 0 writes trace files. The trusted half reads them."""

    trace: FileName | None = Field(None, description="file in the record folder: Kineto trace of the steps")
    planted_trace: FileName | None = Field(None, description="file with a trace of the planted collectives")
    planted: Count = Field(0, description="number of planted collectives")
    sequence_advances: Annotated[list[Count], Field(max_length=100)] | None = Field(None, description="of each step")
    axes: dict[str, Axis] = Field({})
    config: dict[str, Scalar] = Field({}, description="the resolved configuration")
    software: dict[str, Text] = Field({})


class RankSteps(Record):
    """Measurements of one rank for every step, warm-up included, in lists of equal lengths. If only a step log is
    known, all but ``step_s`` are empty."""

    step_s: list[Seconds]
    cpu_s: list[Seconds] = Field(description="CPU seconds of the process, all its threads")
    wait_s: list[Seconds] = Field(description="seconds in collectives: of the host on a CPU, of the stream on a GPU")
    overlapped_s: list[Seconds] | None = Field(None, description="of collectives on other streams; None without GPUs")
    memory_bytes: list[Bytes] = Field(description="after each step: resident on a CPU, allocated on a GPU")
    peak_bytes: Bytes = Field(description="peak: resident memory on a CPU, allocated memory on a GPU; 0 if unknown")


class Timing(Record):
    """The step times of one run, as the trusted side computes them. A step's time is the slowest rank's seconds."""

    requested_steps: PositiveInt = Field(alias="asked", description="warm-up included")
    cut: NonNegativeInt = Field(description="leading warm-up steps, which are left out")
    method: Text = Field(description="how the cut was determined")
    clock: Clock
    step_s: list[Seconds] = Field(description="per step, the slowest rank's seconds, warm-up included")
    ranks: dict[str, RankSteps]
    harness_s: Seconds | None = Field(None, description="all steps together by the harness's own clock")
    harness_steady_s: Seconds | None = Field(None, description="the steps after the cut, by the same clock")
    memory_peak_bytes: Bytes = Field(description="largest of all ranks; 0 if unknown")
    memory_slope_bytes: float = Field(description="growth per steady step by least squares, largest of all ranks")
    tokens_per_expert: list[Bytes] = Field([], description="in one step, all ranks and layers; [] if unknown")
    dropped_tokens: Bytes | None = Field(None, description="tokens that were dropped in the same step; None if unknown")
    skipped_steps: Bytes = Field(0, description="number of steps in which the optimizer made no update")

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        """Check that every rank has a value for every step, and that ``step_s`` has the slowest rank's seconds."""
        if not self.ranks:
            raise ValueError("no rank has step times")
        for rank, steps in self.ranks.items():
            other_lists: list[Sequence[float]] = [steps.cpu_s, steps.wait_s, steps.memory_bytes]
            if steps.overlapped_s is not None:
                other_lists.append(steps.overlapped_s)
            if self.clock == "log":  # a step log gives step times only, so the other lists may be empty
                other_lists = [values for values in other_lists if values]
            for values in (steps.step_s, *other_lists):
                if len(values) != len(self.step_s):
                    raise ValueError(f"rank {rank} has {len(values)} values for {len(self.step_s)} steps")
            if not all(seconds > 0 for seconds in steps.step_s):
                raise ValueError(f"rank {rank} has a step that took no time")
        steps_of_ranks = zip(*(rank.step_s for rank in self.ranks.values()), strict=True)
        if self.step_s != [max(seconds) for seconds in steps_of_ranks]:
            raise ValueError("step_s is not the slowest rank's")
        return self

    @property
    def steady_s(self) -> list[float]:
        """Seconds of the slowest rank in every step after the cut."""
        return self.step_s[self.cut :]


class Position(Record):
    """A block, and a slot in it. Slots 0 and 1 of a block are one pair, slots 2 and 3 are the other."""

    block: NonNegativeInt = Field(description="from 1; 0 for the discarded warm-up launches and for runs of head alone")
    slot: Annotated[int, Field(ge=0, le=3)] = Field(description="in the block; of head alone, 0 is the warm-up launch")
    order: Literal["ABBA", "BAAB", "head"] = Field(description="A is base; head: runs of head alone, for gate = stored")
    draw: PositiveInt | None = Field(None, description="number of the fresh compiler caches; None for the worktree's")


class Node(Record):
    """The machine that a run was timed on. Both runs of a pair are on the same node."""

    name: Text
    node_class: Text = Field(description="hardware that determines speed, as text")
    cores: Annotated[int, Field(ge=1)]
    gpus: list[Text] = Field([])
    driver: Text | None = Field(None, description="driver of the GPUs; 'none' for a machine without GPUs")
    container: Text | None = Field(None, description="digest of the image that the run used; None if unknown")


class Allocation(Record):
    """The nodes that an engine gave to a run, and its confinement there."""

    engine: Text
    job: Text = Field("", description="job of the scheduler; '' without a scheduler")
    hosts: Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(description="in the order of ranks")
    queued_s: Seconds = Field(0.0, description="seconds of waiting for the nodes; they count towards no budget")
    sandbox: Text = Field("", description="sandbox that confined the code under test; '' without one")


class RawRun(Record):
    """The guest's own record of one run. Every rank writes one."""

    schema_id: Literal["regbot/raw-run@1"] = Field("regbot/raw-run@1", alias="schema")
    request: Text = Field(description="the request's nonce, which reveals an old or foreign record")
    workload: Text
    variant: Text
    rank: Annotated[int, Field(ge=0)]
    ledger: Ledger | None = None
    compiled: CompiledProgram | None = Field(None, description="replaces ``ledger`` where steps are compiled ahead")
    profile: RawProfile | None = Field(None, description="replaces ``ledger`` if no step can be counted")
    loss: list[float | None] = Field([], description="of each step, null if not finite; [] in a trace without values")
    steps: RankSteps | None = None
    clock: GuestClock = "perf_counter"
    tokens_per_expert: list[Bytes] = Field([], description="tokens of this rank to each expert in the counted step")
    dropped_tokens: Bytes | None = None
    skipped_steps: Bytes = 0
    backends: dict[str, Backend] = Field({})
    code: CodeProof | None = None
    environment: Environment | None = None
    peak_rss_bytes: int | None = None
    refusal: Refusal | None = None
    warnings: list[Message] = Field([])


class Run(Record):
    """One launch, as the trusted side recorded it."""

    schema_id: Literal["regbot/run@1"] = Field("regbot/run@1", alias="schema")
    arm: Arm
    workload: Text = Field(description="entry of the verdict, e.g. 'qwen3-30b-a3b@1/ep'")
    adapter: Text
    shape: Text = Field(description="shape and version, e.g. 'qwen3-30b-a3b@1'")
    variant: Text
    tier: Tier
    attempt: PositiveInt = 1
    outcome: Outcome
    reason: Message = Field("", description="why the outcome is not ok, and what to do")
    refusal: Text | None = Field(None, description="kind of refusal, for refused traces")
    exit_code: int | None = None
    wall_s: Annotated[float, Field(ge=0)]
    started_unix_s: Annotated[float, Field(ge=0, le=1e11)] | None = Field(None, description="by the trusted side")
    ledger: Ledger | None = None
    profile: Profile | None = Field(None, description="that the ledger comes from, for compiled or captured steps")
    loss: list[float | None] = Field([], description="mean loss of all ranks per step, null where not finite")
    timing: Timing | None = None
    position: Position | None = None
    from_cache: bool = Field(False, description="a trace that an earlier check of the same commit made")
    joined: Digest | None = Field(None, description="digest of the earlier session of the same code that it comes from")
    node: Node | None = None
    allocation: Allocation | None = None
    backends: dict[str, Backend] = Field({})
    code: CodeProof | None = None
    environment: Environment | None = None
    health: Health | None = Field(None, description="health of the node, for timed runs")
    probes: list[NodeProbe] = Field([], description="of the nodes before this run, the first of a session on them")
    hang: Hang | None = Field(None, description="what the ranks of a hung run reported")
    crash: Crash | None = Field(None, description="traceback of a traced run that crashed, unless the build failed")
    changed_by_build: Annotated[list[Text], Field(max_length=1000)] = Field([], description="tracked files")
    peak_rss_bytes: int | None = None
    log_tail: Message = Field("", description="last lines of the guest's output, if the run failed")
    warnings: list[Message] = Field([])

    @property
    def is_from_earlier_session(self) -> bool:
        """Whether the run was joined to this session from an earlier one, which timed the same code."""
        return self.joined is not None
