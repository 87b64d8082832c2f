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
MAX_DEPTH = 32
"""Of additions upon additions and fusions in fusions."""
WORK, WORK_EACH = 1000, 16
"""Lines that are looked at for one loop at most, and for each integer that is asked for; a scan needs five."""

_NUMBER = re.compile(r"\((-?[0-9]{1,18})\)")
_INDEX = re.compile(r"[0-9]{1,6}")
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
    operands = line.operands
    sums = _Sums(known, len(operands))
    found = ((place, sums.value(_Place("", lines, ()), name)) for place, name in enumerate(operands) if name in lines)
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
    sums = _Sums(known, len(condition.lines))
    place, root = _Place("", condition.lines, ()), condition.lines.get(condition.root)
    if root is not None and root.opcode == "fusion" and (inner := sums.inside(place, root, 0)) is not None:
        place, root = inner.place, inner.place.lines.get(inner.root)
    direction = root.attributes.get("direction", "") if root is not None and root.opcode == "compare" else ""
    if root is None or direction not in _FLIPPED:
        return None
    sides = [sums.value(place, name) for name in root.operands[:3]]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    return direction, sides[0], sides[1]


class _Place(NamedTuple):
    """The lines of one computation; ``given`` are the parameters of a fusion, none in a loop's own computations."""

    callee: str
    lines: Mapping[str, Instruction]
    given: tuple[Value | None, ...]


class _Inside(NamedTuple):
    place: _Place
    root: str


class _Sums:
    """The arithmetic behind integers: each line of a computation is worked out once for the parameters it is given.

    Fusions can call fusions that call fusions, with other parameters each time, so the work is bounded too: past it
    nothing more is known, and the loop says so.
    """

    def __init__(self, known: Mapping[str, Scalars], asked: int) -> None:
        self._known = known
        self._left = WORK + WORK_EACH * asked
        self._found: dict[tuple[str, tuple[Value | None, ...], str], Value | None] = {}

    def value(self, place: _Place, name: str, depth: int = 0) -> Value | None:
        """The integer that ``name`` stands for."""
        key = (place.callee, place.given, name)
        if key in self._found:
            return self._found[key]
        line = place.lines.get(name)
        if line is None or depth > MAX_DEPTH or self._left <= 0:
            return None
        self._left -= 1
        self._found[key] = None
        self._found[key] = found = self._of(place, line, depth + 1)
        return found

    def inside(self, place: _Place, line: Instruction, depth: int) -> _Inside | None:
        """What a fusion or a call runs, with the integers that it hands over; None where it is not small."""
        given = line.attributes
        callee = given.get("calls", given.get("to_apply", "")).lstrip("%")
        inner, operands = self._known.get(callee), line.operands
        if inner is None or not inner.root or len(operands) > MAX_LINES:
            return None
        return _Inside(
            _Place(callee, inner.lines, tuple(self.value(place, one, depth) for one in operands)), inner.root
        )

    def _of(self, place: _Place, line: Instruction, depth: int) -> Value | None:
        match line.opcode:
            case "constant":
                return Value(None, int(number[1])) if (number := _NUMBER.match(line.rest)) else None
            case "parameter":
                number = _NUMBER.match(line.rest)
                return place.given[int(number[1])] if number and 0 <= int(number[1]) < len(place.given) else None
            case "get-tuple-element":
                operands, index = line.operands, line.attributes.get("index", "")
                source = place.lines.get(operands[0]) if operands else None
                whole = source is not None and source.opcode == "parameter" and not place.given
                return Value(int(index), 0) if whole and _INDEX.fullmatch(index) else None
            case "fusion" | "call":
                inner = self.inside(place, line, depth)
                return self.value(inner.place, inner.root, depth) if inner is not None else None
            case "copy" | "bitcast" | "convert" | "add" | "subtract":
                return _sum(line.opcode, [self.value(place, operand, depth) for operand in line.operands[:3]])
        return None


def _sum(opcode: str, values: Sequence[Value | None]) -> Value | None:
    match opcode, values:
        case ("copy" | "bitcast" | "convert", [value]):
            return value
        case ("add", [Value() as one, Value() as other]) if one.place is None or other.place is None:
            return Value(other.place if one.place is None else one.place, one.offset + other.offset)
        case ("subtract", [Value() as one, Value(None, less)]):
            return Value(one.place, one.offset - less)
    return None
