"""How often each instruction of an HLO program runs: its computations, who calls them, and how many times.

From ENTRY, counts are multiplied through the calls: fusions, calls and async computations once, the body of a while
loop by its trip count and its condition once more. The trip count is XLA's ``known_trip_count``, else what
``hlo_loops`` works out; a loop whose trips cannot be told counts once and is named. Of a conditional one branch runs:
the one that moves most is counted, and where branches differ the conditional is named.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.readers.hlo_collectives import Collective, Unknown, communicates, communication
from regbot.ledgers.readers.hlo_groups import Devices, Groups
from regbot.ledgers.readers.hlo_loops import Scalars, scalars, trips, tuple_values
from regbot.ledgers.readers.hlo_text import MAX_BYTES, Body, Instruction, instruction

MAX_EXECUTIONS = 2**53
SMALL_TEXT = 4096
"""Most characters of a condition, or of a fusion that does a loop's arithmetic."""

_CANDIDATE = re.compile(
    r" (?:all-|collective-|reduce-scatter|ragged-|cross-replica-|(?:custom-call|send|while|conditional)\()"
)
_INTEGER_RESULT = re.compile(r"-> (?:pred|[su](?:32|64))\[\][^()]*$")
_REFERENCE = re.compile(r"=%([\w.\-]+)", re.ASCII)
_KEPT = tuple(map(re.compile, (r"ROOT ", r" = (?:pred|[su](?:32|64))\[\]", r" parameter\(")))
"""In the lines that ``hlo_loops`` keeps, and few others. Each begins with a literal, which is what makes it fast."""
_CALLED = ("calls", "to_apply", "called_computation", "called_computations")
_BRANCHES = ("branch_computations", "true_computation", "false_computation")
_KNOWN_TRIPS = re.compile(r'known_trip_count\\*"?:\s*\{\s*\\*"?n\\*"?:\s*\\*"?([0-9]{1,18})(?![0-9])')


class BrokenProgram(Exception):
    """Computations that do not fit together. The message says how."""


class Call(NamedTuple):
    callee: str
    times: int


class Loop(NamedTuple):
    """``starts``: the integers that the loop begins with, by their place in its tuple."""

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
    """What of one computation matters here. Calls of computations that do nothing of the kind are left out."""

    name: str
    seen: list[Collective | Unknown] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    conditionals: list[Conditional] = field(default_factory=list)

    @property
    def matters(self) -> bool:
        return bool(self.seen or self.calls or self.loops or self.conditionals)

    def callees(self) -> Iterator[str]:
        yield from (call.callee for call in self.calls)
        yield from (name for loop in self.loops for name in (loop.body, loop.condition))
        yield from (branch for conditional in self.conditionals for branch in conditional.branches)


_NOTHING = Computation("")
"""Stands for every computation without anything of the kind: nearly all of the ten thousands in a large program."""


