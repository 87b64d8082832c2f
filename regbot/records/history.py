"""The trend of one workload over its stored sessions. It annotates; no verdict is computed from it."""

from typing import Annotated, Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.baseline import EntryName, EnvironmentKey, Named, Positive, VariantName
from regbot.records.ledger import Text
from regbot.records.run import Clock, Commit

Seconds = Annotated[float, Field(gt=0)]


class HistoryPoint(Record):
    """Neighbouring sessions. A session's level is the mean of its runs' usual step time, on the log scale."""

    first: Text = Field(description="when the oldest of them was measured, UTC")
    last: Text
    sessions: Positive
    level_s: Seconds = Field(description="mean of their levels, on the log scale")
    low_s: Seconds
    high_s: Seconds
    anchor: bool = Field(description="whether a session of the anchor's commit is among them")


class HistoryChange(Record):
    """A change of level, as it is told after the fact. An annotation: it decides nothing."""

    at: Text = Field(description="when the first session of the new level was measured, UTC")
    before: Commit = Field(description="of the last session at the old level")
    commit: Commit = Field(description="of the first session at the new level")
    grain: Positive = Field(description="neighbouring sessions that were searched as one; 1 where the history is short")
    change_pct: float = Field(description="of the level; positive means slower")


class HistorySeries(Record):
    """Sessions of one class that may be compared with each other: of one environment, timed on the same terms."""

    environment: EnvironmentKey
    changed: list[Text] = Field(description="fields that differ from the series before; none in the first of a class")
    world_size: Positive
    steps: Positive
    cut: Annotated[int, Field(ge=0)]
    clock: Clock
    dispatcher: Text
    sessions: Positive
    held: Annotated[int, Field(ge=0)] = Field(description="of them held back from the rolling reference")
    first: Text = Field(description="when the oldest was measured, UTC")
    last: Text
    anchor_sessions: Annotated[int, Field(ge=0)] = Field(description="of the anchor's commit, re-runs included")
    anchor_s: Seconds | None = Field(description="their mean level; None where there are none")
    points: Annotated[list[HistoryPoint], Field(min_length=1)] = Field(description="oldest first, of equal numbers")
    stretches: Annotated[list[HistoryPoint], Field(min_length=1)] = Field(description="what lies between the changes")
    changes: list[HistoryChange]


class HistoryTrend(Record):
    """A variant of the workload on one node class. Times of two classes are never compared."""

    variant: VariantName
    node_class: Named
    anchor: Commit | None
    series: Annotated[list[HistorySeries], Field(min_length=1)] = Field(description="by their first session")


class History(Record):
    """What ``baseline history`` prints."""

    schema_id: Literal["regbot/history@1"] = Field(default="regbot/history@1", alias="schema")
    workload: EntryName
    trends: list[HistoryTrend]
