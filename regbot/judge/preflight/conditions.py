"""Conditions of rules, as data: tests on a resolved configuration and on facts.

A condition is ``{all = [...]}`` or ``{any = [...]}`` of other conditions, or one test of one configuration ``key`` or
of one ``fact``, such as ``{key = "a", eq = 1}``. A list of keys has the names of a key in different versions.

The value of a condition is true, false or unknown (None), as in Kleene's three-valued logic. ``all`` is false if one of
its conditions is false, and ``any`` is true if one of its conditions is true. Otherwise one unknown condition makes
the whole unknown. A rule applies only if its condition is true.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regbot.judge.preflight.facts import Facts
from regbot.records.ledger import Scalar

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


def is_in(value: Scalar, members: Sequence[Scalar]) -> bool:
    """Whether a value is one of several. Unlike in Python, True is not equal to 1."""
    return any(value == member and isinstance(value, bool) == isinstance(member, bool) for member in members)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_before(value: Scalar, limit: str) -> bool | None:
    version = _version(value)
    return version < (_version(limit) or ()) if version is not None else None


TESTS: dict[str, Callable[[Any, Any], bool | None]] = {
    "eq": lambda value, operand: is_in(value, [operand]),
    "ne": lambda value, operand: not is_in(value, [operand]),
    "in": is_in,
    "not_in": lambda value, operand: not is_in(value, operand),
    "gt": lambda value, operand: _is_number(value) and value > operand,
    "lt": lambda value, operand: _is_number(value) and value < operand,
    "none": lambda value, _: value is None,
    "has": lambda value, operand: operand in re.findall(r"\w+", str(value)),
    "starts": lambda value, operand: str(value).startswith(tuple(operand)),
    "not_starts": lambda value, operand: not str(value).startswith(tuple(operand)),
    "before": _is_before,
}
"""Tests of a value against the operand in the rule. Their result is unknown if the configuration lacks the key."""


def evaluate(
    condition: Mapping[str, Any], config: Mapping[str, Scalar], facts: Facts
) -> tuple[bool | None, dict[str, Scalar]]:
    """Return the value of a condition for a configuration and facts, None if it is unknown. Also return the keys and
    facts that make it true, with their values."""
    for kind, decisive in (("all", False), ("any", True)):
        if kind in condition:
            values, causes = zip(*(evaluate(part, config, facts) for part in condition[kind]), strict=True)
            value = decisive if decisive in values else None if None in values else not decisive
            because = {name: cause for causes_of_part in causes for name, cause in causes_of_part.items()}
            return value, because if value else {}
    ((test, operand),) = ((field, operand) for field, operand in condition.items() if field not in ("key", "fact"))
    if is_key := "key" in condition:
        names = [condition["key"]] if isinstance(condition["key"], str) else condition["key"]
        key_and_value = lookup(config, names)
        is_present = key_and_value is not None
        name, tested = key_and_value or (names[0], None)
    else:
        name = condition["fact"]
        tested = facts.value(name)
        is_present = tested is not None
    result: bool | None = None
    if is_key and test in KEY_TESTS:
        result = KEY_TESTS[test](tested)
    elif is_present and test == "differs":  # the operand is the name of a fact
        other = facts.value(operand)
        result = None if other is None or tested is None else str(tested) != str(other)
    elif is_present:
        result = TESTS[test](tested, operand)
    return result, {name: tested} if result else {}


def lookup(config: Mapping[str, Scalar], names: Sequence[str]) -> tuple[str, Scalar] | None:
    """Look up a key in a flat configuration. A key of the configuration may begin with sections, such as ``model.``. Of
    ``names``, the first one with a value counts. Return the whole key and its value; None if there is no such key, or
    if sections that are not preferred disagree."""
    matches = [[key for key in config if key == name or key.endswith(f".{name}")] for name in names]
    for name, keys in zip(names, matches, strict=True):
        if keys_with_value := [key for key in keys if config[key] is not None]:
            candidates = (name, *(section + name for section in PREFERRED_SECTIONS))
            preferred = [key for key in candidates if key in keys_with_value]
            if not preferred and len({repr(config[key]) for key in keys_with_value}) > 1:
                return None
            key_that_counts = (preferred or keys_with_value)[0]
            return key_that_counts, config[key_that_counts]
    return next(((keys[0], None) for keys in matches if keys), None)


def _version(value: Scalar) -> tuple[int, ...] | None:
    """Parse a version such as ``2.6.0a0+git`` to (2, 6); None if the value does not begin with a number. Zeros at the
    end are removed. A pre-release counts as its release, as in the frameworks' own version checks."""
    if (match := re.match(r"\d+(?:\.\d+)*", str(value))) is None:
        return None
    return tuple(int(number) for number in re.sub(r"(\.0+)+$", "", match.group()).split("."))
