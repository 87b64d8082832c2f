"""Find conflicts in a configuration by rules (``rules.toml``), without running anything.

A rule says what a framework does with a combination of settings, according to the framework's source code on a given
date. A rule does not know what a run will do. So a run of a configuration without conflicts can still execute another
dispatcher than the requested one. Only the ledger or the record of a run shows which dispatcher ran. If a rule tests a
key or a fact that is unknown, its condition can be unknown too. Then the rule does not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import tomllib
from pydantic import Field, ValidationError

from regbot.judge.preflight.conditions import Condition, evaluate
from regbot.judge.preflight.facts import Facts
from regbot.records.base import Record
from regbot.records.files import describe_validation_error
from regbot.records.ledger import Scalar
from regbot.records.text.printable import printable

Severity = Literal["invalid", "warning"]
Effect = Literal["error", "silent fallback", "hang", "slow", "wrong"]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Sentence = Annotated[str, Field(min_length=10, max_length=400)]
Source = Annotated[str, Field(pattern=r"(20\d\d-\d\d-\d\d)", description="the source that was read, with the date")]

MAX_VALUE, MAX_VALUES = 200, 4000
"""Limits on the number of characters that are shown: for one value, and for all values that make a rule apply."""


class RuleError(Exception):
    """The rules that regbot ships are invalid, which is a bug in regbot. The message names the rule."""


class Rule(Record):
    """One rule about a conflict between settings, as it is in ``rules.toml``. docs/preflight.md lists all rules."""

    id: Identifier
    severity: Severity
    """invalid: the run would not measure what was requested. warning: the run may do so, or is slower."""
    effect: Effect
    """What happens if the configuration is run. ``page.EFFECTS`` has the words for it."""
    what: Sentence
    """The conflict, in words."""
    fix: Sentence
    source: Source
    when: Condition
    """The rule applies if this condition is true."""


class RuleBook(Record):
    """The whole content of ``rules.toml``."""

    rule: Annotated[list[Rule], Field(min_length=1)]


@dataclass(frozen=True)
class Conflict:
    """A rule that applies to a configuration."""

    rule: Rule
    because: Mapping[str, Scalar]
    """The keys and facts that make the rule apply, with their values."""

    @property
    def values(self) -> str:
        """``because`` as printable text, such as ``moe_token_dispatcher_type = alltoall, gpu = NVIDIA H200``."""
        settings = [f"{_clip_value(name)} = {_clip_value(value)}" for name, value in self.because.items()]
        return ", ".join(settings)[:MAX_VALUES]


def find_conflicts(config: Mapping[str, Scalar], facts: Facts) -> list[Conflict]:
    """Return the rules that apply to a resolved configuration. Rules that make a run invalid come first."""
    conflicts = []
    for rule in shipped_rules():
        truth = evaluate(rule.when, config, facts)
        if truth.value:
            conflicts.append(Conflict(rule, truth.because))
    return sorted(conflicts, key=lambda conflict: conflict.rule.severity != "invalid")


def _clip_value(value: Scalar) -> str:
    """Return a value as printable text of at most MAX_VALUE characters."""
    text, ellipsis = printable(str(value)), " ..."
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - len(ellipsis)] + ellipsis


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """Return the rules of the ``rules.toml`` that regbot ships."""
    return parse_rules((resources.files("regbot.judge.preflight") / "rules.toml").read_text(encoding="utf-8"))


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the text of a ``rules.toml``. Raises RuleError."""
    try:
        rules = RuleBook.model_validate(tomllib.loads(text)).rule
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"rules.toml is not TOML: {error}") from error
    except ValidationError as error:
        raise RuleError(f"rules.toml: {describe_validation_error(error)}") from error
    names = [rule.id for rule in rules]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise RuleError(f"rules.toml: {duplicate} is defined twice")
    return tuple(rules)
