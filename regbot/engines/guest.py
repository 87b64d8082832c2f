"""Where the guest's code is, and how a request reaches a guest process."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from regbot.engines.removal import remove_folder

MEGABYTE = 2**20

GUEST_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def guest_folder() -> Path:
    """Return the folder with the guest's code, which regbot never imports."""
    return Path(str(resources.files("regbot"))) / "guest"


def write_request(scratch: Path, document: Mapping[str, Any]) -> Path:
    """Empty the folder ``scratch``, write the request file there and return its path."""
    make_empty_folder(scratch)
    return write_json(scratch / "request.json", document)


def make_empty_folder(scratch: Path) -> None:
    remove_folder(scratch)
    scratch.mkdir(parents=True)


def write_json(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def describe_exit(code: int | None) -> str:
    """Return how a process ended. A negative code is a signal, and None means that regbot killed the process."""
    if code is None:
        return "was killed by regbot"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
