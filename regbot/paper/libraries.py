"""The libraries of one check: each built once, the first beside the checkouts."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from regbot.paper.build import Library, NoPaperGpuError, library_for


class Libraries:
    """Paper GPUs by interpreter. Any number of threads may ask. ``say`` is told of builds."""

    def __init__(self, cache: Path, spare: Path, say: Callable[[str], None]) -> None:
        self._cache, self._spare, self._say = cache, spare, say
        self._futures: dict[tuple[str, Path | None], Future[Library]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1)

    def start(self, python: str, inside: Path | None = None) -> Future[Library]:
        """Begin to build for ``python``, if nobody has, and return at once."""
        key = (python, inside if inside is not None and Path(python).is_relative_to(inside) else None)
        with self._lock:
            if key not in self._futures:
                self._futures[key] = self._pool.submit(self._build, *key)
            return self._futures[key]

    def library(self, python: str, inside: Path) -> Library | str:
        """The library for ``python``, or why there is none. Waits for its build."""
        try:
            return self.start(python, inside).result()
        except NoPaperGpuError as error:
            return str(error)

    def close(self) -> None:
        """Start no further build. One that runs is waited for."""
        self._pool.shutdown(cancel_futures=True)

    def _build(self, python: str, inside: Path | None) -> Library:
        library = library_for(python, self._cache, self._spare, inside)
        if library.built_s is not None:
            self._say(f"built the paper GPU in {library.built_s:.0f} s")
        return library
