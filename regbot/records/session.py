"""A session file: one header line, then one line per run, appended as they end."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import EnvironmentKey
from regbot.records.files import RecordError, parse_record, read_lines
from regbot.records.ledger import Ledger, Message, Text
from regbot.records.reference import Reference
from regbot.records.run import Arm, Commit, Run
from regbot.records.settings import Sharding, Throughput, Wire


class TimedPlan(Record):
    """One workload that is timed: which entry of the verdict its step times answer, and what is launched."""

    entry: Text
    variant: Text
    dispatcher: Text = Field(default="", description="that the workload asks for; '' leaves the choice to it")
    world_size: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)] = Field(description="of one run, warm-up included")
    cut: Annotated[int, Field(ge=0)]
    tokens_per_step: Annotated[int, Field(ge=1)] = Field(description="of one rank")
    flops_per_step: Annotated[int, Field(ge=0)] = Field(description="model FLOPs of one rank, from the shape")
    even_if_identical: bool = Field(default=False, description="time it although nothing that could matter changed")
    references: list[Reference] = Field(
        default_factory=list, description="stored sessions of this node class, one entry for each environment"
    )
    no_reference: Message = Field(
        default="", description="why what is stored is not comparable; '' where it is, or where nothing is stored"
    )
    more_pairs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="asked for beyond an earlier session on the same trees; 0 leaves it to the looks"
    )
    injected_pct: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0, description="by which head's steps are made longer, in a calibration; nothing is judged by it"
    )
    max_pairs: Annotated[int, Field(ge=2)] | None = Field(default=None, description="fewer than a whole session has")


class StoredTrace(Record):
    """A stored ledger of a workload, to be held against what is traced now."""

    entry: Text
    commit: Commit
    tree: Commit
    measured: Text
    environment: EnvironmentKey
    ledger: Ledger


class SessionHeader(Record):
    """What was planned: two arms, and the entries that the verdict must answer for."""

    schema_id: Literal["regbot/session@1"] = Field(default="regbot/session@1", alias="schema")
    regbot: Text
    created: Text = Field(description="UTC, ISO 8601")
    base: Arm
    head: Arm
    workloads: Annotated[list[Text], Field(min_length=1)]
    untraced: list[Text] = Field(
        default_factory=list, description="of these, the commands: their collectives and their code are not known"
    )
    left_out: list[Text] = Field(
        default_factory=list, description="entries of the configuration that the options of this check exclude"
    )
    timing: bool = Field(default=True, description="false where the options exclude timed runs, as --no-timing does")
    command: Literal["check", "demo"] = Field(default="check", description="the regbot command that made this session")
    expectations: list[Message] = Field(default_factory=list, description="--expect rules that were given")
    timed: list[TimedPlan] = Field(default_factory=list, description="workloads to time, in this order; may be none")
    stored: list[StoredTrace] = Field(
        default_factory=list,
        description="of each workload the newest stored ledger, of base's commit where there is one",
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="decides the order of runs in every block")
    budget_min: Annotated[float, Field(gt=0)] | None = Field(default=None, description="minutes of timed runs, at most")
    changed_files: list[Text] | None = Field(
        default=None,
        description="files that differ between the commits in more than comments; null if too many or not known",
    )
    throughput: Throughput = Field(default=Throughput(), description="thresholds that the check used")
    sharding: Sharding = Field(default=Sharding(), description="thresholds that the check used")
    wire: Wire = Field(default=Wire(), description="bandwidths that the check used")
    warnings: list[Message] = Field(default_factory=list)


class Session(Record):
    """A session as read back."""

    header: SessionHeader
    runs: list[Run]


def read_session(path: Path) -> Session:
    """The session in ``path``. A torn last line is dropped; any other fault raises RecordError."""
    return parse_session(read_lines(path), str(path))


def parse_session(lines: Iterable[tuple[int, bytes]], origin: str) -> Session:
    """The session in numbered ``lines``; ``origin`` names the file in errors. Raises RecordError."""
    numbered = iter(lines)
    number, first = next(numbered, (0, b""))
    if not number:
        raise RecordError(f"{origin}: is empty: no session was recorded; run 'regbot check' again")
    header = parse_record(first, SessionHeader, f"{origin}:{number}")
    return Session(header=header, runs=[parse_record(line, Run, f"{origin}:{n}") for n, line in numbered])
