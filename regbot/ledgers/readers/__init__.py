"""Readers of collectives from files: one module for each format, all behind one Protocol.

A reader is a module with a name, a test for its first bytes, and ``read``. It sees one file and gives one ledger, or
says why it cannot. A file in which nothing of the kind was recorded is an error, never a ledger of zero collectives.
"""

from pathlib import Path
from typing import Protocol

from regbot.ledgers.readers import flight_recorder, hlo, inspector, kineto, nsys
from regbot.ledgers.readers.source import ReadError, Source
from regbot.records.ledger import Ledger

__all__ = ["READERS", "ReadError", "Reader", "Source", "detect", "read_file"]


class Reader(Protocol):
    """What every module of this package offers."""

    NAME: str
    """Value of ``--format``."""
    TITLE: str
    """What it reads, in words."""

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` (unpacked, at most 64 KiB) is of this format."""
        ...

    def read(self, source: Source) -> Ledger:
        """The ledger in ``source``. Raises ReadError, and nothing else whatever the file holds."""
        ...


READERS: tuple[Reader, ...] = (kineto, flight_recorder, hlo, nsys, inspector)


def read_file(path: Path, format_name: str = "") -> Ledger:
    """The ledger in ``path``, of the format named or the one its content shows. Raises ReadError."""
    source = Source(path)
    return (_named(format_name) if format_name else detect(source)).read(source)


def detect(source: Source) -> Reader:
    """The reader that recognises ``source``. Raises ReadError with the list of formats."""
    head = source.head
    if not head:
        raise source.error("is empty")
    for reader in READERS:
        if reader.recognises(head):
            return reader
    known = ", ".join(f"{reader.TITLE} ({reader.NAME})" for reader in READERS)
    raise source.error(f"is of no format that regbot reads; it reads {known}")


def _named(name: str) -> Reader:
    for reader in READERS:
        if name == reader.NAME:
            return reader
    raise ReadError(f"--format {name}: there is no such format; there are {', '.join(r.NAME for r in READERS)}")
