"""Find the torch of an interpreter: the files that the paper GPU is compiled and linked with.

This module never imports torch. It reads the content of a torch that belongs to the node, and only the names and the
sizes of the files of a torch in a checkout, because code under test may have written these.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regbot.errors import UserError
from regbot.records.text.printable import printable

LIBRARIES = ("libc10.so", "libtorch_cpu.so")
_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s and s.origin else '')"
"""Program that prints the path of torch's ``__init__.py`` without importing torch. Prints '' if there is no torch."""
FIND_TIMEOUT_S = 60.0


class NoPaperGpuError(UserError):
    """The paper GPU cannot be built here. The message says why. Programs are traced as CPU programs instead."""


@dataclass(frozen=True)
class TorchFiles:
    folder: Path
    root: Path | None = None
    """Checkout that all files must be in; None for a torch of the node."""

    @property
    def libraries(self) -> tuple[Path, ...]:
        return tuple(self.folder / "lib" / name for name in LIBRARIES)

    @property
    def include_folders(self) -> tuple[Path, Path]:
        return self.folder / "include", self.folder / "include" / "torch" / "csrc" / "api" / "include"

    def list_files(self) -> list[Path]:
        """Return all libraries and headers. The order is fixed, and links to folders are followed.

        Raises NoPaperGpuError if torch has no libraries or no headers, or if a link leads out of ``root``.
        """
        main_header = self.include_folders[0] / "ATen" / "ATen.h"
        for path in (*self.libraries, main_header):
            self._check_place(path)
            if not path.is_file():
                raise NoPaperGpuError(f"{printable(str(self.folder))}: has no {path.relative_to(self.folder)}")
        return [*self.libraries, *self._list_headers()]

    def digest_metadata(self) -> str:
        """Return a digest of the names, sizes, modification times and inode numbers of all files."""
        files = [(path, path.stat()) for path in self.list_files()]
        lines = (f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n" for path, status in files)
        return hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()

    def digest_content(self) -> str:
        """Return the SHA-256 of all libraries and headers, in hex."""
        lines = (f"{path.relative_to(self.folder)}\n{digest_file(path)}\n" for path in self.list_files())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _list_headers(self) -> Iterator[Path]:
        listed = set()
        for folder, subfolders, names in os.walk(self.folder / "include", followlinks=True):
            status = Path(folder).stat()
            if (status.st_dev, status.st_ino) in listed:
                subfolders.clear()
                continue
            listed.add((status.st_dev, status.st_ino))
            subfolders.sort()
            for name in (*subfolders, *names):
                if Path(folder, name).is_symlink():
                    self._check_place(Path(folder, name))
            yield from (Path(folder, name) for name in sorted(names))

    def _check_place(self, path: Path) -> None:
        if self.root is not None and not Path(os.path.realpath(path)).is_relative_to(self.root.resolve()):
            raise NoPaperGpuError(f"{printable(os.path.relpath(path, self.root))} in the checkout leads out of it")


def digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_torch(python: str) -> TorchFiles:
    """Return the torch that the interpreter ``python`` would import. Starts the interpreter. Raises NoPaperGpuError."""
    try:
        command = [python, "-I", "-c", _FIND]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=FIND_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPaperGpuError(f"{python}: cannot find its torch ({error})") from error
    lines = result.stdout.strip().splitlines()
    if result.returncode != 0 or not lines:
        raise NoPaperGpuError(f"{python}: has no torch")
    return TorchFiles(Path(lines[-1]).parent)


def find_torch_of_checkout(python: str, root: Path) -> TorchFiles:
    """Return the torch in the environment of ``python``, an interpreter in the checkout ``root``.

    The interpreter is code under test, so it is not started. The site-packages folder of its environment is searched.
    Raises NoPaperGpuError.
    """
    environment = Path(python).parent.parent  # the interpreter is ENVIRONMENT/bin/python
    folders = sorted(environment.glob("lib/python3*/site-packages/torch"))
    if not folders:
        raise NoPaperGpuError(f"{environment}: has no torch in its site-packages")
    return TorchFiles(folders[-1], root)
