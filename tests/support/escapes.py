"""The escape suite: programs of ``tests/sandbox`` run as code of a pull request would be, by any engine.

``escaped`` runs one of them and tells which of its deeds were done, by what the program says and by what is seen
outside of it. An engine with a sandbox gives none; without one each program does its deeds, so that the suite can fail.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from regbot.engines import Launch, LaunchResult, clean_environment

PROGRAMS = Path(__file__).parents[1] / "sandbox"
KIB, MIB = 2**10, 2**20
RECORD_MB, TMP_MB, PIDS, MEMORY_GB = 4, 8, 64, 0.125
"""Limits that the engine's sandbox and its launches have here, small enough to be passed without harm."""

Run = Callable[[Launch], LaunchResult]


@dataclass(frozen=True)
class Escape:
    """One program, and what it did."""

    done: list[str]
    stopped: list[str]
    ended: LaunchResult


def launch(folder: Path, program: str, targets: Mapping[str, Any], **changes: Any) -> Launch:
    """The launch of one program, with its record folder in ``folder``."""
    values: dict[str, Any] = {
        "command": (sys.executable, "-S", "-B", str(PROGRAMS / f"{program}.py"), json.dumps(targets)),
        "cwd": folder,
        "env": clean_environment({}),
        "log": folder / "output.log",
        "record_dir": folder / "record",
        "timeout_s": 60.0,
        "max_output_bytes": 256 * KIB,
        "max_dir_bytes": RECORD_MB * MIB,
        "readable": (PROGRAMS, *targets.get("readable", ())),
    }
    return Launch(**{**values, **changes})


def escaped(run: Run, name: str, folder: Path) -> Escape:
    """Run the program ``name`` by ``run``, in ``folder``, and look at what it has done."""
    folder.mkdir(parents=True, exist_ok=True)
    with ATTEMPTS[name](folder) as (targets, seen):
        # Where nothing holds it back it does only what harms nobody, to what was made for it.
        ended = run(launch(folder, name, {**targets, "careful": run is unconfined}))
        said = (folder / "output.log").read_text(errors="replace")
        lines = [*re.findall(r"^ESCAPED (.*)$", said, re.MULTILINE), *seen()]
    stopped = re.findall(r"^stopped (.*)$", said, re.MULTILINE)
    return Escape(
        lines, [*stopped, *filter(None, [ended.excess])], ended
    )  # one that fills its record may be ended first


Prepared = Iterator[tuple[dict[str, Any], Callable[[], list[str]]]]


def _nothing() -> list[str]:
    return []


@contextlib.contextmanager
def _given(targets: dict[str, Any]) -> Prepared:
    yield targets, _nothing


@contextlib.contextmanager
def _sleeper(**options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process, which does nothing."""
    sleeper = subprocess.Popen(["/bin/sleep", "120"], **options)
    try:
        yield sleeper
    finally:
        sleeper.kill()
        sleeper.wait()


@contextlib.contextmanager
def _write_files(folder: Path) -> Prepared:
    """Stand-ins where regbot has the real ones: beside the run's own scratch folder, and the request within it."""
    out = folder.parent / f"{folder.name}-out"
    paths = [
        out / "runs" / "other" / "record" / "raw.0.json", out / "verdict.json", out / "cache" / "base" / "train.py",
        folder / "request.json",
    ]  # fmt: skip
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("true")
    targets = {"files": [str(path) for path in paths], "record": str(folder / "record")}
    yield targets, lambda: [f"changed {path}" for path in paths if not path.is_file() or path.read_text() != "true"]


@contextlib.contextmanager
def _network(folder: Path) -> Prepared:
    abstract = f"regbot-test-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="s-")))  # a socket's path has 107 letters
        tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        for address in ("\0" + abstract, str(short / "socket")):
            there = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            there.bind(address)
            there.listen()
        yield {
            "port": tcp.getsockname()[1], "abstract": abstract, "socket": str(short / "socket"), "address": _address(),
        }, _nothing  # fmt: skip


def _address() -> str:
    """This machine's own address; '' where it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def _processes(folder: Path) -> Prepared:
    secret = uuid.uuid4().hex
    with _sleeper(env={"SECRET": secret}) as victim:
        targets = {"victim": victim.pid, "secret": secret}
        yield targets, lambda: [] if victim.poll() is None else ["the other process is dead"]


@contextlib.contextmanager
def _survive(folder: Path) -> Prepared:
    seconds = f"120.{uuid.uuid4().int % 10**12:012d}"
    try:
        yield {"seconds": seconds}, lambda: [f"process {pid} goes on" for pid in _sleeping(seconds)]
    finally:
        for pid in _sleeping(seconds):
            os.kill(pid, signal.SIGKILL)


def _sleeping(seconds: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if seconds.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def _fill_disk(folder: Path) -> Prepared:
    own = folder / "record"
    places = [(str(own), 2 * RECORD_MB * MIB, 20_000), ("/tmp", 2 * TMP_MB * MIB, 5000)]
    places += [("/dev/shm", 2 * TMP_MB * MIB, 0), (str(folder), 0, 0)]

    def seen() -> list[str]:
        size = sum(path.lstat().st_size for path in own.rglob("*"))
        return [f"{size} bytes are left in the record folder"] if size > RECORD_MB * MIB else []

    yield {"places": places}, seen


@contextlib.contextmanager
def _secrets_of(folder: Path) -> Prepared:
    home = folder.parent / f"{folder.name}-home"
    home.mkdir()
    (home / "token").write_text("secret")
    variable = uuid.uuid4().hex
    with _sleeper(env={"REGBOT_TOKEN": variable}):
        yield {"home": str(home), "private": str(home / "token"), "variable": variable}, _nothing


@contextlib.contextmanager
def _descriptors(folder: Path) -> Prepared:
    with (folder / "held").open("w") as held, _sleeper(pass_fds=(held.fileno(),)):
        yield {"held": str(folder / "held")}, _nothing


ATTEMPTS: dict[str, Callable[[Path], contextlib.AbstractContextManager[tuple[dict[str, Any], Callable[[], list[str]]]]]]
ATTEMPTS = {
    "read_harness": lambda _: _given({"harness": str(resources.files("regbot"))}), "write_files": _write_files,
    "network": _network, "processes": _processes, "survive": _survive, "fill_disk": _fill_disk,
    "fork_bomb": lambda _: _given({"most": PIDS}), "kernel": lambda _: _given({}), "descriptors": _descriptors,
    "memory": lambda _: _given({"limit_mb": int(2 * MEMORY_GB * 1024)}), "secrets_of": _secrets_of,
}  # fmt: skip


def unconfined(launch: Launch) -> LaunchResult:
    """Run a launch as nobody should run code that is not trusted: no supervisor, no sandbox, and a file left open."""
    launch.record_dir.mkdir(parents=True, exist_ok=True)
    with launch.log.open("wb") as log, launch.log.open("rb") as left_open:
        done = subprocess.run(
            launch.command, cwd=launch.cwd, env=dict(launch.env), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, pass_fds=(left_open.fileno(),), timeout=launch.timeout_s, check=False,
        )  # fmt: skip
    return LaunchResult(done.returncode, False, False, "", 0, 0, 0.0, "")
