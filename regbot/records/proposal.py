"""What a refresh proposes, as the one file that crosses from the node to the job that has a token.

It holds records and nothing else: no path, no mode, no text of a commit or of a pull request. Where a record lies in
the store follows from what it is, and what is said of it is worded by whoever reads it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from regbot.records.base import Record
from regbot.records.baseline import ENTRY, Anchor, Baseline, canonical
from regbot.records.ledger import Ledger, Text
from regbot.records.refresh import Refreshed

MOST = 500
"""Of any kind of record; a night of thirty workloads has half of it."""


class Proposal(Record):
    """One night: what was found, and the records that may join the store."""

    schema_id: Literal["regbot/proposal@1"] = Field(default="regbot/proposal@1", alias="schema")
    regbot: Text = Field(description="version that measured")
    created: Text = Field(description="when, UTC")
    refreshed: Refreshed
    sessions: Annotated[list[Baseline], Field(max_length=MOST)]
    ledgers: Annotated[list[Ledger], Field(max_length=MOST)] = Field(description="those that the sessions name")
    anchors: Annotated[list[Anchor], Field(max_length=MOST)]

    _created = field_validator("created")(canonical)

    @model_validator(mode="after")
    def _named(self) -> Self:
        for night in self.refreshed.workloads:
            if ENTRY.fullmatch(night.name) is None:
                raise ValueError(f"{night.name[:80]!r} is no entry of a verdict")
        return self

    @property
    def commit(self) -> str:
        """Main's, that was measured."""
        return self.refreshed.commit

    @property
    def empty(self) -> bool:
        """Nothing is to be stored."""
        return not (self.sessions or self.ledgers or self.anchors)
