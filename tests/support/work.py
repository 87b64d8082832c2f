"""Counts the work of a call without a clock: the lines that Python runs, and the bytes that are allocated."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

LARGE = 1024
"""A line that allocates no more bytes counts as a line only. Many of these bytes are those of the tracing itself."""


class Work(NamedTuple):
    """``allocated`` is the sum of the bytes that each line allocates, even if it frees them again. So it counts what C
    code copies, which no count of lines shows. The memory in use at a time is less."""

    lines: int
    allocated: int


def measure_work(call: Callable[[], object]) -> Work:
    """Return the work of ``call``, which must not raise."""
    lines = allocated = before = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines, allocated, before
        lines += 1
        after, peak = tracemalloc.get_traced_memory()
        if peak - before > LARGE:
            allocated += peak - before
        tracemalloc.reset_peak()
        before = after
        return count

    former = sys.gettrace()  # that of a debugger, or of a measurement of coverage
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(former)
        tracemalloc.stop()
    return Work(lines, allocated)
