"""One log file, read line by line in bounded memory.

Only regular files are opened. Lines end at a line feed or a carriage return (progress bars); a line that is longer
than any step line is passed over. What a terminal would swallow (colours) is taken out.
"""

import os
import re
import stat
from collections.abc import Iterator
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from regbot.logs.step_log import LogError
from regbot.text import ESCAPE, printable

CHUNK_BYTES = 2**18
HEAD_BYTES = 2**16
MAX_LINE_BYTES = 2**14
"""The longest step lines have some 700 characters."""
MAX_BYTES = 4 * 2**30
"""A log of a million steps is below 1 GiB."""
MAX_DOCUMENT_BYTES = 64 * 2**20
"""Golden values of 10,000 steps take 0.5 MB."""

_ENDS = re.compile(rb"[\r\n]")


class Line(NamedTuple):
    number: int
    """From 1, as an editor counts."""
    text: str
    whole: bool
    """False for the last line of a file that does not end with a line feed: its writer was cut off in it."""


class LogFile:
    """A file that training code, or somebody, wrote. ``lines`` may be asked for more than once.

    ``tokens_per_step`` is what somebody says of it: tokens of one step on one rank, for logs that tell only of tokens
    per second.
    """

    def __init__(self, path: Path, tokens_per_step: float | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._path, self.tokens_per_step, self._max_bytes = path, tokens_per_step, max_bytes

    @cached_property
    def name(self) -> str:
        return printable(str(self._path))

    def head(self) -> str:
        """The beginning, enough to tell a document by; '' for an empty file. Raises LogError."""
        return next(self._chunks(HEAD_BYTES), b"").decode("utf-8-sig", "replace")

    def lines(self) -> Iterator[Line]:
        """Every line, without colours. Raises LogError."""
        number, rest, dropping = 1, b"", False
        for chunk in self._chunks():
            data, start = rest + chunk, 0
            for end in _ENDS.finditer(data):
                if not dropping and start < end.start() <= start + MAX_LINE_BYTES:
                    yield Line(number, _text(data[start : end.start()]), True)
                dropping, start = False, end.end()
                number += end.group() == b"\n"
            rest = data[start:]
            if len(rest) > MAX_LINE_BYTES:
                dropping, rest = True, b""
        if rest and not dropping:
            yield Line(number, _text(rest), False)

    def document(self) -> bytes:
        """All of it. Raises LogError where it is larger than any file of golden values."""
        found = bytearray()
        for chunk in self._chunks():
            found += chunk
            if len(found) > MAX_DOCUMENT_BYTES:
                raise self.error(0, f"holds more than {MAX_DOCUMENT_BYTES:,} bytes", "no golden values are that long")
        return bytes(found)

    def error(self, number: int, what: str, fix: str) -> LogError:
        """A LogError about line ``number``, or about the whole file where that is 0."""
        return LogError(f"{self.name}:{number}" if number else self.name, what, fix)

    def _chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        total = 0
        with self._open() as file:
            while chunk := file.read(size):
                total += len(chunk)
                if total > self._max_bytes:
                    raise self.error(0, f"holds more than {self._max_bytes:,} bytes", "give the log of one rank")
                yield chunk

    def _open(self) -> FileIO:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self.error(0, f"cannot be read: {error.strerror}", "give a file; one file is one run") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.error(0, "is not a regular file", "give a file; one file is one run")
        return os.fdopen(descriptor, "rb", buffering=0)


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return ESCAPE.sub("", text) if "\x1b" in text else text
