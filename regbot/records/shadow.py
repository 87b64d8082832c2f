"""Shadow mode: what checks would have said, what was later found to be true, and how the two compare.

An entry is written when a shadow check ends and never changed; an outcome is what somebody later decided about a
commit. Each is a file of its own, so that branches that both add some merge without a conflict.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from regbot.records.base import Record
from regbot.records.baseline import Named, canonical
from regbot.records.ledger import Message, Text
from regbot.records.run import Commit
from regbot.records.verdict import Decision, Status

OutcomeWord = Literal["confirmed", "refuted", "missed", "unknown"]
"""Of a check that found something: it was right; it was wrong. Of one that did not: a regression was there after all.
unknown: nobody will ever know, and it waits no longer."""

Counted = Annotated[int, Field(ge=0)]
Minutes = Annotated[float, Field(ge=0)]


class ShadowThroughput(Record):
    """The throughput section in short."""

    status: Status
    decision: Decision | None
    estimate_pct: float | None
    low_pct: float | None
    high_pct: float | None
    pairs: Counted
    minutes: Minutes = Field(description="of timed runs")


class ShadowWorkload(Record):
    """One workload entry of the verdict in short."""

    name: Text
    sharding: Status | None
    findings: list[Text] = Field(description="pattern@axis of every finding that is not PASS")
    throughput: ShadowThroughput | None
    validity: Status
    reason: Message = Field(description="the first of its gravest section; '' where none is given")


class ShadowEntry(Record):
    """What one shadow check would have said."""

    schema_id: Literal["regbot/shadow@1"] = Field(default="regbot/shadow@1", alias="schema")
    created: Text = Field(description="when the check ended, UTC")
    regbot: Text = Field(description="version that checked")
    base: Commit
    head: Commit
    subject: Text = Field(description="of head's commit message; written by the author of the change")
    verdict: Status
    would_block: bool
    workloads: list[ShadowWorkload]

    _created = field_validator("created")(canonical)

    @property
    def minutes(self) -> float:
        """Of timed runs, over all workloads."""
        return sum(each.throughput.minutes for each in self.workloads if each.throughput)


class ShadowOutcome(Record):
    """What was later decided about a commit that a shadow check had judged. The last one counts."""

    schema_id: Literal["regbot/shadow-outcome@1"] = Field(default="regbot/shadow-outcome@1", alias="schema")
    entry: Text = Field(description="name of the check's file without .json")
    head: Commit
    outcome: OutcomeWord
    who: Named
    when: Text = Field(description="UTC")
    why: Annotated[str, Field(min_length=1, max_length=4000)]

    _when = field_validator("when")(canonical)


class ShadowRow(Record):
    """One check as it is listed: its file, what it said, what was decided about its commit."""

    name: Text
    entry: ShadowEntry
    outcome: ShadowOutcome | None


class ShadowListing(Record):
    """What ``shadow list`` prints, oldest check first."""

    schema_id: Literal["regbot/shadow-list@1"] = Field(default="regbot/shadow-list@1", alias="schema")
    checks: list[ShadowRow]


class Share(Record):
    """``count`` of ``total``, with the exact 95% interval of the share (Clopper and Pearson)."""

    count: Counted
    total: Counted
    low: float
    high: float


class Claims(Record):
    """Commits of which the last check said that something is wrong, or may be."""

    commits: Counted
    confirmed: Counted
    refuted: Counted
    unknown: Counted
    open: Counted


class Silences(Record):
    """Commits of which the last check claimed nothing."""

    commits: Counted
    missed: Counted = Field(description="in which a regression was found later, as far as anybody knows")


class Scoreboard(Record):
    """Shadow checks against what was found to be true. A commit counts once, by its last check."""

    schema_id: Literal["regbot/scoreboard@1"] = Field(default="regbot/scoreboard@1", alias="schema")
    since: Text | None = Field(description="a day, UTC: older checks are left out")
    first: Text | None = Field(description="when the oldest check ended, UTC; None where there is none")
    last: Text | None
    checks: Counted
    commits: Counted
    would_block: Counted = Field(description="commits that would have been stopped by their last check")
    fail: Claims
    review: Claims
    passed: Silences
    inconclusive: Silences
    invalid: Silences
    precision: Share | None = Field(description="of settled FAILs, those confirmed; None where none is settled")
    recall: Share | None = Field(description="of known regressions, those called FAIL; None where none is known")
    minutes: Minutes = Field(description="of timed runs, all checks")
    open: list[ShadowRow] = Field(description="FAIL and REVIEW that nobody has settled, oldest first")
    settled: list[ShadowRow] = Field(description="commits with an outcome, oldest check first")
