"""Reads the code that judges it."""

import contextlib
import importlib
import sys
from pathlib import Path

from attempt import TARGETS, attempt

HARNESS = Path(TARGETS["harness"])


def read_a_file() -> str | None:
    return (HARNESS / "judge" / "judge.py").read_text()[:40]


def list_the_package() -> str | None:
    return ", ".join(sorted(path.name for path in HARNESS.iterdir() if path.name != "guest"))


def import_it() -> str | None:
    sys.path.insert(0, str(HARNESS.parent))
    return importlib.import_module("regbot.records.text.units").__file__


def through_another_process() -> str | None:
    for process in Path("/proc").glob("[0-9]*"):
        for way in ("root", "cwd"):
            with contextlib.suppress(OSError):
                return Path(f"{process}/{way}{HARNESS}/judge/judge.py").read_text()[:40]
    return None


attempt(read_a_file, list_the_package, import_it, through_another_process)
