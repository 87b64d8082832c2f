"""Records of the reference store. A stored session never changes, and its file is named after the hash of its content.
In the file, the scalar fields come first, one per line, so that a reader can decide from the beginning whether it needs
the rest."""

import math
import re
from datetime import UTC, datetime
from statistics import median
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from regbot.records.base import Record
from regbot.records.ledger import Digest, Message, Text
from regbot.records.run import Bytes, Clock, Commit, Tier
from regbot.records.text.clip import clip

ENTRY_PATTERN = re.compile(
    r"(?:([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):)?([a-z0-9][a-z0-9.-]*)@([0-9]{1,9})/([a-z][a-z0-9-]{0,63})"
)
"""Name of an entry of the verdict, ``[label:]shape@version/mesh``, each part a group."""

ABSENT = "none"
"""Value of an environment field for a component that is known to be absent, such as a GPU driver without GPUs."""

MAX_LOADED_FILES = 5000
"""Maximum number of file names in a stored session. Longer lists are not stored."""

EntryName = Annotated[str, Field(pattern=f"^{ENTRY_PATTERN.pattern}$", max_length=200)]
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Series = Literal["rolling", "anchor", "held"]
"""Which reference a session belongs to. held: none, because the session was held back."""
NonEmptyText = Annotated[str, Field(min_length=1, max_length=500)]
LogRatios = dict[Annotated[str, Field(pattern="^(median|mean)$")], list[float]]
Positive = Annotated[int, Field(ge=1)]


class InvalidTime(ValueError):
    """A text is not a valid time."""


def parse_time(text: str) -> datetime:
    """Return the time in an ISO 8601 text with an offset, converted to UTC. Raises InvalidTime."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidTime(f"{clip(text, 40)!r} is no ISO 8601 time") from error
    if parsed.tzinfo is None:
        raise InvalidTime(f"{text!r} does not say its offset from UTC")
    return parsed.astimezone(UTC)


def format_time(at: datetime) -> str:
    """Return a time as records store it, in UTC and whole seconds. Sorting such texts sorts the times."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def require_canonical_time(text: str) -> str:
    """Return ``text`` if it has the form in which records store times (``format_time``). Raises ValueError."""
    if format_time(parse_time(text)) != text:
        raise ValueError(f"{clip(text, 40)!r} is not written as {format_time(parse_time(text))}")
    return text


class EnvironmentKey(Record):
    """The software environment of a run. Times are compared only where all fields are equal. ``None`` means unknown,
    and equals another unknown; ``"none"`` means known to be absent."""

    driver: Text | None = Field(None, description="of the GPUs")
    toolkit: Text | None = Field(None, description="CUDA or ROCm, with version")
    nccl: Text | None = Field(None, description="NCCL or RCCL version")
    framework: Text | None = Field(None, description="torch or jax, with version and build")
    python: Text | None = None
    container: Text | None = Field(None, description="digest of the image")
    packages: Digest | None = Field(None, description="hash over all installed distributions and versions")
    variables: Digest | None = Field(None, description="hash over the environment variables that matter")
    model: Digest | None = Field(None, description="hash of regbot's model code in the timed steps; None without it")

    @property
    def unknown(self) -> list[str]:
        """Names of the unknown fields, without ``model``: its None may also mean that no model code of regbot ran."""
        return [name for name in type(self).model_fields if name != "model" and getattr(self, name) is None]


class RunSummary(Record):
    """Summary of one run of a session (``regbot.stats.summary``)."""

    block: PositiveInt = Field(description="number of the block in its session, from 1")
    slot: Annotated[int, Field(ge=0, le=3)] = Field(description="place in the block, from 0")
    attempt: Positive = Field(description="attempt at the block, from 1")
    log_median: float = Field(description="log of the median steady step time in seconds, of the slowest rank")
    log_mean: float = Field(description="log of the mean steady step time in seconds, of the slowest rank")
    steady_steps: Positive
    cut: NonNegativeInt = Field(description="leading warm-up steps, which are left out")
    memory_peak_bytes: Bytes
    loss: Annotated[list[float | None], Field(max_length=10_000)] = Field([], description="per step, of the first runs")
    dropped_tokens: Bytes | None = Field(None, description="in one step; None if unknown")
    wall_s: NonNegativeFloat | None = Field(None, description="of the whole launch")


class Provenance(Record):
    """Origin of a stored session."""

    who: NonEmptyText = Field(description="who stored it")
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    node: Text | None = Field(description="name of the machine; None for a trace, which is the same on any machine")
    container: Text | None = Field(description="digest of the image; None if unknown")
    platform: Text | None = Field(description="operating system; for information, never compared")
    revision: Text = Field(description="name of the commit as the user gave it, such as main")
    regbot: Text = Field(description="version of regbot that measured")


class AnchorComparison(Record):
    """Pairs of the anchor's commit and the session's own commit."""

    commit: Commit = Field(description="commit of the anchor")
    log_ratios: LogRatios = Field(description="log(this commit / anchor) of the valid pairs, in session order")


