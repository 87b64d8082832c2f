"""The processes of a private Slurm: finding them by their environment and their parents, and ending all of them.

Run as a script with the folder of one, it waits for the end of standard input and kills what is left of it: so nothing
stays where a test run is killed.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ENOUGH_S = 10.0


def members(folder: Path) -> set[int]:
    """The processes of the cluster in ``folder``: daemons, jobs, callers of srun, and what descends from any of them.
    This process and those above it are none."""
    mine, pid = set[int](), os.getpid()
    while pid:
        mine.add(pid)
        pid = _parent(pid)
    return descendants(carrying(f"SLURM_CONF={folder}/etc/slurm.conf".encode()) - mine)


def carrying(variable: bytes) -> set[int]:
    """The processes that were started with ``variable``, NAME=value, in their environment."""
    return {pid for pid in _pids() if variable in read(pid, "environ").split(b"\0")}


def descendants(of: Iterable[int]) -> set[int]:
    """Those processes and every one below them."""
    parents = {pid: _parent(pid) for pid in _pids()}
    found = set(of) & set(parents)
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def kill(which: Callable[[], set[int]]) -> None:
    """SIGKILL until ``which`` finds nothing that runs. All are stopped first, so that none starts another meanwhile."""
    until = time.monotonic() + ENOUGH_S
    while True:
        stopped = set[int]()
        while found := {pid for pid in which() if _runs(pid)} - stopped:
            _signal(found, signal.SIGSTOP)
            stopped |= found
        if not stopped:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"these processes outlived SIGKILL: {sorted(stopped)}")
        _signal(stopped, signal.SIGKILL)
        time.sleep(0.005)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def read(pid: int, name: str) -> bytes:
    """A file of a process in /proc; empty where it has ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _status(pid: int) -> list[bytes]:
    """State, parent and more of a process; nothing where it has ended."""
    return read(pid, "stat").rpartition(b")")[2].split()


def _parent(pid: int) -> int:
    status = _status(pid)
    return int(status[1]) if status else 0


def _runs(pid: int) -> bool:
    return _status(pid)[:1] not in ([], [b"Z"], [b"X"])


if __name__ == "__main__":
    sys.stdin.read()
    kill(lambda: members(Path(sys.argv[1])))
