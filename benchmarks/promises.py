"""Promises of a benchmark: measured values and their limits. They are printed at its end and decide its exit code."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """What is promised, the measured value as text, and whether the value keeps the promise."""

    text: str
    measured: str
    kept: bool


def report_promises(promises: Sequence[Promise]) -> int:
    """Print the promises. Return the exit code: 0 if all are kept, else 1."""
    for promise in promises:
        print(f"{'holds' if promise.kept else 'FAILS'}  {promise.text}: {promise.measured}")
    return 0 if all(promise.kept for promise in promises) else 1
