"""Trip counts of HLO loops where XLA did not record one (TPU compilers do not).

A loop carries a tuple. Its condition compares an integer of the tuple with a limit, its body adds a constant to it, the
tuple that goes in says where it starts. From these three the count follows exactly, whatever the step: a scan counts
by 1, a collective matmul unrolled twice by 2. Only integer scalars are followed, through additions, copies and small
fusions. Where start or step cannot be found, the loop is taken to count from 0 by 1, and says so.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.readers.hlo_text import Instruction

INTEGERS = ("s32[]", "u32[]", "s64[]", "u64[]", "pred[]")
"""Shapes of the scalars that are followed."""
MAX_LINES = 64
"""Most scalars of a condition or a fusion that are kept; loop conditions have three."""
MAX_DEPTH = 16

_CALLEE = re.compile(r"calls=%?([\w.\-]+)", re.ASCII)
_DIRECTION = re.compile(r"direction=([A-Z]{2})")
_NUMBER = re.compile(r"\((-?[0-9]{1,18})\)")
_INDEX = re.compile(r"index=([0-9]{1,6})")
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Value(NamedTuple):
    """An integer: what the loop's tuple holds at ``place``, plus ``offset``; a constant where ``place`` is None."""

    place: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """The integers of one computation: its lines, where it is small and returns one; the integers of the tuple that it
    returns, in terms of the tuple that it is given."""

    lines: Mapping[str, Instruction] = field(default_factory=dict)
    root: str = ""
    returned: Mapping[int, Value] = field(default_factory=dict)


class Trips(NamedTuple):
    """``number`` is None where the loop is of no form that can be counted."""

    number: int | None
    assumed: bool


def scalars(lines: Iterable[Instruction], known: Mapping[str, Scalars]) -> Scalars:
    """What of a computation is worth keeping: all that its integers are made of."""
    kept = (line for line in lines if line.root or line.opcode == "parameter" or line.shape.startswith(INTEGERS))
    named = {line.name: line for line in kept}
    root = next((line for line in named.values() if line.root), None)
    if root is None:
        return Scalars()
    if root.opcode == "tuple":
        return Scalars(returned=tuple_values(root, named, known))
    if root.shape.startswith(INTEGERS) and len(named) <= MAX_LINES:
        return Scalars(named, root.name)
    return Scalars()


def tuple_values(line: Instruction, lines: Mapping[str, Instruction], known: Mapping[str, Scalars]) -> dict[int, Value]:
    """The integers that a ``tuple`` line puts together, by place."""
    found = ((place, _value(lines, name, (), known)) for place, name in enumerate(line.operands) if name in lines)
    return {place: value for place, value in found if value is not None}


def trips(condition: Scalars, body: Scalars, starts: Mapping[int, int], known: Mapping[str, Scalars]) -> Trips:
    """How often a loop runs that begins with the integers ``starts``."""
    compared = _comparison(condition, known)
    if compared is None:
        return Trips(None, False)
    direction, left, right = compared
    if left.place is None or (right.place is not None and _step(body, left.place) == 0):
        direction, left, right = _FLIPPED[direction], right, left
    if left.place is None:
        return Trips(None, False)
    limit = right.offset
    if right.place is not None:
        if _step(body, right.place) != 0 or right.place not in starts:
            return Trips(None, False)
        limit += starts[right.place]
    step, start = _step(body, left.place), starts.get(left.place)
    assumed = step is None or start is None
    count = _count(direction, (start or 0) + left.offset, 1 if step is None else step, limit)
    return Trips(count, assumed)


def _count(direction: str, start: int, step: int, limit: int) -> int | None:
    match direction:
        case "LT" if step > 0:
            return max(0, -((start - limit) // step))
        case "LE" if step > 0:
            return max(0, -((start - limit - 1) // step))
        case "GT" if step < 0:
            return max(0, -((limit - start) // -step))
        case "GE" if step < 0:
            return max(0, -((limit - start - 1) // -step))
        case "NE" if step and (limit - start) % step == 0 and (limit - start) // step >= 0:
            return (limit - start) // step
    return None


def _step(body: Scalars, place: int) -> int | None:
    value = body.returned.get(place)
    return value.offset if value is not None and value.place == place else None


def _comparison(condition: Scalars, known: Mapping[str, Scalars]) -> tuple[str, Value, Value] | None:
    """The comparison at the root of a condition, which may stand in a fusion of its own."""
    lines, root = condition.lines, condition.lines.get(condition.root)
    given: Sequence[Value | None] = ()
    if root is not None and root.opcode == "fusion" and (callee := _CALLEE.search(root.attributes)):
        given = [_value(lines, name, (), known) for name in root.operands]
        inner = known.get(callee[1], Scalars())
        lines, root = inner.lines, inner.lines.get(inner.root)
    if root is None or root.opcode != "compare" or not (direction := _DIRECTION.search(root.attributes)):
        return None
    sides = [_value(lines, name, given, known) for name in root.operands]
    if len(sides) != 2 or sides[0] is None or sides[1] is None or direction[1] not in _FLIPPED:
        return None
    return direction[1], sides[0], sides[1]


def _value(
    lines: Mapping[str, Instruction],
    name: str,
    given: Sequence[Value | None],
    known: Mapping[str, Scalars],
    depth: int = 0,
) -> Value | None:
    """The integer that ``name`` stands for; ``given`` are the parameters of a fusion, none in a loop's own body."""
    line = lines.get(name)
    if line is None or depth > MAX_DEPTH:
        return None
    number = _NUMBER.match(line.rest)
    if line.opcode == "constant":
        return Value(None, int(number[1])) if number else None
    if line.opcode == "parameter":
        return given[int(number[1])] if number and 0 <= int(number[1]) < len(given) else None
    operands = line.operands
    if line.opcode == "get-tuple-element":
        source, index = lines.get(operands[0]) if operands else None, _INDEX.search(line.rest)
        return Value(int(index[1]), 0) if source and source.opcode == "parameter" and index and not given else None
    if line.opcode in ("fusion", "call"):
        callee = _CALLEE.search(line.attributes)
        inner = known.get(callee[1]) if callee else None
        if inner is None or not inner.root or len(operands) > MAX_LINES:
            return None
        values = [_value(lines, operand, given, known, depth + 1) for operand in operands]
        return _value(inner.lines, inner.root, values, known, depth + 1)
    values = [_value(lines, operand, given, known, depth + 1) for operand in operands[:2]]
    match line.opcode, values:
        case ("copy" | "bitcast" | "convert", [value]):
            return value
        case ("add", [Value() as one, Value() as other]) if one.place is None or other.place is None:
            return Value(other.place if one.place is None else one.place, one.offset + other.offset)
        case ("subtract", [Value() as one, Value(None, less)]):
            return Value(one.place, one.offset - less)
    return None
