"""Looks for a process of another, reads its secrets, traces it, ends it."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

from attempt import TARGETS, attempt

VICTIM, SECRET = TARGETS["victim"], TARGETS["secret"].encode()
ATTACH, DETACH = 16, 17


def read_its_environment() -> str | None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if SECRET in (process / "environ").read_bytes():
                return str(process)
    return None


def trace_it() -> str | None:
    libc = ctypes.CDLL(None)
    if libc.ptrace(ATTACH, VICTIM, None, None):
        return None
    os.waitpid(VICTIM, 0x40000000)
    libc.ptrace(DETACH, VICTIM, None, None)
    return "attached"


def signal_it() -> str:
    os.kill(VICTIM, signal.SIGTERM)
    return "sent"


attempt(read_its_environment, trace_it, signal_it)
