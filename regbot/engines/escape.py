"""Program that tries to escape from a sandbox, and does no harm if it succeeds (``regbot.engines.proof``). It uses only
the standard library. Its argument is a JSON object of targets. It prints a JSON object of the attempts, each with
whether it has succeeded. An attempt raises OSError or MemoryError, or returns False, if it was stopped."""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _read_harness(targets: dict[str, Any]) -> bool:
    return bool(Path(targets["harness"]).read_bytes())


def _write_harness(targets: dict[str, Any]) -> bool:
    os.close(os.open(targets["harness"], os.O_WRONLY | os.O_APPEND))  # the file is only opened; nothing is written
    return True


def _read_private(targets: dict[str, Any]) -> bool:
    return bool(Path(targets["private"]).read_bytes())


def _write_outside(targets: dict[str, Any]) -> bool:
    Path(targets["outside"]).write_text("written by a program that should not reach it")
    return True


def _see_processes(targets: dict[str, Any]) -> bool:
    """Look for a process outside the sandbox, which has the secret in its environment."""
    secret = targets["secret"].encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and secret in (process / "environ").read_bytes():
                return True
    return False


def _reach_network(targets: dict[str, Any]) -> bool:
    socket.create_connection(("127.0.0.1", targets["port"]), timeout=5).close()
    return True


def _write_too_much(targets: dict[str, Any]) -> bool:
    path = Path(targets["record"], "large")
    target_bytes, written_bytes = (targets["limit_mb"] + 1) * 2**20, 0
    with path.open("wb", buffering=0) as file:
        path.unlink()  # an unlinked file appears in no folder listing, so a check of the folder does not count it
        while written_bytes < target_bytes:
            written_bytes += file.write(bytes(2**20))
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
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return True


def _change_kernel_setting(targets: dict[str, Any]) -> bool:
    del targets
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))  # the file is only opened; nothing is written
    return True


OUTSIDE = "write outside"
PROCESSES = "start more processes than its limit"
ATTEMPTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "read the harness": _read_harness,
    "write to the harness": _write_harness,
    "read a private file": _read_private,
    OUTSIDE: _write_outside,
    "see other processes": _see_processes,
    "reach the network": _reach_network,
    "write more than its limit": _write_too_much,
    PROCESSES: _fork,
    "change the kernel's settings": _change_kernel_setting,
}


def main() -> None:
    targets: dict[str, Any] = json.loads(sys.argv[1])
    outcomes = {}
    for name, attempt in ATTEMPTS.items():
        outcomes[name] = False
        with contextlib.suppress(OSError, MemoryError):
            outcomes[name] = attempt(targets)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
