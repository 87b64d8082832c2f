"""Find conflicts in a configuration by rules (``rules.toml``), and advice on dispatchers (``advice.toml``), without
running anything.

A rule says what a framework does with a combination of settings, according to the framework's source code on a given
date. It does not know what a run will do: a configuration without conflicts can still execute another dispatcher than
the requested one, and only the ledger or the record of a run shows which. Advice has a date too and is never a verdict.
It says which dispatcher was fastest on a vendor's cluster, and has the command that compares dispatchers here.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

import tomllib

from regbot.judge.preflight.conditions import Condition, evaluate
from regbot.judge.preflight.facts import Facts
from regbot.records.ledger import Scalar
from regbot.records.text.printable import printable

MAX_VALUE, MAX_VALUES = 200, 4000
"""Limits on the number of characters that are shown: for one value, and for all values that make a rule apply."""


@dataclass(frozen=True)
class Rule:
    """One rule about a conflict between settings, as it is in ``rules.toml``."""

    id: str
    severity: Literal["invalid", "warning"]
    """invalid: the run would not measure what was requested. warning: the run may do so, or is slower."""
    effect: Literal["error", "silent fallback", "hang", "slow", "wrong"]
    """What happens if the configuration is run. ``page.EFFECTS`` has the words for it."""
    what: str
    fix: str
    source: str
    when: Condition


@dataclass(frozen=True)
class AdviceEntry:
    """One entry of ``advice.toml``: what is known about dispatchers on some hardware."""

    id: str
    text: str
    source: str
    when: Condition
    base: Mapping[str, Scalar] = field(default_factory=dict)
    head: Mapping[str, Scalar] = field(default_factory=dict)
    """Overrides of both arms of the comparison to run; {} if there is nothing to compare."""


@dataclass(frozen=True)
class Conflict:
    """A rule that applies to a configuration."""

    rule: Rule
    because: Mapping[str, Scalar]

    @property
    def values(self) -> str:
        """``because`` as printable text, such as ``moe_token_dispatcher_type = alltoall, gpu = NVIDIA H200``."""
        settings = [f"{_clip_value(name)} = {_clip_value(value)}" for name, value in self.because.items()]
        return ", ".join(settings)[:MAX_VALUES]


@dataclass(frozen=True)
class Advice:
    """An advice entry that applies to a workload."""

    entry: AdviceEntry
    workload: str

    @property
    def command(self) -> str:
        """The ``regbot check`` command that compares two dispatchers on the same commit. '' if there is nothing to
        compare."""
        if not self.entry.head:
            return ""
        words = ["regbot", "check", "--base", "HEAD", "--head", "HEAD"]
        for option, overrides in (("--base-set", self.entry.base), ("--head-set", self.entry.head)):
            for key, value in overrides.items():
                words += [option, f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return shlex.join([*words, "--workload", self.workload])


def find_conflicts(config: Mapping[str, Scalar], facts: Facts) -> list[Conflict]:
    """Return the rules that apply to a resolved configuration. Rules that make a run invalid come first."""
    truths = [(rule, evaluate(rule.when, config, facts)) for rule in shipped_rules()]
    conflicts = [Conflict(rule, truth.because) for rule, truth in truths if truth.value]
    return sorted(conflicts, key=lambda conflict: conflict.rule.severity != "invalid")


def find_advice(facts: Facts, config: Mapping[str, Scalar], workload: str = "W") -> list[Advice]:
    """Return the advice for this hardware and configuration. ``workload`` stands in the commands."""
    return [Advice(entry, workload) for entry in shipped_advice() if evaluate(entry.when, config, facts).value]


@cache
def shipped_rules() -> tuple[Rule, ...]:
    return tuple(Rule(**entry) for entry in _load("rules.toml")["rule"])


@cache
def shipped_advice() -> tuple[AdviceEntry, ...]:
    return tuple(AdviceEntry(**entry) for entry in _load("advice.toml")["advice"])


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("regbot.judge.preflight") / name).read_text(encoding="utf-8"))


def _clip_value(value: Scalar) -> str:
    text, ellipsis = printable(str(value)), " ..."
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - len(ellipsis)] + ellipsis
