"""Conditions of rules, as data: tests on a resolved configuration and on facts.

The value of a condition is true, false or unknown (None), as in Kleene's three-valued logic. ``all`` is false if one of
its conditions is false, and ``any`` is true if one of its conditions is true. Otherwise one unknown condition makes
the whole unknown. A rule applies only if its condition is true.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regbot.judge.preflight.facts import Facts, is_fact
from regbot.records.base import Record
from regbot.records.ledger import Scalar

Value = str | int | float | bool
Yes = Literal[True]

PREFERRED_SECTIONS = ("comm_overlap.", "model.")
"""If several sections of a configuration have a key, the value in the first of these sections counts. Megatron Bridge
copies the values of comm_overlap into the model at start, so comm_overlap comes first."""

OFF_VALUES = (None, False, 0, "", "none", "None", "false", "False", "0")
"""Values for which the test ``off`` is true and ``on`` is false."""


class Condition(Record):
    """``all`` or ``any`` of other conditions, or one test of one configuration ``key`` or of one ``fact``.

    If the configuration lacks a key, the value of a test of this key is unknown. The tests ``on``, ``off``, ``set`` and
    ``missing`` are an exception: for them, a key that the configuration lacks counts as None, because a resolved
    configuration names every key that is used.
    """

    all: Annotated[list["Condition"], Field(min_length=1)] | None = None
    any: Annotated[list["Condition"], Field(min_length=1)] | None = None
    key: str | list[str] | None = Field(
        default=None, description="name of a configuration key; a list has its names in different versions"
    )
    fact: str | None = None
    eq: Value | None = None
    ne: Value | None = None
    is_in: list[Value] | None = Field(default=None, alias="in")
    not_in: list[Value] | None = None
    gt: float | int | None = None
    lt: float | int | None = None
    on: Yes | None = Field(default=None, description="set to anything but false, 0 or none")
    off: Yes | None = Field(default=None, description="not on")
    set: Yes | None = Field(default=None, description="the key exists and is not None")
    missing: Yes | None = Field(default=None, description="the key does not exist, or is None")
    none: Yes | None = Field(default=None, description="the key exists and is None")
    has: str | None = Field(default=None, description="the value is a list with this member")
    starts: list[str] | None = None
    not_starts: list[str] | None = None
    before: str | None = Field(default=None, description="the value is a version below this one")
    differs: str | None = Field(default=None, description="the value differs from the fact of this name")

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        """Check that the condition has one subject. A key or a fact needs one test, and ``all`` or ``any`` no test."""
        subjects = sorted(self.model_fields_set & {"all", "any", "key", "fact"})
        tests = sorted(self.model_fields_set - {"all", "any", "key", "fact"})
        if len(subjects) != 1:
            raise ValueError(
                f"a condition needs exactly one of all, any, key and fact; this one has {subjects or 'none'}"
            )
        (subject,) = subjects
        needed_tests = 0 if subject in ("all", "any") else 1
        if len(tests) != needed_tests:
            raise ValueError(f"a condition on {subject} needs {needed_tests} test; this one has {tests or 'none'}")
        for fact in (self.fact, self.differs):
            if fact is not None and not is_fact(fact):
                raise ValueError(f"there is no fact {fact!r}")
        if self.key is not None and not self.names:
            raise ValueError("key is empty")
        return self

    @property
    def names(self) -> list[str]:
        """Names of the key in different versions of a framework, or [] if the condition tests no key. The first name
        that is set in the configuration counts.
        """
        return [self.key] if isinstance(self.key, str) else list(self.key or [])

    def parts(self) -> Iterator["Condition"]:
        """Yield this condition and all conditions in its ``all`` and ``any``, at any depth."""
        yield self
        for part in (*(self.all or ()), *(self.any or ())):
            yield from part.parts()


@dataclass(frozen=True)
class Truth:
    """The value of a condition, and the reason why it is true."""

    value: bool | None
    """None if the value is unknown."""
    because: Mapping[str, Scalar]
    """Keys and facts that make the condition true, with their values; {} if it is not true."""


def evaluate(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    """Evaluate ``condition`` for a configuration and facts."""
    parts = condition.all or condition.any
    if parts is None:
        return _test(condition, config, facts)
    truths = [evaluate(part, config, facts) for part in parts]
    values = [truth.value for truth in truths]
    value = _combine_all(values) if condition.all is not None else _combine_any(values)
    if not value:
        return Truth(value, {})
    because: dict[str, Scalar] = {}
    for truth in truths:
        because |= truth.because
    return Truth(value, because)


def _combine_all(values: list[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def _combine_any(values: list[bool | None]) -> bool | None:
    if True in values:
        return True
    return None if None in values else False


def lookup(config: Mapping[str, Scalar], names: list[str]) -> tuple[str, Scalar] | None:
    """Look up a key in a flat configuration. A key of the configuration may begin with sections, such as ``model.``.

    ``names`` are the names of the key in different versions, and the first one with a value counts. Return the whole
    key and its value, which is None if no name has a value. Return None if there is no such key. Also return None if
    several sections have different values, and none of the sections is preferred.
    """
    key_without_value: str | None = None
    for name in names:
        matches = [key for key in config if key == name or key.endswith(f".{name}")]
        keys_with_value = [key for key in matches if config[key] is not None]
        if keys_with_value:
            key_that_counts = _choose_section(config, name, keys_with_value)
            return (key_that_counts, config[key_that_counts]) if key_that_counts is not None else None
        if matches and key_without_value is None:
            key_without_value = matches[0]
    return (key_without_value, None) if key_without_value is not None else None


def _choose_section(config: Mapping[str, Scalar], name: str, keys: list[str]) -> str | None:
    """Return the one of ``keys`` that counts. ``keys`` are the key ``name`` in different sections.

    The key without a section comes first, and then the keys in preferred sections. If there are only keys in other
    sections, the first one counts if all their values are equal. If the values differ, return None.
    """
    for preferred_key in (name, *(section + name for section in PREFERRED_SECTIONS)):
        if preferred_key in keys:
            return preferred_key
    has_one_value = len({repr(config[key]) for key in keys}) == 1
    return keys[0] if has_one_value else None


def _test(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    """Evaluate a condition that is one test of a key or a fact."""
    if condition.fact is not None:
        name, value = condition.fact, facts.value(condition.fact)
        is_present = value is not None
    else:
        key_and_value = lookup(config, condition.names)
        is_present = key_and_value is not None
        name, value = key_and_value or (condition.names[0], None)
    result = _evaluate_test(condition, value, is_present, facts)
    return Truth(result, {name: value} if result else {})


def _evaluate_test(condition: Condition, value: Scalar, is_present: bool, facts: Facts) -> bool | None:
    """Evaluate the test of a condition for the ``value`` of its key or fact. None means that the result is unknown.

    ``is_present``: the configuration has the key, or the fact is known. A key may be present with the value None.
    """
    if condition.fact is None:  # for these tests of a key, a key that is not present counts as None
        if condition.on:
            return value not in OFF_VALUES
        if condition.off:
            return value in OFF_VALUES
        if condition.set:
            return value is not None
        if condition.missing:
            return value is None
    if not is_present:
        return None
    if condition.none:
        return value is None
    if condition.differs is not None:
        other = facts.value(condition.differs)
        return None if other is None or value is None else str(value) != str(other)
    return _compare(condition, value)


def _compare(condition: Condition, value: Scalar) -> bool | None:
    """Evaluate a test that compares a value.

    If the value is None or has another type than the test expects, the result is as follows: ``ne``, ``not_in`` and
    ``not_starts`` are true, ``before`` is unknown, and all other tests are false.
    """
    if condition.eq is not None:
        return _is_equal(value, condition.eq)
    if condition.ne is not None:
        return not _is_equal(value, condition.ne)
    if condition.is_in is not None:
        return any(_is_equal(value, member) for member in condition.is_in)
    if condition.not_in is not None:
        return not any(_is_equal(value, member) for member in condition.not_in)
    if condition.has is not None:
        return condition.has in re.findall(r"\w+", str(value))
    if condition.starts is not None:
        return str(value).startswith(tuple(condition.starts))
    if condition.not_starts is not None:
        return not str(value).startswith(tuple(condition.not_starts))
    if condition.before is not None:
        version, limit = _version(value), _version(condition.before) or ()
        return version < limit if version is not None else None
    if not isinstance(value, int | float) or isinstance(value, bool):  # gt and lt are false for all but numbers
        return False
    if condition.gt is not None:
        return value > condition.gt
    return condition.lt is not None and value < condition.lt


def _is_equal(value: Scalar, expected: Value) -> bool:
    """Whether two values are equal. Unlike in Python, True is not equal to 1."""
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _version(value: Scalar) -> tuple[int, ...] | None:
    """Parse a version such as ``2.6.0a0+git`` to (2, 6). Return None if the value does not begin with a number.

    Zeros at the end are removed, so that 2.6 and 2.6.0 are equal. A pre-release counts as its release, as in the
    frameworks' own version checks.
    """
    match = re.match(r"\d+(?:\.\d+)*", str(value))
    if match is None:
        return None
    numbers = [int(number) for number in match.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
