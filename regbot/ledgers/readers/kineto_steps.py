"""When and where the host issued something: launches of kernels, steps, backward, optimizer.

Kernels run long after the host launched them, often in the next step's window, so nothing is attributed by the time at
which it ran. A kernel belongs to the host call in which it was launched (by correlation), and to the step in whose
``ProfilerStep#N`` the host launched it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regbot.ledgers.overlap import union
from regbot.ledgers.readers.events import Spans, Thread
from regbot.ledgers.readers.kineto_calls import Row
from regbot.ledgers.readers.kineto_record import Record, Step
from regbot.records.ledger import Phase


class Moment(NamedTuple):
    """A time of the host on one of its threads."""

    at_us: float
    thread: Thread


class Launches:
    """Where the kernels in question were launched."""

    def __init__(self, record: Record, wanted: Iterable[int | None]) -> None:
        ids = np.array(sorted({one for one in wanted if one is not None}), dtype=np.int64)
        every = (
            np.frombuffer(record.times.launches, dtype=np.int64)
            if record.times.launches
            else np.empty(0, dtype=np.int64)
        )
        threads = list(record.times.threads)
        self._found = {
            int(every[i]): Moment(record.times.launched_us[i], threads[record.times.launch_threads[i]])
            for i in np.flatnonzero(np.isin(every, ids)).tolist()
        }

    def of(self, correlation: int | None) -> Moment | None:
        return None if correlation is None else self._found.get(correlation)


class HostRows:
    """Finds the row of the host that was under way at a moment of its thread."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[Thread, list[tuple[float, float, int]]] = {}
        for index, row in enumerate(rows):
            self._rows.setdefault(row.thread, []).append((row.start_us, row.end_us, index))
        for known in self._rows.values():
            known.sort()

    def under_way(self, moment: Moment) -> int | None:
        """Index of the row."""
        rows = self._rows.get(moment.thread, [])
        place = bisect_right(rows, (moment.at_us, float("inf"), 0)) - 1
        return rows[place][2] if place >= 0 and moment.at_us <= rows[place][1] else None

    def contains_one(self, row: Row) -> bool:
        """Whether one began inside ``row``, on its thread."""
        rows = self._rows.get(row.thread, [])
        place = bisect_right(rows, (row.end_us, float("inf"), 0)) - 1
        return place >= 0 and rows[place][0] >= row.start_us


def outermost(rows: Sequence[Row]) -> list[Row]:
    """``rows`` without those inside another of the same name on the same thread.

    A dispatch mode (a FLOP counter, regbot's own) sends every operator through the dispatcher a second time, and each
    time leaves a row.
    """
    kept = []
    reach: dict[tuple[Thread, str], float] = {}
    for row in sorted(rows, key=lambda row: (row.start_us, -row.end_us)):
        if row.end_us > reach.get((row.thread, row.name), float("-inf")):
            reach[row.thread, row.name] = row.end_us
            kept.append(row)
    return kept


class Phases:
    """Whether a moment of the host lies in backward or in the optimizer."""

    def __init__(self, record: Record) -> None:
        self._optimizer = {thread: _Inside(spans) for thread, spans in record.optimizer.items()}
        self._backward = {thread: _Inside(spans) for thread, spans in record.times.backward.items()}
        main = {step.thread for step in record.steps}
        self._engine = set(self._backward) - main if main else set()
        """Threads of the autograd engine: what they do between two functions is backward too."""

    def of(self, moment: Moment) -> Phase:
        thread = moment.thread
        if thread in self._engine or (thread in self._backward and self._backward[thread].has(moment.at_us)):
            return "backward"
        if thread in self._optimizer and self._optimizer[thread].has(moment.at_us):
            return "optimizer"
        return "unknown"


class _Inside:
    def __init__(self, spans: Spans) -> None:
        merged = union(spans.starts, spans.ends)
        self._starts, self._ends = merged.starts.tolist(), merged.ends.tolist()

    def has(self, at: float) -> bool:
        place = bisect_right(self._starts, at) - 1
        return place >= 0 and at <= float(self._ends[place])


class Window(NamedTuple):
    """What is counted. ``steps``: indices of the collectives of every step that is counted and equal to the others;
    where ``per_step`` is false, those of the whole trace, whose number of steps is ``covered``."""

    per_step: bool
    covered: int
    steps: list[list[int]]
    warnings: list[str]


def choose_window(steps: Sequence[Step], moments: Sequence[Moment | None], keys: Sequence[Hashable]) -> Window:
    """The steps to count: all of them where they are equal, else all but the first and last, else the whole trace.

    ``moments`` and ``keys``: when the host issued each collective, and what is to be equal from step to step.
    """
    ordered = sorted(steps)

    def whole(why: str) -> Window:
        everything = [list(range(len(keys)))]
        return Window(False, max(len(ordered), 1), everything, [f"counts are of the whole trace: {why}"])

    if not ordered:
        return whole("it holds no step (ProfilerStep#N; call step() on the profiler)")
    if any(after.start_us < before.end_us for before, after in pairwise(ordered)):
        return whole("its steps overlap")
    lost = sum(moment is None for moment in moments)
    if lost:
        return whole(f"{lost} of {len(moments)} collectives cannot be told to belong to a step; their kernels ran "
                     "asynchronously and the trace has no launches of them (record CPU activity too)")  # fmt: skip
    inside: list[list[int]] = [[] for _ in ordered]
    starts = [step.start_us for step in ordered]
    for index, moment in enumerate(moments):
        assert moment is not None
        place = bisect_right(starts, moment.at_us) - 1
        if place >= 0 and moment.at_us <= ordered[place].end_us:
            inside[place].append(index)
    warnings = []
    outside = len(keys) - sum(map(len, inside))
    if outside:
        warnings.append(f"{outside} collectives outside any step were not counted")
    counts = [Counter(keys[index] for index in indices) for indices in inside]
    chosen = inside
    if any(count != counts[0] for count in counts):
        if len(counts) < 3 or any(count != counts[1] for count in counts[1:-1]):
            totals = ", ".join(str(len(indices)) for indices in inside[:20])
            return whole(f"its {len(ordered)} steps are not equal ({totals} collectives)")
        chosen = inside[1:-1]
        warnings.append("the first or the last step differs from the others and was not counted, nor was its opposite")
    if not chosen[0] and keys:
        return whole("its collectives lie outside the steps")
    return Window(True, len(chosen), chosen, warnings)
