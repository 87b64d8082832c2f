"""Building the paper GPU's library into the cache: ``<cache>/paper/<key>/libregbot_paper.so``.

The key is a hash of torch's libraries and headers, of the device's source and of the compiler's options. Builds run
outside of the sandbox, under a lock, and appear in the cache whole or not at all; code under test sees them read-only.
Beside the library lies its own hash: an entry that does not agree with it is built anew.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from regbot.paper.torch_files import NoTorchError, TorchFiles, find_torch

NAME = "libregbot_paper.so"
DIGEST_NAME = "sha256"
OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared")
BUILD_TIMEOUT_S = 600.0
LOCK_TIMEOUT_S = 900.0
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
COMPILERS = ("c++", "g++", "clang++")
LINES_SHOWN, WORDS_SHOWN = 5, 1500


class NoPaperGpuError(Exception):
    """The paper GPU cannot be built here. The message says why; programs are then traced as CPU programs."""


@dataclass(frozen=True)
class Library:
    """``path`` of a library that is ready to be loaded; ``built_s`` seconds that its build took, None if it was there.

    ``temporary`` says that it lies outside of the cache, which could not be written.
    """

    path: Path
    built_s: float | None = None
    temporary: bool = False


def source_folder() -> Path:
    """The device's C++ source."""
    return Path(str(resources.files("regbot"))) / "guest" / "regbot_guest" / "paper" / "cpp"


def library_folder(cache: Path) -> Path:
    """Where libraries are kept: REGBOT_PAPER_CACHE, else ``paper`` in regbot's cache."""
    return Path(os.environ.get("REGBOT_PAPER_CACHE") or cache / "paper")


def library_for(python: str, cache: Path, spare: Path, inside: Path | None = None) -> Library:
    """The library for the torch that ``python`` imports, built where the cache does not have it.

    ``spare`` is a folder to build in where the cache cannot be written. ``inside`` is the checkout, whose own
    interpreters are not started. Raises NoPaperGpuError.
    """
    folder = library_folder(cache)
    try:
        torch = find_torch(python, inside)
        torch_digest = torch.digest(folder)
    except NoTorchError as error:
        raise NoPaperGpuError(str(error)) from error
    except OSError as error:
        raise NoPaperGpuError(f"torch's files cannot be read: {error}") from error
    key = _key(torch_digest)
    entry = folder / key
    if _is_whole(entry):
        return Library(entry / NAME)
    compiler = _compiler()
    if not compiler:
        raise NoPaperGpuError(f"there is no C++ compiler ({', '.join(COMPILERS)}); install one, such as g++")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.parent / f"{key}.lock", timeout=LOCK_TIMEOUT_S):
            if _is_whole(entry):  # another regbot has built it meanwhile
                return Library(entry / NAME)
            return Library(entry / NAME, _build(torch, compiler, entry))
    except Timeout as error:
        raise NoPaperGpuError(f"{entry}: has been locked by another build for {LOCK_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise NoPaperGpuError(f"the paper GPU cannot be built in {entry.parent}: {error}") from error
    try:
        return Library(spare / key / NAME, _build(torch, compiler, spare / key), temporary=True)
    except OSError as error:
        raise NoPaperGpuError(
            f"the paper GPU can be built neither in {entry.parent} nor in {spare}: {error}"
        ) from error


Readiness = Literal["built", "buildable", "missing"]


def readiness(python: str, cache: Path) -> Readiness:
    """Whether the library for ``python`` is there, could be built, or cannot be had. Starts no build."""
    folder = library_folder(cache)
    try:
        if _is_whole(folder / _key(find_torch(python).digest(folder))):
            return "built"
    except (NoTorchError, OSError):
        return "missing"
    return "buildable" if _compiler() else "missing"


def _key(torch_digest: str) -> str:
    """A hash of torch, the device's source and the options: the same library whichever compiler made it."""
    state = hashlib.sha256(torch_digest.encode())
    for path in sorted(source_folder().glob("*.*")):
        state.update(f"{path.name}\n".encode() + path.read_bytes())
    state.update(" ".join(OPTIONS).encode())
    return state.hexdigest()[:32]


def _compiler() -> str:
    """Path of the C++ compiler: $CXX, else the first that is installed; '' where there is none."""
    chosen = os.environ.get("CXX", "")
    return next((path for name in (chosen, *COMPILERS) if name and (path := shutil.which(name))), "")


def _is_whole(entry: Path) -> bool:
    """Whether the entry's library is the one that was built there."""
    try:
        recorded = (entry / DIGEST_NAME).read_text(encoding="ascii").strip()
        with (entry / NAME).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == recorded
    except OSError:
        return False


def _build(torch: TorchFiles, compiler: str, entry: Path) -> float:
    """Compile into ``entry``, which appears when it is whole. Returns seconds. Raises NoPaperGpuError, OSError."""
    start = time.monotonic()
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".build-") as scratch:
        target = Path(scratch) / "entry"
        target.mkdir()
        library = target / NAME
        command = [
            compiler,
            *OPTIONS,
            *(word for folder in torch.include_folders for word in ("-isystem", str(folder))),
            str(source_folder() / "all.cpp"),
            f"-L{torch.folder / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            "-o",
            str(library),
        ]
        try:
            answer = subprocess.run(
                command,
                cwd=scratch,
                env={**os.environ, "TMPDIR": scratch, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=BUILD_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise NoPaperGpuError(f"{compiler} did not end within {BUILD_TIMEOUT_S:.0f} s") from error
        if answer.returncode != 0:
            raise NoPaperGpuError(
                f"{compiler} could not compile the paper GPU against {torch.folder}: {_first_error(answer.stderr)}"
            )
        with library.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        (target / DIGEST_NAME).write_text(digest + "\n", encoding="ascii")
        library.chmod(0o444)
        if entry.exists():  # a poisoned or half-removed one
            shutil.rmtree(entry)
        target.replace(entry)
    return time.monotonic() - start


def _first_error(text: str) -> str:
    """The first line that tells of an error and those after it; the last lines where none does."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if "error:" in line or "fatal" in line), -LINES_SHOWN)
    return "\n".join(lines[start:][:LINES_SHOWN])[:WORDS_SHOWN] or "it gave no reason"
