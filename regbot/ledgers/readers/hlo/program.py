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

from regbot.ledgers.readers.hlo.collectives import HloCollective, may_communicate, parse_communication
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


class Traffic(NamedTuple):
    """Total communication of one execution of a computation, with everything that it calls."""

    bytes: int = 0
    executions: int = 0
    checksum: int = 0
    """Hash of the set of collectives. Two branches with equal checksums communicate alike."""


_NO_TRAFFIC = Traffic()


@dataclass(slots=True)
class Computation:
    """Communication and calls of one computation. Calls of computations that do not communicate are left out."""

    communications: list[HloCollective | str] = field(default_factory=list)
    calls: list[ComputationCall] = field(default_factory=list)
    traffic: Traffic = _NO_TRAFFIC
    unknown_loops: list[str] = field(default_factory=list)
    """Names of loops without a trip count. They are counted as one trip."""
    unequal_conditionals: list[str] = field(default_factory=list)
    """Names of conditionals whose branches communicate differently."""


_SILENT = Computation()
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
        computation = Computation()
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
                self._add_conditional(computation, instruction)
            elif not instruction.opcode.endswith(("-done", "-update")):  # the -start operation has made the call
                for callee in _list_callees(instruction, _CALL_ATTRIBUTES):
                    self._add_call(computation, callee, 1)
        computation.traffic = self._sum_traffic(computation)
        is_relevant = computation.communications or computation.calls
        self.computations[body.name] = computation if is_relevant else _SILENT
        is_short_integer_function = _INTEGER_RESULT.search(body.header) and len(body.text) < MAX_INTEGER_TEXT
        if is_relevant or is_short_integer_function:
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
        silent = {name for name in set(_REFERENCE.findall(body.text)) if self.computations.get(name) is _SILENT}
        offsets += [match.start() for match in _REFERENCE.finditer(body.text) if match[1] not in silent]
        yield from _parse_lines(body, sorted(offsets))

    def _find_callee(self, callee: str) -> Computation:
        if callee not in self.computations:
            raise BrokenProgram(f"it calls {clip(callee, 80)}, which is not in the file before it")
        return self.computations[callee]

    def _add_call(self, computation: Computation, callee: str, times: int) -> None:
        if self._find_callee(callee) is not _SILENT:
            computation.calls.append(ComputationCall(callee, times))

    def _add_conditional(self, computation: Computation, instruction: Instruction) -> None:
        """Call the branch that moves most once, and the others 0 times."""
        traffic = {name: self._find_callee(name).traffic for name in _list_callees(instruction, _BRANCH_ATTRIBUTES)}
        if not traffic:
            raise BrokenProgram(f"the conditional {clip(instruction.name, 80)} has no branches")
        if len(set(traffic.values())) > 1:
            computation.unequal_conditionals.append(instruction.op_name or instruction.name)
        largest_branch = max(traffic, key=lambda name: (traffic[name].bytes, traffic[name].executions))
        for name in traffic:
            self._add_call(computation, name, int(name == largest_branch))

    def _add_loop(self, computation: Computation, instruction: Instruction, index: "_InstructionIndex") -> None:
        callees = _list_callees(instruction, ("body", "condition"))
        if len(callees) != 2:
            raise BrokenProgram(f"the loop {clip(instruction.name, 80)} has no body or no condition")
        body, condition = callees
        if self._find_callee(body) is self._find_callee(condition) is _SILENT:
            return
        recorded_trips = _KNOWN_TRIPS.search(instruction.attributes.get("backend_config", ""))
        name, trips = instruction.op_name or instruction.name, int(recorded_trips[1]) if recorded_trips else None
        if trips is None:
            starts = self._read_starts(instruction.operands[0], index) if instruction.operands else {}
            trips = self._evaluator.count_trips(condition, body, starts)
            if trips is None:
                computation.unknown_loops.append(name)
                trips = 1
        self._add_call(computation, body, trips)
        self._add_call(computation, condition, trips + 1)

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

    def _sum_traffic(self, computation: Computation) -> Traffic:
        total_bytes = executions = checksum = 0
        for communication in computation.communications:
            executions += 1
            if isinstance(communication, HloCollective):
                total_bytes += communication.bytes
                group_id = id(communication.group)
                checksum += hash((communication.kind, communication.bytes, communication.dtype, group_id))
            else:
                checksum += hash(communication)
        for call in computation.calls:
            called = self.computations[call.callee].traffic
            total_bytes += called.bytes * call.times
            executions += called.executions * call.times
            checksum += called.checksum * call.times
        if total_bytes > MAX_BYTES or executions > MAX_EXECUTIONS:
            raise BrokenProgram("its collectives have more than 2^53 bytes or executions per step")
        return Traffic(total_bytes, executions, checksum % 2**64)

    def count_executions(self, entry: str) -> dict[str, int]:
        """Return the number of executions of each computation by name. Those that ``entry`` never calls are missing."""
        executions = {entry: 1}
        for name, computation in reversed(self.computations.items()):  # callers before the computations that they call
            for call in computation.calls if name in executions else ():
                total = executions.get(call.callee, 0) + executions[name] * call.times
                # The cap keeps the numbers small. It is above the limit, so a collective with this count is refused.
                executions[call.callee] = min(total, MAX_EXECUTIONS + 1)
        return executions


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
