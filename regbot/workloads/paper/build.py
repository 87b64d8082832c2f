"""Build the paper GPU's library into the cache: ``<cache>/paper/<key>/libregbot_paper.so``.

The key is a hash of torch's libraries and headers, of the C++ source of the paper GPU and of the compiler options. A
build runs outside of the sandbox and under a lock. The library is moved into the cache when it is complete, and code
under test may only read it. A hash of the library is stored beside it. If the library does not match this hash, it is
built again.
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

from regbot.errors import UserError
from regbot.workloads.paper.torch_files import NoTorchError, TorchFiles, find_torch

LIBRARY_NAME = "libregbot_paper.so"
DIGEST_NAME = "sha256"
OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared")
BUILD_TIMEOUT_S = 600.0
LOCK_TIMEOUT_S = 900.0
UNWRITABLE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors that mean that a folder is not writable."""
COMPILERS = ("c++", "g++", "clang++")
MAX_LINES, MAX_CHARACTERS = 5, 1500
"""Limits on the part of the compiler's output that a message quotes."""


class NoPaperGpuError(UserError):
    """The paper GPU cannot be built here. The message says why. Programs are traced as CPU programs instead."""


@dataclass(frozen=True)
class PaperLibrary:
    """A library that can be loaded."""

    path: Path
    built_s: float | None = None
    """Build time in seconds; None if the library was in the cache."""
    temporary: bool = False
    """Whether the library is outside of the cache, because the cache is not writable."""


def source_folder() -> Path:
    """Return the folder of the C++ source of the paper GPU."""
    return Path(str(resources.files("regbot"))) / "guest" / "regbot_guest" / "paper" / "cpp"


def library_folder(cache: Path) -> Path:
    """Return the folder of cached libraries: REGBOT_PAPER_CACHE, or else ``paper`` in ``cache``."""
    return Path(os.environ.get("REGBOT_PAPER_CACHE") or cache / "paper")


def library_for(python: str, cache: Path, spare: Path, inside: Path | None = None) -> PaperLibrary:
    """Return the library for the torch that the interpreter ``python`` imports. Build it if it is not in the cache.

    ``cache`` is regbot's cache folder. ``spare`` is a folder to build in if the cache is not writable. ``inside`` is
    the folder of the checkout. An interpreter in this folder is code under test, so it is not started. Raises
    NoPaperGpuError.
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
    key_folder = folder / key  # the folder of this library in the cache
    if _is_whole(key_folder):
        return PaperLibrary(key_folder / LIBRARY_NAME)
    compiler = find_compiler()
    if not compiler:
        raise NoPaperGpuError(f"there is no C++ compiler ({', '.join(COMPILERS)})", "install one, such as g++")
    try:
        key_folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(key_folder.parent / f"{key}.lock", timeout=LOCK_TIMEOUT_S):
            if _is_whole(key_folder):  # another process has built it while this one waited for the lock
                return PaperLibrary(key_folder / LIBRARY_NAME)
            built_s = _build(torch, compiler, key_folder)
            return PaperLibrary(key_folder / LIBRARY_NAME, built_s)
    except Timeout as error:
        raise NoPaperGpuError(f"{key_folder}: locked by another build for {LOCK_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        if error.errno not in UNWRITABLE_ERRORS:
            raise NoPaperGpuError(f"the paper GPU cannot be built in {key_folder.parent}: {error}") from error
    spare_folder = spare / key
    try:
        built_s = _build(torch, compiler, spare_folder)
        return PaperLibrary(spare_folder / LIBRARY_NAME, built_s, temporary=True)
    except OSError as error:
        raise NoPaperGpuError(
            f"the paper GPU can be built neither in {key_folder.parent} nor in {spare}: {error}"
        ) from error


Readiness = Literal["built", "buildable", "missing"]
"""missing: the library can neither be found nor built."""


def readiness(python: str, cache: Path) -> Readiness:
    """Return whether the library for the interpreter ``python`` is built, or can be built. Does not start a build.

    ``cache`` is regbot's cache folder.
    """
    folder = library_folder(cache)
    try:
        if _is_whole(folder / _key(find_torch(python).digest(folder))):
            return "built"
    except (NoTorchError, OSError):
        return "missing"
    return "buildable" if find_compiler() else "missing"


def _key(torch_digest: str) -> str:
    """Return the cache key: a hash of torch, of the paper GPU's source and of the compiler options. It does not depend
    on the compiler, so an upgrade of the compiler does not cause a build.
    """
    state = hashlib.sha256(torch_digest.encode())
    for path in sorted(source_folder().glob("*.*")):
        state.update(f"{path.name}\n".encode() + path.read_bytes())
    state.update(" ".join(OPTIONS).encode())
    return state.hexdigest()[:32]


def find_compiler() -> str:
    """Return the path of the C++ compiler: $CXX, or else the first one of COMPILERS that is on PATH. '' if there is
    none.
    """
    configured = os.environ.get("CXX", "")
    for name in (configured, *COMPILERS):
        if name and (path := shutil.which(name)):
            return path
    return ""


def _is_whole(key_folder: Path) -> bool:
    """Whether the library in ``key_folder``, the folder of one library, exists and matches its stored hash."""
    try:
        recorded = (key_folder / DIGEST_NAME).read_text(encoding="ascii").strip()
        with (key_folder / LIBRARY_NAME).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == recorded
    except OSError:
        return False


def _build(torch: TorchFiles, compiler: str, key_folder: Path) -> float:
    """Compile the library, and move the result to ``key_folder``. Return the build time in seconds.

    ``key_folder`` gets the library and the file with its hash. Raises NoPaperGpuError, OSError.
    """
    start = time.monotonic()
    key_folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=key_folder.parent, prefix=".build-") as scratch:
        new_folder = Path(scratch) / "entry"
        new_folder.mkdir()
        library = new_folder / LIBRARY_NAME
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
            result = subprocess.run(
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
        if result.returncode != 0:
            raise NoPaperGpuError(
                f"{compiler} could not compile the paper GPU against {torch.folder}: {_first_error(result.stderr)}"
            )
        with library.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        (new_folder / DIGEST_NAME).write_text(digest + "\n", encoding="ascii")
        library.chmod(0o444)
        if key_folder.exists():  # the old folder is incomplete or does not match its hash
            shutil.rmtree(key_folder)
        new_folder.replace(key_folder)
    return time.monotonic() - start


def _first_error(text: str) -> str:
    """Return the first line of a compiler's output with an error, and the lines after it. If no line has an error,
    return the last lines.
    """
    lines = text.splitlines()
    error_lines = (number for number, line in enumerate(lines) if "error:" in line or "fatal" in line)
    start = next(error_lines, -MAX_LINES)  # a negative start counts from the end
    quoted_lines = lines[start:][:MAX_LINES]
    return "\n".join(quoted_lines)[:MAX_CHARACTERS] or "it gave no reason"
