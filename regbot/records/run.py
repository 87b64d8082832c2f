"""A run: one process launch of a workload at one arm, the unit of replication; and what the guest writes of it.

``RawRun`` is written by the process under test and believed only as far as it can be checked. The engine turns it into
a ``Run``: it adds the arm, its own wall clock and the outcome that it saw from outside.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regbot.records.base import Record
from regbot.records.hang import Hang
from regbot.records.health import Health
from regbot.records.ledger import Digest, Ledger, Message, Scalar, Text

Tier = Literal["static", "timed"]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Outcome = Literal["ok", "crashed", "hung", "no_record", "bad_record", "refused", "skipped", "short", "diverged", "lost"]
"""ok; the guest died; it passed its time limit; it ended without a record; its record cannot be used; the guest itself
said that this cannot be measured (an entry point that is missing, a shape that is wrong, no torch, no framework,
untraceable code);
not started, because the same arm of the same workload had hung already; it ended with fewer steps than were asked for;
a loss was not finite, or the optimizer skipped steps; the node, or the reservation of it, was lost meanwhile."""
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
GuestClock = Literal["perf_counter", "cuda_events"]
Clock = Literal["perf_counter", "cuda_events", "log"]
"""``log``: what the training code printed, one account of all ranks."""


class Arm(Record):
    """What is compared: a revision plus configuration overrides."""

    name: Literal["base", "head"]
    revision: Text = Field(description="as the user gave it")
    commit: Commit
    tree: Commit
    subject: Text = Field(default="", description="first line of the commit message; written by the PR's author")
    overrides: dict[str, Scalar] = Field(default_factory=dict)


class Backend(Record):
    """Something that can be silently replaced. Evidence says how 'executed' is known."""

    requested: Text
    resolved: Text
    executed: Text
    evidence: Message


class CodeProof(Record):
    """Which code really ran: the watched packages, where each was imported from, and a hash of every loaded file."""

    watched: dict[str, Text] = Field(description="package -> folder it was imported from, relative to the worktree")
    foreign: dict[str, Text] = Field(description="watched package -> path outside the arm's worktree; must be empty")
    files: dict[str, Digest] = Field(description="loaded source file -> hash of its code without comments, docstrings")


class Environment(Record):
    """The software stack of a run."""

    python: Text
    torch: Text | None
    platform: Text
    packages: Digest = Field(description="hash over all installed distributions and versions")
    toolkit: Text | None = Field(
        default=None, description="what torch was built with, e.g. 'cuda 13.0'; 'none' for a CPU build"
    )
    nccl: Text | None = Field(default=None, description="NCCL or RCCL version; 'none' where torch has none")
    variables: Digest | None = Field(
        default=None, description="hash over the environment variables that matter to speed, as the process began"
    )


class Refusal(Record):
    """Why the guest says that this cannot be measured."""

    kind: Literal[
        "no_torch",
        "no_framework",
        "entry",
        "shape",
        "config",
        "untraceable",
        "compiled",
        "routing",
        "liveness",
        "code",
    ]
    message: Message
    where: Text = ""


class MeshAxis(Record):
    """One axis of the device mesh that a program was compiled for."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")] = Field(
        description="'ep' for the axis of the experts, else regbot's or the framework's name"
    )
    size: Annotated[int, Field(ge=2, le=65536)]


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Compiled(Record):
    """A compiled program that the guest left beside its record. The trusted side counts in its text."""

    program: FileName = Field(description="file in the record folder: optimized HLO text of the train step")
    planted: FileName = Field(description="the same of a program of known collectives, compiled in the same process")
    target: Literal["cpu"] = Field(description="kind of device that it was compiled for")
    mesh: Annotated[list[MeshAxis], Field(max_length=16)] = Field(
        description="axes that split anything, slowest first: a device's number is its row-major index"
    )
    config: dict[str, Scalar] = Field(default_factory=dict, description="the resolved configuration")
    software: dict[str, Text] = Field(default_factory=dict)
    patches: list[Text] = Field(default_factory=list, description="what was forced to compile without accelerators")
    warnings: list[Message] = Field(default_factory=list)


