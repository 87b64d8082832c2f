"""Execution counts of the computations in an HLO program.

Counts are multiplied along the calls, from ENTRY down. The body of a while loop runs as often as its trip count
(``known_trip_count``, or else the result of ``loops``), and its condition once more. A loop with an unknown trip count
is counted as one trip and reported. Of a conditional, only the branch that moves the most bytes is counted. A
conditional whose branches communicate differently is reported."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.readers.hlo.collectives import (
    HloCollective,
    UnknownInstruction,
    may_communicate,
    parse_communication,
)
from regbot.ledgers.readers.hlo.groups import ReplicaGroups
from regbot.ledgers.readers.hlo.loops import Evaluator
from regbot.ledgers.readers.hlo.text import (
    MAX_BYTES,
    BrokenProgram,
    ComputationText,
    Instruction,
    Tensor,
    parse_instruction,
    parse_tensors,
)
from regbot.records.text.clip import clip

MAX_EXECUTIONS = 2**53
MAX_INTEGER_TEXT = 4096
"""Computations that return one integer are kept only if their text has fewer characters than this. They are loop
conditions, and fusions that compute integers of a loop."""

_CANDIDATE = re.compile(
    r" (?:all-|collective-|reduce-scatter|ragged-|cross-replica-|(?:custom-call|send|while|conditional)\()"
)
_INTEGER_RESULT = re.compile(r"-> (?:pred|[su](?:32|64))\[\][^()]*$")
_REFERENCE = re.compile(r"=%([\w.\-]+)", re.ASCII)
_SCALAR_LINE = tuple(map(re.compile, (r"ROOT ", r" = (?:pred|[su](?:32|64))\[\]", r" parameter\(")))
"""Patterns of the lines that ``hlo_loops`` keeps. Few other lines match. Each pattern starts with a literal for
speed.
"""
_CALL_ATTRIBUTES = ("calls", "to_apply", "called_computation", "called_computations")
_BRANCH_ATTRIBUTES = ("branch_computations", "true_computation", "false_computation")
_KNOWN_TRIPS = re.compile(r'known_trip_count\\*"?:\s*\{\s*\\*"?n\\*"?:\s*\\*"?([0-9]{1,18})(?![0-9])')


class ComputationCall(NamedTuple):
    callee: str
    times: int


class WhileLoop(NamedTuple):
    name: str
    body: str
    condition: str
    known_trips: int | None
    starts: Mapping[int, int]
    """Known integers of the loop's initial tuple, by their position in the tuple."""


class Conditional(NamedTuple):
    name: str
    branches: list[str]


@dataclass(slots=True)
class Computation:
    """Communication and calls of one computation. Calls of computations that do not communicate are left out."""

    name: str
    communications: list[HloCollective | UnknownInstruction] = field(default_factory=list)
    calls: list[ComputationCall] = field(default_factory=list)
    loops: list[WhileLoop] = field(default_factory=list)
    conditionals: list[Conditional] = field(default_factory=list)

    @property
    def is_relevant(self) -> bool:
        return bool(self.communications or self.calls or self.loops or self.conditionals)

    def callees(self) -> Iterator[str]:
        yield from (call.callee for call in self.calls)
        yield from (name for loop in self.loops for name in (loop.body, loop.condition))
        yield from (branch for conditional in self.conditionals for branch in conditional.branches)


_SILENT = Computation("")
"""Represents every computation that does not communicate. A large program has tens of thousands of computations, and
nearly all do not communicate."""


