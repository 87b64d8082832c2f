"""Progress messages of a long operation."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One progress message. ``done``: number of runs that have ended. ``total``: number of planned runs, 0 if unknown.

    On a terminal, the next message replaces this one, unless ``lasting`` is set.
    """

    done: int
    total: int
    text: str
    lasting: bool = False

    def __str__(self) -> str:
        counter = f"{self.done}/{self.total}" if self.total else f"{self.done or ''}"
        return f"[{counter}] {self.text}" if counter else self.text


Watcher = Callable[[Progress], None]
