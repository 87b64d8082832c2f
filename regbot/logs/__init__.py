"""Step logs: the seconds of every step that a training framework printed or stored, one file for one run.

One module for each format, all behind one Protocol; the format is told from the content. Nothing is judged here: a log
of a job that did not train is read, and what it says about that stands in the result.
"""

from pathlib import Path
from typing import Protocol

from regbot.logs import golden, maxtext, megatron, tensorboard, torchtitan
from regbot.logs.lines import LogFile
from regbot.logs.step_log import LogError, Step, StepLog

__all__ = [
    "DOCUMENTS",
    "FORMATS",
    "LINES",
    "Format",
    "LogError",
    "LogFile",
    "Step",
    "StepLog",
    "detect",
    "read_log",
    "recognised",
]


class Format(Protocol):
    """What every module of this package offers."""

    NAME: str
    """Value of ``format``."""
    TITLE: str
    """What it reads, in words."""

    def recognises(self, text: str, /) -> bool:
        """Whether ``text``, a line of a log or the beginning of a document, is of this format."""
        ...

    def read(self, log: LogFile) -> StepLog:
        """The run in ``log``. Raises LogError, and nothing else whatever the file holds."""
        ...


DOCUMENTS: tuple[Format, ...] = (golden, tensorboard)
"""Formats in which the whole file is one JSON document."""
LINES: tuple[Format, ...] = (megatron, maxtext, torchtitan)
"""Formats in which step lines stand among anything else."""
FORMATS = (*LINES, *DOCUMENTS)


def read_log(path: Path, format_name: str = "", tokens_per_step: float | None = None) -> StepLog:
    """The run in ``path``, of the format named or the one its content shows. Raises LogError.

    ``tokens_per_step``, of one step on one rank, is for torchtitan, whose lines have no time.
    """
    log = LogFile(path, tokens_per_step)
    return (_named(format_name) if format_name else detect(log)).read(log)


def detect(log: LogFile) -> Format:
    """The format that ``log`` is of. Raises LogError where it is of none."""
    if found := recognised(log):
        return found
    known = "; ".join(f"{each.TITLE} ({each.NAME})" for each in FORMATS)
    what = "holds no step line of a format that regbot reads" if log.head().strip() else "is empty"
    raise log.error(0, what, f"it reads {known}")


def recognised(log: LogFile) -> Format | None:
    """A document by its beginning, a log by its first step line. Raises LogError where the file cannot be read."""
    head = log.head()
    for document in DOCUMENTS:
        if document.recognises(head):
            return document
    for line in log.lines():
        for each in LINES:
            if each.recognises(line.text):
                return each
    return None


def _named(name: str) -> Format:
    for each in FORMATS:
        if name == each.NAME:
            return each
    known = ", ".join(each.NAME for each in FORMATS)
    raise LogError("format", f"there is no log format {name!r}", f"there are {known}")
