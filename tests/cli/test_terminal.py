"""Differences between output on a terminal and in a pipe: colours and line width."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from regbot.records.ledger import Ledger

COLOUR = "\x1b["
DIFF = ("ledger", "diff", "a.json", "a.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.json").write_text(Ledger(source="s", scope="step", steps=1, entries=[]).to_json())
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("step,step_s\n" + "".join(f"{step},1.0\n" for step in range(8)))
    return tmp_path


def on_terminal(folder: Path, *arguments: str, columns: int = 80, **environment: str) -> str:
    """Return the output of ``regbot`` on a terminal with ``columns`` columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    with subprocess.Popen(
        [sys.executable, "-m", "regbot", *arguments],
        cwd=folder,
        env=inherited | {"TERM": "xterm-256color"} | environment,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    ):
        os.close(terminal)
        output = b""
        with contextlib.suppress(OSError):  # raised at the end of a terminal's output
            while part := os.read(controller, 65536):
                output += part
    os.close(controller)
    return output.decode().replace("\r\n", "\n")


def piped(folder: Path, *arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "regbot", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.slow
def test_a_status_has_a_colour_on_a_terminal_only(folder: Path) -> None:
    plain = piped(folder, *DIFF, FORCE_COLOR="1")
    assert (COLOUR in on_terminal(folder, *DIFF), COLOUR in plain) == (True, False)
    assert re.sub(r"\x1b\[\d*m", "", on_terminal(folder, *DIFF)) == plain


def test_help_imports_no_rich(folder: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from regbot.cli.app import app; "
        "CliRunner().invoke(app, ['--help']); print('rich.console' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
