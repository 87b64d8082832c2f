"""Records of a bisection. A *point* is a commit, or a version of a dependency at one commit. The points of a search are
its *axis*. The log has a header line, then one line per observation. The next step is computed from the log alone, so
that a killed bisection can continue."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from regbot.records.base import Record
from regbot.records.files import parse_log, read_lines
from regbot.records.ledger import Message, Text
from regbot.records.run import Commit
from regbot.records.session import TimedPlan
from regbot.records.text.clip import short_commit
from regbot.records.verdict import Decision, Finding

SearchMetric = Literal["ledger", "time", "command"]
Purpose = Literal["search", "confirm", "reused"]
"""confirm: to compare a culprit with its parent. reused: of an earlier check."""
BisectionOutcome = Literal["culprit", "none", "undecided", "unmeasurable"]
"""none: no point of the range is the culprit. unmeasurable: the range could not be searched."""

EXIT_CODES: dict[BisectionOutcome, int] = {"culprit": 0, "none": 3, "undecided": 3, "unmeasurable": 4}

Share = Annotated[float, Field(ge=0, le=1)]
Pct = Annotated[float, Field(gt=0, le=10_000)]


class Point(Record):
    """A commit, or a version of a dependency at one commit."""

    commit: Commit
    tree: Commit
    parents: list[Commit] = Field([])
    subject: Text = Field("", description="first line of the commit message; written by its author")
    author: Text = ""
    date: Text = Field("", description="author date of the commit, ISO 8601")
    pull_request: PositiveInt | None = Field(None, description="number of the pull request, from the subject")
    version: Text = Field("", description="version of the dependency; '' in a search over commits")
    same_as_before: bool = Field(False, description="only comments, documents or tests differ from the previous point")

    @property
    def key(self) -> str:
        """Key by which observations name the point."""
        return f"{self.commit}+{self.version}" if self.version else self.commit

    @property
    def name(self) -> str:
        return self.version or short_commit(self.commit)


class BisectionHeader(Record):
    """Plan of a bisection: what it searches for, in which points, and by which measurement."""

    schema_id: Literal["regbot/bisection-log@1"] = Field("regbot/bisection-log@1", alias="schema")
    regbot: Text
    created: Text = Field(description="UTC, ISO 8601")
    on: SearchMetric = Field(description="what is measured: the ledger, the step time, or the output of a command")
    exact: bool = Field(description="true: values are compared for equality; false: they are noisy times or costs")
    axis: Text = Field("", description="name of the dependency whose versions are searched; '' for commits")
    points: Annotated[list[Point], Field(min_length=2)] = Field(description="the good end first, the bad end last")
    entries: list[Text] = Field([], description="workloads that are traced, or the one that is timed")
    plan: TimedPlan | None = Field(None, description="plan of the timed workload; None in other searches")
    command: Message = Field("", description="the measuring command; '' in other searches")
    terms: Text = Field("", description="digest of the measurements' settings; a log is resumed only with the same")
    summary: Literal["median", "mean", "cost"] = Field("median", description="summary of a run that is compared")
    smallest_pct: Pct = Field(2.0, description="smaller slowdowns are ignored")
    noise_pct: Pct | None = Field(None, description="recorded sd of one run; None: estimated during the search")
    noise_pairs: NonNegativeInt = Field(0, description="pairs that the noise was estimated from; 0: the user stated it")
    most_runs: Annotated[int, Field(ge=2)] = Field(200, description="maximum number of runs")
    seed: NonNegativeInt = Field(0, description="seed of all random choices")
    warnings: list[Message] = Field([])


class Observation(Record):
    """One measurement at one point, or the reason why there is none."""

    point: Text = Field(description="the point's key")
    # A bisection by ledger has a search for each traced workload. A bisection by time or by a command has one search.
    entry: Text = Field("", description="traced workload; '' where the bisection has only one search")
    purpose: Purpose
    usable: bool = Field(description="whether there is a value")
    void: bool = Field(False, description="the failure is not the commit's fault; the measurement is repeated")
    reason: Message = Field("", description="why it is not usable; '' if it is")
    state: Text = Field("", description="exact search: the compared value (a digest, or a number as text)")
    values: dict[str, float] = Field({}, description="noisy search: logarithm of each summary; exact: 'cost'")
    stratum: Text = Field("", description="group of runs with a common level: one node and session")
    contrast: Text = Field("", description="confirmation: key of the culprit that is compared")
    block: NonNegativeInt = Field(0, description="confirmation: number of the block, from 1")
    slot: NonNegativeInt = Field(0, description="confirmation: place in the block, from 0")
    built: bool = Field(False, description="whether a worktree or an environment was built for it")
    build_s: NonNegativeFloat = Field(0.0, description="seconds of the build")
    wall_s: NonNegativeFloat = Field(0.0, description="seconds of the run, without the build")
    record: Text = Field("", description="file with the whole run, relative to the log")


class Candidate(Record):
    """A point that may be the culprit."""

    point: Point
    probability: Share | None = Field(None, description="None for an exact search, which has no doubt")
    measurable: bool = True
    reason: Message = Field("", description="why it could not be measured")


class Estimate(Record):
    """A slowdown in percent, with its interval. ``decision`` is what the pairs of the comparison decide about it."""

    pct: float
    low_pct: float
    high_pct: float
    pairs: Annotated[int, Field(ge=0)]
    decision: Decision


class Change(Record):
    """One change of the searched quantity. Several candidates cannot be distinguished."""

    candidates: Annotated[list[Candidate], Field(min_length=1)] = Field(description="most probable first")
    parent: Text = Field(description="key of the point that it is compared with: the measured one before it")
    merge: Commit | None = Field(None, description="merge commit through which the culprit joined the branch")
    entries: list[Text] = Field([], description="workloads that the culprit changed")
    findings: list[Finding] = Field([], description="changes in the ledger")
    before: Text = Field("", description="exact search: the value before the change")
    after: Text = Field("", description="exact search: the value after the change")
    estimate: Estimate | None = Field(None, description="confirmation: the culprit compared with its parent")
    confirmed: Literal["yes", "undecided", "exact"] = Field(description="by pairs; exact: not needed")


class Bisection(Record):
    """The result of a bisection. ``on``, ``exact`` and ``axis`` have the same meaning as in ``BisectionHeader``."""

    schema_id: Literal["regbot/bisect@1"] = Field("regbot/bisect@1", alias="schema")
    outcome: BisectionOutcome = Field(alias="found")
    culprit: Commit | None = Field(description="commit of the first change; None without one, or with several")
    version: Text = Field("", description="version that is the culprit; '' in a search over commits")
    candidates: list[Candidate] = Field(description="candidates of the first change")
    posterior: Share | None = Field(description="probability of these candidates together; None if exact")
    none_probability: Share | None = Field(None, description="probability that there is no culprit; None if exact")
    changes: list[Change] = Field([], description="all changes, the first change included; a noisy search finds one")
    on: SearchMetric
    exact: bool
    axis: Text = ""
    good: Point
    bad: Point
    commits: NonNegativeInt = Field(description="number of points after good, bad included")
    different: NonNegativeInt = Field(description="how many of these points run other code than the point before them")
    search_runs: Annotated[int, Field(ge=0)]
    confirm_runs: Annotated[int, Field(ge=0)]
    reused_runs: NonNegativeInt = Field(0, description="runs of an earlier check that the search used")
    builds: Annotated[int, Field(ge=0)]
    minutes: Annotated[float, Field(ge=0)]
    noise_pct: float | None = Field(None, description="sd of one run in percent, estimated at the end of the search")
    unmeasurable: list[Candidate] = Field([], description="points that could not be measured")
    observations: list[Observation] = Field([])
    reasons: list[Message] = Field([], description="the outcome in sentences")
    warnings: list[Message] = Field([])


class BisectionPlan(Record):
    """Expected cost of a bisection. An unknown number is null."""

    schema_id: Literal["regbot/bisect-plan@1"] = Field("regbot/bisect-plan@1", alias="schema")
    on: SearchMetric
    exact: bool
    commits: int
    different: int
    most_runs: int = Field(description="maximum number of runs")
    ratio: float | None = Field(None, description="slowdown to look for, divided by a run's noise; None if unknown")
    expected_runs: float | None = Field(None, description="search runs: the maximum if exact, else about the mean")
    confirm_runs: int = Field(0, description="maximum number of runs to confirm one culprit")
    expected_min: float | None = Field(None, description="minutes of the search runs, without builds")
    reasons: list[Message] = Field([])


@dataclass(frozen=True)
class BisectionLog:
    """A log as read from its file."""

    header: BisectionHeader
    observations: list[Observation]


def read_bisection(path: Path) -> BisectionLog:
    """Return the bisection log in ``path``, without an incomplete last line. Raises RecordError."""
    lines = read_lines(path)
    return BisectionLog(*parse_log(lines, BisectionHeader, Observation, str(path), "leave out --resume"))