class RankSteps(Record):
    """One rank's account of every step of a run, in order, warm-up included: lists of equal length.

    Of a run that is known by its step log only, all but ``step_s`` are empty and the peak is 0: not known.
    """

    step_s: list[Seconds]
    cpu_s: list[Seconds] = Field(description="CPU seconds of the process, all its threads")
    wait_s: list[Seconds] = Field(
        description="seconds in collectives: of the host on a CPU, that the compute stream stood still on a GPU"
    )
    memory_bytes: list[Bytes] = Field(description="after each step: resident on a CPU, allocated on a GPU")
    peak_bytes: Bytes = Field(description="resident on a CPU, allocated on a GPU")


class Timing(Record):
    """The step times of one run as the trusted side accounts for them. The slowest rank's seconds are the step's."""

    asked: Annotated[int, Field(ge=1)] = Field(description="steps that were asked for, warm-up included")
    cut: Annotated[int, Field(ge=0)] = Field(description="leading steps that are warm-up and count for nothing")
    method: Text = Field(description="how the cut was found")
    clock: Clock
    step_s: list[Seconds] = Field(description="per step, the slowest rank's seconds, warm-up included")
    ranks: dict[str, RankSteps]
    harness_s: Seconds | None = Field(default=None, description="all steps together by the harness's own clock")
    harness_steady_s: Seconds | None = Field(default=None, description="the steps after the cut, by the same clock")
    memory_peak_bytes: Bytes = Field(description="of the rank with the most; 0 if unknown")
    memory_slope_bytes: float = Field(description="growth per steady step of the rank that grows most, least squares")
    tokens_per_expert: list[Bytes] = Field(
        default_factory=list, description="tokens sent to each expert in one step, all ranks and layers; [] if unknown"
    )
    dropped_tokens: Bytes | None = Field(default=None, description="of the same step; None if unknown")
    skipped_steps: Bytes = Field(default=0, description="steps in which the optimizer changed nothing")

    @model_validator(mode="after")
    def _of_its_ranks(self) -> Self:
        if not self.ranks:
            raise ValueError("no rank has step times")
        for rank, steps in self.ranks.items():
            for each in (steps.step_s, steps.cpu_s, steps.wait_s, steps.memory_bytes):
                unknown = self.clock == "log" and each is not steps.step_s and not each
                if len(each) != len(self.step_s) and not unknown:
                    raise ValueError(f"rank {rank} has {len(each)} values for {len(self.step_s)} steps")
            if not all(seconds > 0 for seconds in steps.step_s):
                raise ValueError(f"rank {rank} has a step that took no time")
        if self.step_s != [max(each) for each in zip(*(rank.step_s for rank in self.ranks.values()), strict=True)]:
            raise ValueError("step_s is not the slowest rank's")
        return self

    @property
    def steady_s(self) -> list[float]:
        """The slowest rank's seconds of every step after the cut."""
        return self.step_s[self.cut :]


class Position(Record):
    """Where a timed run stands in its session. Slots 0 and 1 of a block are a pair, 2 and 3 the other."""

    block: Annotated[int, Field(ge=0)] = Field(
        description="from 1; 0 for the discarded warm launches, and for the screen"
    )
    slot: Annotated[int, Field(ge=0, le=3)] = Field(description="of a screen: 0 is its warm launch, 1 to 3 its runs")
    order: Literal["ABBA", "BAAB", "screen"] = Field(description="A is base; a screen has runs of head only")


class Node(Record):
    """The machine a run was timed on. Times are compared only within one class, pairs only within one node."""

    name: Text
    node_class: Text = Field(description="hardware that decides speed, in words")
    cores: Annotated[int, Field(ge=1)]
    gpus: list[Text] = Field(default_factory=list)
    driver: Text | None = Field(default=None, description="of the GPUs; 'none' where there are none")
    container: Text | None = Field(default=None, description="digest of the image that this runs in; None if unknown")


