"""Conflicts of a configuration: rules as data (``rules.toml``), evaluated without running anything.

A rule knows what frameworks do with a combination of settings, as their source read on a date. It does not know what
this run will do: silence here is no proof, and only the dispatcher gate tells what was executed. Where a rule cannot
tell, because a key or a fact is not known, it says nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import tomllib
from pydantic import Field, ValidationError

from regbot.preflight.conditions import Condition, evaluate
from regbot.preflight.facts import Facts
from regbot.records.base import Record
from regbot.records.files import describe
from regbot.records.ledger import Scalar
from regbot.text import printable

Severity = Literal["invalid", "warning"]
Effect = Literal["error", "silent fallback", "hang", "slow", "wrong"]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Sentence = Annotated[str, Field(min_length=10, max_length=400)]
Source = Annotated[str, Field(pattern=r"(20\d\d-\d\d-\d\d)", description="where it was read, and when")]


MAX_VALUE, MAX_VALUES = 200, 4000
"""Characters that are shown of one value, and of all that make a rule apply."""


class RuleError(Exception):
    """The rules that are shipped cannot be used: a fault of regbot. The message names the rule."""


class Rule(Record):
    """One conflict. The sentences are completed by the values that were found."""

    id: Identifier
    severity: Severity
    effect: Effect
    what: Sentence
    fix: Sentence
    source: Source
    when: Condition


class RuleBook(Record):
    """``rules.toml``."""

    rule: Annotated[list[Rule], Field(min_length=1)]


@dataclass(frozen=True)
class Conflict:
    """A rule that applies."""

    rule: Rule
    because: Mapping[str, Scalar]
    """Names of keys and facts -> the values that make it apply."""

    @property
    def values(self) -> str:
        """``moe_token_dispatcher_type = alltoall, asked = deepep``, harmless whoever wrote the values."""
        said = [f"{_short(name)} = {_short(value)}" for name, value in self.because.items()]
        return ", ".join(said)[:MAX_VALUES]


def conflicts(config: Mapping[str, Scalar], facts: Facts) -> list[Conflict]:
    """The rules that apply to a resolved configuration: those that make a run invalid first."""
    found = []
    for rule in shipped_rules():
        truth = evaluate(rule.when, config, facts)
        if truth.value:
            found.append(Conflict(rule, truth.because))
    return sorted(found, key=lambda conflict: conflict.rule.severity != "invalid")


def _short(value: Scalar) -> str:
    text = printable(str(value))
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 4]} ..."


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of ``rules.toml``."""
    return parse_rules((resources.files("regbot.preflight") / "rules.toml").read_text(encoding="utf-8"))


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Rules in TOML. Raises RuleError."""
    try:
        rules = RuleBook.model_validate(tomllib.loads(text)).rule
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"rules.toml is not TOML: {error}") from error
    except ValidationError as error:
        raise RuleError(f"rules.toml: {describe(error)}") from error
    names = [rule.id for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RuleError(f"rules.toml: {twice} stands twice")
    return tuple(rules)
