"""Proof that a sandbox holds on this machine: a program in it tries to get out, and what it reached is looked at."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from regbot.engines import escape
from regbot.engines.engine import EngineError, Launch
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox

TIMEOUT_S = 60.0
RECORD_MB = 4
PIDS = 64
MOST_OUTPUT = 2**16
_PROGRAM = Path(__file__).with_name("escape.py")


@dataclass(frozen=True)
class Proof:
    """What a program in the sandbox tried: what was stopped and what was not, or why it could not be run."""

    stopped: list[str]
    done: list[str]
    fault: str = ""


def prove(sandbox: Sandbox | None) -> Proof:
    """Run the program in ``sandbox``; with None in no sandbox, where it does no harm.

    Whatever it says, it has done what is seen to be done. A deed that it does not speak of counts as done.
    """
    engine = LocalEngine(sandbox=None if sandbox is None else replace(sandbox, pids=PIDS))
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="regbot-") as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        for each in ("private", "outside"):
            (folder / each).write_text(word)
        (folder / "work").mkdir()
        targets = {
            "harness": str(resources.files("regbot") / "cli.py"),
            "private": str(folder / "private"),
            "outside": str(folder / "outside"),
            "word": word,
            "port": server.getsockname()[1],
            "record": str(folder / "record"),
            "most_mb": RECORD_MB,
            "pids": PIDS,
        }
        with _bystander(word):
            try:
                ended = engine.run(_launch(folder, json.dumps(targets)))
            except EngineError as error:
                return Proof([], [], str(error))
        said = (folder / "output.log").read_bytes()[:MOST_OUTPUT]
        written = (folder / "outside").read_text(errors="replace") != word
    told = _told(said)
    if not told:
        return Proof([], [], f"the program that was to prove it ended with {ended.exit_code}: {ended.log_tail[-300:]}")
    told[escape.OUTSIDE] = written  # in there is a folder of the same name, which is nowhere else
    done = [deed for deed in escape.DEEDS if told.get(deed, True)]
    return Proof([deed for deed in escape.DEEDS if deed not in done], done)


def _launch(folder: Path, targets: str) -> Launch:
    return Launch(
        command=(sys.executable, "-I", "-S", "-c", _PROGRAM.read_text(encoding="utf-8"), targets),
        cwd=folder / "work",
        env={"PATH": os.defpath},
        log=folder / "output.log",
        record_dir=folder / "record",
        timeout_s=TIMEOUT_S,
        max_output_bytes=MOST_OUTPUT,
        max_dir_bytes=RECORD_MB * 2**20,
    )


@contextmanager
def _bystander(word: str) -> Iterator[None]:
    """A process with a secret in its environment, for as long as the context lasts."""
    words = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    with subprocess.Popen(words, env={"SECRET": word}) as process:
        try:
            yield
        finally:
            process.kill()


def _told(said: bytes) -> dict[str, bool]:
    told = {}
    for line in said.decode("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("deed"), str):
            told[entry["deed"]] = entry.get("done") is not False
    return told
