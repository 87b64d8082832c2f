"""Progress messages of a long operation."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One progress message, such as ``[3/8] ...``."""

    done: int
    """Number of runs that have ended."""
    total: int
    """Number of planned runs; 0 if unknown."""
    text: str
    lasting: bool = False
    """Whether the message stays on a terminal. By default, the next message replaces this one."""

    def __str__(self) -> str:
        """Return ``[3/8] text``. Without a known total this is ``[3] text``, and ``text`` alone if no run has ended."""
        if self.total:
            return f"[{self.done}/{self.total}] {self.text}"
        return f"[{self.done}] {self.text}" if self.done else self.text


Watcher = Callable[[Progress], None]
"""Function that shows the progress messages of an operation."""
