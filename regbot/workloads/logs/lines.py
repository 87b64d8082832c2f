"""Reads one log file line by line in bounded memory.

Only regular files are opened. Lines end at a line feed or a carriage return (progress bars). Lines that are longer than
any step line are skipped, and terminal escapes (colours) are removed.
"""

import os
import re
import stat
from collections.abc import Iterator
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from regbot.records.text.printable import ESCAPE, printable
from regbot.workloads.logs.step_log import LogError

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
_OTHER_WORK = re.compile(r"\b(?:(evaluat|eval\b|validat)|(checkpoint)|(profil))", re.IGNORECASE)
_WORK_NAMES = ("an evaluation", "a checkpoint", "the profiler")
MAX_OTHER_WORK = 100_000


class LogLine(NamedTuple):
    number: int
    """Line number from 1, as an editor counts. Lines that end at a carriage return share the number of the next."""
    text: str
    whole: bool
    """False if this is the last line and it has no line feed, because it may then be incomplete."""


class StepLogFile:
    """A file with the step log of training code. The content is untrusted. ``lines`` can be called more than once.

    ``tokens_per_step`` is the number of tokens of one step on one rank. The user gives it for logs that have only
    tokens per second.
    """

    def __init__(self, path: Path, tokens_per_step: float | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._path, self.tokens_per_step, self._max_bytes = path, tokens_per_step, max_bytes
        self.incomplete_lines: list[int] = []
        """Numbers of the step lines that a reader has left out, because their end is missing."""
        self.other_work: dict[int, str] = {}
        """What lines say the job did besides its steps, by line number; at most ``MAX_OTHER_WORK`` lines."""

    @cached_property
    def name(self) -> str:
        return printable(str(self._path))

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
            self.other_work[number] = next(
                name for name, found in zip(_WORK_NAMES, work.groups(), strict=True) if found
            )
        return LogLine(number, text, whole)

    def document(self) -> bytes:
        content = bytearray()
        for chunk in self._chunks():
            content += chunk
            if len(content) > MAX_DOCUMENT_BYTES:
                problem = f"has more than {MAX_DOCUMENT_BYTES:,} bytes"
                raise self.error(WHOLE_FILE, problem, "give a file of golden values, which are smaller")
        return bytes(content)

    def error(self, number: int, problem: str, advice: str) -> LogError:
        return LogError(f"{self.name}:{number}" if number else self.name, problem, advice)

    def _chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        total = 0
        with self._open() as file:
            while chunk := file.read(size):
                total += len(chunk)
                if total > self._max_bytes:
                    raise self.error(WHOLE_FILE, f"has more than {self._max_bytes:,} bytes", "give the log of one rank")
                yield chunk

    def _open(self) -> FileIO:
        """Open the file. Raises LogError if it is not a regular file. A pipe, for example, could block."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            file = os.fdopen(descriptor, "rb", buffering=0)
        except OSError as error:
            raise self.error(WHOLE_FILE, f"cannot be read: {error.strerror}", _ONE_FILE) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise self.error(WHOLE_FILE, "is not a regular file", _ONE_FILE)
        return file
