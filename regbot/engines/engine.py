"""Interfaces of an engine, where launches run, and of a seat, the nodes that it reserves for one session. An engine
runs untrusted code and reports only what it observes from outside the process."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from regbot.engines.launch import Launch, LaunchResult
from regbot.records.config import SandboxSettings
from regbot.records.run import Allocation, Node


@dataclass(frozen=True)
class Needs:
    """What a session needs from its seat."""

    ranks: int
    """0 means a program of one process, which may use all nodes and GPUs of the seat."""
    gpus: int = 0
    """For all ranks together; 0 for a shape that is timed on CPUs."""
    minutes: float | None = None
    """Expected duration of the session; None if unknown."""
    name: str = "regbot"
    """Name of the reservation in the scheduler's queue."""
    shared: bool = False
    """Whether other jobs may use the nodes at the same time, because nothing is timed."""
    avoid: frozenset[str] = frozenset()
    """Hosts that the reference probe found slow."""

    @property
    def may_use_gpus(self) -> bool:
        return bool(self.gpus) or not self.ranks


class Seat(Protocol):
    """Nodes reserved for one session. Launches in one seat run one after the other."""

    @property
    def node(self) -> Node:
        """One ``Node`` that describes all nodes of the seat: their class and the environment of the timed runs."""

    @property
    def allocation(self) -> Allocation:
        """Names of the nodes, and the time in the queue."""

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch`` until all its processes have ended. Raises EngineError, or NoSeatError if nodes are lost."""


class Engine(Protocol):
    """Starts launches on this machine or on the nodes of a scheduler. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the engine, as in ``--engine``."""

    @property
    def sandbox(self) -> SandboxSettings | None:
        """The sandbox for every launch and every build; None if the code is trusted."""

    @property
    def gpus(self) -> int:
        """Largest number of GPUs that one seat can have."""

    def run(self, launch: Launch) -> LaunchResult:
        """Run an untimed ``launch`` on one node. Several of these launches may run in parallel. Raises EngineError."""

    def seat(self, needs: Needs) -> AbstractContextManager[Seat]:
        """Wait for nodes, and reserve them until the context exits. Raises NoSeatError."""

    def describe(self, needs: Needs) -> Node | None:
        """Return the node that a seat would have; None if that cannot be known without reserving it. Raises NoSeatError
        if there can never be such a seat."""

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """Return a stable key for this kind of seat. Pairs from seats with the same key may be judged together."""
