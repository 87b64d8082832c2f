"""Writes the raw record of one rank, with the proof of the code that ran."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from regbot_guest.origin import code_proof, watched_packages
from regbot_guest.ran_lines import describe_lines
from regbot_guest.request import Request


def write_record(request: Request, record: dict[str, Any]) -> None:
    write_json(request.record, record)


def write_json(file_name: str, record: dict[str, Any]) -> None:
    """Write ``record`` atomically; ``{rank}`` in the name is its rank. Raises ValueError if it contains NaN, which
    callers have to replace or omit.
    """
    path = Path(file_name.replace("{rank}", str(record["rank"])))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)


def prove_code(request: Request) -> dict[str, Any]:
    """Return from where the code was loaded."""
    watched = watched_packages(Path(request.root), request.source_roots, request.watch, request.entry)
    return {**code_proof(Path(request.root), watched), "lines": describe_lines(Path(request.root))}
