"""Trip counts of HLO loops that have no recorded trip count, as in the output of TPU compilers.

The state of a loop is a tuple. The condition compares one integer of this tuple, the counter, with a limit. The body
adds a constant step to the counter, and the initial tuple contains its start. Start, step and limit give the exact trip
count. For example, a scan has step 1, and a collective matmul that is unrolled twice has step 2. Only integer scalars
are traced, through additions, copies and small fusions. If the start is unknown, 0 is assumed, and if the step is
unknown, 1 is assumed. Such a trip count is marked as assumed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.readers.hlo_text import Instruction

INTEGERS = ("s32[]", "u32[]", "s64[]", "u64[]", "pred[]")
"""Shapes of the scalars that are traced: integers and booleans."""
MAX_INSTRUCTIONS = 64
"""Conditions and fusions with more scalars are ignored. The condition of a usual loop has three scalars."""
MAX_DEPTH = 32
"""Largest depth of nested additions and fusions that are followed."""
BASE_WORK, WORK_PER_INTEGER = 1000, 16
"""Largest number of instructions that are evaluated: ``BASE_WORK`` plus ``WORK_PER_INTEGER`` for each requested
integer. A scan needs five instructions.
"""

_NUMBER = re.compile(r"\((-?[0-9]{1,18})\)")
_INDEX = re.compile(r"[0-9]{1,6}")
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Value(NamedTuple):
    """An integer value: the element of the loop's tuple at ``position``, plus ``offset``.

    If ``position`` is None, the value is the constant ``offset``.
    """

    position: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """The integer scalars of one computation.

    ``instructions`` and ``root`` are set if the computation is small and returns one integer. ``results`` is set if the
    computation returns a tuple: it maps positions in this tuple to values, which refer to the tuple that the
    computation receives.
    """

    instructions: Mapping[str, Instruction] = field(default_factory=dict)
    root: str = ""
    results: Mapping[int, Value] = field(default_factory=dict)


class TripCount(NamedTuple):
    """Number of trips of a loop.

    ``number`` is None if the trips cannot be counted. ``is_assumed`` means that the start or the step of the loop is a
    guess.
    """

    number: int | None
    is_assumed: bool


def select_scalars(instructions: Iterable[Instruction], computations: Mapping[str, Scalars]) -> Scalars:
    """Return the integer scalars of a computation. ``computations`` maps the names of earlier computations to their
    scalars.
    """
    by_name = {
        instruction.name: instruction
        for instruction in instructions
        if instruction.is_root or instruction.opcode == "parameter" or instruction.shape.startswith(INTEGERS)
    }
    root = next((instruction for instruction in by_name.values() if instruction.is_root), None)
    if root is None:
        return Scalars()
    if root.opcode == "tuple":
        return Scalars(results=read_tuple_values(root, by_name, computations))
    if root.shape.startswith(INTEGERS) and len(by_name) <= MAX_INSTRUCTIONS:
        return Scalars(by_name, root.name)
    return Scalars()


def read_tuple_values(
    tuple_instruction: Instruction, instructions: Mapping[str, Instruction], computations: Mapping[str, Scalars]
) -> dict[int, Value]:
    """Return the integers of a ``tuple`` instruction by their position in the tuple.

    ``instructions`` are those of the computation that builds the tuple, by name.
    """
    operands = tuple_instruction.operands
    evaluator = _Evaluator(computations, requested_integers=len(operands))
    scope = _Scope(callee="", instructions=instructions, parameters=())
    values = (
        (position, evaluator.value(scope, name)) for position, name in enumerate(operands) if name in instructions
    )
    return {position: value for position, value in values if value is not None}


def count_trips(
    condition: Scalars, body: Scalars, starts: Mapping[int, int], computations: Mapping[str, Scalars]
) -> TripCount:
    """Return the number of trips of a loop. ``starts`` has the integers of the loop's initial tuple by position."""
    comparison = _find_comparison(condition, computations)
    if comparison is None:
        return TripCount(None, False)
    direction, left, right = comparison
    if left.position is None or (right.position is not None and _find_step(body, left.position) == 0):
        direction, left, right = _FLIPPED[direction], right, left
    if left.position is None:
        return TripCount(None, False)
    limit = right.offset
    if right.position is not None:
        if _find_step(body, right.position) != 0 or right.position not in starts:
            return TripCount(None, False)
        limit += starts[right.position]
    step, start = _find_step(body, left.position), starts.get(left.position)
    is_assumed = step is None or start is None
    count = _count_iterations(direction, (start or 0) + left.offset, 1 if step is None else step, limit)
    return TripCount(count, is_assumed)


def _count_iterations(direction: str, start: int, step: int, limit: int) -> int | None:
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


def _find_step(body: Scalars, position: int) -> int | None:
    value = body.results.get(position)
    return value.offset if value is not None and value.position == position else None


