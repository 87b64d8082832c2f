"""Readers of collectives from files. Each format is one module or folder here, which follows the Protocol ``Reader``.

A new format needs no registration: every module here that has a function ``recognises`` is a reader. For most formats a
file without any recorded collectives is an error. The exception is HLO text: a compiled program can have no
collectives."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

from regbot.ledgers.readers.source import ReadError, Source
from regbot.records.ledger import Ledger

__all__ = ["READERS", "ReadError", "Reader", "Source", "detect_reader", "read_file"]


class Reader(Protocol):
    """Interface of every reader module."""

    NAME: str
    """Value of the option ``--format`` that selects this reader."""
    TITLE: str
    """Name of the format in messages to the user."""

    def recognises(self, head: bytes) -> bool:
        """Whether a file has this format. ``head`` is the decompressed start of the file, at most 64 KiB."""
        ...

    def read(self, source: Source) -> Ledger:
        """Return the ledger in ``source``. Whatever the file contains, the only exception raised is ReadError."""
        ...


_MODULES: list[Any] = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
READERS: tuple[Reader, ...] = tuple(module for module in _MODULES if hasattr(module, "recognises"))
"""The readers by the names of their modules. At most one of them recognises a file."""


def read_file(path: Path, format_name: str = "") -> Ledger:
    """Read the ledger in ``path``. ``format_name`` is the NAME of a reader. If it is '', the reader is detected from
    the content. Raises ReadError."""
    source = Source(path)
    if not format_name:
        return detect_reader(source).read(source)
    for reader in READERS:
        if format_name == reader.NAME:
            return reader.read(source)
    formats = ", ".join(reader.NAME for reader in READERS)
    raise ReadError(f"--format {format_name}: unknown format", f"the formats are {formats}")


def detect_reader(source: Source) -> Reader:
    """Return the reader that recognises ``source``. Raises ReadError, which lists the formats, if there is no such
    reader."""
    file_start = source.head
    if not file_start:
        raise source.error("is empty")
    for reader in READERS:
        if reader.recognises(file_start):
            return reader
    formats = ", ".join(f"{reader.TITLE} ({reader.NAME})" for reader in READERS)
    raise source.error(f"has no format that regbot reads; regbot reads {formats}")
