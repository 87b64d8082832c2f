"""Records of shadow mode: results of shadow checks, later outcomes, and the scoreboard that compares them.

An entry is the result of one shadow check. It is written when the check ends, and never changed. An outcome is a later
decision of a person about the checked commit. Every entry and every outcome is a file of its own, so that two branches
can add files and merge without a conflict.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.baseline import NonEmptyText, require_canonical_time
from regbot.records.ledger import Message, Text
from regbot.records.run import Commit
from regbot.records.verdict import Decision, Status

OutcomeKind = Literal["confirmed", "refuted", "missed", "unknown"]
"""confirmed: a check reported a regression and was right. refuted: a check reported a regression and was wrong. missed:
a check reported no regression although there was one. unknown: the truth will never be known, so the entry is
closed."""

NonNegativeCount = Annotated[int, Field(ge=0)]
Minutes = Annotated[float, Field(ge=0)]


class ShadowThroughput(Record):
    """Summary of a workload's throughput section. A value that the section does not have is null."""

    status: Status
    decision: Decision | None
    estimate_pct: float | None
    low_pct: float | None
    high_pct: float | None
    pairs: NonNegativeCount
    minutes: Minutes = Field(description="minutes of the timed runs")


class ShadowWorkload(Record):
    """Summary of one workload's verdict. A section that the verdict does not have is null."""

    name: Text
    sharding: Status | None
    findings: list[Text] = Field(description="pattern@axis of every finding that is not PASS")
    throughput: ShadowThroughput | None
    validity: Status
    reason: Message = Field(description="first reason of the gravest section; '' if it has no reason")


class ShadowEntry(Record):
    """Result of one shadow check."""

    schema_id: Literal["regbot/shadow@1"] = Field(default="regbot/shadow@1", alias="schema")
    created: Text = Field(description="when the check ended, UTC")
    regbot: Text = Field(description="version of regbot that checked")
    base: Commit
    head: Commit
    subject: Text = Field(description="of head's commit message; written by the author of the change")
    verdict: Status
    would_block: bool = Field(description="whether the check would have blocked the change outside of shadow mode")
    workloads: list[ShadowWorkload]

    _created = field_validator("created")(require_canonical_time)

    @property
    def minutes(self) -> float:
        """Minutes of the timed runs of all workloads together."""
        return sum(workload.throughput.minutes for workload in self.workloads if workload.throughput)


class ShadowOutcome(Record):
    """A later decision of a person about a commit that a shadow check judged. If there are several, the last one
    counts."""

    schema_id: Literal["regbot/shadow-outcome@1"] = Field(default="regbot/shadow-outcome@1", alias="schema")
    entry: Text = Field(description="name of the check's file without .json")
    head: Commit
    outcome: OutcomeKind
    who: NonEmptyText
    when: Text = Field(description="UTC")
    why: Annotated[str, Field(min_length=1, max_length=4000)]

    _when = field_validator("when")(require_canonical_time)


class ShadowRow(Record):
    """One check in a list."""

    name: Text = Field(description="name of the check's file without .json")
    entry: ShadowEntry = Field(description="result of the check")
    outcome: ShadowOutcome | None = Field(description="later decision about the commit; None so far")


class ShadowListing(Record):
    """Output of ``shadow list``, oldest check first."""

    schema_id: Literal["regbot/shadow-list@1"] = Field(default="regbot/shadow-list@1", alias="schema")
    checks: list[ShadowRow]


class ShareInterval(Record):
    """``count`` of ``total``, with the exact 95% interval of the share (Clopper and Pearson)."""

    count: NonNegativeCount
    total: NonNegativeCount
    low: float
    high: float


class ClaimCounts(Record):
    """Counts of the commits whose last check has one status, FAIL (a regression) or REVIEW (a possible regression), by
    the outcome of the commit."""

    commits: NonNegativeCount = Field(description="number of all these commits")
    confirmed: NonNegativeCount
    refuted: NonNegativeCount
    unknown: NonNegativeCount
    open: NonNegativeCount = Field(description="commits without an outcome so far")


class UnflaggedCounts(Record):
    """Counts of the commits whose last check has a given status. The status is one that reports no regression: PASS,
    INCONCLUSIVE or INVALID. Each of the three has a record of its own."""

    commits: NonNegativeCount = Field(description="number of all these commits")
    missed: NonNegativeCount = Field(description="commits with a regression that was detected later, as far as known")


class Scoreboard(Record):
    """Results of shadow checks compared with later outcomes. A commit counts once, by its last check."""

    schema_id: Literal["regbot/scoreboard@1"] = Field(default="regbot/scoreboard@1", alias="schema")
    since: Text | None = Field(description="day in UTC; older checks are left out. None if all checks count")
    first: Text | None = Field(description="when the oldest check ended, UTC; None without checks")
    last: Text | None = Field(description="when the newest check ended, UTC; None without checks")
    checks: NonNegativeCount = Field(description="number of checks")
    commits: NonNegativeCount = Field(description="number of checked commits")
    would_block: NonNegativeCount = Field(description="commits that would have been stopped by their last check")
    fail: ClaimCounts
    review: ClaimCounts
    passed: UnflaggedCounts
    inconclusive: UnflaggedCounts
    invalid: UnflaggedCounts
    precision: ShareInterval | None = Field(
        description="share of confirmed FAILs among the FAILs that were confirmed or refuted; None if there are none"
    )
    recall: ShareInterval | None = Field(
        description="share of FAILs among the commits with a known regression; None if no regression is known"
    )
    minutes: Minutes = Field(description="minutes of the timed runs of all checks")
    open: list[ShadowRow] = Field(description="FAIL and REVIEW without an outcome, oldest first")
    settled: list[ShadowRow] = Field(description="commits with an outcome, oldest check first")
