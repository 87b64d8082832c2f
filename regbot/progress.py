"""What is being done, for whoever watches."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One line of what happens. ``total`` is the number of runs planned so far, 0 where nobody knows it.

    ``lasting``: the line stays on a terminal, where others replace each other.
    """

    done: int
    total: int
    text: str
    lasting: bool = False

    def __str__(self) -> str:
        counted = f"{self.done}/{self.total}" if self.total else f"{self.done or ''}"
        return f"[{counted}] {self.text}" if counted else self.text


Watcher = Callable[[Progress], None]
