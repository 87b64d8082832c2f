"""The trend of one workload over its stored sessions. The trend is information for people, and no verdict uses it."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from regbot.records.base import Record
from regbot.records.baseline import EntryName, EnvironmentKey, NonEmptyText, Positive, VariantName
from regbot.records.ledger import Text
from regbot.records.run import Clock, Commit

Seconds = Annotated[float, Field(gt=0)]


class HistoryPoint(Record):
    """Neighbouring sessions in one point. Its level is the mean of their runs' median step times, on the log scale."""

    first: Text = Field(description="when the oldest of the sessions was measured, UTC")
    last: Text = Field(description="when the newest of the sessions was measured, UTC")
    sessions: Positive = Field(description="number of sessions")
    level_s: Seconds = Field(description="mean level of the sessions, averaged on the log scale, in seconds")
    low_s: Seconds = Field(description="lowest level of the sessions")
    high_s: Seconds = Field(description="highest level of the sessions")
    anchor: bool = Field(description="whether one of the sessions measured the anchor's commit")


class HistoryChange(Record):
    """A lasting change of the step time, detected afterwards. It decides nothing."""

    at: Text = Field(description="when the first session of the new level was measured, UTC")
    before: Commit = Field(description="commit of the last session at the old level")
    commit: Commit = Field(description="commit of the first session at the new level")
    change_pct: float = Field(description="change of the level in percent; positive means slower")


class HistorySeries(Record):
    """Sessions of one node class and environment that were timed on the same terms."""

    environment: EnvironmentKey
    changed: list[Text] = Field(description="fields that differ from the series before")
    world_size: Positive
    steps: Positive
    cut: Annotated[int, Field(ge=0)]
    clock: Clock
    dispatcher: Text
    sessions: Positive
    excluded_sessions: NonNegativeInt = Field(alias="held", description="kept out of the rolling reference")
    first: Text = Field(description="when the oldest session was measured, UTC")
    last: Text = Field(description="when the newest session was measured, UTC")
    anchor_sessions: NonNegativeInt = Field(description="sessions of the anchor's commit, repeated ones included")
    anchor_s: Seconds | None = Field(description="mean level of the anchor's sessions; None if there are none")
    points: Annotated[list[HistoryPoint], Field(min_length=1)] = Field(description="oldest first")
    stretches: Annotated[list[HistoryPoint], Field(min_length=1)] = Field(description="between changes of level")
    changes: list[HistoryChange]


class HistoryTrend(Record):
    """Trend of a variant on one node class. ``anchor`` is the anchor's commit."""

    variant: VariantName
    node_class: NonEmptyText
    anchor: Commit | None
    series: Annotated[list[HistorySeries], Field(min_length=1)] = Field(description="by their first session")


class History(Record):
    """Output of ``baseline history``."""

    schema_id: Literal["regbot/history@1"] = Field("regbot/history@1", alias="schema")
    workload: EntryName
    trends: list[HistoryTrend]
