"""Program that tries to escape from a sandbox, and does no harm if it succeeds (``regbot.engines.availability``). It
uses only the standard library. Its argument is a JSON object of targets. It prints a line for each attempt: a JSON
array of its name and whether it has succeeded. An attempt that is stopped raises OSError or MemoryError, or returns
False."""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _see_processes(targets: dict[str, Any]) -> bool:
    """Look for a process outside the sandbox, which has the secret in its environment."""
    secret = targets["secret"].encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and secret in (process / "environ").read_bytes():
                return True
    return False


def _write_too_much(targets: dict[str, Any]) -> None:
    path = Path(targets["record"], "large")
    with path.open("wb", buffering=0) as file:
        path.unlink()  # an unlinked file appears in no folder listing, so a check of the folder does not count it
        while file.tell() < (targets["limit_mb"] + 1) * 2**20:
            file.write(bytes(2**20))


def _fork(targets: dict[str, Any]) -> None:
    children: list[int] = []
    try:
        while len(children) <= targets["pids"]:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


OUTSIDE = "write outside"
PROCESSES = "start more processes than its limit"
TOO_MUCH = "write more than its limit"
# A file that is only opened with "r+b" is not changed.
ATTEMPTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "read the harness": lambda targets: Path(targets["harness"]).read_bytes(),
    "write to the harness": lambda targets: Path(targets["harness"]).open("r+b", buffering=0).close(),
    "read a private file": lambda targets: Path(targets["private"]).read_bytes(),
    OUTSIDE: lambda targets: Path(targets["outside"]).write_text("written by a program that should not reach it"),
    "see other processes": _see_processes,
    "reach the network": lambda targets: socket.create_connection(("127.0.0.1", targets["port"]), timeout=5).close(),
    PROCESSES: _fork,
    "change the kernel's settings": lambda _: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)),
    TOO_MUCH: _write_too_much,  # the last one, because the program may be ended for it
}


def main() -> None:
    targets: dict[str, Any] = json.loads(sys.argv[1])
    for name, attempt in ATTEMPTS.items():
        has_succeeded = False
        with contextlib.suppress(OSError, MemoryError):
            has_succeeded = attempt(targets) is not False
        print(json.dumps([name, has_succeeded]), flush=True)


if __name__ == "__main__":
    main()
