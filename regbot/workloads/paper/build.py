"""Build the paper GPU's library, against the headers of one torch.

The library for a torch of the node is in the cache. Its folder is named after a hash of torch's libraries and headers,
of the C++ source and of the compiler options. The build runs outside of the sandbox, and code under test may only read
the library. The library for a torch in a checkout is in a private folder of this checkout. If there is a sandbox, the
compiler runs in it, because everything that it reads may be code under test. A library that does not match the hash
beside it is built again.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from filelock import FileLock

from regbot.engines import EngineError, Launch, LocalEngine, Sandbox
from regbot.engines.sandbox import leads_through
from regbot.errors import UserError
from regbot.records.files import write_text
from regbot.records.text.printable import printable
from regbot.workloads.paper.torch_files import NoTorchError, TorchFiles, find_torch, find_torch_of_checkout

LIBRARY_NAME = "libregbot_paper.so"
DIGEST_NAME = "sha256"
OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared")
BUILD_TIMEOUT_S = 600.0
LOCK_TIMEOUT_S = 900.0
UNWRITABLE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
COMPILERS = ("c++", "g++", "clang++")
MAX_OUTPUT_BYTES = 2**20
MAX_LIBRARY_BYTES = 64 * 2**20


class NoPaperGpuError(UserError):
    """The paper GPU cannot be built here. The message says why. Programs are traced as CPU programs instead."""


@dataclass(frozen=True)
class PaperLibrary:
    path: Path
    built_s: float | None = None
    """None if the library was in the cache."""


def source_folder() -> Path:
    return Path(str(resources.files("regbot"))) / "guest" / "regbot_guest" / "paper" / "cpp"


def library_folder(cache: Path) -> Path:
    """Return the folder of cached libraries: REGBOT_PAPER_CACHE, or else ``paper`` in ``cache``."""
    return Path(os.environ.get("REGBOT_PAPER_CACHE") or cache / "paper")


def library_for(
    python: str, cache: Path, spare: Path, logs: Path | None = None, untrusted: Sequence[Path] = ()
) -> PaperLibrary:
    """Return the library for the torch of ``python``, an interpreter of the node. Build it if it is not in the cache.

    cache      regbot's cache folder.
    spare      Folder to build in if the cache is not writable.
    logs       Folder for the output of a compiler that fails; None for the system's temporary folder.
    untrusted  Folders that code under test may have changed. An interpreter or a torch in them is refused.

    Raises NoPaperGpuError.
    """
    folder = library_folder(cache)
    try:
        program = Path(shutil.which(python) or python).absolute()
        if python != sys.executable and leads_through(program, untrusted):
            raise NoPaperGpuError(
                f"{python}: code under test may have changed this interpreter",
                "use one outside of the repository, of all checkouts and of sandbox.write, or write a path relative to "
                "the checkout",
            )
        torch = find_torch(python)
        if leads_through(torch.folder, untrusted) and not _is_of_regbot(torch.folder):
            raise NoPaperGpuError(f"{python}: code under test may have changed its torch in {torch.folder}")
        key = _key(_read_digest(folder, torch) or _store_digest(folder, torch))
        if _is_whole(folder / key):
            return PaperLibrary(folder / key / LIBRARY_NAME)
        try:
            return _build_once(torch, folder / key, os.environ, logs)
        except OSError as error:
            if error.errno not in UNWRITABLE_ERRORS:
                raise
            return _build_once(torch, spare / key, os.environ, logs)
    except NoTorchError as error:
        raise NoPaperGpuError(str(error)) from error
    except OSError as error:
        raise NoPaperGpuError(f"the paper GPU cannot be built: {error}") from error


def library_of_checkout(
    python: str,
    root: Path,
    private: Path,
    logs: Path | None = None,
    sandbox: Sandbox | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> PaperLibrary:
    """Return the library for the torch of ``python``, an interpreter in the checkout ``root``. Build it if necessary.

    The interpreter is not started. ``private`` is the folder for libraries of this checkout, to which no code under
    test may write. ``say`` gets a message before a build. See ``library_for`` for ``logs``. Raises NoPaperGpuError.
    """
    try:
        torch = find_torch_of_checkout(python, root)
        # Code under test may forge the metadata, which makes only its own library unusable.
        key_folder = private / _key(torch.digest_metadata())
        if not _is_whole(key_folder):
            say(f"build the paper GPU for the torch of {root}, about half a minute, once for each checkout")
        sandbox = None if sandbox is None else replace(sandbox, network=False, write=())
        return _build_once(torch, key_folder, {"PATH": os.defpath}, logs, sandbox)
    except NoTorchError as error:
        raise NoPaperGpuError(printable(str(error))) from error
    except OSError as error:
        raise NoPaperGpuError(printable(f"the paper GPU cannot be built for {root}: {error}")) from error


Readiness = Literal["built", "buildable", "missing"]
"""missing: the library can neither be found nor built."""


def readiness(python: str, cache: Path) -> Readiness:
    """Return whether the library for ``python`` is built, or can be built. ``cache`` is regbot's cache folder."""
    folder = library_folder(cache)
    try:
        digest = _read_digest(folder, find_torch(python))
    except (NoTorchError, OSError):
        return "missing"
    if digest and _is_whole(folder / _key(digest)):
        return "built"
    return "buildable" if find_compiler() else "missing"


