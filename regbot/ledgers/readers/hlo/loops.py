"""Trip counts of HLO loops that have no recorded trip count, as in the output of TPU compilers.

The state of a loop is a tuple. The condition compares one integer of this tuple, the counter, with a limit. The body
adds a constant step to the counter, and the initial tuple contains its start. Only integer scalars are traced, through
additions, copies and small fusions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regbot.ledgers.readers.hlo.text import Instruction

INTEGERS = ("s32[]", "u32[]", "s64[]", "u64[]", "pred[]")
MAX_INSTRUCTIONS = 64
"""Conditions and fusions with more scalars are ignored. The condition of a usual loop has three scalars."""
MAX_DEPTH = 32
MAX_INTEGER = 2**64
"""Larger integers are unknown. Repeated additions could make them as long as the program."""
BASE_STEPS, CHARACTERS_PER_STEP = 1000, 8
"""Largest number of instructions that are evaluated in a program: ``BASE_STEPS``, plus one for each
``CHARACTERS_PER_STEP`` characters of the program so far. A scan needs five instructions, which are longer."""

_NUMBER = re.compile(r"\((-?[0-9]{1,18})\)")
_INDEX = re.compile(r"[0-9]{1,6}")


class Value(NamedTuple):
    """An integer value: the element of the loop's tuple at ``position``, plus ``offset``. If ``position`` is None, the
    value is the constant ``offset``."""

    position: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Scalars:
    """The integer scalars of one computation. All fields are empty in two cases: the computation returns something
    other than an integer or a tuple, or it returns an integer and is too large."""

    instructions: Mapping[str, Instruction] = field(default_factory=dict)
    """Instructions by name, if the computation is small and returns one integer."""
    root: str = ""
    results: Mapping[int, Value] = field(default_factory=dict)
    """If the computation returns a tuple: the known integers by their position in it. The values refer to the tuple
    that the computation receives."""


def _is_integer(instruction: Instruction) -> bool:
    return instruction.shape.startswith(INTEGERS)


class Evaluator:
    """Evaluates the integer instructions of a program. Computations are added one by one, each called computation
    before its callers. An instruction is evaluated once per set of parameter values of its computation. Nested fusions
    can be called with different parameters each time, so the total work is limited. After the limit is reached, further
    values are unknown."""

    def __init__(self) -> None:
        self._scalars: dict[str, Scalars] = {}
        self._remaining_steps = BASE_STEPS
        self._values: dict[tuple[str, tuple[Value | None, ...] | None, str], Value | None] = {}

    def allow_steps(self, characters: int) -> None:
        self._remaining_steps += characters // CHARACTERS_PER_STEP

    def add(self, name: str, instructions: Iterable[Instruction]) -> None:
        by_name = {
            instruction.name: instruction
            for instruction in instructions
            if instruction.is_root or instruction.opcode == "parameter" or _is_integer(instruction)
        }
        root = next((instruction for instruction in by_name.values() if instruction.is_root), None)
        if root is not None and root.opcode == "tuple":
            self._scalars[name] = Scalars(results=self.read_tuple_values(name, root, by_name))
        elif root is not None and _is_integer(root) and len(by_name) <= MAX_INSTRUCTIONS:
            self._scalars[name] = Scalars(by_name, root.name)

    def read_tuple_values(
        self, computation: str, tuple_instruction: Instruction, instructions: Mapping[str, Instruction]
    ) -> dict[int, Value]:
        """Return the integers of a ``tuple`` instruction by their position in the tuple. ``instructions`` are those of
        the computation that builds the tuple, by name."""
        scope = _Scope(computation, instructions, parameters=None)
        values = ((position, self._value(scope, name)) for position, name in enumerate(tuple_instruction.operands))
        return {position: value for position, value in values if value is not None}

    def count_trips(self, condition: str, body: str, starts: Mapping[int, int]) -> int | None:
        """Return the number of trips of a loop with these computations, or None if it is unknown. ``starts`` has the
        integers of the loop's initial tuple by position. The condition compares the counter, on the left, with a
        constant."""
        comparison = self._find_comparison(condition)
        if comparison is None:
            return None
        direction, position, limit = comparison
        step, start = _find_step(self._scalars.get(body, Scalars()), position), starts.get(position)
        return None if step is None or start is None else _count_iterations(direction, start, step, limit)

    def _find_comparison(self, name: str) -> tuple[str, int, int] | None:
        """Return direction, position of the counter in the tuple, and limit of the comparison that ``name`` returns.
        Return None if one of them is unknown."""
        condition = self._scalars.get(name, Scalars())
        scope = _Scope(name, condition.instructions, parameters=None)
        root = condition.instructions.get(condition.root)
        if root is None or root.opcode != "compare":
            return None
        # A third operand is read too, so that a broken line with more than two operands does not match.
        match [self._value(scope, name) for name in root.operands[:3]]:
            case [Value(int() as position, offset), Value(None, limit)]:
                return root.attributes.get("direction", ""), position, limit - offset
        return None

    def _value(self, scope: "_Scope", name: str, depth: int = 0) -> Value | None:
        key = (scope.computation, scope.parameters, name)
        if key in self._values:
            return self._values[key]
        instruction = scope.instructions.get(name)
        if instruction is None or not _is_integer(instruction) or depth > MAX_DEPTH or self._remaining_steps <= 0:
            return None
        self._remaining_steps -= 1
        self._values[key] = None  # an instruction that refers to itself is unknown
        result = self._evaluate(scope, instruction, depth + 1)
        if result is not None and abs(result.offset) < MAX_INTEGER:
            self._values[key] = result
        return self._values[key]

    def _resolve_callee(self, scope: "_Scope", instruction: Instruction, depth: int) -> "tuple[_Scope, str] | None":
        """Return the computation that a fusion or call runs, with its parameter values, and the name of its root.
        Return None if the computation is unknown or too large, or does not return one integer. ``depth`` is as in
        ``_value``."""
        attributes = instruction.attributes
        name = attributes.get("calls", attributes.get("to_apply", "")).lstrip("%")
        computation, operands = self._scalars.get(name), instruction.operands
        if computation is None or not computation.root or len(operands) > MAX_INSTRUCTIONS:
            return None
        parameters = tuple(self._value(scope, operand, depth) for operand in operands)
        return _Scope(name, computation.instructions, parameters), computation.root

    def _evaluate(self, scope: "_Scope", instruction: Instruction, depth: int) -> Value | None:
        match instruction.opcode:
            case "constant":
                number = _NUMBER.match(instruction.rest)
                return Value(None, int(number[1])) if number else None
            case "parameter":
                number, parameters = _NUMBER.match(instruction.rest), scope.parameters or ()
                parameter_index = int(number[1]) if number else len(parameters)  # out of range if unknown
                return parameters[parameter_index] if 0 <= parameter_index < len(parameters) else None
            case "get-tuple-element":
                operands, index = instruction.operands, instruction.attributes.get("index", "")
                source = scope.instructions.get(operands[0]) if operands else None
                # Only the condition and the body of a loop have no parameter values.
                is_loop_tuple = source is not None and source.opcode == "parameter" and not scope.parameters
                return Value(int(index), 0) if is_loop_tuple and _INDEX.fullmatch(index) else None
            case "fusion" | "call":
                callee = self._resolve_callee(scope, instruction, depth)
                return self._value(*callee, depth) if callee is not None else None
            case "copy" | "bitcast" | "convert" | "add" | "subtract":
                return _combine(
                    instruction.opcode, [self._value(scope, operand, depth) for operand in instruction.operands[:3]]
                )
        return None


def _count_iterations(direction: str, start: int, step: int, limit: int) -> int | None:
    """Return how often a counter passes a comparison with ``limit`` before it fails for the first time. Return None if
    the counter moves away from the limit, or if the direction is another than < and <= upwards, > and >= downwards. For
    'counter < 10' with start 0 and step 3, the result is 4, for the counters 0, 3, 6 and 9."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
    if direction not in ("LT", "LE", "GT", "GE") or step <= 0:
        return None
    distance = limit - start + (direction in ("LE", "GE"))
    return max(0, -(-distance // step))  # rounded up


def _find_step(body: Scalars, position: int) -> int | None:
    """Return what the body adds to the tuple's element at ``position``: 0 if the body does not change the element, None
    if it is unknown."""
    value = body.results.get(position)
    return value.offset if value is not None and value.position == position else None


class _Scope(NamedTuple):
    computation: str
    instructions: Mapping[str, Instruction]
    parameters: tuple[Value | None, ...] | None
    """Values of the parameters, if a fusion or call runs the computation; None for an unknown value. None for the
    condition and the body of a loop, whose only parameter is the loop's tuple."""


def _combine(opcode: str, values: Sequence[Value | None]) -> Value | None:
    """Return the result of a copy, an addition or a subtraction. Return None if an operand is unknown, or if the result
    depends on several tuple elements or on a negated one."""
    match opcode, values:
        case ("copy" | "bitcast" | "convert", [value]):
            return value
        case ("add", [Value() as left, Value() as right]) if left.position is None or right.position is None:
            return Value(right.position if left.position is None else left.position, left.offset + right.offset)
        case ("subtract", [Value() as left, Value(None, subtrahend)]):
            return Value(left.position, left.offset - subtrahend)
    return None
