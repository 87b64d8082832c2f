"""Stored references: what one session measured of one workload, and which commit is the anchor.

A stored session is immutable; its file is named after the hash of its content (``regbot.baselines.store``). The scalars
come first, one a line, so that a reader can tell from the beginning of a file whether it needs the rest.
"""

import math
import re
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from regbot.records.base import Record
from regbot.records.ledger import Digest, Message, Text
from regbot.records.run import Bytes, Clock, Commit, Tier

ENTRY = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):)?([a-z0-9][a-z0-9.-]*)@([0-9]{1,9})/([a-z-]{1,32})")
"""An entry of the verdict, ``[label:]shape@version/mesh``."""

NONE = "none"
"""What an environment says of a thing that is known not to be there, as a GPU's driver on a machine without GPUs."""

EntryName = Annotated[str, Field(pattern=f"^{ENTRY.pattern}$", max_length=200)]
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Series = Literal["rolling", "anchor", "held"]
"""What a session serves: the rolling reference; the anchor, where its commit was run once more; nothing, where it was
measured and not taken in."""
Named = Annotated[str, Field(min_length=1, max_length=500)]
Positive = Annotated[int, Field(ge=1)]


class BadTime(ValueError):
    """A text that is no moment of time."""


def moment(text: str) -> datetime:
    """The moment that an ISO 8601 text names, in UTC. Raises BadTime; a time without its offset names none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadTime(f"{text[:40]!r} is no ISO 8601 time") from error
    if found.tzinfo is None:
        raise BadTime(f"{text!r} does not say its offset from UTC")
    return found.astimezone(UTC)


def utc(at: datetime) -> str:
    """A moment as records hold it: to the second, so that texts are ordered as the moments are."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def canonical(text: str) -> str:
    """``text``, where it is a moment as records hold it. Raises ValueError."""
    if utc(moment(text)) != text:
        raise ValueError(f"{text[:40]!r} is not written as {utc(moment(text))}")
    return text


class EnvironmentKey(Record):
    """The software stack of a run as far as it is known. Times are compared only where all fields are equal.

    ``None`` is unknown, ``"none"`` is known not to be there. Two unknowns count as equal, and what compares says so.
    """

    driver: Text | None = Field(default=None, description="of the GPUs")
    toolkit: Text | None = Field(default=None, description="CUDA or ROCm, with version")
    nccl: Text | None = Field(default=None, description="NCCL or RCCL version")
    framework: Text | None = Field(default=None, description="torch or jax, with version and build")
    python: Text | None = None
    container: Text | None = Field(default=None, description="digest of the image")
    packages: Digest | None = Field(default=None, description="hash over all installed distributions and versions")
    variables: Digest | None = Field(default=None, description="hash over the environment variables that matter")

    @property
    def unknown(self) -> list[str]:
        """Names of the fields that nobody knows."""
        return [name for name in type(self).model_fields if getattr(self, name) is None]


class RunSummary(Record):
    """One run of the session as the numbers that stand for it (``regbot.stats.summary``)."""

    block: Annotated[int, Field(ge=1)]
    slot: Annotated[int, Field(ge=0, le=3)]
    attempt: Positive
    log_median: float = Field(description="log of the seconds of a usual steady step, of the slowest rank")
    log_mean: float = Field(description="log of the seconds per steady step over all of them, of the slowest rank")
    steady_steps: Positive
    cut: Annotated[int, Field(ge=0)] = Field(description="leading steps that count for nothing")
    memory_peak_bytes: Bytes
    loss: Annotated[list[float | None], Field(max_length=10_000)] = Field(
        default_factory=list, description="per step; of the first runs of a session only"
    )
    dropped_tokens: Bytes | None = Field(default=None, description="in one step; None if unknown")
    wall_s: Annotated[float, Field(ge=0)] | None = Field(default=None, description="of the whole launch")


class Provenance(Record):
    """Where a stored session comes from."""

    who: Named = Field(description="who stored it")
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    node: Text | None = Field(description="name of the machine; None for a trace, which any machine makes alike")
    container: Text | None = Field(description="digest of the image; None if unknown")
    platform: Text | None = Field(description="operating system; says where it ran, and is compared with nothing")
    revision: Text = Field(description="of the commit, as it was given")
    regbot: Text = Field(description="version that measured")


class AgainstAnchor(Record):
    """A nightly session's other arm: the anchor's commit, run beside this one."""

    commit: Commit = Field(description="of the anchor")
    log_ratios: dict[Annotated[str, Field(pattern="^(median|mean)$")], list[float]] = Field(
        description="log(this / anchor) of the valid pairs, in session order"
    )