class Baseline(Record):
    """One file of the store: the runs, or the traced ledger, of one session of one workload at one commit."""

    schema_id: Literal["regbot/baseline@1"] = Field("regbot/baseline@1", alias="schema")
    tier: Tier = Field(description="timed: runs on a node; static: a trace, which has a ledger and no runs")
    series: Series = Field(description="reference that it belongs to; anchor for another run of the anchor's commit")
    measured: Text = Field(description="when the session began, UTC")
    session: Digest = Field(description="identity of the session; files with the same identity count once")
    workload: EntryName
    variant: VariantName
    shape_version: Positive
    node_class: NonEmptyText
    commit: Commit
    tree: Commit
    world_size: Positive
    steps: Positive | None = Field(description="steps of one run, warm-up included; None for a trace")
    cut: NonNegativeInt | None = Field(description="how many of the steps are planned as warm-up")
    clock: Clock | None
    dispatcher: Text = Field(description="dispatcher that the workload requests; '' if the workload chooses one")
    executed: Text | None = Field(description="the dispatcher that ran; None where no run shows it")
    ledger: Digest | None = Field(description="hash of the ledger's file; None where no step was counted")
    environment: EnvironmentKey
    provenance: Provenance
    runs: Annotated[list[RunSummary], Field(max_length=1000)]
    against: AnchorComparison | None = Field(None, description="the anchor, where it was timed beside this commit")
    step_s: PositiveFloat | None = Field(None, description="the arm's step time in the verdict; null if unknown")
    loaded_files: Annotated[list[Text], Field(max_length=MAX_LOADED_FILES)] | None = Field(
        None,
        description="source files that the runs loaded from their checkout, sorted; null if unknown, or if too many",
    )

    _measured = field_validator("measured")(require_canonical_time)

    @model_validator(mode="after")
    def _check_tier(self) -> Self:
        """Check the shape version, and that the session has the fields of its tier: runs, or a ledger."""
        match = ENTRY_PATTERN.fullmatch(self.workload)
        _label, _shape, version, _mesh = match.groups() if match is not None else (None, None, None, None)
        if version is None or int(version) != self.shape_version:
            raise ValueError(f"workload {self.workload!r} is not of shape version {self.shape_version}")
        if self.tier == "timed" and (not self.runs or None in (self.steps, self.cut, self.clock)):
            raise ValueError("a timed session needs runs, steps, cut and clock")
        if self.tier == "static" and (self.runs or self.ledger is None):
            raise ValueError("a trace has a ledger and no runs")
        return self

    @property
    def level_s(self) -> dict[str, float]:
        """Step time in seconds: ``median``, a typical step as in the verdict or else the median of the runs' medians,
        and ``mean``, the mean over runs of the mean step time, on the log scale. Empty for a trace."""
        if not self.runs:
            return {}
        median_of_medians = math.exp(median(run.log_median for run in self.runs))
        mean_of_log_means = math.fsum(run.log_mean for run in self.runs) / len(self.runs)
        return {
            "median": median_of_medians if self.step_s is None else self.step_s,
            "mean": math.exp(mean_of_log_means),
        }


class IntervalEstimate(Record):
    """An estimate with its interval in percent; positive means slower."""

    estimate_pct: float
    low_pct: float
    high_pct: float


class MoveEvidence(IntervalEstimate):
    """How much slower the new anchor is than the old one, in pairs."""

    pairs: Positive

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.low_pct <= self.estimate_pct <= self.high_pct:
            raise ValueError("the estimate lies outside its interval")
        return self


class Acceptance(Record):
    """A slowdown that a person accepted, so that the anchor may move."""

    who: NonEmptyText = Field(description="who accepted it")
    slowdown_pct: float = Field(description="the accepted slowdown in percent")
    why: Annotated[str, Field(min_length=1, max_length=4000)]


class Anchor(Record):
    """The commit that guards a workload on a node class against slow creep. It is one file: if two branches move it,
    they conflict in git, and a person has to decide."""

    schema_id: Literal["regbot/anchor@1"] = Field("regbot/anchor@1", alias="schema")
    workload: EntryName
    variant: VariantName
    node_class: NonEmptyText
    commit: Commit
    tree: Commit
    moved: Text = Field(description="when this commit became the anchor, UTC")
    who: NonEmptyText
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    previous: Commit | None = Field(description="commit of the previous anchor; None for the first anchor")
    evidence: MoveEvidence | None = Field(None, description="None where the accepted slowdown was not measured")
    accepted: Acceptance | None = None
    digest: Digest | None = Field(None, description="hash of the other fields; None outside of a store")

    _moved = field_validator("moved")(require_canonical_time)


class BaselineGroup(Record):
    """Summary of the stored sessions of one workload, node class and environment."""

    workload: EntryName
    variant: VariantName
    tier: Tier
    node_class: Text
    environment: EnvironmentKey
    folder: Text = Field(description="folder of the sessions, relative to the store")
    sessions: NonNegativeInt = Field(description="number of sessions")
    first: Text = Field(description="when the oldest session was measured, UTC")
    last: Text = Field(description="when the newest session was measured, UTC")
    anchor: Commit | None = Field(description="commit of the anchor; None without an anchor")


class BaselineListing(Record):
    """Output of ``baseline list``."""

    schema_id: Literal["regbot/baseline-list@1"] = Field("regbot/baseline-list@1", alias="schema")
    groups: list[BaselineGroup]


class BaselineAddition(Record):
    """Output of ``baseline add``: the session's files, new or there before, relative to the store."""

    schema_id: Literal["regbot/baseline-added@1"] = Field("regbot/baseline-added@1", alias="schema")
    files: list[Text]
    warnings: list[Message] = Field([])


class BaselineCheck(Record):
    """Output of ``baseline verify``: the numbers of stored records. A problem is one line."""

    schema_id: Literal["regbot/baseline-verify@1"] = Field("regbot/baseline-verify@1", alias="schema")
    sessions: Annotated[int, Field(ge=0)]
    ledgers: Annotated[int, Field(ge=0)]
    anchors: Annotated[int, Field(ge=0)]
    calibrations: NonNegativeInt = 0
    problems: list[Message]
