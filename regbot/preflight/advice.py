"""Advice on which dispatcher to try on given hardware, from ``advice.toml``, with a command that compares dispatchers.

Advice has a date and is never a verdict. It says which dispatcher was fastest on a vendor's cluster and container,
which is a starting point. Only a matched A/B shows which dispatcher is fastest on this hardware: the same commit with
two dispatchers, in alternating runs on one node.
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
from regbot.records.files import describe_validation_error
from regbot.records.ledger import Scalar


class AdviceEntry(Record):
    """One entry of ``advice.toml``.

    ``base`` and ``head`` are the overrides of the two arms to compare. Both are empty if there is nothing to compare.
    """

    id: Identifier
    text: Sentence
    source: Source
    when: Condition
    base: dict[str, Value] = Field(default_factory=dict)
    head: dict[str, Value] = Field(default_factory=dict)


class AdviceBook(Record):
    """The whole content of ``advice.toml``."""

    advice: Annotated[list[AdviceEntry], Field(min_length=1)]


@dataclass(frozen=True)
class Advice:
    """An advice entry that applies to the workload named ``workload``."""

    entry: AdviceEntry
    workload: str

    @property
    def command(self) -> str:
        """The ``regbot check`` command that runs the matched A/B; '' if there is nothing to compare."""
        if not self.entry.head:
            return ""
        arguments = ["regbot", "check", "--base", "HEAD", "--head", "HEAD"]
        for option, overrides in (("--base-set", self.entry.base), ("--head-set", self.entry.head)):
            for key, value in overrides.items():
                arguments += [option, f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return shlex.join([*arguments, "--workload", self.workload])


def find_advice(facts: Facts, config: Mapping[str, Scalar], workload: str = "W") -> list[Advice]:
    """Return the advice for this hardware and configuration. The commands name the workload ``workload``."""
    return [Advice(entry, workload) for entry in shipped_advice() if evaluate(entry.when, config, facts).value]


@cache
def shipped_advice() -> tuple[AdviceEntry, ...]:
    """Return the entries of the ``advice.toml`` that regbot ships."""
    return parse_advice((resources.files("regbot.preflight") / "advice.toml").read_text(encoding="utf-8"))


def parse_advice(text: str) -> tuple[AdviceEntry, ...]:
    """Parse the text of an ``advice.toml``. Raises RuleError."""
    try:
        return tuple(AdviceBook.model_validate(tomllib.loads(text)).advice)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        reason = describe_validation_error(error) if isinstance(error, ValidationError) else str(error)
        raise RuleError(f"advice.toml: {reason}") from error
