"""Records of a session file: one header line, then one line per run. A line is appended when its run ends."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from regbot.records.base import Record
from regbot.records.baseline import EnvironmentKey
from regbot.records.changed_lines import ChangedLines
from regbot.records.files import parse_log, read_lines
from regbot.records.ledger import Ledger, Message, Text
from regbot.records.reference import Reference
from regbot.records.run import Arm, Commit, Run
from regbot.records.settings import ProgramThresholds, ShardingThresholds, ThroughputThresholds, WireBandwidths


class TimedPlan(Record):
    """Plan of one timed workload: its entry in the verdict, and what to launch."""

    entry: Text
    variant: Text
    dispatcher: Text = Field("", description="dispatcher that the workload requests; '' if the workload chooses one")
    world_size: Annotated[int, Field(ge=1)]
    steps: PositiveInt = Field(description="steps of one run, warm-up included")
    cut: NonNegativeInt = Field(description="how many of the steps are planned as warm-up")
    tokens_per_step: PositiveInt = Field(description="tokens of one rank")
    flops_per_step: NonNegativeInt = Field(description="model FLOPs of one rank, from the shape")
    even_if_identical: bool = Field(False, description="time the workload even if no relevant change was made")
    references: list[Reference] = Field([], description="stored sessions of this node class, one for each environment")
    no_reference: Message = Field("", description="why the stored sessions are not comparable; '' without a reason")
    more_pairs: NonNegativeInt = Field(0, description="requested beside an earlier session; 0: the looks decide")
    injected_pct: Annotated[float, Field(ge=0, le=1000)] = Field(0.0, description="slowdown of head, to calibrate")
    fresh_caches: bool = Field(False, description="begin every look with empty compiler caches, separate for each arm")
    measures_luck: bool = Field(False, description="part of a calibration, whose intervals are not widened by luck")
    max_pairs: Annotated[int, Field(ge=2)] | None = Field(None, description="if smaller than in a full session")


class StoredTrace(Record):
    """A stored ledger of main, to compare with the traces of this session."""

    entry: Text
    commit: Commit = Field(description="commit that was traced")
    tree: Commit = Field(description="git tree of this commit")
    measured: Text = Field(description="when it was traced, UTC")
    environment: EnvironmentKey
    ledger: Ledger


class UnconcernedWorkload(Record):
    """An entry that is not run, because no file that git lists as changed matches the ``paths`` of its workload."""

    entry: Text
    proof: Commit | None = Field(description="stored trace by which a run of base loads no changed file")
    reason: Message = Field(description="what the stored trace shows, or why nothing is proven")


class SessionHeader(Record):
    """Plan of a session: two arms, and the entries that the verdict must have."""

    schema_id: Literal["regbot/session@1"] = Field("regbot/session@1", alias="schema")
    regbot: Text
    created: Text = Field(description="UTC, ISO 8601")
    base: Arm
    head: Arm
    workloads: Annotated[list[Text], Field(min_length=1)] = Field(description="entries that the verdict must have")
    untraced: list[Text] = Field([], description="those of ``workloads`` that are commands, with unknown collectives")
    left_out: list[Text] = Field([], description="entries of the configuration that the options of this check exclude")
    timing: bool = Field(True, description="false if an option of the check, such as --no-timing, excludes timed runs")
    command: Literal["check", "demo"] = Field("check", description="the regbot command that made this session")
    expectations: list[Message] = Field([], description="rules of --expect options")
    timed: list[TimedPlan] = Field([], description="workloads to time, in this order")
    stored: list[StoredTrace] = Field([], description="for each workload the ledger of base's commit, else the newest")
    seed: NonNegativeInt = Field(0, description="decides the order of runs in every block")
    budget_min: PositiveFloat | None = Field(None, description="maximum minutes of timed runs")
    changed_files: list[Text] | None = Field(None, description="not only in comments; null if unknown, or too many")
    changed_lines: ChangedLines | None = Field(None, description="of Python files; null if unknown, or too many")
    repository: Annotated[str, Field(pattern=r"^(https://github\.com/[\w.-]{1,100}/[\w.-]{1,100})?$")] = Field(
        "", description="web address of the repository; '' if unknown"
    )
    inert_files: list[Text] = Field([], description="those of ``changed_files`` that cannot affect a run")
    stand_ins: list[Text] = Field([], description="files that declare stand-ins for compiled extensions")
    unconcerned: list[UnconcernedWorkload] = Field([], description="without a changed file in their paths")
    throughput: ThroughputThresholds = Field(ThroughputThresholds(), description="thresholds that the check used")
    sharding: ShardingThresholds = Field(ShardingThresholds(), description="thresholds that the check used")
    program: ProgramThresholds = Field(ProgramThresholds(), description="thresholds that the check used")
    wire: WireBandwidths = Field(WireBandwidths(), description="bandwidths that the check used")
    warnings: list[Message] = Field([])


class Session(Record):
    """A session as read from its file."""

    header: SessionHeader
    runs: list[Run]

    def timed_runs(self, entry: str) -> list[Run]:
        """Timed runs of one entry in file order, warm-up launches included."""
        return [run for run in self.runs if run.tier == "timed" and run.workload == entry and run.position is not None]


def read_session(path: Path) -> Session:
    """Return the session in ``path``. An incomplete last line is dropped. Raises RecordError for any other fault."""
    return parse_session(read_lines(path), str(path))


def parse_session(lines: Iterable[tuple[int, bytes]], origin: str) -> Session:
    """Return the session in ``lines`` of ``origin``, with their numbers. Raises RecordError."""
    header, runs = parse_log(lines, SessionHeader, Run, origin, "run 'regbot check' again")
    return Session(header=header, runs=runs)
