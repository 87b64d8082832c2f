"""Read and write record files. All files that a pull request's code wrote are read here. ``parse_json`` checks size and
number of values before it parses anything, and refuses duplicate keys, NaN and deep nesting. The model then validates
the content, up to the first error of a list. Nothing is ever unpickled. Writing is atomic."""

import io
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from regbot.errors import UserError
from regbot.records.base import Record
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

MAX_RECORD_BYTES = 32 * 1024 * 1024
"""Largest record that is read. For comparison: the full Qwen3-235B ledger has less than 0.5 MiB."""
MAX_LINES_BYTES = 64 * MAX_RECORD_BYTES
"""Largest file with one record per line that is read."""
MAX_RECORD_MEMORY = 256 * 1024 * 1024
"""Largest record in memory. A ledger of 100,000 entries has about 200 MiB."""
MAX_ITEMS = 100_000
MAX_KEYS = 20_000
"""Largest number of keys of an object. A run may load thousands of source files, each of which is a key."""
MAX_LISTED_ERRORS = 1000
"""Errors of a record are described if there are at most this many."""

MAX_DEPTH = 64
"""Largest number of nested lists and objects in JSON. Records, traces and configurations have about ten."""

_BRACKET = re.compile(r'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"?[^"\[\]{}]*+)*+([\[\]{}]|\Z)', re.DOTALL)
"""The next bracket of a list or an object in JSON, or the end, with the strings and the other text before it."""
_BEYOND_BMP = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
"""A character of four bytes in UTF-8, such as an emoji."""

R = TypeVar("R", bound=Record)
H = TypeVar("H", bound=Record)


class RecordError(UserError):
    """A record cannot be used. The message names the file, the fault and what to do."""


class DeepNestingError(ValueError):
    """JSON has lists and objects nested more than ``MAX_DEPTH`` levels deep."""


def read_record(path: Path, model: type[R], max_bytes: int = MAX_RECORD_BYTES) -> R:
    """Return the record in ``path``. Raises RecordError if it is anything but one valid record of ``model``."""
    return parse_record(read_capped(path, max_bytes), model, str(path))


