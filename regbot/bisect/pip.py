"""Run pip with another interpreter, and describe its errors.

pip's own files and the user's environment configure where packages come from: private indexes, proxies, certificates.
These settings are kept. Only settings that would install a package elsewhere or select another version are removed.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regbot.checkout.git import kill_group, without_credentials
from regbot.config import ConfigError
from regbot.text.clip import clip
from regbot.text.printable import printable

NO_PIP = "No module named pip"

_REMOVED_VARIABLES = frozenset({
    "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_EDITABLE",
    "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_REPORT", "PIP_IGNORE_REQUIRES_PYTHON", "PIP_PLATFORM", "PIP_PYTHON_VERSION",
    "PIP_IMPLEMENTATION", "PIP_ABI", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG",
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONNOUSERSITE",
})  # fmt: skip
"""Environment variables that pip must not see. For example, a vendor's container may set a constraint file that pins
the version under test.

``regbot.engines.clean_environment`` also removes the PYTHON variables, from the environment of a launch.
"""

_INDEX_OPTIONS = frozenset({
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--cert",
    "--client-cert", "--proxy", "--only-binary", "--no-binary", "--retries", "--timeout",
})  # fmt: skip

_MAX_OUTPUT_BYTES = 16 * 1024 * 1024


class AxisError(ConfigError):
    """A usage error: the requested versions cannot be searched."""


@dataclass(frozen=True)
class InterpreterResult:
    """How an interpreter ended."""

    code: int | None
    """Exit code; negative if a signal ended the interpreter, None if it timed out."""
    out: str
    """Standard output."""
    error: str
    """Standard error."""

    def last_lines(self, count: int = 12) -> str:
        """Return the last lines of the output: indented, printable, without credentials in URLs."""
        lines = [clean_output(line) for line in f"{self.out}\n{self.error}".splitlines()]
        last_lines = [line for line in lines if line.strip()][-count:]
        return "\n".join(f"  {clip(line, 300)}" for line in last_lines) or "  (it printed nothing)"


def clean_output(text: str) -> str:
    """Return pip's output as one printable line without credentials."""
    return without_credentials(printable(text))


def run_pip(python: str, *arguments: str, timeout_s: float) -> InterpreterResult:
    """Run ``python -m pip``. Raises AxisError if the interpreter cannot start or has no pip."""
    result = run_interpreter(
        python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments, timeout_s=timeout_s
    )
    if result.code == 1 and NO_PIP in result.error:
        raise AxisError(
            f"{python}: has no pip, which regbot needs to find and install versions",
            f"add it: '{python} -m ensurepip', or 'uv pip install pip' in an environment made by uv",
        )
    return result


def run_interpreter(python: str, *arguments: str, timeout_s: float) -> InterpreterResult:
    """Run an interpreter to its end and kill the processes that it leaves behind. Raises AxisError if it cannot start.

    The output goes to files and not to pipes, because a server that a build leaves behind would keep a pipe open.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        try:
            process = subprocess.Popen(
                [python, *arguments],
                env={name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,  # no terminal for password prompts, and one process group to kill
            )
        except OSError as fault:
            raise AxisError(
                f"{python}: cannot be started: {fault.strerror}",
                "set the workload's 'python' to an interpreter that starts",
            ) from fault
        with process:
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                kill_group(process.pid)
        return InterpreterResult(code, _read_end(out), _read_end(error))


def _read_end(file: IO[bytes]) -> str:
    """Return the last ``_MAX_OUTPUT_BYTES`` of a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAX_OUTPUT_BYTES))
    return file.read().decode("utf-8", "replace")


def describe_end(result: InterpreterResult, timeout_s: float) -> str:
    """Describe how the interpreter ended, for an error message."""
    if result.code is None:
        return f"did not end within {timeout_s:g} s and was killed"
    if result.code < 0:
        number = -result.code
        names = {signal_.value: signal_.name for signal_ in signal.Signals}
        return f"was killed by {names.get(number, f'signal {number}')}"  # real-time signals have no name
    return f"failed with exit code {result.code}"


def executable(folder: Path) -> str:
    """Return the path of the interpreter of the virtual environment in ``folder``."""
    return str(folder / "bin" / "python")


def index_arguments(options: Sequence[str]) -> tuple[str, ...]:
    """Return the user's index options for pip. Raises AxisError if one is not an option of a package index."""
    for option in options:
        name = option.partition("=")[0]
        if name.startswith("-") and name not in _INDEX_OPTIONS:
            raise AxisError(
                f"{clean_output(name)}: is not an option of a package index",
                f"the options are {', '.join(sorted(_INDEX_OPTIONS))}",
            )
    return tuple(options)
