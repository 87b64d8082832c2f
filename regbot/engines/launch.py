"""A launch (one program to run), its result as observed from outside, and the errors of engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regbot.errors import UserError
from regbot.records.health import Health

NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
"""Variables of a launch that sees no GPU, not even one that a scheduler has assigned to the job."""


class EngineError(UserError):
    """Raised if a launch could not be started, or if its result is unknown. The message says why and what to do."""


class NoSeatError(EngineError):
    """Raised if no nodes could be reserved, or if the reserved nodes are lost. The code under test is not at fault."""


class SeatLostError(NoSeatError):
    """Raised if nodes were lost, during the reservation or later. A new reservation may succeed."""


@dataclass(frozen=True)
class Launch:
    """One program to run, with everything that it may use."""

    command: tuple[str, ...]
    """Program and arguments. If ``ranks`` is set: the interpreter, and the arguments that it gets for each rank."""
    cwd: Path
    env: Mapping[str, str]
    """The complete environment; nothing else is inherited."""
    log: Path
    """For standard output and standard error, outside of ``record_dir``, so the guest cannot change it."""
    record_dir: Path
    """Folder that the guest writes its record to. The engine creates it."""
    timeout_s: float
    max_output_bytes: int = 2**20
    """Size limit of the log. A longer log keeps its beginning and its end."""
    max_dir_bytes: int = 2**20
    """Size limit of the record folder. The engine kills the launch when the folder exceeds it."""
    ranks: int = 0
    """Number of ranks, which torch's own launcher starts; 0 for a program of one process."""
    readable: tuple[Path, ...] = ()
    """Additional paths that the sandbox shows, such as the checkout. System and interpreter are always readable."""
    writable: tuple[Path, ...] = ()
    """Additional paths that the guest may write to, such as the checkout of a program that writes to its folder."""
    timed_between: tuple[str, str] | None = None
    """Names of two files that the guest creates in ``record_dir`` before and after the steps that count. GPU clocks,
    power and temperature are sampled only between them. None: during the whole launch."""

    def is_in_steps(self) -> bool:
        """Whether the steps that count are running now."""
        if self.timed_between is None:
            return True
        begun, ended = (self.record_dir / name for name in self.timed_between)
        return begun.exists() and not ended.exists()


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended, as observed from outside. All its processes have ended, or are counted in ``unkilled``."""

    exit_code: int | None
    """Negative if a signal killed the main process; None if the engine killed it."""
    timed_out: bool
    output_truncated: bool
    excess: str
    """What the guest wrote too much into its record folder or to disk; '' if it stayed within its limits."""
    left_behind: int
    """Number of processes that outlived the main process and had to be killed; 0 if the engine killed it."""
    unkilled: int
    """Number of processes that SIGKILL has not ended yet. An operator must look at the node."""
    wall_s: float
    log_tail: str
    """At most 4000 characters, and 40 lines of each log, without terminal escapes and control characters."""
    health: Health | None = None
    """None for a launch outside of a seat."""
    warnings: tuple[str, ...] = ()
