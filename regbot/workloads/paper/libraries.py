"""The paper GPU libraries that one command needs. Each library is built once, in a thread, so that a check can prepare
its checkouts at the same time."""

import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

from regbot.engines import Sandbox
from regbot.engines.sandbox import leads_through
from regbot.records.text.printable import printable
from regbot.workloads.paper.build import PaperLibrary, library_for, library_of_checkout
from regbot.workloads.paper.torch_files import NoPaperGpuError


class Libraries:
    """Paper GPU libraries by interpreter. Thread-safe."""

    def __init__(
        self,
        cache: Path,
        logs: Path,
        say: Callable[[str], None],
        sandbox: Sandbox | None = None,
        untrusted: Sequence[Path] = (),
    ) -> None:
        """``say`` receives messages about builds. ``sandbox`` confines builds for a torch of a checkout; None for
        trusted code. See ``library_for`` for the other arguments.
        """
        self._cache, self._logs, self._say, self._untrusted = cache, logs, say, untrusted
        self._sandbox = None if sandbox is None else replace(sandbox, network=False, write=())
        # By the interpreter, and root and private folder of the checkout that it comes with; None if it is the node's.
        self._futures: dict[tuple[str, tuple[Path, Path] | None], Future[PaperLibrary]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1)

    def start(self, python: str) -> None:
        self._submit(python, None)

    def library(self, python: str, root: Path, private: Path) -> PaperLibrary:
        """Wait for the build, and return the library for ``python``. Raises NoPaperGpuError.

        An interpreter in the checkout ``root`` is code under test, unless regbot itself runs under it. Its library is
        built in ``private``, a folder for this checkout alone.
        """
        program = Path(shutil.which(python) or python).absolute()
        is_in_checkout = python != sys.executable and leads_through(program, [root])
        return self._submit(python, (root, private) if is_in_checkout else None).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, python: str, checkout: tuple[Path, Path] | None) -> Future[PaperLibrary]:
        with self._lock:
            if (python, checkout) not in self._futures:
                self._futures[python, checkout] = self._pool.submit(self._build, python, checkout)
            return self._futures[python, checkout]

    def _build(self, python: str, checkout: tuple[Path, Path] | None) -> PaperLibrary:
        try:
            if checkout is None:
                library = library_for(python, self._cache, self._logs, self._untrusted)
            else:
                library = library_of_checkout(python, *checkout, self._logs, self._sandbox)
        except OSError as error:
            raise NoPaperGpuError(printable(f"the paper GPU cannot be built: {error}")) from error
        if library.built_s is not None:
            self._say(f"built the paper GPU in {library.built_s:.0f} s")
        return library
