"""Reading and writing records: strict and bounded on the way in, atomic on the way out.

Anything that a pull request's code wrote is read here and nowhere else: the size is capped before a byte is parsed,
duplicate keys and NaN are refused (the standard library accepts both), nesting is bounded, and the record's own model
judges what is left. Nothing is ever unpickled.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from regbot.records.base import Record
from regbot.text import printable

MAX_RECORD_BYTES = 32 * 1024 * 1024
"""Largest record that is read. The full Qwen3-235B ledger is below 0.5 MiB; 64 ranks of one fit many times over."""

R = TypeVar("R", bound=Record)


class RecordError(Exception):
    """A record cannot be used. The message says which file, what is wrong with it, and what to do."""


def read_record(path: Path, model: type[R], max_bytes: int = MAX_RECORD_BYTES) -> R:
    """The record in ``path``. Raises RecordError for anything that is not exactly one valid record of ``model``."""
    return parse_record(read_capped(path, max_bytes), model, str(path))


def read_capped(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """The bytes of a regular file of at most ``max_bytes``; links, pipes and devices are refused unread."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RecordError(f"{path}: is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > max_bytes:
            raise RecordError(
                f"{path}: {status.st_size:,} bytes, more than the {max_bytes:,} a record may have; it was not read"
            )
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise RecordError(f"{path}: grew past {max_bytes:,} bytes while it was read; it was not used")
    return data


def parse_record(data: bytes, model: type[R], origin: str) -> R:
    """``data`` as a record of ``model``; ``origin`` names the source in errors."""
    parse_json(data, origin)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(f"{origin}: {describe(error)}") from error


def parse_json(data: bytes, origin: str) -> Any:
    """``data`` as JSON without duplicate keys, NaN, infinities or absurd nesting. Raises RecordError."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RecordError(f"{origin}: is not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise RecordError(f"{origin}: is nested too deeply to be a record") from error
    except ValueError as error:  # JSONDecodeError, duplicate keys, NaN, integers past the digit limit
        raise RecordError(f"{origin}: is not valid JSON: {error}") from error


def describe(error: ValidationError, limit: int = 3) -> str:
    """The first faults of a validation error as one line: where, what. Keys in it may be anybody's."""
    faults = error.errors(include_url=False, include_input=False)
    places = [".".join(printable(str(part)[:80]) for part in fault["loc"]) for fault in faults[:limit]]
    lines = [f"{place or 'record'}: {fault['msg']}" for place, fault in zip(places, faults, strict=False)]
    more = f" (and {len(faults) - limit} more)" if len(faults) > limit else ""
    return "; ".join(lines) + more


def write_record(path: Path, record: Record) -> None:
    """Write one record atomically."""
    write_text(path, record.to_json())


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: temporary file in the same folder, fsync, rename. A reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def append_line(path: Path, record: Record) -> None:
    """Append one record as a line and fsync it: a crash loses at most the run in flight.

    Raises OSError, and leaves the file as it was, where there is no room for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        rest = memoryview(record.to_line().encode())
        try:
            while rest:  # a disk that fills takes a part
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def mend(path: Path) -> bool:
    """Cut off a torn last line, so that lines can be appended again; whether there was one.

    A crash while a line was written leaves a part of it. It was never a record: its run is repeated.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end == size:
            return False
        file.truncate(end)
        file.flush()
        os.fsync(file.fileno())
    return True


def read_lines(path: Path, max_bytes: int = 64 * MAX_RECORD_BYTES) -> Iterator[tuple[int, bytes]]:
    """The complete lines of an appended file with their numbers from 1. A torn last line (a crash) is left out."""
    data = read_capped(path, max_bytes)
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        if line:
            yield number, line


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"the key {key[:80]!r} stands twice in one object")
        seen[key] = value
    return seen


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a record may hold")
