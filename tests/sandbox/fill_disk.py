"""Writes more than it may, everywhere it can, as fast as it can."""

import os
from collections.abc import Callable
from pathlib import Path

from attempt import TARGETS, attempt

PIECE = bytes(2**20)


def fill(folder: Path, most: int, unlinked: bool = False) -> Callable[[], str | None]:
    """More than ``most`` bytes in one file of ``folder``, which may have no name any more."""

    def write() -> str | None:
        path = folder / "filled"
        done = 0
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if unlinked:
                path.unlink()
            while done <= most:
                done += os.write(file, PIECE)
        finally:
            os.close(file)
            path.unlink(missing_ok=True)
        return f"{done} bytes"

    write.__name__ = f"fill_{folder.name}{'_unlinked' if unlinked else ''}"
    return write


def many(folder: Path, most: int) -> Callable[[], str | None]:
    """More than ``most`` empty files."""

    def create() -> str | None:
        made = 0
        try:
            for made in range(most + 1):
                os.close(os.open(folder / f"empty-{made}", os.O_WRONLY | os.O_CREAT, 0o600))
        finally:
            for number in range(made):
                (folder / f"empty-{number}").unlink(missing_ok=True)
        return f"{made} files"

    create.__name__ = f"many_files_{folder.name}"
    return create


deeds = [fill(Path(place), most, gone) for place, most, _ in TARGETS["places"] for gone in (False, True)]
attempt(*deeds, *(many(Path(place), files) for place, _, files in TARGETS["places"] if files))
if not TARGETS["careful"]:
    attempt(*(fill(Path(place), 0) for place in ("/", "/dev", "/var/tmp", "/sys", "/proc", "/usr", "/etc")))
