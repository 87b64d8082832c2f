"""A program that tries to get out of a sandbox, harmless where it succeeds. ``regbot.engines.proof`` runs it.

Standard library only. Its argument is its targets as JSON; it prints one line of JSON for each deed.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Try every deed: done, or why it was not."""
    targets: dict[str, Any] = json.loads(sys.argv[1])
    for name in DEEDS:
        sys.stdout.write(json.dumps({"deed": name, **_tried(name, targets)}) + "\n")
        sys.stdout.flush()


def _tried(name: str, targets: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"done": DEEDS[name](targets), "why": ""}
    except (OSError, MemoryError) as error:
        return {"done": False, "why": str(error)}


def _read_harness(targets: dict[str, Any]) -> bool:
    return bool(Path(targets["harness"]).read_bytes())


def _write_harness(targets: dict[str, Any]) -> bool:
    os.close(os.open(targets["harness"], os.O_WRONLY | os.O_APPEND))  # nothing is written
    return True


def _read_private(targets: dict[str, Any]) -> bool:
    return bool(Path(targets["private"]).read_bytes())


def _write_outside(targets: dict[str, Any]) -> bool:
    Path(targets["outside"]).write_text("written by a program that should not reach it")
    return True


def _see_processes(targets: dict[str, Any]) -> bool:
    word = targets["word"].encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and word in (process / "environ").read_bytes():
                return True
    return False


def _reach_network(targets: dict[str, Any]) -> bool:
    socket.create_connection(("127.0.0.1", targets["port"]), timeout=5).close()
    return True


def _write_too_much(targets: dict[str, Any]) -> bool:
    path = Path(targets["record"], "large")
    most, done = (targets["most_mb"] + 1) * 2**20, 0
    with path.open("wb", buffering=0) as file:
        path.unlink()  # a file without a name is in no listing
        while done < most:
            done += file.write(bytes(2**20))
    return True


def _fork(targets: dict[str, Any]) -> bool:
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
            os.kill(child, 9)
            os.waitpid(child, 0)
    return True


def _set_kernel(targets: dict[str, Any]) -> bool:
    del targets
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))  # nothing is written
    return True


OUTSIDE = "write outside"
PROCESSES = "start more processes than its limit"
DEEDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "read the harness": _read_harness,
    "write to the harness": _write_harness,
    "read a private file": _read_private,
    OUTSIDE: _write_outside,
    "see other processes": _see_processes,
    "reach the network": _reach_network,
    "write more than its limit": _write_too_much,
    PROCESSES: _fork,
    "change the kernel's settings": _set_kernel,
}


if __name__ == "__main__":
    main()
