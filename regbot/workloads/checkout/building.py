"""Run the build commands of an arm in its worktree. The commands may run code of a pull request."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from regbot.engines import EngineError, Launch, LocalEngine, NoSeatError, clean_environment
from regbot.engines.removal import temporary_folder
from regbot.records.config import SandboxSettings
from regbot.records.text.clip import clip
from regbot.workloads.checkout.cache import CacheEntry

MAX_OUTPUT_BYTES = 2**25


@dataclass(frozen=True)
class Build:
    """How to build a worktree: bash commands that run in the worktree, one after the other."""

    commands: Sequence[str]
    python: str
    """Interpreter of the workload. The build commands get it in the variable REGBOT_PYTHON."""
    timeout_s: float
    sandbox: SandboxSettings | None = None
    """In it, the commands can write only to the worktree and to its private folder."""


class BuildError(Exception):
    """A build command failed or timed out. The message has the command, its exit code and its last lines of output."""


def run_build(entry: CacheEntry, commit: str, build: Build) -> None:
    """Run the build commands one after the other in the worktree of ``entry``, within the build's time limit together.

    Raises BuildError if a command fails, and NoSeatError if the disk has no room for a sandbox.
    """
    entry.private.mkdir(parents=True, exist_ok=True)
    environment = {**clean_environment({}), **entry.environment, "REGBOT_PYTHON": build.python}
    deadline = time.monotonic() + build.timeout_s
    for command in build.commands:
        remaining_s = max(0.0, deadline - time.monotonic())
        with temporary_folder() as folder:
            launch = Launch(
                command=("bash", "-euo", "pipefail", "-c", command),
                cwd=entry.path,
                env=environment,
                log=folder / "build.log",
                record_dir=folder / "record",
                timeout_s=remaining_s,
                max_output_bytes=MAX_OUTPUT_BYTES,
                max_dir_bytes=MAX_OUTPUT_BYTES,
                writable=(entry.path, entry.private),
            )
            try:
                result = LocalEngine(sandbox=build.sandbox).run(launch)
            except NoSeatError:  # not the fault of the code
                raise
            except EngineError as error:
                raise BuildError(f"the build command {command} could not be run: {error}") from error
        if result.excess:
            raise BuildError(f"the build command {command} {result.excess}, so it was stopped")
        if result.exit_code != 0:
            timeout = f"did not end within {build.timeout_s:g} s and was ended"
            outcome = timeout if result.timed_out else f"failed with exit code {result.exit_code}"
            lines = [line for line in result.log_tail.splitlines() if line.strip()]
            last_lines = "\n".join(f"  {clip(line, 300)}" for line in lines[-20:]) or "  (it printed nothing)"
            raise BuildError(f"the build command of commit {commit[:10]} {outcome}: {command}\n{last_lines}")
