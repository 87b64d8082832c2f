"""Durations of the stages of a run, such as the build of the model. This module does not import torch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed_stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = round(time.perf_counter() - start, 3)
