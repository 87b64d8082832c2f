"""Readers of step logs: the seconds of every step that a training framework printed or stored, one file per run.

Each format has a module that implements the Protocol ``LogFormat``. The format is detected from the content. The
readers judge nothing: they also read the log of a job that failed to train, and the result contains what the log says
about the failure.
"""

from itertools import chain
from pathlib import Path
from typing import Protocol

from regbot.workloads.logs import golden, maxtext, megatron, nemo, tensorboard, torchtitan
from regbot.workloads.logs.lines import WHOLE_FILE, StepLogFile
from regbot.workloads.logs.step_log import LogError, StepLog

__all__ = [
    "DOCUMENT_FORMATS",
    "FORMATS",
    "LogError",
    "LogFormat",
    "StepLog",
    "StepLogFile",
    "read_log",
    "recognise_format",
]


class LogFormat(Protocol):
    """Interface that the module of each format implements."""

    NAME: str
    TITLE: str

    def recognises(self, text: str, /) -> bool:
        """Return whether ``text`` has this format. ``text`` is a line of a log or the beginning of a document."""
        ...

    def read(self, log: StepLogFile) -> StepLog: ...


DOCUMENT_FORMATS: tuple[LogFormat, ...] = (golden, tensorboard)
"""Formats whose files are one JSON document."""
LINE_FORMATS: tuple[LogFormat, ...] = (megatron, maxtext, torchtitan, nemo)
"""Formats whose files are text with step lines among other lines."""
FORMATS = (*LINE_FORMATS, *DOCUMENT_FORMATS)


def read_log(path: Path, format_name: str = "", tokens_per_step: float | None = None) -> StepLog:
    """Return the run in ``path``, in the named format or the detected one. Raises LogError.

    ``tokens_per_step`` is the number of tokens of one step on one rank. torchtitan needs it, because its lines have no
    step time.
    """
    log = StepLogFile(path, tokens_per_step)
    formats = {log_format.NAME: log_format for log_format in FORMATS}
    if format_name and format_name not in formats:
        raise LogError("format", f"there is no log format {format_name!r}", f"give one of {', '.join(formats)}")
    if log_format := formats[format_name] if format_name else recognise_format(log):
        return log_format.read(log)
    known_formats = "; ".join(f"{known_format.TITLE} ({known_format.NAME})" for known_format in FORMATS)
    problem = "has no step line of a known format" if log.head().strip() else "is empty"
    raise log.error(WHOLE_FILE, problem, f"known formats: {known_formats}")


def recognise_format(log: StepLogFile) -> LogFormat | None:
    """Return the format of ``log``; None if no format matches.

    A document is recognised by its beginning, and a log by its first step line. Raises LogError on read errors.
    """
    head = log.head()
    documents = (known for known in DOCUMENT_FORMATS if known.recognises(head))
    logs = (known for line in log.lines() for known in LINE_FORMATS if known.recognises(line.text))
    return next(chain(documents, logs), None)
