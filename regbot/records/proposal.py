"""A refresh proposal: the file that the measuring node passes to the job that has a token. It contains only records, no
path, file mode or text of a pull request. The reading job computes each path from the record, and writes all texts."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from regbot.records.base import Record
from regbot.records.baseline import ENTRY_PATTERN, Anchor, Baseline, require_canonical_time
from regbot.records.ledger import Ledger, Text
from regbot.records.refresh import RefreshReport
from regbot.records.text.clip import clip

MAX_RECORDS = 500
"""Largest number of records of each kind. A refresh of thirty workloads has about half as many."""


class Proposal(Record):
    """Result of one nightly refresh: its report, and the records that may join the store."""

    schema_id: Literal["regbot/proposal@1"] = Field("regbot/proposal@1", alias="schema")
    regbot: Text = Field(description="version of regbot that measured")
    created: Text = Field(description="when, UTC")
    refreshed: RefreshReport
    sessions: Annotated[list[Baseline], Field(max_length=MAX_RECORDS)]
    ledgers: Annotated[list[Ledger], Field(max_length=MAX_RECORDS)] = Field(description="ledgers that sessions name")
    anchors: Annotated[list[Anchor], Field(max_length=MAX_RECORDS)]

    _created = field_validator("created")(require_canonical_time)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Check that the report names each workload as an entry, such as ``mixtral-8x7b@1/ep``."""
        for workload in self.refreshed.workloads:
            if ENTRY_PATTERN.fullmatch(workload.name) is None:
                raise ValueError(f"{clip(workload.name, 80)!r} is not the name of a workload")
        return self

    @property
    def commit(self) -> str:
        """The commit of main that was measured."""
        return self.refreshed.commit

    @property
    def empty(self) -> bool:
        """Whether the proposal has no records to store."""
        return not (self.sessions or self.ledgers or self.anchors)
