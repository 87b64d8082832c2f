"""When a rule applies: conditions on a resolved configuration and on facts, as data.

A condition is true, false, or cannot be told (None), and the logic is Kleene's: ``all`` is false where one part is,
``any`` true where one is, and otherwise what cannot be told spreads. A rule speaks only where its condition is true.
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

PREFERRED = ("comm_overlap.", "model.")
"""Where a key stands in several parts of a configuration: Bridge copies comm_overlap into the model at start."""

OFF = (None, False, 0, "", "none", "None", "false", "False", "0")


class Condition(Record):
    """``all`` or ``any`` of others, or one test of one ``key`` of the configuration or one ``fact``.

    A key that is not in the configuration cannot be told, except by ``on``, ``off``, ``set`` and ``missing``, for which
    it is not set: a resolved configuration names what it uses.
    """

    all: Annotated[list["Condition"], Field(min_length=1)] | None = None
    any: Annotated[list["Condition"], Field(min_length=1)] | None = None
    key: str | list[str] | None = Field(default=None, description="several: names of one thing in different versions")
    fact: str | None = None
    eq: Value | None = None
    ne: Value | None = None
    is_in: list[Value] | None = Field(default=None, alias="in")
    not_in: list[Value] | None = None
    gt: float | int | None = None
    lt: float | int | None = None
    on: Yes | None = Field(default=None, description="set to anything but false, 0 or none")
    off: Yes | None = Field(default=None, description="not on")
    set: Yes | None = Field(default=None, description="there, and not None")
    missing: Yes | None = Field(default=None, description="not there, or None")
    none: Yes | None = Field(default=None, description="there, and None")
    has: str | None = Field(default=None, description="a list, of which this is a member")
    starts: list[str] | None = None
    not_starts: list[str] | None = None
    before: str | None = Field(default=None, description="a version below this one")
    differs: str | None = Field(default=None, description="from the fact of this name")

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        given = sorted(self.model_fields_set & {"all", "any", "key", "fact"})
        tests = sorted(self.model_fields_set - {"all", "any", "key", "fact"})
        if len(given) != 1:
            raise ValueError(f"a condition has one of all, any, key and fact; this one has {given or 'none'}")
        wanted = 0 if given[0] in ("all", "any") else 1
        if len(tests) != wanted:
            raise ValueError(f"a condition on {given[0]} has {wanted} test; this one has {tests or 'none'}")
        for name in (self.fact, self.differs):
            if name is not None and not is_fact(name):
                raise ValueError(f"there is no fact {name!r}")
        if self.key is not None and not self.names:
            raise ValueError("key names nothing")
        return self

    @property
    def names(self) -> list[str]:
        """The keys that are looked for, the first that is set counts."""
        return [self.key] if isinstance(self.key, str) else list(self.key or [])

    def parts(self) -> Iterator["Condition"]:
        """Itself and every condition in it."""
        yield self
        for part in (*(self.all or ()), *(self.any or ())):
            yield from part.parts()


@dataclass(frozen=True)
class Truth:
    """The value of a condition, and what made it true: name of a key or fact -> its value."""

    value: bool | None
    because: Mapping[str, Scalar]


def evaluate(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    """Whether ``condition`` holds."""
    parts = condition.all or condition.any
    if parts is None:
        return _test(condition, config, facts)
    found = [evaluate(part, config, facts) for part in parts]
    values = [truth.value for truth in found]
    decisive = condition.all is None
    value: bool | None = not decisive
    if decisive in values:
        value = decisive
    elif None in values:
        value = None
    because = {name: each for truth in found if truth.value for name, each in truth.because.items()}
    return Truth(value, because if value else {})


def lookup(config: Mapping[str, Scalar], names: list[str]) -> tuple[str, Scalar] | None:
    """The key that one of ``names`` stands for in a flat configuration whose keys may carry the parts they come from,
    and its value. None where there is none, or where parts disagree and none of them has precedence."""
    present: tuple[str, Scalar] | None = None
    for name in names:
        full = [key for key in config if key == name or key.endswith(f".{name}")]
        given = [key for key in full if config[key] is not None]
        if given:
            return _preferred(config, name, given)
        if full and present is None:
            present = full[0], None
    return present


def _preferred(config: Mapping[str, Scalar], name: str, given: list[str]) -> tuple[str, Scalar] | None:
    for wanted in (name, *(part + name for part in PREFERRED)):
        if wanted in given:
            return wanted, config[wanted]
    return (given[0], config[given[0]]) if len({repr(config[key]) for key in given}) == 1 else None


def _test(condition: Condition, config: Mapping[str, Scalar], facts: Facts) -> Truth:
    if condition.fact is not None:
        shown, value = condition.fact, facts.value(condition.fact)
        there = value is not None
    else:
        found = lookup(config, condition.names)
        there = found is not None
        shown, value = found or (condition.names[0], None)
    held = _holds(condition, value, there, facts)
    return Truth(held, {shown: value} if held else {})


def _holds(condition: Condition, value: Scalar, there: bool, facts: Facts) -> bool | None:
    if condition.fact is None:
        for asked, answer in (
            (condition.on, value not in OFF),
            (condition.off, value in OFF),
            (condition.set, value is not None),
            (condition.missing, value is None),
        ):
            if asked:
                return answer
    if not there:
        return None
    if condition.none:
        return value is None
    if condition.differs is not None:
        other = facts.value(condition.differs)
        return None if other is None or value is None else str(value) != str(other)
    return _compared(condition, value)


def _compared(condition: Condition, value: Scalar) -> bool | None:
    """The tests that need a value; one that is None or of another kind fails those that ask what it is."""
    if condition.eq is not None:
        return _same(value, condition.eq)
    if condition.ne is not None:
        return not _same(value, condition.ne)
    if condition.is_in is not None:
        return any(_same(value, each) for each in condition.is_in)
    if condition.not_in is not None:
        return not any(_same(value, each) for each in condition.not_in)
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


def _same(value: Scalar, wanted: Value) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _version(value: Scalar) -> tuple[int, ...] | None:
    """``2.6.0a0+git`` -> (2, 6); a pre-release counts as its release, as the frameworks' own checks have it."""
    found = re.match(r"\d+(?:\.\d+)*", str(value))
    if found is None:
        return None
    numbers = [int(number) for number in found.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
