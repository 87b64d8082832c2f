"""Running pip of an interpreter that is not ours, and the words it leaves when it fails.

Where packages come from is configured in pip's own files and in the user's environment: private indexes, proxies,
certificates. That is left as it is; what is taken away would send a package elsewhere, or ask for another version.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout.git import kill_group, without_credentials
from regbot.config import ConfigError
from regbot.text import printable

NO_PIP = "No module named pip"

_REDIRECTING = frozenset({
    "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_EDITABLE",
    "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_REPORT", "PIP_IGNORE_REQUIRES_PYTHON", "PIP_PLATFORM", "PIP_PYTHON_VERSION",
    "PIP_IMPLEMENTATION", "PIP_ABI", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG",
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONNOUSERSITE",
})  # fmt: skip
"""A constraint file among them, as vendors' containers set one: it pins what a bisection moves. A launch has none of
the PYTHON variables either (regbot.engines.clean_environment)."""

_INDEX_OPTIONS = frozenset({
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--cert",
    "--client-cert", "--proxy", "--only-binary", "--no-binary", "--retries", "--timeout",
})  # fmt: skip

_KEPT_BYTES = 16 * 1024 * 1024


class AxisError(ConfigError):
    """The versions asked for cannot be walked: a usage error. The message says what, where and what to do."""


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``code`` is None where its time ran out."""

    code: int | None
    out: str
    error: str

    def last_lines(self, count: int = 12) -> str:
        """The end of what it said, indented, printable, without credentials that a URL may carry."""
        lines = [line for line in (clean(line) for line in f"{self.out}\n{self.error}".splitlines()) if line.strip()]
        return "\n".join(f"  {line[:300]}" for line in lines[-count:]) or "  (it printed nothing)"


def clean(text: str) -> str:
    """``text`` of pip as one line that may be shown to anybody."""
    return without_credentials(printable(text))


def run_pip(python: str, *arguments: str, timeout_s: float) -> Ended:
    """Run ``python -m pip``. Raises AxisError where the interpreter cannot be started or has no pip."""
    ended = run(python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments, timeout_s=timeout_s)
    if ended.code == 1 and NO_PIP in ended.error:
        raise AxisError(
            f"{python}: has no pip, which the versions of a dependency are found and installed with; "
            f"add it: '{python} -m ensurepip', or 'uv pip install pip' in an environment made by uv"
        )
    return ended


def run(python: str, *arguments: str, timeout_s: float) -> Ended:
    """Run an interpreter to its end; nothing that it started is left. Raises AxisError where it cannot be started.

    Its output goes to files: a server that a build left behind would keep a pipe open.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        try:
            process = subprocess.Popen(
                [python, *arguments],
                env={name: value for name, value in os.environ.items() if name not in _REDIRECTING},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,  # no terminal to ask for a password on, and one group to kill
            )
        except OSError as fault:
            raise AxisError(
                f"{python}: cannot be started: {fault.strerror}; give the interpreter of the workload as 'python'"
            ) from fault
        with process:
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                kill_group(process.pid)
        texts = []
        for file in (out, error):
            file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT_BYTES))
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(code, *texts)


def how(ended: Ended, timeout_s: float) -> str:
    """``ended`` in words, for an error."""
    if ended.code is None:
        return f"did not end within {timeout_s:g} s and was ended"
    if ended.code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by {names.get(-ended.code, f'signal {-ended.code}')}"  # real-time signals have no name
    return f"failed with exit code {ended.code}"


def executable(folder: Path) -> str:
    """The interpreter of the virtual environment in ``folder``."""
    return str(folder / "bin" / "python")


def index_arguments(options: Sequence[str]) -> tuple[str, ...]:
    """``options`` for pip, as the user gave them. Raises AxisError for one that is not about where packages are."""
    for option in options:
        name = option.partition("=")[0]
        if name.startswith("-") and name not in _INDEX_OPTIONS:
            raise AxisError(
                f"{clean(name)}: is no option of a package index; those are {', '.join(sorted(_INDEX_OPTIONS))}"
            )
    return tuple(options)
