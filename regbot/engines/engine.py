"""What every engine takes and gives back: a launch, and how it ended.

An engine runs untrusted code and reports only what it saw from outside. What the guest says of itself lies in the
record folder and is read elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class EngineError(Exception):
    """A launch could not be started, or nothing is known about its end. The message says why and what to do."""


@dataclass(frozen=True)
class Launch:
    """One process to run, with everything it may use."""

    command: tuple[str, ...]
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


class Engine(Protocol):
    """Where launches execute."""

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` to its end. Raises EngineError. Whatever is raised, nothing of the launch goes on running."""
        ...