def read_capped(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Return the bytes of a regular file. Links, pipes and devices are refused before they are read. Raises
    RecordError."""
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
                f"{path}: {status.st_size:,} bytes, more than the {max_bytes:,} a record may have", "it was not read"
            )
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise RecordError(f"{path}: grew past {max_bytes:,} bytes while it was read", "it was not used")
    return data


def parse_record(data: bytes, model: type[R], origin: str) -> R:
    """Return ``data`` as a record of ``model``; ``origin`` names the source in errors. Raises RecordError."""
    # Refuse duplicate keys, which the model would accept. One emoji makes a text of Python four times as large.
    parse_json(_BEYOND_BMP.sub(b"????", data), origin)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(f"{origin}: {describe_validation_error(error)}") from error


def estimate_memory(data: bytes) -> int:
    """Return about how many bytes the records in ``data``, JSON text, take in memory."""
    # A character may need 4 bytes, beside ``data`` itself. An object has about 500 bytes, and each value about 70.
    return 5 * len(data) + 500 * data.count(b"{") + 70 * (data.count(b",") + data.count(b"["))


def parse_json(data: bytes, origin: str) -> Any:
    """Return ``data`` as JSON without duplicate keys, NaN, infinities or deep nesting. Raises RecordError."""
    if estimate_memory(data) > MAX_RECORD_MEMORY:
        raise RecordError(f"{origin}: {len(data):,} bytes with more values than a record may have", "it was not read")
    try:
        text = data.decode("utf-8")
        check_depth(text)
        document = json.loads(
            text, object_pairs_hook=_refuse_duplicate_keys, parse_constant=_refuse_constant, parse_float=_parse_finite
        )
    except UnicodeDecodeError as error:
        raise RecordError(f"{origin}: is not UTF-8 text (byte {error.start})") from error
    except DeepNestingError as error:
        raise RecordError(f"{origin}: is {error}") from error
    except ValueError as error:  # JSONDecodeError, duplicate keys, NaN, integers past the digit limit
        raise RecordError(f"{origin}: is not valid JSON: {error}") from error
    values = [document]
    while values:  # from the objects and lists of one level to those of the next
        containers = [
            value.values() if isinstance(value, dict) else value for value in values if isinstance(value, (dict, list))
        ]
        values = [value for container in containers for value in container]
        if any(len(container) > MAX_ITEMS for container in containers):
            raise RecordError(f"{origin}: has a list of more than {MAX_ITEMS:,} items")
    return document


def check_depth(text: str) -> None:
    """Raise DeepNestingError if JSON is nested more than ``MAX_DEPTH`` levels deep: code that walks through it
    recurses."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:  # usual, and much faster
        return
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in ("[", "{") else -1
        if depth > MAX_DEPTH:
            raise DeepNestingError(f"nested too deeply, in more than {MAX_DEPTH} levels")


def describe_validation_error(error: ValidationError, limit: int = 3) -> str:
    """Return the first ``limit`` faults as one line, which may contain keys from untrusted data."""
    if error.error_count() > MAX_LISTED_ERRORS:  # such as unknown keys
        return f"{error.error_count():,} faults"
    faults = error.errors(include_url=False, include_input=False)
    texts = []
    for fault in faults[:limit]:
        path = ".".join(printable(clip(str(part), 80)) for part in fault["loc"])  # path of the key in the record
        texts.append(f"{path or 'record'}: {fault['msg']}")
    more = f" (and {len(faults) - limit} more)" if len(faults) > limit else ""
    return "; ".join(texts) + more


def write_record(path: Path, record: Record) -> None:
    write_text(path, record.to_json())


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a temporary file in the same folder, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp lets only the owner read the file
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def append_line(path: Path, record: Record) -> None:
    """Append one record as a line and fsync the file. If the line cannot be written, for example on a full disk, the
    file is cut back to its earlier length and OSError is raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        rest = memoryview(record.to_line().encode())
        try:
            while rest:  # on a full disk, a part may be written
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def drop_torn_line(path: Path) -> None:
    """Cut off an incomplete last line, which a crash has left, so that lines can be appended."""
    complete_size = path.read_bytes().rfind(b"\n") + 1
    with path.open("r+b") as file:
        file.truncate(complete_size)
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    yield from split_lines(read_capped(path, MAX_LINES_BYTES))


def split_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield line number, from 1, and bytes of every complete line of ``data`` that is not empty."""
    for number, line in enumerate(io.BytesIO(data), start=1):
        if line.endswith(b"\n") and line != b"\n":
            yield number, line.removesuffix(b"\n")


def parse_log(
    lines: Iterable[tuple[int, bytes]], header_model: type[H], line_model: type[R], origin: str, advice: str
) -> tuple[H, list[R]]:
    """Return the records in numbered ``lines``: a header, and one record in each further line. ``advice`` says what to
    do if there is no line. Raises RecordError."""
    numbered_lines = iter(lines)
    first_line = next(numbered_lines, None)
    if first_line is None:
        raise RecordError(f"{origin}: is empty: nothing was recorded", advice)
    header_number, header_data = first_line
    header = parse_record(header_data, header_model, f"{origin}:{header_number}")
    return header, [parse_record(data, line_model, f"{origin}:{number}") for number, data in numbered_lines]


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"an object has {len(pairs):,} keys, more than the {MAX_KEYS:,} of any record")
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"the key {clip(key, 80)!r} appears twice in one object")
        unique[key] = value
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a record may hold")


def _parse_finite(text: str) -> float:
    """Raises ValueError for a number that is too large for a float, such as 1e999."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{clip(text, 80)} is not a number that a record may hold")
    return number
