"""Assigns Kineto events to host calls, steps and phases by the time at which the host issued them.

A kernel runs long after its launch, often during the next step. So the time at which a kernel runs is never used here.
The correlation id links a kernel to the host call that launched it. The kernel belongs to the ``ProfilerStep#N`` during
which the host launched it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regbot.ledgers.overlap import union
from regbot.ledgers.readers.events import Spans, Thread
from regbot.ledgers.readers.kineto_calls import CallRow
from regbot.ledgers.readers.kineto_record import ProfilerStep, TraceRecord
from regbot.records.ledger import Phase


class HostTime(NamedTuple):
    """A point in time on one thread of the host."""

    time_us: float
    thread: Thread


class KernelLaunches:
    """Host times of kernel launches, for the kernels with the given correlation ids."""

    def __init__(self, trace: TraceRecord, correlations: Iterable[int | None]) -> None:
        wanted_ids = np.array(
            sorted({correlation for correlation in correlations if correlation is not None}), dtype=np.int64
        )
        all_launches = (
            np.frombuffer(trace.times.launches, dtype=np.int64) if trace.times.launches else np.empty(0, dtype=np.int64)
        )
        threads = list(trace.times.threads)
        self._host_times = {
            int(all_launches[index]): HostTime(
                trace.times.launched_us[index], threads[trace.times.launch_threads[index]]
            )
            for index in np.flatnonzero(np.isin(all_launches, wanted_ids)).tolist()
        }

    def find_host_time(self, correlation: int | None) -> HostTime | None:
        return None if correlation is None else self._host_times.get(correlation)


class HostRows:
    """Finds host rows by thread and time."""

    def __init__(self, rows: Iterable[CallRow]) -> None:
        self._rows: dict[Thread, list[tuple[float, float, int]]] = {}
        for index, row in enumerate(rows):
            self._rows.setdefault(row.thread, []).append((row.start_us, row.end_us, index))
        for thread_rows in self._rows.values():
            thread_rows.sort()

    def find_row_at(self, host_time: HostTime) -> int | None:
        """Return the index of the row that was running at ``host_time``, or None if no row was running."""
        rows = self._rows.get(host_time.thread, [])
        position = bisect_right(rows, (host_time.time_us, float("inf"), 0)) - 1
        return rows[position][2] if position >= 0 and host_time.time_us <= rows[position][1] else None

    def has_row_inside(self, row: CallRow) -> bool:
        """Whether one of these rows starts during ``row``, on the same thread."""
        rows = self._rows.get(row.thread, [])
        position = bisect_right(rows, (row.end_us, float("inf"), 0)) - 1
        return position >= 0 and rows[position][0] >= row.start_us


def keep_outermost(rows: Sequence[CallRow]) -> list[CallRow]:
    """Return ``rows`` without the rows that lie inside another row of the same name on the same thread.

    Such rows are repetitions. A dispatch mode (a FLOP counter, or regbot's own) runs every operator through the
    dispatcher a second time, and each of the two passes writes a row.
    """
    outermost_rows = []
    latest_end: dict[tuple[Thread, str], float] = {}
    for row in sorted(rows, key=lambda row: (row.start_us, -row.end_us)):
        if row.end_us > latest_end.get((row.thread, row.name), float("-inf")):
            latest_end[row.thread, row.name] = row.end_us
            outermost_rows.append(row)
    return outermost_rows


class Phases:
    """Finds the phase at a host time: backward, optimizer or unknown."""

    def __init__(self, trace: TraceRecord) -> None:
        self._optimizer = {thread: _SpanIndex(spans) for thread, spans in trace.optimizer.items()}
        self._backward = {thread: _SpanIndex(spans) for thread, spans in trace.times.backward.items()}
        step_threads = {step.thread for step in trace.steps}
        self._engine_threads = set(self._backward) - step_threads if step_threads else set()
        """Threads of the autograd engine. All time on these threads is backward, including the time between two
        functions.
        """

    def phase_at(self, host_time: HostTime) -> Phase:
        thread = host_time.thread
        if thread in self._engine_threads or (
            thread in self._backward and self._backward[thread].contains(host_time.time_us)
        ):
            return "backward"
        if thread in self._optimizer and self._optimizer[thread].contains(host_time.time_us):
            return "optimizer"
        return "unknown"


class _SpanIndex:
    def __init__(self, spans: Spans) -> None:
        merged = union(spans.starts, spans.ends)
        self._starts, self._ends = merged.starts.tolist(), merged.ends.tolist()

    def contains(self, time_us: float) -> bool:
        position = bisect_right(self._starts, time_us) - 1
        return position >= 0 and time_us <= float(self._ends[position])


class StepWindow(NamedTuple):
    """The part of a trace that is counted.

    If ``is_per_step`` is set, each item of ``steps`` has the indices of the collectives in one counted step. Otherwise
    ``steps`` has only one item, with the indices of all collectives in the trace, which covers ``step_count`` steps.
    """

    is_per_step: bool
    step_count: int
    steps: list[list[int]]
    warnings: list[str]


def choose_window(
    steps: Sequence[ProfilerStep], host_times: Sequence[HostTime | None], keys: Sequence[Hashable]
) -> StepWindow:
    """Return the steps to count.

    If all steps are equal, all are counted. If all steps except the first and the last are equal, the first and the
    last are left out. Otherwise the whole trace is counted. Two steps are equal if each key occurs equally often in
    both. ``host_times`` and ``keys`` have one item per collective: the host time of its kernel launch, and its
    properties.
    """
    ordered_steps = sorted(steps)

    def use_whole_trace(reason: str) -> StepWindow:
        all_indices = [list(range(len(keys)))]
        return StepWindow(False, max(len(ordered_steps), 1), all_indices, [f"counts are of the whole trace: {reason}"])

    if not ordered_steps:
        return use_whole_trace("it has no step (ProfilerStep#N; call step() on the profiler)")
    if any(after.start_us < before.end_us for before, after in pairwise(ordered_steps)):
        return use_whole_trace("its steps overlap")
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
    counts = [Counter(keys[index] for index in indices) for indices in indices_by_step]
    counted_steps = indices_by_step
    if any(count != counts[0] for count in counts):
        if len(counts) < 3 or any(count != counts[1] for count in counts[1:-1]):
            totals = ", ".join(str(len(indices)) for indices in indices_by_step[:20])
            return use_whole_trace(f"its {len(ordered_steps)} steps are not equal ({totals} collectives)")
        counted_steps = indices_by_step[1:-1]
        warnings.append("the first or the last step differs from the others; neither of the two was counted")
    if not counted_steps[0] and keys:
        return use_whole_trace("its collectives lie outside the steps")
    return StepWindow(True, len(counted_steps), counted_steps, warnings)
