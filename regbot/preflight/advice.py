"""Which dispatcher to try on this hardware: dated advice as data (``advice.toml``), and the command that settles it.

Nothing here is a verdict. What was fastest on a vendor's cluster, with a vendor's container, is where to begin; what is
fastest here is for a matched A/B to say: one revision, two dispatchers, interleaved on one node.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

import tomllib
from pydantic import Field, ValidationError

from regbot.preflight.conditions import Condition, Value, evaluate
from regbot.preflight.facts import Facts
from regbot.preflight.rules import Identifier, RuleError, Sentence, Source
from regbot.records.base import Record
from regbot.records.files import describe
from regbot.records.ledger import Scalar


class Entry(Record):
    """One advice as it is stored. Without ``base`` and ``head`` there is nothing to compare."""

    id: Identifier
    text: Sentence
    source: Source
    when: Condition
    base: dict[str, Value] = Field(default_factory=dict)
    head: dict[str, Value] = Field(default_factory=dict)


class AdviceBook(Record):
    """``advice.toml``."""

    advice: Annotated[list[Entry], Field(min_length=1)]


@dataclass(frozen=True)
class Advice:
    """An advice that applies."""

    entry: Entry
    workload: str

    @property
    def command(self) -> str:
        """The matched A/B, '' where there is nothing to compare."""
        if not self.entry.head:
            return ""
        words = ["regbot", "check", "--base", "HEAD", "--head", "HEAD"]
        for option, overrides in (("--base-set", self.entry.base), ("--head-set", self.entry.head)):
            for key, value in overrides.items():
                words += [option, f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return shlex.join([*words, "--workload", self.workload])


def advice(facts: Facts, config: Mapping[str, Scalar], workload: str = "W") -> list[Advice]:
    """What applies to this hardware and configuration. ``workload`` names it in the commands."""
    return [Advice(entry, workload) for entry in shipped_advice() if evaluate(entry.when, config, facts).value]


@cache
def shipped_advice() -> tuple[Entry, ...]:
    """The entries of ``advice.toml``."""
    return parse_advice((resources.files("regbot.preflight") / "advice.toml").read_text(encoding="utf-8"))


def parse_advice(text: str) -> tuple[Entry, ...]:
    """Entries in TOML. Raises RuleError."""
    try:
        return tuple(AdviceBook.model_validate(tomllib.loads(text)).advice)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        why = describe(error) if isinstance(error, ValidationError) else str(error)
        raise RuleError(f"advice.toml: {why}") from error
