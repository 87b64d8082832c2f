"""Advice on which dispatcher to try on given hardware, from ``advice.toml``, with a command that compares dispatchers.

Advice has a date and is never a verdict. It says which dispatcher was fastest on a vendor's cluster and container. Only
a comparison on this hardware shows which one is fastest here: the same commit with two dispatchers, in alternating runs
on one node.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

import tomllib
from pydantic import Field, ValidationError

from regbot.judge.preflight.conditions import Condition, Value, evaluate
from regbot.judge.preflight.facts import Facts
from regbot.judge.preflight.rules import Identifier, RuleError, Sentence, Source
from regbot.records.base import Record
from regbot.records.files import describe_validation_error
from regbot.records.ledger import Scalar


class AdviceEntry(Record):
    """One entry of ``advice.toml``: what is known about dispatchers on some hardware."""

    id: Identifier
    text: Sentence
    source: Source
    when: Condition
    """The advice applies if this condition is true."""
    base: dict[str, Value] = Field(default_factory=dict)
    """Overrides of the base arm of the comparison to run."""
    head: dict[str, Value] = Field(default_factory=dict)
    """Overrides of the head arm; {} if there is nothing to compare."""


class AdviceBook(Record):
    """The whole content of ``advice.toml``."""

    advice: Annotated[list[AdviceEntry], Field(min_length=1)]


@dataclass(frozen=True)
class Advice:
    """An advice entry that applies to a workload."""

    entry: AdviceEntry
    workload: str
    """Name of the workload."""

    @property
    def command(self) -> str:
        """The ``regbot check`` command that compares two dispatchers on the same commit. '' if there is nothing to
        compare.
        """
        if not self.entry.head:
            return ""
        words = ["regbot", "check", "--base", "HEAD", "--head", "HEAD"]
        for option, overrides in (("--base-set", self.entry.base), ("--head-set", self.entry.head)):
            for key, value in overrides.items():
                value_text = str(value).lower() if isinstance(value, bool) else str(value)
                words += [option, f"{key}={value_text}"]
        return shlex.join([*words, "--workload", self.workload])


def find_advice(facts: Facts, config: Mapping[str, Scalar], workload: str = "W") -> list[Advice]:
    """Return the advice whose condition is true for this hardware and configuration. ``workload`` is the name that the
    commands use. The default ``W`` stands for a workload whose name is not known.
    """
    return [Advice(entry, workload) for entry in shipped_advice() if evaluate(entry.when, config, facts).value]


@cache
def shipped_advice() -> tuple[AdviceEntry, ...]:
    """Return the entries of the ``advice.toml`` that regbot ships."""
    return parse_advice((resources.files("regbot.judge.preflight") / "advice.toml").read_text(encoding="utf-8"))


def parse_advice(text: str) -> tuple[AdviceEntry, ...]:
    """Parse the text of an ``advice.toml``. Raises RuleError."""
    try:
        return tuple(AdviceBook.model_validate(tomllib.loads(text)).advice)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        reason = describe_validation_error(error) if isinstance(error, ValidationError) else str(error)
        raise RuleError(f"advice.toml: {reason}") from error
