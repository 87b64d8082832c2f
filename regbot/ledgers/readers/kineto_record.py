"""What one pass over a Kineto trace keeps of it: calls of the host, kernels, steps, and where backward runs.

Nothing is decided here. Whatever a trace can hold many of is kept as numbers in arrays and capped.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regbot.ledgers.readers import kineto_calls
from regbot.ledgers.readers.events import KERNEL, METADATA, Event, Spans, Thread, Times, Trace, number
from regbot.ledgers.readers.kernels import Communication, classify
from regbot.ledgers.readers.kineto_calls import KEPT, Row
from regbot.ledgers.readers.kineto_layout import OtherLayout
from regbot.ledgers.readers.source import Source

MAX_ROWS = 400_000
"""Communication rows of one file: 400 steps of 1000 collectives."""
MAX_WORDS_BYTES = 32 * 2**20
"""Of all different words in those rows: shapes, groups, names."""


class Kernel(NamedTuple):
    """A communication kernel. ``named``: its row carries the metadata of a collective."""

    row: Row
    use: Communication | None
    device: str
    correlation: int | None
    named: bool


class Step(NamedTuple):
    """A ``ProfilerStep#N`` of the host."""

    start_us: float
    end_us: float
    thread: Thread


@dataclass
class Record:
    """Everything that was kept."""

    metadata: list[Row] = field(default_factory=list)
    annotations: list[Row] = field(default_factory=list)
    dispatched: list[Row] = field(default_factory=list)
    symmetric: list[Row] = field(default_factory=list)
    nameless: int = 0
    """Rows of metadata that do not name the collective: a trace of torch before 2.2."""
    gloo_rows: int = 0
    gloo_types: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Element types by shape."""
    kernels: list[Kernel] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    optimizer: dict[Thread, Spans] = field(default_factory=lambda: defaultdict(Spans))
    times: Times = field(default_factory=Times)
    envelope: dict[str, Any] = field(default_factory=dict)


def record(source: Source) -> Record:
    """One pass over the file, two where it does not keep Kineto's order of keys. Raises ReadError."""
    try:
        return _collect(source, ordered=True)
    except OtherLayout:
        return _collect(source, ordered=False)


def _collect(source: Source, ordered: bool) -> Record:
    trace, found, words = Trace(source), Record(), _Words()
    rows = 0
    for event in trace.events(ordered):
        if event.category in KERNEL:
            named = isinstance(event.args.get("Collective name"), str)
            correlation = number(event.args.get("correlation"))
            found.kernels.append(Kernel(words.row(event), classify(event.name), event.pid, correlation, named))
            rows += 1
        else:
            rows += _host(found, words, event)
        if rows > MAX_ROWS or words.size > MAX_WORDS_BYTES:
            raise source.error("holds more rows of communication than are read; record fewer steps")
    found.envelope, found.times = trace.envelope, trace.times
    return found


def _host(found: Record, words: "_Words", event: Event) -> int:
    """Keep a row of the host. Returns 1 where it is one of communication."""
    name = event.name
    if name == METADATA and not isinstance(event.args.get("Collective name"), str):
        found.nameless += 1
        return 0
    if name.startswith("gloo:"):
        found.gloo_rows += 1
        shapes = kineto_calls.annotated_shapes(event.args)
        if len(shapes) < 1000 and (told := kineto_calls.type_of(event.args)):
            found.gloo_types[shapes].add(told)
    elif name.startswith("ProfilerStep#"):
        found.steps.append(Step(event.start_us, event.end_us, (event.pid, event.tid)))
    elif name.startswith("Optimizer.step#"):
        found.optimizer[event.pid, event.tid].add(event.start_us, event.end_us)
    else:
        for prefix, rows in (
            (METADATA, found.metadata),
            ("nccl:", found.annotations),
            ("c10d::", found.dispatched),
            ("symm_mem::", found.symmetric),
        ):
            if name.startswith(prefix):
                rows.append(words.row(event))
                return 1
        return 0
    return 1


class _Words:
    """Words of rows, kept once however many rows say them."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self.size = 0

    def row(self, event: Event) -> Row:
        args = {key: event.args[key] for key in KEPT if key in event.args}
        external = number(event.args.get("External id"))
        thread = self._once((event.pid, event.tid))
        return Row(self._once(event.name), thread, event.start_us, event.end_us, external, self._once(args))

    def _once(self, value: Any) -> Any:
        key = repr(value)
        if key not in self._known:
            self._known[key] = value
            self.size += 2 * len(key)
        return self._known[key]
