"""Collects the needed events of a Kineto trace: host rows, communication kernels, steps, optimizer and backward ranges.
The number of rows and the memory for their values are limited."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regbot.ledgers.overlap import Spans
from regbot.ledgers.readers.kernels import Communication, classify
from regbot.ledgers.readers.kineto import calls
from regbot.ledgers.readers.kineto.calls import ARGUMENT_KEYS, CallRow
from regbot.ledgers.readers.kineto.events import (
    KERNEL_CATEGORIES,
    METADATA_ROW,
    EventTimes,
    Thread,
    TraceEvent,
    TraceReader,
)
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import parse_count

MAX_ROWS = 400_000
"""Largest number of communication rows in one file. It is enough for 400 steps of 1000 collectives."""
MAX_VALUE_BYTES = 32 * 2**20
"""Largest size of all distinct values in the communication rows: shapes, groups, names."""
MAX_SHAPES_TEXT = 1000
"""Number of characters from which on the shapes of a gloo annotation are not kept."""


class KinetoKernel(NamedTuple):
    row: CallRow
    communication: Communication | None
    """How the kernel communicates by its name; None if the name is that of a compute kernel."""
    device: str
    correlation: int | None
    has_metadata: bool
    """Whether the arguments of the kernel's event name a collective."""


class ProfilerStep(NamedTuple):
    start_us: float
    end_us: float
    thread: Thread


@dataclass
class TraceRecord:
    metadata: list[CallRow] = field(default_factory=list)
    annotations: list[CallRow] = field(default_factory=list)
    dispatcher_rows: list[CallRow] = field(default_factory=list)
    symmetric_rows: list[CallRow] = field(default_factory=list)
    gloo_rows: int = 0
    """Number of annotations ``gloo:...``."""
    gloo_types: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Element types that gloo's annotations name, by the shapes of their tensors."""
    kernels: list[KinetoKernel] = field(default_factory=list)
    steps: list[ProfilerStep] = field(default_factory=list)
    optimizer: dict[Thread, Spans] = field(default_factory=lambda: defaultdict(Spans))
    times: EventTimes = field(default_factory=EventTimes)
    envelope: dict[str, Any] = field(default_factory=dict)
    """Keys of the trace beside its list of events."""


def read_trace(source: Source) -> TraceRecord:
    """Return everything that is needed from the trace in ``source``. Raises ReadError."""
    reader, record, values = TraceReader(source), TraceRecord(), _SharedValues()
    row_count = 0
    for event in reader.events():
        if event.category in KERNEL_CATEGORIES:
            has_metadata = isinstance(event.args.get("Collective name"), str)
            correlation = parse_count(event.args.get("correlation"))
            record.kernels.append(
                KinetoKernel(values.make_row(event), classify(event.name), event.pid, correlation, has_metadata)
            )
            row_count += 1
        else:
            row_count += _add_host_row(record, values, event)
        if row_count > MAX_ROWS or values.size > MAX_VALUE_BYTES:  # ``size`` is in bytes
            raise source.error("contains more communication rows than regbot reads; record fewer steps")
    record.envelope, record.times = reader.envelope, reader.times
    return record


def _add_host_row(record: TraceRecord, values: "_SharedValues", event: TraceEvent) -> int:
    """Add a host row to ``record``. Return 1 if it counts towards ``MAX_ROWS``, else 0."""
    name = event.name
    if name == METADATA_ROW and not isinstance(event.args.get("Collective name"), str):
        return 0  # torch before 2.2 writes such rows, beside annotations
    if name.startswith("gloo:"):
        record.gloo_rows += 1
        shapes, dtype = calls.format_shapes(event.args.get("Input Dims")), calls.first_dtype(event.args)
        if len(shapes) < MAX_SHAPES_TEXT and dtype:
            record.gloo_types[shapes].add(dtype)
    elif name.startswith("ProfilerStep#"):
        record.steps.append(ProfilerStep(event.start_us, event.end_us, (event.pid, event.tid)))
    elif name.startswith("Optimizer.step#"):
        record.optimizer[event.pid, event.tid].add(event.start_us, event.end_us)
    else:
        for prefix, rows in (
            (METADATA_ROW, record.metadata),
            ("nccl:", record.annotations),
            ("c10d::", record.dispatcher_rows),
            ("symm_mem::", record.symmetric_rows),
        ):
            if name.startswith(prefix):
                rows.append(values.make_row(event))
                return 1
        return 0
    return 1


class _SharedValues:
    """Creates rows whose values are shared: equal values are stored only once."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self.size = 0
        """Estimated bytes of all values and their keys."""

    def make_row(self, event: TraceEvent) -> CallRow:
        args = {key: event.args[key] for key in ARGUMENT_KEYS if key in event.args}
        return CallRow(
            name=self._share(event.name),
            thread=self._share((event.pid, event.tid)),
            start_us=event.start_us,
            end_us=event.end_us,
            external_id=parse_count(event.args.get("External id")),
            args=self._share(args),
        )

    def _share(self, value: Any) -> Any:
        key = repr(value)
        if key not in self._values:
            self._values[key] = value
            self.size += 2 * len(key)
        return self._values[key]
