"""Run the build commands of an arm in its worktree. The commands may run code of a pull request."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.engines import clean_environment
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.workloads.checkout.cache import CacheEntry
from regbot.workloads.checkout.git import kill_group

Builder = Callable[[str, Path, Path, Mapping[str, str], float], tuple[int | None, bytes]]
"""Runs a command in a worktree, with the worktree's private folder, environment variables, and a time limit in seconds.
Returns the exit code (None after a timeout) and the end of the output."""


@dataclass(frozen=True)
class Build:
    """How to build a worktree: bash commands that run in the worktree, one after the other."""

    commands: Sequence[str]
    python: str
    """Interpreter of the workload. The build commands get it in the variable REGBOT_PYTHON."""
    timeout_s: float
    builder: Builder | None = None


_MAX_TAIL_BYTES = 65536


class BuildError(Exception):
    """A build command failed or timed out. The message has the command, its exit code and its last lines of output."""


def run_build(entry: CacheEntry, commit: str, build: Build) -> None:
    """Run the build commands one after the other in the worktree of ``entry``, within the build's time limit together.

    Raises BuildError or the builder's error if a command fails or cannot run.
    """
    entry.private.mkdir(parents=True, exist_ok=True)
    # The commands may run code of a pull request, so they get a clean environment.
    environment = {**clean_environment({}), **entry.environment, "REGBOT_PYTHON": build.python}
    builder = build.builder or run_in_shell
    deadline = time.monotonic() + build.timeout_s
    for command in build.commands:
        remaining_s = max(0.0, deadline - time.monotonic())
        code, output = builder(command, entry.path, entry.private, environment, remaining_s)
        if code != 0:
            timeout_text = f"did not end within {build.timeout_s:g} s and was ended"
            outcome = timeout_text if code is None else f"failed with exit code {code}"
            lines = [printable(line) for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
            last_lines = "\n".join(f"  {clip(line, 300)}" for line in lines[-20:]) or "  (it printed nothing)"
            raise BuildError(f"the build command of commit {commit[:10]} {outcome}: {command}\n{last_lines}")


def run_in_shell(
    command: str, folder: Path, private: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int | None, bytes]:
    """Run a bash command, and kill processes that it has left behind."""
    del private  # an unconfined command needs no private folder
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise BuildError(f"bash could not be started for the build command {command}: {error.strerror}") from error
        code: int | None = None
        with process, contextlib.suppress(subprocess.TimeoutExpired):
            try:
                code = process.wait(timeout_s)
            finally:
                kill_group(process.pid)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
        return code, output.read(_MAX_TAIL_BYTES)
