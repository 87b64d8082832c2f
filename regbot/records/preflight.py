"""What a resolved configuration conflicts with, and what may be tried, as ``regbot preflight --json`` prints it."""

from typing import Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Message, Text


class ConflictFound(Record):
    """A rule that applies."""

    rule: Text
    severity: Literal["invalid", "warning"]
    effect: Text
    what: Message
    here: Message = Field(description="the values that make it apply")
    fix: Message
    source: Message


class AdviceFound(Record):
    """Dated advice, never a verdict; ``command`` is the matched comparison that settles it, '' where there is none."""

    advice: Text
    text: Message
    source: Message
    command: Message


class Preflight(Record):
    """The answer for one configuration."""

    schema_id: Literal["regbot/preflight@1"] = Field(default="regbot/preflight@1", alias="schema")
    workload: Text
    conflicts: list[ConflictFound]
    advice: list[AdviceFound]
