"""The paper GPU libraries that one check needs. Each library is built once, in a thread, so that a check can prepare
its checkouts at the same time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from regbot.workloads.paper.build import NoPaperGpuError, PaperLibrary, library_for


class Libraries:
    """Paper GPU libraries by interpreter. Thread-safe.

    ``cache`` is regbot's cache folder, and ``spare`` a folder to build in if the cache is not writable. ``say``
    receives a message after each build.
    """

    def __init__(self, cache: Path, spare: Path, say: Callable[[str], None]) -> None:
        self._cache, self._spare, self._say = cache, spare, say
        self._futures: dict[tuple[str, Path | None], Future[PaperLibrary]] = {}
        """By the interpreter, and the checkout that contains the interpreter; None if it is in no checkout."""
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1)

    def start(self, python: str, inside: Path | None = None) -> Future[PaperLibrary]:
        """Return a future of the library for the interpreter ``python``. The first call starts the build.

        ``inside`` is the folder of the checkout. An interpreter in this folder is code under test and is not started.
        """
        is_in_checkout = inside is not None and Path(python).is_relative_to(inside)
        key = (python, inside if is_in_checkout else None)
        with self._lock:
            if key not in self._futures:
                self._futures[key] = self._pool.submit(self._build, *key)
            return self._futures[key]

    def library(self, python: str, inside: Path) -> PaperLibrary | str:
        """Wait for the build, and return the library for ``python``. Return a text that says why if there is none.

        ``inside`` is the folder of the checkout. An interpreter in this folder is not started.
        """
        try:
            return self.start(python, inside).result()
        except NoPaperGpuError as error:
            return str(error)

    def close(self) -> None:
        """Wait until a running build ends. Builds that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)

    def _build(self, python: str, inside: Path | None) -> PaperLibrary:
        library = library_for(python, self._cache, self._spare, inside)
        if library.built_s is not None:
            self._say(f"built the paper GPU in {library.built_s:.0f} s")
        return library
