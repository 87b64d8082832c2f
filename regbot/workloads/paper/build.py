"""Build the paper GPU's library, against the headers of one torch.

The library for a torch of the node is in the cache. Its folder is named after a hash of torch's libraries and headers,
of the C++ source and of the compiler options. The build runs outside of the sandbox, and code under test may only read
the library. The library for a torch in a checkout is in a private folder of this checkout. If there is a sandbox, the
compiler runs in it, because everything that it reads may be code under test. A library that does not match the hash
beside it is built again.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Literal

from filelock import FileLock

from regbot.engines import EngineError, Launch, LocalEngine
from regbot.engines.sandbox import leads_through
from regbot.records.config import SandboxSettings
from regbot.records.files import write_text
from regbot.records.text.printable import printable
from regbot.workloads.paper.torch_files import (
    NoPaperGpuError,
    TorchFiles,
    digest_file,
    find_torch,
    find_torch_of_checkout,
)

LIBRARY_NAME = "libregbot_paper.so"
DIGEST_NAME = "sha256"
OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared")
BUILD_TIMEOUT_S = 600.0
LOCK_TIMEOUT_S = 900.0
COMPILERS = ("c++", "g++", "clang++")
MAX_OUTPUT_BYTES = 2**20
MAX_LIBRARY_BYTES = 64 * 2**20


@dataclass(frozen=True)
class PaperLibrary:
    path: Path
    built_s: float | None = None
    """None if the library was in the cache."""


def source_folder() -> Path:
    return Path(str(resources.files("regbot"))) / "guest" / "regbot_guest" / "paper" / "cpp"


def library_for(python: str, cache: Path, logs: Path, untrusted: Sequence[Path] = ()) -> PaperLibrary:
    """Return the library for the torch of ``python``, an interpreter of the node. Build it if it is not in the cache.

    cache      regbot's cache folder.
    logs       Folder for the output of a compiler that fails.
    untrusted  Folders that code under test may have changed. An interpreter or a torch in them is refused.

    Raises NoPaperGpuError and OSError.
    """
    program = Path(shutil.which(python) or python).absolute()
    if python != sys.executable and leads_through(program, untrusted):
        advice = "use one outside of the repository, of all checkouts and of sandbox.write"
        problem = f"{python}: code under test may have changed this interpreter"
        raise NoPaperGpuError(problem, f"{advice}, or write a path relative to the checkout")
    torch = find_torch(python)
    own_folders = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    is_of_regbot = any(torch.folder.resolve().is_relative_to(folder) for folder in own_folders)
    if leads_through(torch.folder, untrusted) and not is_of_regbot:
        raise NoPaperGpuError(f"{python}: code under test may have changed its torch in {torch.folder}")
    return _build_once(torch, _cached_folder(torch, cache), os.environ, logs)


class Libraries:
    """The paper GPU libraries that one command needs, by interpreter. Each is built once, in a thread, so that a check
    can prepare its checkouts at the same time. Thread-safe."""

    def __init__(
        self,
        cache: Path,
        logs: Path,
        say: Callable[[str], None],
        sandbox: SandboxSettings | None = None,
        untrusted: Sequence[Path] = (),
    ) -> None:
        """``say`` receives messages about builds. ``sandbox`` confines builds for a torch of a checkout; None for
        trusted code. See ``library_for`` for the other arguments.
        """
        self._cache, self._logs, self._say, self._untrusted = cache, logs, say, untrusted
        self._sandbox = None if sandbox is None else sandbox.model_copy(update={"network": False, "write": []})
        # By the interpreter, and root and private folder of the checkout that it comes with; None if it is the node's.
        self._futures: dict[tuple[str, tuple[Path, Path] | None], Future[PaperLibrary]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1)

    def library(self, python: str, root: Path, private: Path) -> PaperLibrary:
        """Wait for the build, and return the library for ``python``. Raises NoPaperGpuError.

        An interpreter in the checkout ``root`` is code under test, unless regbot itself runs under it. Its library is
        built in ``private``, a folder for this checkout alone.
        """
        program = Path(shutil.which(python) or python).absolute()
        is_in_checkout = python != sys.executable and leads_through(program, [root])
        return self.start(python, (root, private) if is_in_checkout else None).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, python: str, checkout: tuple[Path, Path] | None = None) -> Future[PaperLibrary]:
        """Begin to build the library for ``python``. ``checkout`` is as in ``_futures``."""
        with self._lock:
            if (python, checkout) not in self._futures:
                self._futures[python, checkout] = self._pool.submit(self._build, python, checkout)
            return self._futures[python, checkout]

    def _build(self, python: str, checkout: tuple[Path, Path] | None) -> PaperLibrary:
        try:
            if checkout is None:
                library = library_for(python, self._cache, self._logs, self._untrusted)
            else:
                root, private = checkout
                torch = find_torch_of_checkout(python, root)  # does not start the interpreter, which is code under test
                # Code under test may forge the metadata, which makes only its own library unusable.
                folder = private / _key(torch.digest_metadata())
                if not _is_whole(folder):
                    self._say(f"build the paper GPU for the torch of the checkout {root.name}")
                library = _build_once(torch, folder, {"PATH": os.defpath}, self._logs, self._sandbox)
        except OSError as error:
            raise NoPaperGpuError(printable(f"the paper GPU cannot be built: {error}")) from error
        if library.built_s is not None:
            self._say(f"built the paper GPU in {library.built_s:.0f} s")
        return library


Readiness = Literal["built", "buildable", "missing"]
"""missing: the library can neither be found nor built."""


def readiness(python: str, cache: Path) -> Readiness:
    """Return whether the library for ``python`` is built, or can be built. ``cache`` is regbot's cache folder."""
    try:
        if _is_whole(_cached_folder(find_torch(python), cache)):
            return "built"
    except (NoPaperGpuError, OSError):
        return "missing"
    return "buildable" if find_compiler() else "missing"


