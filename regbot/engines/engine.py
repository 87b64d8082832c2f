"""What every engine takes and gives back: a launch, how it ended, and the nodes that are reserved for a session.

An engine runs untrusted code and reports only what it saw from outside. What the guest says of itself lies in the
record folder and is read elsewhere.

    engine   where launches execute: this machine, or a cluster's scheduler
    seat     the nodes that one session has for itself, from its first run to its last
    launch   one program, on one node or with a rank per GPU on all nodes of a seat
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from regbot.records.health import Health
from regbot.records.run import Allocation, Node

if TYPE_CHECKING:
    from regbot.engines.sandbox import Sandbox


class EngineError(Exception):
    """A launch could not be started, or nothing is known about its end. The message says why and what to do."""


class NoSeatError(EngineError):
    """No nodes could be had, or those that were had are gone: nothing that ran there counts against the code."""


class SeatLostError(NoSeatError):
    """Nodes that were had, or were about to be, are gone. Others may be had."""


@dataclass(frozen=True)
class Launch:
    """One program to run, with everything it may use."""

    command: tuple[str, ...]
    """Program and arguments. With ``ranks``, an interpreter and what it is to run as each rank."""
    cwd: Path
    env: Mapping[str, str]
    """The complete environment; nothing else is inherited."""
    log: Path
    """Where standard output and standard error go. Outside of ``record_dir``, so that the guest does not own it."""
    record_dir: Path
    """The folder that the guest may write its record to. Made if it is missing."""
    timeout_s: float
    max_output_bytes: int
    """Of output beyond this, the log keeps the beginning and the end."""
    max_dir_bytes: int
    """A record folder that grows past this ends the launch."""
    ranks: int = 0
    """Ranks of one torch world, which torch's own launcher starts; 0 for a program that is one process."""
    readable: tuple[Path, ...] = ()
    """What a sandbox shows it beside its own folders, the system and its interpreter: the checkout, the request."""
    writable: tuple[Path, ...] = ()
    """Beside ``record_dir``: the checkout of a program that writes where it stands."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended, as seen from outside. Nothing of it runs any more, unless ``unkilled`` says so."""

    exit_code: int | None
    """Of the main process, negative for a signal; None where the engine ended it."""
    timed_out: bool
    output_truncated: bool
    dir_overflow: bool
    """The record folder passed its limit, or was made unreadable, which counts as the same."""
    left_behind: int
    """Processes that outlived the main one and had to be killed; 0 where the engine ended the main one itself."""
    unkilled: int
    """Processes that not even SIGKILL has ended yet, as when one is stuck in a driver: the node needs a look."""
    wall_s: float
    log_tail: str
    """The last 40 lines at most, at most 4000 characters, without terminal escapes and control characters."""
    health: Health | None = None
    """Of the nodes meanwhile, where they were watched: in a seat."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What a session must have for itself."""

    ranks: int
    """Ranks of its runs; 0 for a program that is one process, and has all of what a seat is by default."""
    gpus: int = 0
    """Accelerators of all ranks together; 0 for a shape that is timed on CPUs."""
    minutes: float | None = None
    """That the session may take; None where nobody knows."""
    name: str = "regbot"
    """What the reservation is for, as operators see it in the queue."""
    shared: bool = False
    """Whether others may use the nodes too: nothing is timed."""


class Seat(Protocol):
    """Nodes that one session has for itself. Launches in one seat follow each other."""

    @property
    def node(self) -> Node:
        """The first node, for the class and the environment of what is timed here."""
        ...

    @property
    def allocation(self) -> Allocation:
        """Which nodes these are, and what it took to get them. Seats that differ in their nodes differ in level."""
        ...

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` to its end. Raises EngineError, and NoSeatError where the nodes are lost. Whatever is raised,
        nothing of the launch goes on running."""
        ...


class Engine(Protocol):
    """Where launches execute. Any number of threads may ask."""

    @property
    def name(self) -> str:
        """As ``--engine`` has it."""
        ...

    @property
    def slots(self) -> int:
        """Seats at a time: how many sessions may be timed beside each other."""
        ...

    @property
    def sandbox(self) -> "Sandbox | None":
        """What confines every launch, and is to confine every build; None where the code is trusted."""
        ...

    @property
    def gpus(self) -> int:
        """Most GPUs that one seat may have."""
        ...

    def run(self, launch: Launch) -> Ended:
        """Run ``launch``, of which nothing is timed, to its end: beside others, on one node. Raises EngineError."""
        ...

    def seat(self, needs: Needs) -> AbstractContextManager[Seat]:
        """Wait for nodes, and have them until the context is left. Raises NoSeatError, with what to do, where ``needs``
        can never be met."""
        ...

    def describe(self, needs: Needs) -> Node | None:
        """The nodes that such a seat would be of, for what is stored of their class; None where only a seat can tell.
        Raises NoSeatError where ``needs`` can never be met."""
        ...

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """What names the kind of such a seat, the same today and tomorrow: sessions of one kind may join."""
        ...
