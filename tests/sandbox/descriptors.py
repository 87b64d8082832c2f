"""Looks for an open file that it was not given."""

import contextlib
import os
from pathlib import Path

from attempt import TARGETS, attempt


def _own() -> dict[int, str]:
    found = {}
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the listing itself
            found[int(link.name)] = str(link.readlink())
    return found


def find_one_of_its_own() -> str | None:
    return ", ".join(f"{number}: {what}" for number, what in sorted(_own().items()) if number > 2)


def take_one_of_another_process() -> str | None:
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        if link.parts[2] == str(os.getpid()):
            continue
        try:
            what = str(link.readlink())
            if TARGETS["careful"] and what != TARGETS["held"]:
                continue
            os.close(os.open(link, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        if not what.startswith(("/dev/null", "pipe:")):
            return f"{link}: {what}"
    return None


attempt(find_one_of_its_own, take_one_of_another_process)