def _cached_folder(torch: TorchFiles, cache: Path) -> Path:
    """Return the folder of the library for a torch of the node: in REGBOT_PAPER_CACHE, or else ``paper`` in ``cache``.

    The digest of torch's files is stored, because it takes seconds to compute.
    """
    folder = Path(os.environ.get("REGBOT_PAPER_CACHE") or cache / "paper")
    stored_digest = folder / f"torch-{torch.digest_metadata()[:32]}"
    if not stored_digest.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(stored_digest, torch.digest_content())
    return folder / _key(stored_digest.read_text(encoding="ascii"))


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
    paths = (shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name)
    return next((path for path in paths if path and Path(path).is_absolute()), "")


def _is_whole(key_folder: Path) -> bool:
    try:
        recorded = (key_folder / DIGEST_NAME).read_text(encoding="ascii").strip()
        return digest_file(key_folder / LIBRARY_NAME) == recorded
    except OSError:
        return False


def _build_once(
    torch: TorchFiles,
    key_folder: Path,
    environment: Mapping[str, str],
    logs: Path,
    sandbox: SandboxSettings | None = None,
) -> PaperLibrary:
    """Return the library in ``key_folder``. Compile it if it is not there, and move it there with its hash."""
    if _is_whole(key_folder):  # also where the folder is read-only
        return PaperLibrary(key_folder / LIBRARY_NAME)
    place = key_folder.parent
    place.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place / f"{key_folder.name}.lock", timeout=LOCK_TIMEOUT_S)
    with lock, tempfile.TemporaryDirectory(dir=place, prefix=".build-") as scratch:
        if _is_whole(key_folder):
            return PaperLibrary(key_folder / LIBRARY_NAME)
        start = time.monotonic()
        compiler = find_compiler()
        if not compiler:
            raise NoPaperGpuError(f"there is no C++ compiler ({', '.join(COMPILERS)})", "install one, such as g++")
        compiled_library, log = Path(scratch, "record", LIBRARY_NAME), Path(scratch, "compiler.log")
        launch = Launch(
            command=(
                compiler,
                *OPTIONS,
                *(f"-isystem{folder}" for folder in torch.include_folders),
                str(source_folder() / "all.cpp"),
                *(f"-L{torch.folder / 'lib'}", "-lc10", "-ltorch_cpu"),
                *("-o", str(compiled_library)),
            ),
            cwd=Path(scratch),
            env={**environment, "TMPDIR": scratch, "LC_ALL": "C"},
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
        new_folder = Path(scratch, "entry")
        new_folder.mkdir()
        library = compiled_library.replace(new_folder / LIBRARY_NAME)
        (new_folder / DIGEST_NAME).write_text(f"{digest_file(library)}\n", encoding="ascii")
        library.chmod(0o444)
        if key_folder.exists():  # the old folder is incomplete or does not match its hash
            shutil.rmtree(key_folder)
        new_folder.replace(key_folder)
        return PaperLibrary(key_folder / LIBRARY_NAME, time.monotonic() - start)


def _keep_log(log: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="compiler-", suffix=".log", dir=folder)
    os.close(descriptor)
    return shutil.copyfile(log, Path(name))
