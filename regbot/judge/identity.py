"""Proof without a measurement: nothing that could matter to speed differs between the arms.

It compares everything that could matter: the device program, the code that ran (comments and docstrings aside), the
configuration, the installed packages, and every file that the commits disagree on. Which those are is read from git by
the trusted side; what the arms say of the code they loaded is held beside it. A changed file counts as a difference,
loaded or not (another device may load it), unless it is documentation or a test.
"""

from pathlib import PurePosixPath

from regbot.records.run import Run
from regbot.records.session import SessionHeader

INERT_SUFFIXES = {".md", ".rst"}
INERT_FOLDERS = {"doc", "docs", "test", "tests", ".github"}


def difference(header: SessionHeader, base: Run, head: Run) -> str:
    """The first thing that differs and could change a step time, in words; '' where there is none."""
    if header.base.overrides != header.head.overrides:
        return "the configuration overrides differ"
    if base.ledger is None or head.ledger is None or base.code is None or head.code is None:
        return "one arm has no ledger or does not prove its code"
    if base.ledger.program is None or base.ledger.program != head.ledger.program:
        return "the device program differs"
    if base.ledger.config != head.ledger.config:
        return "the resolved configuration differs"
    if base.environment is None or base.environment != head.environment:
        return "the software environment differs"
    loaded = base.code.files.keys() | head.code.files.keys()
    for path in sorted(loaded):
        if base.code.files.get(path) != head.code.files.get(path):
            return f"the code of {path} differs"
    if header.changed_files is None:
        return "which files the commits disagree on is not known"
    for path in header.changed_files:
        if not inert(path):
            return f"{path} differs"
    return ""


def inert(path: str) -> bool:
    """Is it documentation or a test, by its path in the repository?"""
    parts = PurePosixPath(path)
    return parts.suffix.lower() in INERT_SUFFIXES or bool(INERT_FOLDERS & set(parts.parts[:-1]))
