"""The paper GPU libraries that one check needs. Each library is built once. The first build can run during
checkouts."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from regbot.workloads.paper.build import NoPaperGpuError, PaperLibrary, library_for


class Libraries:
    """Paper GPU libraries by interpreter. Thread-safe. ``say`` receives a message after each build."""

    def __init__(self, cache: Path, spare: Path, say: Callable[[str], None]) -> None:
        self._cache, self._spare, self._say = cache, spare, say
        self._futures: dict[tuple[str, Path | None], Future[PaperLibrary]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1)

    def start(self, python: str, inside: Path | None = None) -> Future[PaperLibrary]:
        """Start the build for the interpreter ``python``, unless it was started before. Return its future.

        ``inside`` is the checkout; an interpreter in the checkout is not executed.
        """
        key = (python, inside if inside is not None and Path(python).is_relative_to(inside) else None)
        with self._lock:
            if key not in self._futures:
                self._futures[key] = self._pool.submit(self._build, *key)
            return self._futures[key]

    def library(self, python: str, inside: Path) -> PaperLibrary | str:
        """Return the library for ``python``, or a text that says why there is none. Waits until it is built."""
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
