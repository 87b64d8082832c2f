"""Shared by the tests of operator docs and others."""

import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.docs_cases import BLOCK, missing

ROOT = Path(__file__).resolve().parents[2]


PAGE = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")


MACHINE, SANDBOX, REPOSITORY, EXAMPLE, SLURM = "machine", "sandbox", "repository", "example", "slurm"


COMMIT = re.compile(r"\b[0-9a-f]{12}\b")


FIGURE = re.compile(r"(?<![\w.@])[<>+-]*\d[\d.]*(?:\+cpu)?%?(?!\w)")


WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


KIND = re.compile(r"(?<=mixtral-8x7b@1/ep  smoke  on ).*")


STOPPED = re.compile(r"(?<=could not read the harness, ).*")


def steady(text: str) -> str:
    """``text`` without what differs from machine to machine, and from one moment to the next."""
    for found, name in ((WHEN, "WHEN"), (COMMIT, "COMMIT"), (KIND, "..."), (STOPPED, "..."), (FIGURE, "#")):
        text = found.sub(name, text)
    return text


def wrong(shown: str, printed: str) -> str:
    """The first shown line that was not printed where it should be."""
    here = socket.gethostname()
    return missing(steady(shown), steady(printed.replace(here, "node-1")))


def blocks() -> list[tuple[str, str, str]]:
    """Kind, commands and what the page shows of them, in the page's order."""
    return BLOCK.findall(PAGE)


def execute(commands: str, at: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**environment, "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    words = ["bash", "-e", "-c", commands]
    return subprocess.run(words, cwd=at, env=env, capture_output=True, text=True, timeout=500, check=False)


def follow(kinds: set[str], home: Path, environment: Mapping[str, str]) -> list[str]:
    """Execute the blocks of ``kinds``, those of a repository in ``home``/example. Returns what was executed."""
    for folder in ("docs", "runners"):
        (home / folder).symlink_to(ROOT / folder)
    environment = {
        **environment,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "REGBOT_CACHE": str(home / "shared/cache"),
    }
    done = []
    for kind, commands, shown in blocks():
        if kind not in kinds:
            continue
        found = execute(commands, home / "example" if kind in (EXAMPLE, SANDBOX, SLURM) else home, environment)
        printed = f"{found.stdout}exit code {found.returncode}\n"
        if SANDBOX not in kinds:
            shown = re.sub(r"^yes  sandbox .*\n", "", shown, flags=re.MULTILINE)
        if shown:
            fault = wrong(shown, printed)
            assert not fault, f"{commands}\nnot printed: {fault}\n{printed}{found.stderr}"
        else:
            assert found.returncode == 0, f"{commands}\n{printed}{found.stderr}"
        done.append(commands)
    return done