class Program:
    """The computations of a module. They are added one by one, each called computation before its callers."""

    def __init__(self, groups: ReplicaGroups) -> None:
        self._groups, self._evaluator = groups, Evaluator()
        self.computations: dict[str, Computation] = {}

    def add(self, body: ComputationText) -> None:
        if body.name in self.computations:
            raise BrokenProgram(f"two computations are called {clip(body.name, 80)}")
        self._evaluator.allow_steps(len(body.text))
        computation = Computation(body.name)
        index = _InstructionIndex(body)
        is_scatter = body.name.startswith("all-reduce-scatter")  # TPU compilers name such computations so
        for instruction in self._select_instructions(body):
            if may_communicate(instruction.opcode):
                communication = parse_communication(instruction, self._groups, index.find_tensors, is_scatter)
                if communication is not None:
                    computation.communications.append(communication)
            if instruction.opcode == "while":
                self._add_loop(computation, instruction, index)
            elif instruction.opcode == "conditional":
                branches = _list_callees(instruction, _BRANCH_ATTRIBUTES)
                if not branches:
                    raise BrokenProgram(f"the conditional {clip(instruction.name, 80)} has no branches")
                if not self._are_silent(branches):
                    computation.conditionals.append(Conditional(instruction.op_name or instruction.name, branches))
            elif not instruction.opcode.endswith(("-done", "-update")):  # the -start operation has made the call
                callees = _list_callees(instruction, _CALL_ATTRIBUTES)
                computation.calls += [ComputationCall(callee, 1) for callee in callees if not self._is_silent(callee)]
        self.computations[body.name] = computation if computation.is_relevant else _SILENT
        is_short_integer_function = _INTEGER_RESULT.search(body.header) and len(body.text) < MAX_INTEGER_TEXT
        if computation.is_relevant or is_short_integer_function:
            offsets = sorted(match.start() for pattern in _SCALAR_LINE for match in pattern.finditer(body.text))
            self._evaluator.add(body.name, _parse_lines(body, offsets))

    def _select_instructions(self, body: ComputationText) -> Iterator[Instruction]:
        """Yield the few instructions that may communicate or call a computation that communicates. In a text whose
        names begin with a percent sign, all other lines are skipped without parsing. In any other text, every
        instruction is yielded."""
        if not body.has_percent_names:
            yield from body.instructions()
            return
        offsets = [match.start() for match in _CANDIDATE.finditer(body.text)]
        callees = set(_REFERENCE.findall(body.text))
        if not self._are_silent(callees):
            offsets += [match.start() for match in _REFERENCE.finditer(body.text) if not self._is_silent(match[1])]
        yield from _parse_lines(body, sorted(offsets))

    def _is_silent(self, callee: str) -> bool:
        return self.computations.get(callee) is _SILENT

    def _are_silent(self, callees: Iterable[str]) -> bool:
        return all(self._is_silent(callee) for callee in callees)

    def _add_loop(self, computation: Computation, instruction: Instruction, index: "_InstructionIndex") -> None:
        callees = _list_callees(instruction, ("body", "condition"))
        if len(callees) != 2:
            raise BrokenProgram(f"the loop {clip(instruction.name, 80)} has no body or no condition")
        if self._are_silent(callees):
            return
        body, condition = callees
        recorded_trips = _KNOWN_TRIPS.search(instruction.attributes.get("backend_config", ""))
        operands = instruction.operands
        computation.loops.append(
            WhileLoop(
                instruction.op_name or instruction.name,
                body,
                condition,
                known_trips=int(recorded_trips[1]) if recorded_trips else None,
                starts=self._read_starts(operands[0], index) if recorded_trips is None and operands else {},
            )
        )

    def _read_starts(self, initial_tuple: str, index: "_InstructionIndex") -> Mapping[int, int]:
        if initial_tuple not in index.starts:
            instruction = index.instructions.get(initial_tuple)
            values = {}
            if instruction is not None and instruction.opcode == "tuple":
                values = self._evaluator.read_tuple_values(index.computation, instruction, index.instructions)
            index.starts[initial_tuple] = {
                position: value.offset for position, value in values.items() if value.position is None
            }
        return index.starts[initial_tuple]

    def count_executions(self, entry: str) -> "ExecutionCounts":
        """Return the execution counts of all computations that ENTRY calls directly or indirectly. Raises
        BrokenProgram. ``entry`` is the name of the ENTRY computation. The traffic of each computation is summed from
        the callees up, because it decides which branch of a conditional counts. Executions are then multiplied from
        ENTRY down."""
        order = _order_callees_first(self.computations, entry)
        traffic: dict[str, _Traffic] = {}
        calls_by_caller: dict[str, list[ComputationCall]] = {}
        counts = ExecutionCounts(executions={}, unknown_loops=[], assumed_loops=[], unequal_conditionals=[])
        for name in order:
            computation = self.computations[name]
            calls = [*computation.calls, *self._list_loop_calls(computation, counts)]
            for conditional in computation.conditionals:
                largest_branch = max(
                    conditional.branches, key=lambda branch: (traffic[branch].bytes, traffic[branch].executions)
                )
                calls.append(ComputationCall(largest_branch, times=1))
                if len({traffic[branch] for branch in conditional.branches}) > 1:
                    counts.unequal_conditionals.append(conditional.name)
            calls_by_caller[name] = calls
            traffic[name] = _sum_traffic(computation.communications, calls, traffic)
        executions = dict.fromkeys(order, 0)
        executions[entry] = 1
        for name in reversed(order):
            for call in calls_by_caller[name]:
                total = executions[call.callee] + executions[name] * call.times
                # The cap keeps the numbers small. It is above the limit, so a collective with this count is refused.
                executions[call.callee] = min(total, MAX_EXECUTIONS + 1)
        return counts._replace(executions=executions)

    def _list_loop_calls(self, computation: Computation, counts: "ExecutionCounts") -> Iterator[ComputationCall]:
        """Yield the calls of the bodies and conditions of all loops. Add the names of loops whose trip count is unknown
        or assumed to ``counts``. A loop with an unknown trip count makes one trip."""
        for loop in computation.loops:
            trips = loop.known_trips
            if trips is None:
                trips, is_assumed = self._evaluator.count_trips(loop.condition, loop.body, loop.starts)
                if trips is None:
                    counts.unknown_loops.append(loop.name)
                    trips = 1
                elif is_assumed:
                    counts.assumed_loops.append(loop.name)
            yield ComputationCall(loop.body, trips)
            yield ComputationCall(loop.condition, trips + 1)


