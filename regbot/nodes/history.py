"""The history of every node: one JSON-lines file each, in a folder that all who run regbot share.

Appended to under a lock, so that several may write at a time; a line that a crash tore is cut off by the next writer
and never read. On a file system without locks that hold between machines, let one machine write.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from regbot.nodes.errors import NodeError
from regbot.records.base import Record
from regbot.records.files import append_line, mend, parse_record, read_lines
from regbot.records.node import Host, NodeProbe

NODES = "REGBOT_NODES"
"""Variable that names the folder, where several machines or users share it."""
LOCK_TIMEOUT_S = 60.0
PROBES = "probes"

R = TypeVar("R", bound=Record)
_HOST: TypeAdapter[str] = TypeAdapter(Host)


def nodes_folder(cache: Path) -> Path:
    """The folder of all nodes: REGBOT_NODES, else ``nodes`` in the cache folder."""
    given = os.environ.get(NODES)
    return Path(given).resolve() if given else cache / "nodes"


def append(folder: Path, probe: NodeProbe) -> None:
    """Add one probe to its node's history. On the disk when this returns. Raises NodeError, OSError."""
    with writing(folder):
        append_to(_file(folder, probe.host), probe)


def history(folder: Path, host: str) -> list[NodeProbe]:
    """All probes of one node, oldest first; [] where there is none. Raises RecordError."""
    return read_all(_file(folder, host), NodeProbe)


def histories(folder: Path) -> dict[str, list[NodeProbe]]:
    """All probes of all nodes, by host. Raises RecordError."""
    return {path.stem: read_all(path, NodeProbe) for path in sorted((folder / PROBES).glob("*.jsonl"))}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Alone in ``folder``. Raises NodeError where somebody else stays for too long."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=LOCK_TIMEOUT_S, mode=0o664):
            yield
    except Timeout as error:
        raise NodeError(
            f"{folder}: somebody else has been writing for {LOCK_TIMEOUT_S:.0f} s; see who holds {folder / '.lock'}"
        ) from error


def append_to(path: Path, record: Record) -> None:
    """Append one line, after what is left of a torn one has been cut off. Only while ``writing``."""
    if path.exists():
        mend(path)
    append_line(path, record)


def read_all(path: Path, model: type[R]) -> list[R]:
    """The records of an appended file; [] where there is none. Raises RecordError."""
    if not path.exists():
        return []
    return [parse_record(line, model, f"{path}, line {number}") for number, line in read_lines(path)]


def known(host: str) -> str:
    """``host``, where it can be a node's name. Raises NodeError."""
    try:
        return _HOST.validate_python(host)
    except ValidationError as error:
        raise NodeError(f"{host[:80]!r} is no name of a node: letters, digits, '.', '_' and '-'") from error


def _file(folder: Path, host: str) -> Path:
    return folder / PROBES / f"{known(host)}.jsonl"
