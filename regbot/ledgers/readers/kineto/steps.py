"""Assigns Kineto events to host calls, steps and phases by the time at which the host issued them.

A kernel runs long after its launch, often during the next step, so the time at which it runs is never used here. It
belongs to the ``ProfilerStep#N`` during which the host launched it."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regbot.ledgers.overlap import union
from regbot.ledgers.readers.kineto.calls import CallRow
from regbot.ledgers.readers.kineto.events import Thread
from regbot.ledgers.readers.kineto.record import ProfilerStep, TraceRecord
from regbot.records.ledger import Phase


class HostTime(NamedTuple):
    time_us: float
    thread: Thread


def find_launch_times(trace: TraceRecord) -> dict[int, HostTime]:
    """Return when the host launched each communication kernel, by the kernel's correlation id."""
    wanted_ids = {kernel.correlation for kernel in trace.kernels if kernel.correlation is not None}
    times = trace.times  # ``times.launches`` has the correlation ids of all kernel launches
    launched_ids = np.array(times.launches, dtype=np.int64)
    threads = list(times.threads)  # a thread's position is its number
    is_wanted = np.isin(launched_ids, np.array(sorted(wanted_ids), dtype=np.int64))
    return {
        times.launches[index]: HostTime(times.launched_us[index], threads[times.launch_threads[index]])
        for index in np.flatnonzero(is_wanted).tolist()
    }


class HostRows:
    def __init__(self, rows: Iterable[CallRow]) -> None:
        self._spans: dict[Thread, list[tuple[float, float, int]]] = {}
        """Start, end and index of the rows of each thread."""
        for index, row in enumerate(rows):
            self._spans.setdefault(row.thread, []).append((row.start_us, row.end_us, index))
        for spans in self._spans.values():
            spans.sort()

    def find_row_at(self, host_time: HostTime) -> int | None:
        """Return the index of the row that was running at ``host_time``, or None if no row was running."""
        span = self._find_last_started(host_time)
        return span[2] if span is not None and host_time.time_us <= span[1] else None

    def has_row_inside(self, row: CallRow) -> bool:
        span = self._find_last_started(HostTime(row.end_us, row.thread))
        return span is not None and span[0] >= row.start_us

    def _find_last_started(self, host_time: HostTime) -> tuple[float, float, int] | None:
        spans = self._spans.get(host_time.thread, [])
        started_count = bisect_right(spans, host_time.time_us, key=lambda span: span[0])
        return spans[started_count - 1] if started_count else None


def keep_outermost(rows: Sequence[CallRow]) -> list[CallRow]:
    """Return ``rows`` without the rows that lie inside another row of the same name on the same thread. Such rows are
    repetitions. A dispatch mode (a FLOP counter, or regbot's own) runs every operator through the dispatcher a second
    time, and each of the two passes writes a row."""
    outermost_rows = []
    latest_end_us: dict[tuple[Thread, str], float] = {}
    # An outer row starts no later than the rows inside it, so it comes first in this order.
    for row in sorted(rows, key=lambda row: (row.start_us, -row.end_us)):
        if row.end_us > latest_end_us.get((row.thread, row.name), float("-inf")):
            latest_end_us[row.thread, row.name] = row.end_us
            outermost_rows.append(row)
    return outermost_rows


class Phases:
    def __init__(self, trace: TraceRecord) -> None:
        self._optimizer = {thread: union(spans.starts, spans.ends) for thread, spans in trace.optimizer.items()}
        self._backward = {thread: union(spans.starts, spans.ends) for thread, spans in trace.times.backward.items()}
        step_threads = {step.thread for step in trace.steps}
        # Without steps, the main thread cannot be told from the threads of the autograd engine.
        self._engine_threads = set(self._backward) - step_threads if step_threads else set()
        """Threads of the autograd engine: those that run backward functions and no profiler step. All time on these
        threads is backward, including the time between two functions."""

    def phase_at(self, host_time: HostTime) -> Phase:
        thread, time_us = host_time.thread, host_time.time_us
        if thread in self._engine_threads:
            return "backward"
        if thread in self._backward and self._backward[thread].contains(time_us):
            return "backward"
        if thread in self._optimizer and self._optimizer[thread].contains(time_us):
            return "optimizer"
        return "unknown"


class StepWindow(NamedTuple):
    is_per_step: bool
    step_count: int
    """Number of counted steps, or of all steps in the trace if the whole trace is counted."""
    steps: list[list[int]]
    """Indices of the collectives in each counted step. If the whole trace is counted, there is only one item, with the
    indices of all collectives."""
    warnings: list[str]


def choose_window(
    steps: Sequence[ProfilerStep], host_times: Sequence[HostTime | None], keys: Sequence[Hashable]
) -> StepWindow:
    """Return the steps to count. ``host_times`` and ``keys`` have one item per collective: when the host issued it
    (None if the trace does not tell), and its properties (kind, axis, phase and others). Two steps are equal if each
    key occurs equally often in both. If all steps are equal, all are counted. If all steps except the first and the
    last are equal, the first and the last are left out. Otherwise the whole trace is counted."""
    ordered_steps = sorted(steps)

    def use_whole_trace(reason: str) -> StepWindow:
        return StepWindow(
            is_per_step=False,
            step_count=max(len(ordered_steps), 1),
            steps=[list(range(len(keys)))],
            warnings=[f"counts are of the whole trace: {reason}"],
        )

    if not ordered_steps:
        return use_whole_trace("it has no step (ProfilerStep#N; call step() on the profiler)")
    without_time = sum(host_time is None for host_time in host_times)
    if without_time:
        return use_whole_trace(f"{without_time} of {len(host_times)} collectives cannot be assigned to a step; their "
                               "kernels ran asynchronously and the trace does not have the kernel launches (record CPU "
                               "activity too)")  # fmt: skip
    indices_by_step: list[list[int]] = [[] for _ in ordered_steps]
    starts = [step.start_us for step in ordered_steps]
    for index, host_time in enumerate(host_times):
        assert host_time is not None
        position = bisect_right(starts, host_time.time_us) - 1
        if position >= 0 and host_time.time_us <= ordered_steps[position].end_us:
            indices_by_step[position].append(index)
    warnings = []
    outside_count = len(keys) - sum(map(len, indices_by_step))
    if outside_count:
        warnings.append(f"{outside_count} collectives outside any step were not counted")
    key_counts = [Counter(keys[index] for index in indices) for indices in indices_by_step]
    counted_steps = indices_by_step
    if not _are_equal(key_counts):
        if len(key_counts) < 3 or not _are_equal(key_counts[1:-1]):
            totals = ", ".join(str(len(indices)) for indices in indices_by_step[:20])
            return use_whole_trace(f"its {len(ordered_steps)} steps are not equal ({totals} collectives)")
        counted_steps = indices_by_step[1:-1]
        warnings.append("the first or the last step differs from the others; neither of the two was counted")
    if not counted_steps[0] and keys:
        return use_whole_trace("its collectives lie outside the steps")
    return StepWindow(is_per_step=True, step_count=len(counted_steps), steps=counted_steps, warnings=warnings)


def _are_equal(key_counts: Sequence[Counter[Hashable]]) -> bool:
    return all(counts == key_counts[0] for counts in key_counts)
