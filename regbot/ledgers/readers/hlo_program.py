"""Execution counts of the computations in an HLO program.

Counts are multiplied along the calls, starting from the ENTRY computation. Fusions, calls and async computations run
once per call. The body of a while loop runs as often as its trip count, and its condition runs once more. The trip
count is XLA's ``known_trip_count``, or else the result of ``hlo_loops``. A loop with an unknown trip count is counted
as one trip and reported. For a conditional, only the branch that moves the most bytes is counted. A conditional whose
branches communicate differently is reported.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.readers.hlo_collectives import (
    HloCollective,
    UnknownInstruction,
    may_communicate,
    parse_communication,
)
from regbot.ledgers.readers.hlo_groups import Devices, ReplicaGroups
from regbot.ledgers.readers.hlo_loops import Scalars, count_trips, read_tuple_values, select_scalars
from regbot.ledgers.readers.hlo_text import MAX_BYTES, ComputationText, Instruction, parse_instruction
from regbot.text.clip import clip

MAX_EXECUTIONS = 2**53
MAX_INTEGER_TEXT = 4096
"""Computations that return one integer are kept only if their text has fewer characters than this. They are loop
conditions, and fusions that compute integers of a loop.
"""

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


class BrokenProgram(Exception):
    """The computations contradict each other. The message describes the contradiction."""


class ComputationCall(NamedTuple):
    callee: str
    times: int


class WhileLoop(NamedTuple):
    """A while loop. ``starts`` has the integers of the loop's initial tuple by position."""

    name: str
    body: str
    condition: str
    known_trips: int | None
    starts: Mapping[int, int]