class ExecutionCounts(NamedTuple):
    """Number of executions of each computation, and the loops and conditionals for which it rests on assumptions."""

    executions: Mapping[str, int]
    """By the name of the computation. Computations that are never called are missing."""
    unknown_loops: list[str]
    assumed_loops: list[str]
    unequal_conditionals: list[str]


class _Traffic(NamedTuple):
    """Total communication of one execution of a computation, with everything that it calls."""

    bytes: int
    executions: int
    checksum: int
    """Hash of the set of collectives. Two branches with equal checksums communicate alike."""


def _sum_traffic(
    communications: Iterable[HloCollective | UnknownInstruction],
    calls: Iterable[ComputationCall],
    traffic: Mapping[str, _Traffic],
) -> _Traffic:
    total_bytes = executions = checksum = 0
    for communication in communications:
        executions += 1
        if isinstance(communication, HloCollective):
            total_bytes += communication.bytes
            checksum += hash((communication.kind, communication.bytes, communication.dtype, id(communication.group)))
        else:
            checksum += hash(communication.name)
    for call in calls:
        called = traffic[call.callee]
        total_bytes += called.bytes * call.times
        executions += called.executions * call.times
        checksum += called.checksum * call.times
    if total_bytes > MAX_BYTES or executions > MAX_EXECUTIONS:
        raise BrokenProgram("its collectives have more than 2^53 bytes or executions per step")
    return _Traffic(total_bytes, executions, checksum % 2**64)


def _order_callees_first(computations: Mapping[str, Computation], entry: str) -> list[str]:
    """Return ``entry`` and all computations that it calls, directly or indirectly, each after those that it calls.
    Raises BrokenProgram if a called computation is missing or calls itself. The search keeps its own stack, because
    calls can be nested deeper than Python's recursion limit."""
    order: list[str] = []
    is_finished: dict[str, bool] = {entry: False}  # False while the computation is on the stack
    stack: list[tuple[str, Iterator[str]]] = [(entry, computations[entry].callees())]
    while stack:
        name, callees = stack[-1]
        callee = next(callees, None)
        if callee is None:
            is_finished[name] = True
            order.append(name)
            stack.pop()
        elif callee not in computations:
            raise BrokenProgram(f"{clip(name, 80)} calls {clip(callee, 80)}, which is not in the file")
        elif callee not in is_finished:
            is_finished[callee] = False
            stack.append((callee, computations[callee].callees()))
        elif not is_finished[callee]:
            raise BrokenProgram(f"{clip(callee, 80)} calls itself")
    return order


def _parse_lines(body: ComputationText, offsets: Iterable[int]) -> Iterator[Instruction]:
    return (instruction for instruction in map(parse_instruction, body.lines_at(offsets)) if instruction is not None)


def _list_callees(instruction: Instruction, attribute_names: Iterable[str]) -> list[str]:
    values = [instruction.attributes.get(name, "").strip("{}") for name in attribute_names]
    names = [name.strip().lstrip("%") for value in values for name in value.split(",")]
    return [name for name in names if name]


class _InstructionIndex:
    def __init__(self, body: ComputationText) -> None:
        self.computation, self._body = body.name, body
        self.starts: dict[str, Mapping[int, int]] = {}
        self._tensors: dict[str, list[Tensor]] = {}

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self._body.instructions()}

    def find_tensors(self, name: str) -> list[Tensor]:
        if name not in self._tensors:
            self._tensors[name] = parse_tensors(self.instructions[name].shape) if name in self.instructions else []
        return self._tensors[name]