def _find_comparison(condition: Scalars, computations: Mapping[str, Scalars]) -> tuple[str, Value, Value] | None:
    """Return the direction and both sides of the comparison that a condition returns, or None if it returns no
    comparison.

    The comparison may be inside a fusion.
    """
    evaluator = _Evaluator(computations, requested_integers=len(condition.instructions))
    scope = _Scope(callee="", instructions=condition.instructions, parameters=())
    root = condition.instructions.get(condition.root)
    if (
        root is not None
        and root.opcode == "fusion"
        and (callee := evaluator.resolve_callee(scope, root, 0)) is not None
    ):
        scope, root = callee.scope, callee.scope.instructions.get(callee.root)
    direction = root.attributes.get("direction", "") if root is not None and root.opcode == "compare" else ""
    if root is None or direction not in _FLIPPED:
        return None
    sides = [evaluator.value(scope, name) for name in root.operands[:3]]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    return direction, sides[0], sides[1]


class _Scope(NamedTuple):
    """The instructions of one computation and the values of its parameters.

    ``callee`` is the name of the computation, if a fusion or call runs it. ``callee`` and ``parameters`` are empty for
    a loop's own computations.
    """

    callee: str
    instructions: Mapping[str, Instruction]
    parameters: tuple[Value | None, ...]


class _Callee(NamedTuple):
    scope: _Scope
    root: str


class _Evaluator:
    """Evaluates integer instructions. Each instruction of a computation is evaluated once per set of parameter values.

    Nested fusions can be called with different parameters each time, so the total work is limited. The limit rises with
    ``requested_integers``, the number of integers that the caller may ask for. After the limit is reached, all further
    values are unknown.
    """

    def __init__(self, computations: Mapping[str, Scalars], *, requested_integers: int) -> None:
        self._computations = computations
        self._remaining_work = BASE_WORK + WORK_PER_INTEGER * requested_integers
        self._values: dict[tuple[str, tuple[Value | None, ...], str], Value | None] = {}

    def value(self, scope: _Scope, name: str, depth: int = 0) -> Value | None:
        """Return the integer value of the instruction ``name``, or None if it is unknown."""
        key = (scope.callee, scope.parameters, name)
        if key in self._values:
            return self._values[key]
        instruction = scope.instructions.get(name)
        if instruction is None or depth > MAX_DEPTH or self._remaining_work <= 0:
            return None
        self._remaining_work -= 1
        self._values[key] = None
        self._values[key] = result = self._evaluate(scope, instruction, depth + 1)
        return result

    def resolve_callee(self, scope: _Scope, instruction: Instruction, depth: int) -> _Callee | None:
        """Return the computation that a fusion or call runs, with its parameter values.

        Return None if the computation is unknown or too large, or does not return one integer.
        """
        attributes = instruction.attributes
        name = attributes.get("calls", attributes.get("to_apply", "")).lstrip("%")
        computation, operands = self._computations.get(name), instruction.operands
        if computation is None or not computation.root or len(operands) > MAX_INSTRUCTIONS:
            return None
        parameters = tuple(self.value(scope, operand, depth) for operand in operands)
        callee_scope = _Scope(callee=name, instructions=computation.instructions, parameters=parameters)
        return _Callee(callee_scope, computation.root)

    def _evaluate(self, scope: _Scope, instruction: Instruction, depth: int) -> Value | None:
        match instruction.opcode:
            case "constant":
                return Value(None, int(number[1])) if (number := _NUMBER.match(instruction.rest)) else None
            case "parameter":
                number = _NUMBER.match(instruction.rest)
                return (
                    scope.parameters[int(number[1])] if number and 0 <= int(number[1]) < len(scope.parameters) else None
                )
            case "get-tuple-element":
                operands, index = instruction.operands, instruction.attributes.get("index", "")
                source = scope.instructions.get(operands[0]) if operands else None
                is_loop_tuple = source is not None and source.opcode == "parameter" and not scope.parameters
                return Value(int(index), 0) if is_loop_tuple and _INDEX.fullmatch(index) else None
            case "fusion" | "call":
                callee = self.resolve_callee(scope, instruction, depth)
                return self.value(callee.scope, callee.root, depth) if callee is not None else None
            case "copy" | "bitcast" | "convert" | "add" | "subtract":
                return _combine(
                    instruction.opcode, [self.value(scope, operand, depth) for operand in instruction.operands[:3]]
                )
        return None


def _combine(opcode: str, values: Sequence[Value | None]) -> Value | None:
    match opcode, values:
        case ("copy" | "bitcast" | "convert", [value]):
            return value
        case ("add", [Value() as left, Value() as right]) if left.position is None or right.position is None:
            return Value(right.position if left.position is None else left.position, left.offset + right.offset)
        case ("subtract", [Value() as left, Value(None, subtrahend)]):
            return Value(left.position, left.offset - subtrahend)
    return None
