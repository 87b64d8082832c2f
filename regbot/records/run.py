"""A run: one process launch of a workload at one arm, the unit of replication; and what the guest writes of it.

``RawRun`` is written by the process under test and believed only as far as it can be checked. The engine turns it into
a ``Run``: it adds the arm, its own wall clock and the outcome that it saw from outside.
"""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Digest, Ledger, Message, Scalar, Text

Tier = Literal["static", "timed"]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Outcome = Literal["ok", "crashed", "hung", "no_record", "bad_record", "refused", "skipped"]
"""ok; the guest died; it passed its time limit; it ended without a record; its record cannot be used; the guest itself
said that this cannot be measured (an entry point that is missing, a shape that is wrong, no torch, untraceable code);
not started, because the same arm of the same workload had hung already."""


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


class Refusal(Record):
    """Why the guest says that this cannot be measured."""

    kind: Literal["no_torch", "entry", "shape", "config", "untraceable", "compiled", "routing", "liveness", "code"]
    message: Message
    where: Text = ""


class RawRun(Record):
    """What the guest writes, on every rank: its own account of one run."""

    schema_id: Literal["regbot/raw-run@1"] = Field(default="regbot/raw-run@1", alias="schema")
    request: Text = Field(description="the request's nonce, so that an old or foreign record is noticed")
    workload: Text
    variant: Text
    rank: Annotated[int, Field(ge=0)]
    ledger: Ledger | None = None
    loss: list[float] = Field(default_factory=list, description="loss per step; empty where tensors have no values")
    backends: dict[str, Backend] = Field(default_factory=dict)
    code: CodeProof | None = None
    environment: Environment | None = None
    phases_s: dict[str, float] = Field(default_factory=dict, description="seconds the guest spent in each stage")
    peak_rss_bytes: int | None = None
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
    loss: list[float] = Field(default_factory=list)
    backends: dict[str, Backend] = Field(default_factory=dict)
    code: CodeProof | None = None
    environment: Environment | None = None
    peak_rss_bytes: int | None = None
    log_tail: Message = Field(default="", description="last lines that the guest printed, when it did not end well")
    warnings: list[Message] = Field(default_factory=list)
