"""What a benchmark promises, printed at its end; its exit code."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """A promise, what was found, and whether that keeps it."""

    text: str
    found: str
    kept: bool


def told(made: Sequence[Promise]) -> int:
    """Print them. 0 where all are kept, else 1."""
    for promise in made:
        print(f"{'holds' if promise.kept else 'FAILS'}  {promise.text}: {promise.found}")
    return 0 if all(promise.kept for promise in made) else 1
