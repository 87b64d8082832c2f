"""Run the build commands of an arm in its worktree. The commands may run code of a pull request."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    environment: Mapping[str, str] | None = None
    """Environment variables for the commands. None means only PATH and HOME, because they may run code of a pull
    request."""
    builder: Builder | None = None


_MAX_TAIL_BYTES = 65536


class BuildError(Exception):
    """A build command failed or timed out. The message has the command, its exit code and its last lines of output."""


def minimal_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def run_build(
    entry: CacheEntry,
    commit: str,
    commands: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    builder: Builder,
) -> None:
    """Run the build commands one after the other in the worktree of ``entry``, within ``timeout_s`` together.

    If a command fails or cannot run, remove the worktree and raise BuildError or the builder's error.
    """
    entry.private.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    for command in commands:
        try:
            remaining_s = max(0.0, deadline - time.monotonic())
            code, output = builder(command, entry.path, entry.private, environment, remaining_s)
        except BaseException:  # the command may have filled the disk
            entry.clear()
            raise
        if code == 0:
            continue
        entry.clear()
        timeout_text = f"did not end within {timeout_s:g} s and was ended"
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
