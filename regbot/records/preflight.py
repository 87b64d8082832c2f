"""Output of ``regbot preflight --json``: conflicts in a resolved configuration, and advice."""

from typing import Literal

from pydantic import Field

from regbot.records.base import Record
from regbot.records.ledger import Message, Text


class PreflightConflict(Record):
    """A rule that the configuration violates."""

    rule: Text = Field(description="identifier of the rule")
    severity: Literal["invalid", "warning"]
    effect: Text = Field(description="what happens if the configuration is run, such as a crash")
    description: Message = Field(alias="what", description="what the rule forbids, and why")
    values: Message = Field(alias="here", description="the values that violate the rule")
    fix: Message = Field(description="how to change the configuration")
    source: Message = Field(description="where the rule comes from")


class PreflightAdvice(Record):
    """Dated advice, never a verdict. ``command`` runs the comparison that tests it; '' if there is none."""

    advice: Text
    text: Message
    source: Message
    command: Message


class Preflight(Record):
    """Conflicts and advice for one configuration."""

    schema_id: Literal["regbot/preflight@1"] = Field("regbot/preflight@1", alias="schema")
    workload: Text = Field(description="name of the workload, or what was given if the configuration names none")
    conflicts: list[PreflightConflict]
    advice: list[PreflightAdvice]
    unknown: Message = Field("", description="why rules about hardware did not apply; '' if the GPU is known")
