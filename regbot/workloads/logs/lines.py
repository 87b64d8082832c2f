"""Reads one log file line by line in bounded memory.

Only regular files are opened. Lines end at a line feed or a carriage return (progress bars). Lines that are longer than
any step line are skipped, and terminal escapes (colours) are removed.
"""

import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regbot.records.text.printable import ESCAPE, printable
from regbot.workloads.logs.step_log import LogError, LogStep

CHUNK_BYTES = 2**18
HEAD_BYTES = 2**16
MAX_LINE_BYTES = 2**14
"""Maximum length of a line. The longest step lines have about 700 characters."""
MAX_BYTES = 4 * 2**30
"""Maximum size of a log. A log of a million steps is below 1 GiB."""
MAX_DOCUMENT_BYTES = 8 * 2**20
"""Maximum size of a document. Golden values of 10,000 steps take 0.5 MB."""

WHOLE_FILE = 0
"""Stands in place of a line number if an error is about the whole file."""
_ONE_FILE = "give a file; one file is one run"
_LINE_END = re.compile(rb"[\r\n]++")
_LABEL = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,6})\]:?|\[\d+,(\d{1,6})\]<std\w+>:|(?:rank ?)?(\d{1,6}):\s)")
"""Labels of ranks: ``[rank0]:`` and ``[default0]:`` of torchrun, ``[1,0]<stdout>:`` of mpirun, ``0:`` of
srun --label.
"""
_OTHER_WORK = re.compile(r"\b(?:(evaluat|eval\b|validat)|(checkpoint)|(profil))", re.IGNORECASE)
_WORK_NAMES = ("an evaluation", "a checkpoint", "the profiler")
MAX_OTHER_WORK = 100_000


class LogLine(NamedTuple):
    number: int
    """Line number from 1, as an editor counts. Lines that end at a carriage return share the number of the next."""
    text: str
    whole: bool
    """False if this is the last line and it has no line feed, because it may then be incomplete."""

    @property
    def rank(self) -> str:
        """Rank label, such as '3' for '[rank3]:'; '' if the line has none."""
        match = _LABEL.match(self.text)
        return next(rank for rank in match.groups() if rank is not None) if match else ""


