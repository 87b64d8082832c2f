"""Find the torch of an interpreter, and hash the files that the paper GPU is compiled and linked with.

This module never imports torch. The hash is cached until the size or the modification time of a file changes.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regbot.records.files import write_text

LIBRARIES = ("libc10.so", "libtorch_cpu.so")
_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s and s.origin else '')"
"""Program that prints the path of torch's ``__init__.py`` without importing torch. Prints '' if there is no torch."""
FIND_TIMEOUT_S = 60.0


class NoTorchError(Exception):
    """The interpreter has no torch, or its torch has no headers and libraries."""


@dataclass(frozen=True)
class TorchFiles:
    """The libraries and headers of an installed torch, which a build needs."""

    folder: Path
    """The folder of the package ``torch``."""

    @property
    def libraries(self) -> tuple[Path, ...]:
        return tuple(self.folder / "lib" / name for name in LIBRARIES)

    @property
    def include_folders(self) -> tuple[Path, Path]:
        return self.folder / "include", self.folder / "include" / "torch" / "csrc" / "api" / "include"

    def headers(self) -> Iterator[Path]:
        """Yield all files below ``include``, sorted by name."""
        for root, names, files in os.walk(self.folder / "include"):
            names.sort()
            yield from (Path(root, name) for name in sorted(files))

    def digest(self, cache: Path) -> str:
        """Return the SHA-256 of all libraries and headers, in hex. Raises NoTorchError if torch has no libraries or no
        headers.

        The contents of the files are hashed only once. The result is stored in the folder ``cache``, in a file whose
        name is a hash of the files' names, sizes, modification times and inode numbers.
        """
        main_header = self.include_folders[0] / "ATen" / "ATen.h"
        missing = [path for path in (*self.libraries, main_header) if not path.is_file()]
        if missing:
            raise NoTorchError(f"{self.folder}: has no {missing[0].relative_to(self.folder)}")
        files = [*self.libraries, *self.headers()]
        metadata = hashlib.sha256()
        for path in files:
            status = path.stat()
            metadata.update(f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n".encode())
        cached = cache / f"torch-{metadata.hexdigest()[:32]}.json"
        try:
            return str(json.loads(cached.read_text(encoding="utf-8"))["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the hash is not cached, or the file is damaged
        contents = hashlib.sha256()
        for path in files:
            contents.update(f"{path.relative_to(self.folder)}\n".encode())
            with path.open("rb") as file:
                contents.update(hashlib.file_digest(file, "sha256").digest())
        digest = contents.hexdigest()
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_text(cached, json.dumps({"torch": str(self.folder), "digest": digest}))
        except OSError:
            pass  # the hash is not cached, so the next call computes it again
        return digest


def find_torch(python: str, inside: Path | None = None) -> TorchFiles:
    """Return the torch that the interpreter ``python`` would import. Raises NoTorchError.

    ``inside`` is the folder of the checkout. An interpreter in this folder is code under test, so it is not started.
    The site-packages folder of its environment is searched instead.
    """
    path = Path(python)
    is_in_checkout = inside is not None and path.is_absolute() and path.is_relative_to(inside)
    if is_in_checkout:
        environment = path.parent.parent  # the interpreter is ENVIRONMENT/bin/python
        folders = sorted(environment.glob("lib/python3*/site-packages/torch"))
        if not folders:
            raise NoTorchError(f"{environment}: has no torch in its site-packages")
        return TorchFiles(folders[-1])
    try:
        result = subprocess.run(
            [python, "-I", "-c", _FIND],
            capture_output=True,
            text=True,
            timeout=FIND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoTorchError(f"{python}: cannot find its torch ({error})") from error
    origin = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else ""
    if result.returncode != 0 or not origin:
        raise NoTorchError(f"{python}: has no torch")
    return TorchFiles(Path(origin).parent)