def _key(torch_digest: str) -> str:
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
        if name and (path := shutil.which(name)) and Path(path).is_absolute():
            return path
    return ""


def _is_of_regbot(path: Path) -> bool:
    return any(path.resolve().is_relative_to(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))


def _digest_file(folder: Path, torch: TorchFiles) -> Path:
    return folder / f"torch-{torch.digest_metadata()[:32]}.json"


def _read_digest(folder: Path, torch: TorchFiles) -> str:
    """Return the stored digest of a torch; '' if there is none, or if the file is damaged."""
    try:
        return str(json.loads(_digest_file(folder, torch).read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _store_digest(folder: Path, torch: TorchFiles) -> str:
    digest = torch.digest_content()
    with contextlib.suppress(OSError):  # without the stored hash, the next call computes it again
        folder.mkdir(parents=True, exist_ok=True)
        write_text(_digest_file(folder, torch), json.dumps({"torch": str(torch.folder), "digest": digest}))
    return digest


def _is_whole(key_folder: Path) -> bool:
    try:
        recorded = (key_folder / DIGEST_NAME).read_text(encoding="ascii").strip()
        with (key_folder / LIBRARY_NAME).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == recorded
    except OSError:
        return False


def _build_once(
    torch: TorchFiles,
    key_folder: Path,
    environment: Mapping[str, str],
    logs: Path | None,
    sandbox: Sandbox | None = None,
) -> PaperLibrary:
    place = key_folder.parent
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / f"{key_folder.name}.lock", timeout=LOCK_TIMEOUT_S):
        if _is_whole(key_folder):
            return PaperLibrary(key_folder / LIBRARY_NAME)
        with tempfile.TemporaryDirectory(dir=place, prefix=".build-") as scratch:
            built_s = _build(torch, Path(scratch), key_folder, environment, logs, sandbox)
    return PaperLibrary(key_folder / LIBRARY_NAME, built_s)


def _build(
    torch: TorchFiles,
    scratch: Path,
    key_folder: Path,
    environment: Mapping[str, str],
    logs: Path | None,
    sandbox: Sandbox | None,
) -> float:
    """Compile the library in the folder ``scratch``, and move it with its hash to ``key_folder``. Return the build time
    in seconds.
    """
    start = time.monotonic()
    compiler = find_compiler()
    if not compiler:
        raise NoPaperGpuError(f"there is no C++ compiler ({', '.join(COMPILERS)})", "install one, such as g++")
    compiled_library, log = scratch / "record" / LIBRARY_NAME, scratch / "compiler.log"
    launch = Launch(
        command=(
            compiler,
            *OPTIONS,
            *(word for folder in torch.include_folders for word in ("-isystem", str(folder))),
            str(source_folder() / "all.cpp"),
            f"-L{torch.folder / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            "-o",
            str(compiled_library),
        ),
        cwd=scratch,
        env={**environment, "TMPDIR": str(scratch), "LC_ALL": "C"},
        log=log,
        record_dir=compiled_library.parent,
        timeout_s=BUILD_TIMEOUT_S,
        max_output_bytes=MAX_OUTPUT_BYTES,
        max_dir_bytes=MAX_LIBRARY_BYTES,
        readable=(source_folder(), *([torch.root] if torch.root is not None else [])),
    )
    try:
        result = LocalEngine(sandbox=sandbox).run(launch)
    except EngineError as error:
        log.write_text(str(error), encoding="utf-8")  # the error may quote the output
        raise NoPaperGpuError(f"{compiler} could not be run; the reason is in {_keep_log(log, logs)}") from error
    if result.timed_out:
        raise NoPaperGpuError(f"{compiler} did not end within {BUILD_TIMEOUT_S:.0f} s")
    if result.exit_code != 0 or compiled_library.is_symlink() or not compiled_library.is_file():
        # The output may quote any file that the compiler could read, and this message is published.
        kept_log = _keep_log(log, logs)
        raise NoPaperGpuError(f"{compiler} could not compile the paper GPU; its output is in {kept_log}")
    new_folder = scratch / "entry"
    new_folder.mkdir()
    library = compiled_library.replace(new_folder / LIBRARY_NAME)
    with library.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    (new_folder / DIGEST_NAME).write_text(digest + "\n", encoding="ascii")
    library.chmod(0o444)
    if key_folder.exists():  # the old folder is incomplete or does not match its hash
        shutil.rmtree(key_folder)
    new_folder.replace(key_folder)
    return time.monotonic() - start


def _keep_log(log: Path, folder: Path | None) -> Path:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="compiler-", suffix=".log", dir=folder)
    os.close(descriptor)
    return shutil.copyfile(log, Path(name))