class Program:
    """The computations of a module, read one after the other, callees first."""

    def __init__(self, devices: Devices) -> None:
        self._groups = Groups(devices)
        self.computations: dict[str, Computation] = {}
        self._scalars: dict[str, Scalars] = {}

    def add(self, body: Body) -> None:
        """Read one more computation. Raises BadShape, BadGroup, BrokenProgram."""
        if body.name in self.computations:
            raise BrokenProgram(f"there are two computations {body.name[:80]}")
        found = Computation(body.name)
        named = _Named(body)
        scatters = body.name.startswith("all-reduce-scatter")
        for line in self._looked_at(body):
            if communicates(line.opcode):
                seen = communication(line, self._groups, named.shape_of, scatters)
                if seen is not None:
                    found.seen.append(seen)
            if line.opcode == "while":
                self._loop(found, line, named)
            elif line.opcode == "conditional":
                self._conditional(found, line)
            elif not line.opcode.endswith(("-done", "-update")):
                self._call(found, line)
        self.computations[body.name] = found if found.matters else _NOTHING
        if found.matters or (_INTEGER_RESULT.search(body.header) and len(body.text) < SMALL_TEXT):
            places = sorted(found.start() for kept in _KEPT for found in kept.finditer(body.text))
            self._scalars[body.name] = scalars(filter(None, map(instruction, body.lines_at(places))), self._scalars)

    def _looked_at(self, body: Body) -> Iterator[Instruction]:
        """The few instructions that can matter: all others are passed over without being taken apart."""
        if not body.marked:
            yield from body.instructions()
            return
        places = [found.start() for found in _CANDIDATE.finditer(body.text)]
        if not all(map(self._silent, set(_REFERENCE.findall(body.text)))):
            places += [found.start() for found in _REFERENCE.finditer(body.text) if not self._silent(found[1])]
        yield from filter(None, map(instruction, body.lines_at(sorted(places))))

    def _silent(self, callee: str) -> bool:
        return self.computations.get(callee) is _NOTHING

    def _call(self, into: Computation, line: Instruction) -> None:
        attributes = line.attributes
        callees = [name for key in _CALLED if key in attributes for name in _names(attributes[key])]
        into.calls += [Call(name, 1) for name in callees if not self._silent(name)]

    def _conditional(self, into: Computation, line: Instruction) -> None:
        attributes = line.attributes
        branches = tuple(name for key in _BRANCHES if key in attributes for name in _names(attributes[key]))
        if not branches:
            raise BrokenProgram(f"the conditional {line.name[:80]} has no branches")
        if not all(map(self._silent, branches)):
            into.conditionals.append(Conditional(line.op_name or line.name, branches))

    def _loop(self, into: Computation, line: Instruction, named: "_Named") -> None:
        attributes = line.attributes
        callees = [name for key in ("body", "condition") for name in _names(attributes.get(key, ""))]
        if len(callees) != 2:
            raise BrokenProgram(f"the loop {line.name[:80]} has no body or no condition")
        if all(map(self._silent, callees)):
            return
        trips = _KNOWN_TRIPS.search(attributes.get("backend_config", ""))
        starts: dict[int, int] = {}
        if trips is None:
            entering = named.lines.get(line.operands[0]) if line.operands else None
            if entering is not None and entering.opcode == "tuple":
                values = tuple_values(entering, named.lines, self._scalars)
                starts = {place: value.offset for place, value in values.items() if value.place is None}
        into.loops.append(
            Loop(line.op_name or line.name, callees[0], callees[1], int(trips[1]) if trips else None, starts)
        )

    def runs(self, entry: str) -> "Runs":
        """Executions of every computation that ENTRY reaches. Raises BrokenProgram."""
        order = _callees_first(self.computations, entry)
        moved: dict[str, _Moved] = {}
        edges: dict[str, list[Call]] = {}
        found = Runs({}, [], [], [])
        for name in order:
            this = self.computations[name]
            edges[name] = [*this.calls, *self._loop_calls(this, found)]
            for conditional in this.conditionals:
                shares = [moved[branch] for branch in conditional.branches]
                most = max(shares, key=lambda share: share[:2])
                edges[name].append(Call(conditional.branches[shares.index(most)], 1))
                if len(set(shares)) > 1:
                    found.unequal_conditionals.append(conditional.name)
            moved[name] = _moved(this.seen, [(moved[call.callee], call.times) for call in edges[name]])
        times = dict.fromkeys(order, 0)
        times[entry] = 1
        for name in reversed(order):
            for call in edges[name]:
                times[call.callee] = min(times[call.callee] + times[name] * call.times, MAX_EXECUTIONS + 1)
        return found._replace(times=times)

    def _loop_calls(self, this: Computation, found: "Runs") -> Iterator[Call]:
        for loop in this.loops:
            count = loop.known_trips
            if count is None:
                condition, body = (self._scalars.get(name, Scalars()) for name in (loop.condition, loop.body))
                count, assumed = trips(condition, body, loop.starts, self._scalars)
                if count is None:
                    found.unknown_loops.append(loop.name)
                elif assumed:
                    found.assumed_loops.append(loop.name)
            yield Call(loop.body, 1 if count is None else count)
            yield Call(loop.condition, (1 if count is None else count) + 1)


class Runs(NamedTuple):
    """How often each computation runs, and what had to be assumed."""

    times: Mapping[str, int]
    unknown_loops: list[str]
    assumed_loops: list[str]
    unequal_conditionals: list[str]


class _Moved(NamedTuple):
    """What a computation moves in all: bytes, executions, and a sum that tells two such lists apart."""

    bytes: int
    executions: int
    mark: int


def _moved(seen: Iterable[Collective | Unknown], called: Iterable[tuple[_Moved, int]]) -> _Moved:
    size = count = mark = 0
    for one in seen:
        count += 1
        size += one.bytes if isinstance(one, Collective) else 0
        mark += hash((one.kind, one.bytes, one.dtype, id(one.group)) if isinstance(one, Collective) else one.name)
    for part, times in called:
        size, count, mark = size + part.bytes * times, count + part.executions * times, mark + part.mark * times
    if size > MAX_BYTES or count > MAX_EXECUTIONS:
        raise BrokenProgram("collectives of more than 2^53 bytes or executions in a step")
    return _Moved(size, count, mark % 2**64)


def _callees_first(computations: Mapping[str, Computation], entry: str) -> list[str]:
    order: list[str] = []
    done: dict[str, bool] = {entry: False}
    stack: list[tuple[str, Iterator[str]]] = [(entry, computations[entry].callees())]
    while stack:
        name, callees = stack[-1]
        callee = next(callees, None)
        if callee is None:
            done[name] = True
            order.append(name)
            stack.pop()
        elif callee not in computations:
            raise BrokenProgram(f"{name[:80]} calls {callee[:80]}, which is not in the file")
        elif callee not in done:
            done[callee] = False
            stack.append((callee, computations[callee].callees()))
        elif not done[callee]:
            raise BrokenProgram(f"{callee[:80]} calls itself")
    return order


def _names(listed: str) -> list[str]:
    """Names of computations: ``%body`` or ``{%one, %two}``."""
    return [name.strip().lstrip("%") for name in listed.strip("{}").split(",") if name.strip()]


class _Named:
    """The instructions of a computation by name, taken apart only if one is asked for."""

    def __init__(self, body: Body) -> None:
        self._body = body

    @cached_property
    def lines(self) -> dict[str, Instruction]:
        return {line.name: line for line in self._body.instructions()}

    def shape_of(self, name: str) -> str:
        """'' where there is none of that name."""
        return self.lines[name].shape if name in self.lines else ""
