"""Interfaces of an engine, and of a seat: the nodes that an engine reserves for one session.

An engine runs untrusted code and reports only what it observes from outside the process. The process under test (the
guest) writes its own report into the record folder, which ``regbot.workloads`` reads.

    engine   where launches run: this machine, or a cluster's scheduler
    seat     the nodes reserved for one session, from its first run to its last
    launch   one program, on one node or with one rank per GPU on all nodes of a seat
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from regbot.engines.launch import Launch, LaunchResult
from regbot.engines.sandbox import Sandbox
from regbot.records.run import Allocation, Node


@dataclass(frozen=True)
class Needs:
    """What a session needs from its seat."""

    ranks: int
    """Number of ranks in each run. 0 means a program of one process, which may use all nodes and GPUs of the seat."""
    gpus: int = 0
    """Number of GPUs for all ranks together; 0 for a shape that is timed on CPUs."""
    minutes: float | None = None
    """Expected duration of the session in minutes; None if it is unknown."""
    name: str = "regbot"
    """Name of the reservation in the scheduler's queue, for operators."""
    shared: bool = False
    """Whether other jobs may use the nodes at the same time. Set for seats on which nothing is timed."""
    avoid: frozenset[str] = frozenset()
    """Hosts that must not be in the seat, because the reference probe found them slow."""

    @property
    def may_use_gpus(self) -> bool:
        """Whether the session may use GPUs. A program of one process chooses its devices by itself."""
        return bool(self.gpus) or not self.ranks


class Seat(Protocol):
    """Nodes reserved for one session. Launches in one seat run one after the other."""

    @property
    def node(self) -> Node:
        """One ``Node`` that describes all nodes of the seat: their class and the environment of the timed runs."""
        ...

    @property
    def allocation(self) -> Allocation:
        """Names of the nodes, and the time in the queue.

        They are recorded because the same code runs at different speeds on different nodes.
        """
        ...

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch`` until it ends. Raises EngineError, or NoSeatError if the nodes are lost.

        All processes of the launch have ended when this method returns or raises.
        """
        ...


class Engine(Protocol):
    """Starts launches on this machine or on the nodes of a scheduler. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the engine, as in ``--engine``."""
        ...

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox for every launch and every build; None if the code is trusted."""
        ...

    @property
    def gpus(self) -> int:
        """Largest number of GPUs that one seat can have."""
        ...

    def run(self, launch: Launch) -> LaunchResult:
        """Run an untimed ``launch`` on one node. Several of these launches may run in parallel. Raises EngineError."""
        ...

    def seat(self, needs: Needs) -> AbstractContextManager[Seat]:
        """Wait for nodes, and reserve them until the context exits.

        Raises NoSeatError with advice if the engine can never provide a seat for ``needs``.
        """
        ...

    def describe(self, needs: Needs) -> Node | None:
        """Return the node that a seat for ``needs`` would have.

        Callers use the node's class to look up stored data. Return None if the engine cannot know the node without
        reserving a seat. Raises NoSeatError if the engine can never provide a seat for ``needs``.
        """
        ...

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """Return a stable key for this kind of seat. Pairs from seats with the same key may be judged together."""
        ...
