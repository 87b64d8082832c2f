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
"""The number in ``constant(8)`` or ``parameter(0)``, after the opcode."""
_INDEX = re.compile(r"[0-9]{1,6}")
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
"""Direction of a comparison after its two sides are swapped."""


class Value(NamedTuple):
    """An integer value: the element of the loop's tuple at ``position``, plus ``offset``.

    If ``position`` is None, the value is the constant ``offset``.
    """

    position: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """The integer scalars of one computation. All fields are empty in two cases: the computation returns something
    other than an integer or a tuple, or it returns an integer and is too large.
    """

    instructions: Mapping[str, Instruction] = field(default_factory=dict)
    """Instructions by name, if the computation is small and returns one integer."""
    root: str = ""
    """Name of the instruction that returns this integer."""
    results: Mapping[int, Value] = field(default_factory=dict)
    """If the computation returns a tuple: the known integers by their position in it. The values refer to the tuple
    that the computation receives.
    """


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

    ``instructions`` are those of the computation that builds the tuple, by name. ``computations`` is as in
    ``select_scalars``.
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
    """Return the number of trips of a loop. ``starts`` has the integers of the loop's initial tuple by position.

    The condition compares the counter with the limit. The limit is a constant, or an element of the tuple that the body
    does not change. ``computations`` is as in ``select_scalars``.
    """
    unknown = TripCount(None, is_assumed=False)
    comparison = _find_comparison(condition, computations)
    if comparison is None:
        return unknown
    direction, counter, limit = comparison.direction, comparison.left, comparison.right
    # The counter is on the left side if that side can change from trip to trip.
    left_never_changes = counter.position is None or (
        limit.position is not None and _find_step(body, counter.position) == 0
    )
    if left_never_changes:  # so the counter is on the right side
        direction, counter, limit = _FLIPPED[direction], limit, counter
    if counter.position is None:
        return unknown
    limit_value = limit.offset
    if limit.position is not None:
        if _find_step(body, limit.position) != 0 or limit.position not in starts:
            return unknown
        limit_value += starts[limit.position]
    step, start = _find_step(body, counter.position), starts.get(counter.position)
    first_value = (0 if start is None else start) + counter.offset
    number = _count_iterations(direction, first_value, 1 if step is None else step, limit_value)
    return TripCount(number, is_assumed=step is None or start is None)


def _count_iterations(direction: str, start: int, step: int, limit: int) -> int | None:
    """Return how often a counter passes a comparison with ``limit`` before it fails for the first time.

    Return None if the counter moves away from the limit, passes over a limit that it must hit (NE), or if the direction
    is EQ. For 'counter < 10' with start 0 and step 3, the result is 4, for the counters 0, 3, 6 and 9.
    """
    distance = limit - start
    match direction:
        case "LT" if step > 0:
            return max(0, _divide_up(distance, step))
        case "LE" if step > 0:
            return max(0, _divide_up(distance + 1, step))
        case "GT" if step < 0:
            return max(0, _divide_up(-distance, -step))
        case "GE" if step < 0:
            return max(0, _divide_up(-distance + 1, -step))
        case "NE" if step and distance % step == 0 and distance // step >= 0:
            return distance // step
    return None


def _divide_up(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up. ``divisor`` is positive."""
    return -(-dividend // divisor)


def _find_step(body: Scalars, position: int) -> int | None:
    """Return what the body adds to the tuple's element at ``position``: 0 if the body does not change the element, None
    if it is unknown.
    """
    value = body.results.get(position)
    return value.offset if value is not None and value.position == position else None


class _Comparison(NamedTuple):
    """A comparison of two integers. ``direction`` is a key of ``_FLIPPED``, such as 'LT' for left < right."""

    direction: str
    left: Value
    right: Value


def _find_comparison(condition: Scalars, computations: Mapping[str, Scalars]) -> _Comparison | None:
    """Return the comparison that a condition returns, or None if it returns none or one side is unknown.

    The comparison may be inside a fusion.
    """
    evaluator = _Evaluator(computations, requested_integers=len(condition.instructions))
    scope = _Scope(callee="", instructions=condition.instructions, parameters=())
    root = condition.instructions.get(condition.root)
    if root is not None and root.opcode == "fusion":
        callee = evaluator.resolve_callee(scope, root, depth=0)
        if callee is not None:
            scope, root = callee.scope, callee.scope.instructions.get(callee.root)
    if root is None or root.opcode != "compare":
        return None
    direction = root.attributes.get("direction", "")
    if direction not in _FLIPPED:
        return None
    # A third operand is read too, so that a broken line with more than two operands does not match.
    match [evaluator.value(scope, name) for name in root.operands[:3]]:
        case [Value() as left, Value() as right]:
            return _Comparison(direction, left, right)
    return None


class _Scope(NamedTuple):
    """The instructions of one computation and the values of its parameters."""

    callee: str
    """Name of the computation, if a fusion or call runs it; '' for the condition and the body of a loop."""
    instructions: Mapping[str, Instruction]
    parameters: tuple[Value | None, ...]
    """Values of the parameters; None for an unknown value. Empty for the condition and the body of a loop, whose only
    parameter is the loop's tuple.
    """


class _Callee(NamedTuple):
    """A computation that a fusion or call runs. ``root`` is the name of the instruction that it returns."""

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
        """Results by computation, values of its parameters, and instruction."""

    def value(self, scope: _Scope, name: str, depth: int = 0) -> Value | None:
        """Return the integer value of the instruction ``name``, or None if it is unknown.

        ``depth`` is the number of nested instructions whose evaluation asks for this value (``MAX_DEPTH``).
        """
        key = (scope.callee, scope.parameters, name)
        if key in self._values:
            return self._values[key]
        instruction = scope.instructions.get(name)
        if instruction is None or depth > MAX_DEPTH or self._remaining_work <= 0:
            return None
        self._remaining_work -= 1
        self._values[key] = None  # an instruction that refers to itself is unknown
        self._values[key] = result = self._evaluate(scope, instruction, depth + 1)
        return result

    def resolve_callee(self, scope: _Scope, instruction: Instruction, depth: int) -> _Callee | None:
        """Return the computation that a fusion or call runs, with its parameter values.

        Return None if the computation is unknown or too large, or does not return one integer. ``depth`` is as in
        ``value``.
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
        """Return the value of an instruction, or None if it is unknown or the opcode is not evaluated."""
        match instruction.opcode:
            case "constant":
                number = _NUMBER.match(instruction.rest)
                return Value(None, int(number[1])) if number else None
            case "parameter":
                number = _NUMBER.match(instruction.rest)
                parameter_index = int(number[1]) if number else len(scope.parameters)  # out of range if unknown
                return scope.parameters[parameter_index] if 0 <= parameter_index < len(scope.parameters) else None
            case "get-tuple-element":
                operands, index = instruction.operands, instruction.attributes.get("index", "")
                source = scope.instructions.get(operands[0]) if operands else None
                # Only the condition and the body of a loop have no parameter values.
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
    """Return the result of a copy, an addition or a subtraction.

    Return None if an operand is unknown, or if the result depends on several tuple elements or on a negated one.
    """
    match opcode, values:
        case ("copy" | "bitcast" | "convert", [value]):
            return value
        case ("add", [Value() as left, Value() as right]) if left.position is None or right.position is None:
            return Value(right.position if left.position is None else left.position, left.offset + right.offset)
        case ("subtract", [Value() as left, Value(None, subtrahend)]):
            return Value(left.position, left.offset - subtrahend)
    return None