class Baseline(Record):
    """One session of one workload at one commit: its runs, or the ledger that was traced of it."""

    schema_id: Literal["regbot/baseline@1"] = Field(default="regbot/baseline@1", alias="schema")
    tier: Tier = Field(description="timed: runs on a node; static: a trace, which has a ledger and no runs")
    series: Series = Field(description="the reference it serves: anchor where the anchor's commit was run once more")
    measured: Text = Field(description="when the session began, UTC")
    session: Digest = Field(description="identity of the session: of one session nothing counts twice")
    workload: EntryName
    variant: VariantName
    shape_version: Positive
    node_class: Named
    commit: Commit
    tree: Commit
    world_size: Positive
    steps: Positive | None = Field(description="of one run, warm-up included; None for a trace")
    cut: Annotated[int, Field(ge=0)] | None = Field(description="of them planned as warm-up")
    clock: Clock | None
    dispatcher: Text = Field(description="that the workload asks for; '' leaves the choice to it")
    executed: Text | None = Field(description="the dispatcher that ran; None where no run shows it")
    ledger: Digest | None = Field(description="hash of the ledger's file; None where no step was counted")
    environment: EnvironmentKey
    provenance: Provenance
    runs: Annotated[list[RunSummary], Field(max_length=1000)]
    against: AgainstAnchor | None = Field(default=None, description="where the anchor was run beside it")

    _measured = field_validator("measured")(canonical)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        found = ENTRY.fullmatch(self.workload)
        if found is None or int(found[3]) != self.shape_version:
            raise ValueError(f"workload {self.workload!r} is not of shape version {self.shape_version}")
        if self.tier == "timed" and (not self.runs or None in (self.steps, self.cut, self.clock)):
            raise ValueError("a timed session has runs, and says how they were timed")
        if self.tier == "static" and (self.runs or self.ledger is None):
            raise ValueError("a trace has a ledger and no runs")
        return self

    @property
    def level_s(self) -> dict[str, float]:
        """Seconds of a usual step and per step: the middle run's median, and the mean of the runs' means (log scale).

        Empty for a trace.
        """
        if not self.runs:
            return {}
        medians = sorted(run.log_median for run in self.runs)
        half = len(medians) // 2
        middle = medians[half] if len(medians) % 2 else (medians[half - 1] + medians[half]) / 2
        return {
            "median": math.exp(middle),
            "mean": math.exp(math.fsum(run.log_mean for run in self.runs) / len(self.runs)),
        }


class MoveEvidence(Record):
    """Head against the old anchor, by pairs: what a move of the anchor absorbs. Positive means slower."""

    estimate_pct: float
    low_pct: float
    high_pct: float
    pairs: Positive

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low_pct <= self.estimate_pct <= self.high_pct:
            raise ValueError("the estimate lies outside its interval")
        return self


class Acceptance(Record):
    """A slowdown that somebody takes into the anchor, by name."""

    who: Named
    slowdown_pct: float
    why: Annotated[str, Field(min_length=1, max_length=4000)]


class Anchor(Record):
    """The commit that guards a workload on a node class against slow creep. One file; two moves of it conflict."""

    schema_id: Literal["regbot/anchor@1"] = Field(default="regbot/anchor@1", alias="schema")
    workload: EntryName
    variant: VariantName
    node_class: Named
    commit: Commit
    tree: Commit
    moved: Text = Field(description="when, UTC")
    who: Named
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    previous: Commit | None = Field(description="the anchor before; None for the first")
    evidence: MoveEvidence | None = Field(default=None, description="None where nobody measured what the move absorbs")
    accepted: Acceptance | None = None

    _moved = field_validator("moved")(canonical)


class BaselineGroup(Record):
    """The stored sessions of one workload, class and environment, in short."""

    workload: EntryName
    variant: VariantName
    tier: Tier
    node_class: Text
    environment: EnvironmentKey
    folder: Text
    sessions: Annotated[int, Field(ge=0)]
    first: Text = Field(description="when the oldest was measured, UTC")
    last: Text
    anchor: Commit | None


class BaselineListing(Record):
    """What ``baseline list`` prints."""

    schema_id: Literal["regbot/baseline-list@1"] = Field(default="regbot/baseline-list@1", alias="schema")
    groups: list[BaselineGroup]


class BaselineAdded(Record):
    """What ``baseline add`` has stored, or found stored already: files relative to the store."""

    schema_id: Literal["regbot/baseline-added@1"] = Field(default="regbot/baseline-added@1", alias="schema")
    files: list[Text]
    warnings: list[Message] = Field(default_factory=list)


class BaselineCheck(Record):
    """What ``baseline verify`` found: every problem as one line, file: what: what to do."""

    schema_id: Literal["regbot/baseline-verify@1"] = Field(default="regbot/baseline-verify@1", alias="schema")
    sessions: Annotated[int, Field(ge=0)]
    ledgers: Annotated[int, Field(ge=0)]
    anchors: Annotated[int, Field(ge=0)]
    calibrations: Annotated[int, Field(ge=0)] = 0
    problems: list[Message]
    notes: list[Message] = Field(default=[], description="what is whole, and not compared with any more")
