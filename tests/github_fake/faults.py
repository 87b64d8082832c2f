"""What goes wrong with GitHub now and then, on demand and the same at every run.

A fault "after" is one after the commit: the request took effect, the answer was lost.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

KINDS = (
    "502-before",
    "502-after",
    "503-before",
    "503-after",
    "reset-before",
    "reset-after",
    "secondary-403",
    "secondary-429",
    "404-once",
    "slow",
)
QUOTA = "primary-403"
"""No request quota is left. No plan has it, because a plan's faults pass within seconds."""


class Faults:
    """Whether a request is hit depends on the seed, its method and path, and how often that was asked for before;
    so the order in which several clients come does not matter."""

    def __init__(self) -> None:
        self.down = False  # every request is answered 503, nothing takes effect
        self.retry_after_s = 1
        self.reset_after_s = 1
        self.slow_s = 0.05
        self.happened: list[tuple[str, str, str]] = []  # (kind, method, path)
        self._lock = threading.Lock()
        self._seen: Counter[tuple[str, str]] = Counter()
        self._next: list[list[str]] = []
        self.stop()

    def plan(
        self, share: float, seed: int = 0, kinds: Sequence[str] = KINDS, method: str = "*", path: str = "*"
    ) -> None:
        """Hit ``share`` (in [0, 1]) of the requests that match, each with one of ``kinds``."""
        _known(*kinds)
        self._share, self._seed, self._kinds, self._where = share, seed, tuple(kinds), (method, path)

    def next(self, kind: str, method: str = "*", path: str = "*", times: int = 1) -> None:
        """Hit the next requests that match (glob patterns; ``path`` without the query), before any plan."""
        _known(kind)
        self._next += [[kind, method, path] for _ in range(times)]

    def stop(self) -> None:
        """No plan any more, and nothing waiting; what happened stays."""
        self._share, self._seed, self._kinds, self._where = 0.0, 0, KINDS, ("*", "*")
        self._next.clear()
        self.down = False

    def pick(self, method: str, path: str) -> str | None:
        """The fault of this request."""
        with self._lock:
            self._seen[method, path] += 1
            kind = self._choose(method, path, self._seen[method, path])
            if kind:
                self.happened.append((kind, method, path))
            return kind

    def _choose(self, method: str, path: str, times: int) -> str | None:
        if self.down:
            return "503-before"
        for waiting in self._next:
            if fnmatchcase(method, waiting[1]) and fnmatchcase(path, waiting[2]):
                self._next.remove(waiting)
                return waiting[0]
        if not (fnmatchcase(method, self._where[0]) and fnmatchcase(path, self._where[1])):
            return None
        digest = hashlib.blake2b(f"{self._seed} {method} {path} {times}".encode(), digest_size=16).digest()
        if int.from_bytes(digest[:8]) >= self._share * 2**64:
            return None
        kind = self._kinds[int.from_bytes(digest[8:]) % len(self._kinds)]
        # What was just made is not found yet: that happens to reads, and once.
        return None if kind == "404-once" and (method != "GET" or times > 1) else kind


def _known(*kinds: str) -> None:
    assert set(kinds) <= {*KINDS, QUOTA}, (
        f"{sorted(set(kinds) - set(KINDS))}: no such fault; there are {', '.join(KINDS)}"
    )
