"""Conditions of rules, as data: tests on a resolved configuration and on facts.

A condition is ``{all = [...]}`` or ``{any = [...]}`` of other conditions, or one test of one configuration ``key`` or
of one ``fact``, such as ``{key = "a", eq = 1}``. A list of keys has the names of a key in different versions.

The value of a condition is true, false or unknown (None), as in Kleene's three-valued logic. ``all`` is false if one of
its conditions is false, and ``any`` is true if one of its conditions is true. Otherwise one unknown condition makes
the whole unknown. A rule applies only if its condition is true.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regbot.judge.preflight.facts import Facts
from regbot.records.ledger import Scalar

Condition = Mapping[str, Any]

PREFERRED_SECTIONS = ("comm_overlap.", "model.")
"""If several sections of a configuration have a key, the value in the first of these sections counts. Megatron Bridge
copies the values of comm_overlap into the model at start, so comm_overlap comes first."""

OFF_VALUES = (None, False, 0, "", "none", "None", "false", "False", "0")
"""Values for which the test ``off`` is true and ``on`` is false."""

KEY_TESTS: dict[str, Callable[[Scalar], bool]] = {
    "on": lambda value: value not in OFF_VALUES,
    "off": lambda value: value in OFF_VALUES,
    "set": lambda value: value is not None,
    "missing": lambda value: value is None,
}
"""Tests without an operand. A key that the configuration lacks counts as None for them, because a resolved
configuration names every key that is used."""


def is_equal(value: Scalar, expected: Scalar) -> bool:
    """Whether two values are equal. Unlike in Python, True is not equal to 1."""
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_before(value: Scalar, limit: str) -> bool | None:
    version = _version(value)
    return version < (_version(limit) or ()) if version is not None else None


TESTS: dict[str, Callable[[Any, Any], bool | None]] = {
    "eq": is_equal,
    "ne": lambda value, operand: not is_equal(value, operand),
    "in": lambda value, operand: any(is_equal(value, member) for member in operand),
    "not_in": lambda value, operand: not any(is_equal(value, member) for member in operand),
    "gt": lambda value, operand: _is_number(value) and value > operand,
    "lt": lambda value, operand: _is_number(value) and value < operand,
    "none": lambda value, _: value is None,
    "has": lambda value, operand: operand in re.findall(r"\w+", str(value)),
    "starts": lambda value, operand: str(value).startswith(tuple(operand)),
    "not_starts": lambda value, operand: not str(value).startswith(tuple(operand)),
    "before": _is_before,
}
"""Tests of a value against the operand in the rule. Their result is unknown if the configuration lacks the key."""


@dataclass(frozen=True)
class Truth:
    """The value of a condition, and the reason why it is true."""

    value: bool | None
    """None if the value is unknown."""
    because: Mapping[str, Scalar]
    """Keys and facts that make the condition true, with their values; {} if it is not true."""


def evaluate(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    """Evaluate ``condition`` for a configuration and facts."""
    for kind, decisive in (("all", False), ("any", True)):
        if kind in condition:
            truths = [evaluate(part, config, facts) for part in condition[kind]]
            values = [truth.value for truth in truths]
            value = None if None in values else not decisive
            value = decisive if decisive in values else value
            because = {name: cause for truth in truths for name, cause in truth.because.items()}
            return Truth(value, because if value else {})
    is_key = "key" in condition
    if is_key:
        names = [condition["key"]] if isinstance(condition["key"], str) else condition["key"]
        key_and_value = lookup(config, names)
        is_present = key_and_value is not None
        name, tested = key_and_value or (names[0], None)
    else:
        name = condition["fact"]
        tested = facts.value(name)
        is_present = tested is not None
    ((test, operand),) = ((field, operand) for field, operand in condition.items() if field not in ("key", "fact"))
    result: bool | None = None
    if is_key and test in KEY_TESTS:
        result = KEY_TESTS[test](tested)
    elif is_present and test == "differs":  # the operand is the name of a fact
        other = facts.value(operand)
        result = None if other is None or tested is None else str(tested) != str(other)
    elif is_present:
        result = TESTS[test](tested, operand)
    return Truth(result, {name: tested} if result else {})


def lookup(config: Mapping[str, Scalar], names: list[str]) -> tuple[str, Scalar] | None:
    """Look up a key in a flat configuration. A key of the configuration may begin with sections, such as ``model.``. Of
    ``names``, the first one with a value counts. Return the whole key and its value; None if there is no such key, or
    if sections that are not preferred disagree."""
    key_without_value: str | None = None
    for name in names:
        matches = [key for key in config if key == name or key.endswith(f".{name}")]
        keys_with_value = [key for key in matches if config[key] is not None]
        if keys_with_value:
            candidates = (name, *(section + name for section in PREFERRED_SECTIONS))
            preferred = [key for key in candidates if key in keys_with_value]
            has_one_value = len({repr(config[key]) for key in keys_with_value}) == 1
            if not preferred and not has_one_value:
                return None
            key_that_counts = preferred[0] if preferred else keys_with_value[0]
            return key_that_counts, config[key_that_counts]
        if matches and key_without_value is None:
            key_without_value = matches[0]
    return (key_without_value, None) if key_without_value is not None else None


def _version(value: Scalar) -> tuple[int, ...] | None:
    """Parse a version such as ``2.6.0a0+git`` to (2, 6); None if the value does not begin with a number. Zeros at the
    end are removed. A pre-release counts as its release, as in the frameworks' own version checks."""
    match = re.match(r"\d+(?:\.\d+)*", str(value))
    if match is None:
        return None
    numbers = [int(number) for number in match.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
