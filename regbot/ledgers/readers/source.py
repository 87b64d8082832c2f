"""Bounded reading of a trace file of any format, decompressed in chunks.

Files can come from untrusted places. Only regular files are opened. Gzip has limits on the number of decompressed bytes
and on the compression ratio, so neither a trace of 5 GB nor a decompression bomb needs more memory than one chunk.
Every reader does work in proportion to the bytes of the file. Where a few bytes stand for many elements, as in
``replica_groups=[1,65536]<=[65536]``, the reader counts them with ``Source.expand``."""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from functools import cached_property
from io import FileIO
from pathlib import Path

from regbot.errors import UserError

CHUNK_BYTES = 2**20
HEAD_BYTES = 2**16
"""Number of bytes by which readers recognise their format."""
MAX_BYTES = 32 * 2**30
"""Largest number of decompressed bytes in a file. A trace of one step has a few megabytes. A trace of a whole epoch is
refused."""
MAX_RATIO = 200
"""Largest accepted compression ratio. Decompressed Kineto traces are 10 to 30 times as large as the gzip file. The
largest ratio that zlib can reach is 1032."""
RATIO_FREE_BYTES = 64 * 2**20
"""Number of decompressed bytes up to which the ratio is not checked. Small files that repeat one line are harmless."""
FREE_ELEMENTS = 2**22
"""Number of elements that any file may stand for, and that a file may stand for in addition to one for each byte."""

_GZIP = b"\x1f\x8b"


class ReadError(UserError):
    """A file cannot be read in its format. The message contains the file, the problem and what to do about it."""


class Source:
    """A file of measurements. Each call of ``chunks`` reads the file from its start."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._size = self._elements = 0  # largest known number of bytes, decompressed if read, and ``expand``

    @cached_property
    def head(self) -> bytes:
        """The first decompressed bytes, at most 64 KiB. Readers recognise their format by these bytes. Raises
        ReadError."""
        data = b""
        for chunk in self.chunks(HEAD_BYTES):
            data += chunk
            if len(data) >= HEAD_BYTES:
                break
        return data[:HEAD_BYTES]

    @cached_property
    def is_gzip(self) -> bool:
        with self._open() as file:
            return file.read(2) == _GZIP

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the decompressed bytes in non-empty chunks of at most about ``size`` bytes. Raises ReadError."""
        total = 0
        with self._open() as file, gzip.GzipFile(fileobj=file) if self.is_gzip else file as stream:
            try:
                while chunk := stream.read(size):
                    total += len(chunk)
                    if total > self.max_bytes:
                        raise self.error(f"contains more than {self.max_bytes:,} bytes; record fewer steps")
                    if total > RATIO_FREE_BYTES and total > MAX_RATIO * file.tell():
                        raise self.error(
                            f"decompresses to more than {MAX_RATIO} times its size, which indicates a decompression "
                            "bomb; record the trace again"
                        )
                    self._size = max(self._size, total)
                    yield chunk
            except EOFError as error:
                problem = f"ends in the middle of its gzip data, after {total:,} bytes; copy it again"
                raise self.error(problem) from error
            except (OSError, zlib.error) as error:
                raise self.error(f"is broken gzip after {total:,} bytes: {error}; copy it again") from error

    def expand(self, elements: int) -> None:
        """Count elements that a reader makes from a shorter text. Raises ReadError if they are more than the bytes read
        so far, and more than any real file needs."""
        self._elements += elements
        if self._elements > FREE_ELEMENTS + self._size:
            raise self.error(
                f"stands for more than {FREE_ELEMENTS + self._size:,} ranks or rows, which no recording of its size "
                "does; write it again"
            )

    def read(self, max_bytes: int) -> bytes:
        """Return all decompressed bytes, for formats that cannot be read in chunks. Raises ReadError if there are more
        than ``max_bytes``."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > max_bytes:
                raise self.error(f"contains more than {max_bytes:,} bytes, the limit for this format")
        return bytes(data)

    def error(self, problem: str) -> ReadError:
        return ReadError(f"{self.path}: {problem}")

    def _open(self) -> FileIO:
        """Open the file for reading. Raises ReadError if it is not a regular file. A pipe, for example, could block."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise self.error("is not a regular file")
        self._size = max(self._size, status.st_size)
        return os.fdopen(descriptor, "rb", buffering=0)
