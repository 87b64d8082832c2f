"""What is being done, for whoever watches."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One line of what happens. ``total`` is the number of runs planned so far."""

    done: int
    total: int
    text: str


Watcher = Callable[[Progress], None]
