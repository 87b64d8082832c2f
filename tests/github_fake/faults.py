"""What goes wrong with GitHub now and then, on demand. A fault "after" is one after the commit: the request took
effect, the answer was lost.
"""

import threading
from fnmatch import fnmatchcase

KINDS = {
    "502-before", "502-after", "503-before", "503-after", "reset-before", "reset-after", "secondary-403",
    "secondary-429", "404-once", "primary-403", "moved-302", "moved-307", "moved-308",
}  # fmt: skip
"""Of these, primary-403 is the answer where no request quota is left."""


class Faults:
    def __init__(self) -> None:
        self.down = False  # every request is answered 503, nothing takes effect
        self.retry_after_s = self.reset_after_s = 1
        self.happened: list[tuple[str, str, str]] = []  # (kind, method, path)
        self._lock = threading.Lock()
        self._next: list[tuple[str, str, str]] = []

    def next(self, kind: str, method: str = "*", path: str = "*", times: int = 1) -> None:
        """Hit the next requests that match (glob patterns; ``path`` without the query)."""
        assert kind in KINDS, f"{kind}: no such fault; there are {', '.join(sorted(KINDS))}"
        self._next += [(kind, method, path)] * times

    def stop(self) -> None:
        """Nothing is waiting any more; what happened stays."""
        self._next.clear()
        self.down = False

    def pick(self, method: str, path: str) -> str | None:
        """The fault of this request."""
        if self.down:
            return "503-before"
        with self._lock:
            for waiting in self._next:
                if fnmatchcase(method, waiting[1]) and fnmatchcase(path, waiting[2]):
                    self._next.remove(waiting)
                    self.happened.append((waiting[0], method, path))
                    return waiting[0]
        return None
