"""Counts the work of a call without a clock: the lines that Python runs, and the bytes that are allocated."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

LARGE = 1024
"""Fewer bytes are not counted, because they are those of the line itself, and of the tracing."""


class Work(NamedTuple):
    """``allocated`` is the sum over all lines of the bytes that the line allocates, also those that it frees again. So
    it counts what C code copies, which no count of lines shows."""

    lines: int
    allocated: int
    peak: int
    """Largest number of bytes in use at a time."""


def measure_work(call: Callable[[], object]) -> Work:
    """Return the work of ``call``, which may raise nothing."""
    lines = allocated = highest = before = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines, allocated, highest, before
        lines += 1
        after, peak = tracemalloc.get_traced_memory()
        if peak - before > LARGE:
            allocated += peak - before
        highest = max(highest, peak)
        tracemalloc.reset_peak()
        before = after
        return count

    former = sys.gettrace()  # that of coverage
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(former)
        tracemalloc.stop()
    return Work(lines, allocated, highest)
