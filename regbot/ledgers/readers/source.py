"""One file to be read, whatever wrote it: opened once, unpacked on the way, and never held whole.

Files come from anywhere. Only regular files are opened, gzip is unpacked chunk by chunk, and what a file may unpack to
is capped in bytes and in ratio, so that neither a 5 GB trace nor a decompression bomb costs more memory than a chunk.
"""

import os
import stat
import zlib
from collections.abc import Iterator
from functools import cached_property
from io import FileIO
from pathlib import Path

CHUNK_BYTES = 2**20
HEAD_BYTES = 2**16
MAX_BYTES = 32 * 2**30
"""Most that a file may unpack to: a trace of a step is megabytes, one of a whole epoch is not read to the end."""
MAX_RATIO = 200
"""Most bytes out of one byte of gzip. Kineto traces unpack to 10 to 30 times their size, zlib's own limit is 1032."""
RATIO_FREE_BYTES = 64 * 2**20
"""What may be unpacked before the ratio counts: small files of one repeated line are harmless."""

_GZIP = b"\x1f\x8b"


class ReadError(Exception):
    """A file cannot be read as what it should be. The message says which file, what is wrong, and what to do."""


class Source:
    """A file of measurements. ``chunks`` may be asked for more than once; each time the file is read from its start."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path, self.max_bytes = path, max_bytes

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def head(self) -> bytes:
        """The first bytes, unpacked: what a format is recognised by. Raises ReadError."""
        found = b""
        for chunk in self.chunks(HEAD_BYTES):
            found += chunk
            if len(found) >= HEAD_BYTES:
                break
        return found[:HEAD_BYTES]

    @cached_property
    def packed(self) -> bool:
        """Whether the file is gzip."""
        with self._open() as file:
            return file.read(2) == _GZIP

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The unpacked bytes, at most about ``size`` at a time, none of them empty. Raises ReadError."""
        total = 0
        for chunk in self._unpacked(size) if self.packed else self._plain(size):
            total += len(chunk)
            if total > self.max_bytes:
                raise self.error(f"holds more than {self.max_bytes:,} bytes; record fewer steps")
            yield chunk

    def read(self, max_bytes: int) -> bytes:
        """Everything at once, for formats that cannot be read piece by piece. Raises ReadError."""
        found = bytearray()
        for chunk in self.chunks():
            found += chunk
            if len(found) > max_bytes:
                raise self.error(f"holds more than the {max_bytes:,} bytes that are read of this format")
        return bytes(found)

    def error(self, what: str) -> ReadError:
        """A ReadError about this file."""
        return ReadError(f"{self.name}: {what}")

    def _open(self) -> FileIO:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.error("is not a regular file")
        return os.fdopen(descriptor, "rb", buffering=0)

    def _plain(self, size: int) -> Iterator[bytes]:
        with self._open() as file:
            while chunk := file.read(size):
                yield chunk

    def _unpacked(self, size: int) -> Iterator[bytes]:
        """All members of a gzip file, one after the other. A file that ends inside a member was cut off."""
        read = written = 0
        with self._open() as file:
            unpack, fresh = zlib.decompressobj(wbits=31), True
            rest = b""
            while True:
                if not rest:
                    rest = file.read(size)
                    read += len(rest)
                    if not rest:
                        break
                try:
                    chunk = unpack.decompress(rest, size)
                except zlib.error as error:
                    raise self.error(f"is broken gzip after {written:,} bytes: {error}; copy it again") from error
                fresh = False
                rest = unpack.unconsumed_tail
                written += len(chunk)
                if written > RATIO_FREE_BYTES and written > MAX_RATIO * read:
                    raise self.error(
                        f"unpacks to more than {MAX_RATIO} times its size; it is no trace but a decompression bomb"
                    )
                if chunk:
                    yield chunk
                if unpack.eof:
                    rest = unpack.unused_data.lstrip(b"\x00")
                    unpack, fresh = zlib.decompressobj(wbits=31), True
            if not fresh:
                raise self.error(f"ends in the middle of its gzip data, after {written:,} bytes; copy it again")