class Allocation(Record):
    """The nodes that an engine gave a run, and how it was confined there."""

    engine: Text
    job: Text = Field(default="", description="of the scheduler; '' where there is none")
    hosts: Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(
        description="in the order of their ranks: each has as many as the others"
    )
    queued_s: Seconds = Field(default=0.0, description="waited for the nodes; no part of any budget")
    sandbox: Text = Field(default="", description="what confined the code under test; '' for nothing")


class RawRun(Record):
    """What the guest writes, on every rank: its own account of one run."""

    schema_id: Literal["regbot/raw-run@1"] = Field(default="regbot/raw-run@1", alias="schema")
    request: Text = Field(description="the request's nonce, so that an old or foreign record is noticed")
    workload: Text
    variant: Text
    rank: Annotated[int, Field(ge=0)]
    ledger: Ledger | None = None
    compiled: Compiled | None = Field(default=None, description="in place of a ledger, where a program was compiled")
    loss: list[float | None] = Field(
        default_factory=list, description="loss per step, null where not finite; empty where tensors have no values"
    )
    steps: RankSteps | None = None
    clock: GuestClock = "perf_counter"
    tokens_per_expert: list[Bytes] = Field(default_factory=list, description="that this rank sent in the counted step")
    dropped_tokens: Bytes | None = None
    skipped_steps: Bytes = 0
    backends: dict[str, Backend] = Field(default_factory=dict)
    code: CodeProof | None = None
    environment: Environment | None = None
    phases_s: dict[str, float] = Field(default_factory=dict, description="seconds the guest spent in each stage")
    peak_rss_bytes: int | None = None
    peak_device_bytes: Bytes | None = Field(
        default=None, description="most bytes allocated on the paper GPU during the counted step, in steps of 512"
    )
    refusal: Refusal | None = None
    warnings: list[Message] = Field(default_factory=list)


class Run(Record):
    """One launch, as the trusted side accounts for it."""

    schema_id: Literal["regbot/run@1"] = Field(default="regbot/run@1", alias="schema")
    arm: Arm
    workload: Text = Field(description="entry of the verdict, e.g. 'qwen3-30b-a3b@1/ep'")
    adapter: Text
    shape: Text = Field(description="shape and version, e.g. 'qwen3-30b-a3b@1'")
    variant: Text
    tier: Tier
    attempt: Annotated[int, Field(ge=1)] = 1
    outcome: Outcome
    reason: Message = Field(default="", description="why the outcome is not ok, and what to do")
    exit_code: int | None = None
    wall_s: Annotated[float, Field(ge=0)]
    ledger: Ledger | None = None
    loss: list[float | None] = Field(
        default_factory=list, description="mean loss of all ranks per step, null where not finite"
    )
    timing: Timing | None = None
    position: Position | None = None
    joined: Digest | None = Field(
        default=None, description="the earlier session on the same trees that the run was taken over from"
    )
    node: Node | None = None
    allocation: Allocation | None = None
    backends: dict[str, Backend] = Field(default_factory=dict)
    code: CodeProof | None = None
    environment: Environment | None = None
    health: Health | None = Field(default=None, description="of the node, of timed runs")
    hang: Hang | None = Field(default=None, description="who was where, of a run that hung; told by its ranks")
    changed_by_build: Annotated[list[Text], Field(max_length=1000)] = Field(
        default_factory=list, description="tracked files that the build changed: what ran is not quite the commit"
    )
    peak_rss_bytes: int | None = None
    peak_device_bytes: Bytes | None = Field(
        default=None, description="most bytes allocated on the paper GPU during the counted step, in steps of 512"
    )
    log_tail: Message = Field(default="", description="last lines that the guest printed, when it did not end well")
    warnings: list[Message] = Field(default_factory=list)