class Conditional(NamedTuple):
    name: str
    branches: tuple[str, ...]


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
nearly all do not communicate.
"""


class Program:
    """The computations of a module. They are added one by one, each called computation before its callers."""

    def __init__(self, devices: Devices) -> None:
        self._groups = ReplicaGroups(devices)
        self.computations: dict[str, Computation] = {}
        self._scalars: dict[str, Scalars] = {}

    def add(self, body: ComputationText) -> None:
        """Parse and add one computation. Raises BadShape, BadGroup or BrokenProgram."""
        if body.name in self.computations:
            raise BrokenProgram(f"two computations are called {clip(body.name, 80)}")
        computation = Computation(body.name)
        index = _InstructionIndex(body)
        is_scatter = body.name.startswith("all-reduce-scatter")
        for line in self._select_lines(body):
            if may_communicate(line.opcode):
                communication = parse_communication(line, self._groups, index.find_shape, is_scatter)
                if communication is not None:
                    computation.communications.append(communication)
            if line.opcode == "while":
                self._add_loop(computation, line, index)
            elif line.opcode == "conditional":
                self._add_conditional(computation, line)
            elif not line.opcode.endswith(("-done", "-update")):
                self._add_calls(computation, line)
        self.computations[body.name] = computation if computation.is_relevant else _SILENT
        if computation.is_relevant or (_INTEGER_RESULT.search(body.header) and len(body.text) < MAX_INTEGER_TEXT):
            offsets = sorted(match.start() for pattern in _SCALAR_LINE for match in pattern.finditer(body.text))
            self._scalars[body.name] = select_scalars(
                filter(None, map(parse_instruction, body.lines_at(offsets))), self._scalars
            )

    def _select_lines(self, body: ComputationText) -> Iterator[Instruction]:
        """Yield the few instructions that can be relevant. If possible, all other lines are skipped without parsing."""
        if not body.has_percent_names:
            yield from body.instructions()
            return
        offsets = [match.start() for match in _CANDIDATE.finditer(body.text)]
        if not all(map(self._is_silent, set(_REFERENCE.findall(body.text)))):
            offsets += [match.start() for match in _REFERENCE.finditer(body.text) if not self._is_silent(match[1])]
        yield from filter(None, map(parse_instruction, body.lines_at(sorted(offsets))))

    def _is_silent(self, callee: str) -> bool:
        return self.computations.get(callee) is _SILENT

    def _add_calls(self, computation: Computation, line: Instruction) -> None:
        attributes = line.attributes
        callees = [name for key in _CALL_ATTRIBUTES if key in attributes for name in _parse_names(attributes[key])]
        computation.calls += [ComputationCall(name, 1) for name in callees if not self._is_silent(name)]

    def _add_conditional(self, computation: Computation, line: Instruction) -> None:
        attributes = line.attributes
        branches = tuple(
            name for key in _BRANCH_ATTRIBUTES if key in attributes for name in _parse_names(attributes[key])
        )
        if not branches:
            raise BrokenProgram(f"the conditional {clip(line.name, 80)} has no branches")
        if not all(map(self._is_silent, branches)):
            computation.conditionals.append(Conditional(line.op_name or line.name, branches))

    def _add_loop(self, computation: Computation, line: Instruction, index: "_InstructionIndex") -> None:
        attributes = line.attributes
        callees = [name for key in ("body", "condition") for name in _parse_names(attributes.get(key, ""))]
        if len(callees) != 2:
            raise BrokenProgram(f"the loop {clip(line.name, 80)} has no body or no condition")
        if all(map(self._is_silent, callees)):
            return
        recorded_trips = _KNOWN_TRIPS.search(attributes.get("backend_config", ""))
        starts: dict[int, int] = {}
        if recorded_trips is None:
            initial_tuple = index.lines.get(line.operands[0]) if line.operands else None
            if initial_tuple is not None and initial_tuple.opcode == "tuple":
                values = read_tuple_values(initial_tuple, index.lines, self._scalars)
                starts = {position: value.offset for position, value in values.items() if value.position is None}
        computation.loops.append(
            WhileLoop(
                line.op_name or line.name,
                callees[0],
                callees[1],
                int(recorded_trips[1]) if recorded_trips else None,
                starts,
            )
        )

    def count_executions(self, entry: str) -> "ExecutionCounts":
        """Return the execution counts of all computations that ENTRY calls directly or indirectly. Raises
        BrokenProgram.
        """
        order = _order_callees_first(self.computations, entry)
        traffic: dict[str, _Traffic] = {}
        edges: dict[str, list[ComputationCall]] = {}
        counts = ExecutionCounts({}, [], [], [])
        for name in order:
            computation = self.computations[name]
            edges[name] = [*computation.calls, *self._list_loop_calls(computation, counts)]
            for conditional in computation.conditionals:
                branch_traffic = [traffic[branch] for branch in conditional.branches]
                largest_traffic = max(branch_traffic, key=lambda candidate: candidate[:2])
                edges[name].append(ComputationCall(conditional.branches[branch_traffic.index(largest_traffic)], 1))
                if len(set(branch_traffic)) > 1:
                    counts.unequal_conditionals.append(conditional.name)
            traffic[name] = _sum_traffic(
                computation.communications, [(traffic[call.callee], call.times) for call in edges[name]]
            )
        executions = dict.fromkeys(order, 0)
        executions[entry] = 1
        for name in reversed(order):
            for call in edges[name]:
                executions[call.callee] = min(
                    executions[call.callee] + executions[name] * call.times, MAX_EXECUTIONS + 1
                )
        return counts._replace(executions=executions)

    def _list_loop_calls(self, computation: Computation, counts: "ExecutionCounts") -> Iterator[ComputationCall]:
        for loop in computation.loops:
            count = loop.known_trips
            if count is None:
                condition, body = (self._scalars.get(name, Scalars()) for name in (loop.condition, loop.body))
                count, is_assumed = count_trips(condition, body, loop.starts, self._scalars)
                if count is None:
                    counts.unknown_loops.append(loop.name)
                elif is_assumed:
                    counts.assumed_loops.append(loop.name)
            yield ComputationCall(loop.body, 1 if count is None else count)
            yield ComputationCall(loop.condition, (1 if count is None else count) + 1)


class ExecutionCounts(NamedTuple):
    """Number of executions of each computation by name.

    The lists name the loops and the conditionals for which these numbers rest on assumptions.
    """

    executions: Mapping[str, int]
    unknown_loops: list[str]
    assumed_loops: list[str]
    unequal_conditionals: list[str]


class _Traffic(NamedTuple):
    """Total communication of one execution of a computation, with everything that it calls.

    Different sets of collectives have different values of ``checksum``.
    """

    bytes: int
    executions: int
    checksum: int


def _sum_traffic(
    communications: Iterable[HloCollective | UnknownInstruction], calls: Iterable[tuple[_Traffic, int]]
) -> _Traffic:
    size_bytes = count = checksum = 0
    for communication in communications:
        count += 1
        size_bytes += communication.bytes if isinstance(communication, HloCollective) else 0
        checksum += hash(
            (communication.kind, communication.bytes, communication.dtype, id(communication.group))
            if isinstance(communication, HloCollective)
            else communication.name
        )
    for traffic, times in calls:
        size_bytes, count, checksum = (
            size_bytes + traffic.bytes * times,
            count + traffic.executions * times,
            checksum + traffic.checksum * times,
        )
    if size_bytes > MAX_BYTES or count > MAX_EXECUTIONS:
        raise BrokenProgram("its collectives have more than 2^53 bytes or executions per step")
    return _Traffic(size_bytes, count, checksum % 2**64)


def _order_callees_first(computations: Mapping[str, Computation], entry: str) -> list[str]:
    order: list[str] = []
    is_done: dict[str, bool] = {entry: False}
    stack: list[tuple[str, Iterator[str]]] = [(entry, computations[entry].callees())]
    while stack:
        name, callees = stack[-1]
        callee = next(callees, None)
        if callee is None:
            is_done[name] = True
            order.append(name)
            stack.pop()
        elif callee not in computations:
            raise BrokenProgram(f"{clip(name, 80)} calls {clip(callee, 80)}, which is not in the file")
        elif callee not in is_done:
            is_done[callee] = False
            stack.append((callee, computations[callee].callees()))
        elif not is_done[callee]:
            raise BrokenProgram(f"{clip(callee, 80)} calls itself")
    return order


def _parse_names(text: str) -> list[str]:
    """Parse the names of computations in ``%body`` or in ``{%first, %second}``."""
    return [name.strip().lstrip("%") for name in text.strip("{}").split(",") if name.strip()]


class _InstructionIndex:
    """The instructions of a computation by name. They are parsed when they are first needed."""

    def __init__(self, body: ComputationText) -> None:
        self._body = body

    @cached_property
    def lines(self) -> dict[str, Instruction]:
        return {line.name: line for line in self._body.instructions()}

    def find_shape(self, name: str) -> str:
        """Return the shape of the instruction ``name``, or '' if there is no such instruction."""
        return self.lines[name].shape if name in self.lines else ""
