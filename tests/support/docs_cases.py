"""Pages whose commands are executed, and compared with what stands below them."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from regbot.cli.app import app

OMITTED = "..."
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
"""A kind, commands, and what the page shows of them."""


def execute(commands: str, at: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Execute ``commands`` in bash, with the programs that are installed beside this interpreter."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    words = ["bash", "-e", "-c", commands]
    return subprocess.run(words, cwd=at, env=env, capture_output=True, text=True, timeout=600, check=False)


@cache
def list_options() -> dict[str, set[str]]:
    """Return the options of every command of regbot, by the words of the command."""
    options: dict[str, set[str]] = {}

    def walk(words: str, command: Any) -> None:
        options[words] = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        for name, below in getattr(command, "commands", {}).items():
            walk(f"{words} {name}", below)

    walk("regbot", get_command(app))
    return options


def missing(shown: str, printed: str) -> str:
    """The first shown line that does not stand where the page says: after the one before, anywhere behind ``...``."""
    lines, at, anywhere = printed.splitlines(), 0, False
    for line in shown.splitlines():
        if line == OMITTED:
            anywhere = True
            continue
        found = next((i for i in range(at, len(lines) if anywhere else at + 1) if lines[i : i + 1] == [line]), None)
        if found is None:
            return line or "(an empty line)"
        at, anywhere = found + 1, False
    return ""
