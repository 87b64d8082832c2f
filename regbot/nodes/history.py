"""The probe history of every node. It is one JSON-lines file for each node, in a folder that all users of regbot share.

Lines are appended under a lock, so that several processes may write. If a crash leaves an incomplete line, readers skip
it, and the next writer removes it. If locks on the file system do not work between machines, only one machine may
write.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from regbot.errors import UserError
from regbot.records.base import Record
from regbot.records.files import append_line, drop_torn_line, parse_record, read_lines
from regbot.records.node import Host, NodeProbe
from regbot.text.clip import clip

NODES = "REGBOT_NODES"
"""Environment variable that names the folder of all nodes. It is needed if several machines or users share it."""
LOCK_TIMEOUT_S = 60.0
PROBES = "probes"
"""Name of the folder with the history files."""

R = TypeVar("R", bound=Record)
_HOST: TypeAdapter[str] = TypeAdapter(Host)


def nodes_folder(cache: Path) -> Path:
    """Return the folder of all nodes: REGBOT_NODES, or else ``nodes`` in the cache folder."""
    shared = os.environ.get(NODES)
    return Path(shared).resolve() if shared else cache / "nodes"


def append_probe(folder: Path, probe: NodeProbe) -> None:
    """Append a probe to the history of its node, and wait until it is on disk. Raises UserError, OSError."""
    with lock_folder(folder):
        append_record(_file(folder, probe.host), probe)


def read_history(folder: Path, host: str) -> list[NodeProbe]:
    """Return all probes of the node ``host``, oldest first. Raises RecordError."""
    return read_records(_file(folder, host), NodeProbe)


def read_histories(folder: Path) -> dict[str, list[NodeProbe]]:
    """Return all probes of all nodes, by host name. Raises RecordError."""
    return {path.stem: read_records(path, NodeProbe) for path in sorted((folder / PROBES).glob("*.jsonl"))}


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``. Raises UserError if another process holds the lock for LOCK_TIMEOUT_S."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Other users of the group must be able to lock the file too.
        with FileLock(folder / ".lock", timeout=LOCK_TIMEOUT_S, mode=0o664):
            yield
    except Timeout as error:
        raise UserError(
            f"{folder}: locked by another process for {LOCK_TIMEOUT_S:.0f} s",
            f"find out which one holds {folder / '.lock'}",
        ) from error


def append_record(path: Path, record: Record) -> None:
    """Append a record as one line. Remove an incomplete line at the end of the file first.

    The caller must hold the lock (``lock_folder``).
    """
    if path.exists():
        drop_torn_line(path)
    append_line(path, record)


def read_records(path: Path, model: type[R]) -> list[R]:
    """Return the records in a JSON-lines file; [] if the file does not exist. Raises RecordError."""
    if not path.exists():
        return []
    return [parse_record(line, model, f"{path}, line {number}") for number, line in read_lines(path)]


def check_host(host: str) -> str:
    """Return ``host`` if it is a valid node name, else raise UserError."""
    try:
        return _HOST.validate_python(host)
    except ValidationError as error:
        raise UserError(f"{clip(host, 80)!r} is not a node name: use letters, digits, '.', '_' and '-'") from error


def _file(folder: Path, host: str) -> Path:
    """Return the history file of a node. Raises UserError if ``host`` is no node name, such as a path."""
    return folder / PROBES / f"{check_host(host)}.jsonl"
