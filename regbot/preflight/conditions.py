"""Conditions of rules, as data: tests on a resolved configuration and on facts.

A condition is true, false or unknown (None), as in Kleene's logic. ``all`` is false if one part is false, and ``any``
is true if one part is true. Otherwise an unknown part makes the whole condition unknown. A rule applies only if its
condition is true.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regbot.preflight.facts import Facts, is_fact
from regbot.records.base import Record
from regbot.records.ledger import Scalar

Value = str | int | float | bool
Yes = Literal[True]

PREFERRED_SECTIONS = ("comm_overlap.", "model.")
"""Sections to prefer if several sections have a key, in this order. Megatron Bridge copies comm_overlap into the model
at start."""

OFF_VALUES = (None, False, 0, "", "none", "None", "false", "False", "0")


class Condition(Record):
    """``all`` or ``any`` of other conditions, or one test of one configuration ``key`` or of one ``fact``.

    If the configuration lacks a key, a test of the key is unknown. The tests ``on``, ``off``, ``set`` and ``missing``
    are an exception: a missing key counts as not set, because a resolved configuration names every key that is used.
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
        subjects = sorted(self.model_fields_set & {"all", "any", "key", "fact"})
        tests = sorted(self.model_fields_set - {"all", "any", "key", "fact"})
        if len(subjects) != 1:
            raise ValueError(
                f"a condition needs exactly one of all, any, key and fact; this one has {subjects or 'none'}"
            )
        test_count = 0 if subjects[0] in ("all", "any") else 1
        if len(tests) != test_count:
            raise ValueError(f"a condition on {subjects[0]} needs {test_count} test; this one has {tests or 'none'}")
        for name in (self.fact, self.differs):
            if name is not None and not is_fact(name):
                raise ValueError(f"there is no fact {name!r}")
        if self.key is not None and not self.names:
            raise ValueError("key is empty")
        return self

    @property
    def names(self) -> list[str]:
        """Names of the key in different versions. The first name that is set in the configuration counts."""
        return [self.key] if isinstance(self.key, str) else list(self.key or [])

    def parts(self) -> Iterator["Condition"]:
        """Yield this condition and all conditions inside it, at any depth."""
        yield self
        for part in (*(self.all or ()), *(self.any or ())):
            yield from part.parts()


@dataclass(frozen=True)
class Truth:
    """The value of a condition. ``because`` has the keys and facts that made the condition true, with their values."""

    value: bool | None
    because: Mapping[str, Scalar]


def evaluate(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    """Evaluate ``condition`` for a configuration and facts."""
    parts = condition.all or condition.any
    if parts is None:
        return _test(condition, config, facts)
    truths = [evaluate(part, config, facts) for part in parts]
    values = [truth.value for truth in truths]
    deciding_value = condition.all is None  # one true part makes ``any`` true; one false part makes ``all`` false
    value: bool | None = not deciding_value
    if deciding_value in values:
        value = deciding_value
    elif None in values:
        value = None
    because = {name: cause for truth in truths if truth.value for name, cause in truth.because.items()}
    return Truth(value, because if value else {})


def lookup(config: Mapping[str, Scalar], names: list[str]) -> tuple[str, Scalar] | None:
    """Look up a key in a flat configuration, by several ``names``. Keys may have the prefix of a section.

    Return the key and its value. Return None if there is no such key, or if sections have different values and none of
    them is preferred.
    """
    unset_entry: tuple[str, Scalar] | None = None
    for name in names:
        matches = [key for key in config if key == name or key.endswith(f".{name}")]
        set_keys = [key for key in matches if config[key] is not None]
        if set_keys:
            return _resolve_section(config, name, set_keys)
        if matches and unset_entry is None:
            unset_entry = matches[0], None
    return unset_entry


def _resolve_section(config: Mapping[str, Scalar], name: str, set_keys: list[str]) -> tuple[str, Scalar] | None:
    for candidate in (name, *(section + name for section in PREFERRED_SECTIONS)):
        if candidate in set_keys:
            return candidate, config[candidate]
    return (set_keys[0], config[set_keys[0]]) if len({repr(config[key]) for key in set_keys}) == 1 else None


def _test(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    if condition.fact is not None:
        name, value = condition.fact, facts.value(condition.fact)
        is_present = value is not None
    else:
        entry = lookup(config, condition.names)
        is_present = entry is not None
        name, value = entry or (condition.names[0], None)
    result = _evaluate_test(condition, value, is_present, facts)
    return Truth(result, {name: value} if result else {})


def _evaluate_test(condition: Condition, value: Scalar, is_present: bool, facts: Facts) -> bool | None:
    if condition.fact is None:
        for applies, result in (
            (condition.on, value not in OFF_VALUES),
            (condition.off, value in OFF_VALUES),
            (condition.set, value is not None),
            (condition.missing, value is None),
        ):
            if applies:
                return result
    if not is_present:
        return None
    if condition.none:
        return value is None
    if condition.differs is not None:
        other = facts.value(condition.differs)
        return None if other is None or value is None else str(value) != str(other)
    return _compare(condition, value)


def _compare(condition: Condition, value: Scalar) -> bool | None:
    """Evaluate a test that needs a value.

    For None and for a value of another type than expected, ``ne``, ``not_in`` and ``not_starts`` are true, ``before``
    is unknown, and all other tests are false.
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
        return None if (version := _version(value)) is None else version < (_version(condition.before) or ())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > condition.gt if condition.gt is not None else condition.lt is not None and value < condition.lt


def _is_equal(value: Scalar, expected: Value) -> bool:
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _version(value: Scalar) -> tuple[int, ...] | None:
    """Parse a version such as ``2.6.0a0+git`` to (2, 6). Return None if the value does not begin with a number.

    A pre-release counts as its release, as in the frameworks' own version checks.
    """
    match = re.match(r"\d+(?:\.\d+)*", str(value))
    if match is None:
        return None
    numbers = [int(number) for number in match.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