class StepLogFile:
    """A file with the step log of training code. The content is untrusted. ``lines`` can be called more than once.

    ``tokens_per_step`` is the number of tokens of one step on one rank. The user gives it for logs that have only
    tokens per second.
    """

    def __init__(self, path: Path, tokens_per_step: float | None = None) -> None:
        self._path, self.name, self.tokens_per_step = path, printable(str(path)), tokens_per_step
        self.incomplete_lines: list[int] = []
        """Numbers of the step lines that a reader has left out, because their end is missing."""
        self.other_work: dict[int, str] = {}
        """What lines say the job did besides its steps, by line number; at most ``MAX_OTHER_WORK`` lines."""

    def head(self) -> str:
        """Return the beginning of the file, long enough to recognise a document; '' for an empty file.
        Raises LogError.
        """
        return next(self._chunks(HEAD_BYTES), b"").decode("utf-8-sig", "replace")

    def lines(self) -> Iterator[LogLine]:
        """Yield every line, with terminal escapes removed. Empty lines and lines that are too long are left out. Raises
        LogError.
        """
        number = 1
        remainder = b""  # the start of a line that ends in a later chunk
        is_too_long = False  # whether the start of the current line has been dropped
        for chunk in self._chunks():
            data, start = remainder + chunk, 0
            for line_end in _LINE_END.finditer(data):
                if not is_too_long and start < line_end.start() <= start + MAX_LINE_BYTES:
                    yield self._read_line(number, data[start : line_end.start()], whole=True)
                is_too_long, start = False, line_end.end()
                number += line_end[0].count(b"\n")  # a carriage return begins no new line number
            remainder = data[start:]
            if len(remainder) > MAX_LINE_BYTES:
                is_too_long, remainder = True, b""
        if remainder and not is_too_long:
            yield self._read_line(number, remainder, whole=False)

    def _read_line(self, number: int, data: bytes, whole: bool) -> LogLine:
        text = data.decode("utf-8", "replace")
        text = ESCAPE.sub("", text) if "\x1b" in text else text
        if len(self.other_work) < MAX_OTHER_WORK and (work := _OTHER_WORK.search(text)):
            self.other_work[number] = _WORK_NAMES[(work.lastindex or 0) - 1]  # each kind of work has a group
        return LogLine(number, text, whole)

    def document(self) -> bytes:
        return b"".join(self._chunks(max_bytes=MAX_DOCUMENT_BYTES))

    def error(self, number: int, problem: str, advice: str) -> LogError:
        return LogError(f"{self.name}:{number}" if number else self.name, problem, advice)

    def _chunks(self, size: int = CHUNK_BYTES, max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
        """Yield the content. Raises LogError if the file is not a regular file. A pipe, for example, could block."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            file = os.fdopen(descriptor, "rb", buffering=0)
        except OSError as error:
            raise self.error(WHOLE_FILE, f"cannot be read: {error.strerror}", _ONE_FILE) from error
        with file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self.error(WHOLE_FILE, "is not a regular file", _ONE_FILE)
            total = 0
            while chunk := file.read(size):
                total += len(chunk)
                if total > max_bytes:
                    raise self.error(WHOLE_FILE, f"has more than {max_bytes:,} bytes", "give the log of one rank")
                yield chunk


@dataclass(frozen=True)
class StepLine:
    """A kind of line with the number and the time of one step. The group of each pattern is the value of a field."""

    word: str
    """Text of every such line. It is found faster than a pattern."""
    number: re.Pattern[str]
    """Where the step begins in the line."""
    time: re.Pattern[str]
    loss: re.Pattern[str] | None = None
    skipped: re.Pattern[str] | None = None
    nan: re.Pattern[str] | None = None
    last: re.Pattern[str] | None = None
    """The last field. A line that has it is complete even if its line feed is missing."""

    def is_in(self, text: str) -> bool:
        match = self.number.search(text) if self.word in text else None
        return match is not None and self.time.search(text, match.start()) is not None

    def steps(self, log: StepLogFile, to_seconds: Callable[[float], float] = float) -> Iterator[LogStep]:
        for line in log.lines():
            if step := self.read(log, line, to_seconds):
                yield step

    def read(self, log: StepLogFile, line: LogLine, to_seconds: Callable[[float], float] = float) -> LogStep | None:
        """Return the step of ``line``; None if it is of another kind, or incomplete, which is noted in ``log``.

        ``to_seconds`` converts the value of ``time``.
        """
        match = self.number.search(line.text) if self.word in line.text else None
        if match is None:
            return None
        text = line.text[match.start() :]
        time = find_number(self.time, text)
        if time is None or not (line.whole or (self.last and self.last.search(text))):
            log.incomplete_lines.append(line.number)
            return None
        return LogStep(
            int(match[1]),
            to_seconds(time),
            loss=find_number(self.loss, text),
            skipped=int(find_number(self.skipped, text) or 0),
            nan=int(find_number(self.nan, text) or 0),
            line=line.number,
            rank=line.rank,
        )


def find_number(pattern: re.Pattern[str] | None, text: str) -> float | None:
    match = pattern.search(text) if pattern is not None else None
    return number_or_nan(match[1]) if match is not None else None


def number_or_nan(text: str) -> float:
    """Parse a number as frameworks print it (thousands commas, NAN, INF); NaN if it is not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def json_number(value: Any) -> float | None:
    """Return ``value`` as a number: None for null and booleans, NaN for "nan" and everything else that is no number."""
    if isinstance(value, bool) or value is None:
        return None
    return number_or_nan(str(value))
