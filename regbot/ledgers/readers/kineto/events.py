"""Reads the events of a Kineto trace that concern communication, from a file of any size.

A trace is one JSON object with hundreds of thousands of events, and few of these events concern communication. The
reader searches the bytes for the relevant events and decodes only these. So it needs Kineto's own byte layout, and
refuses files that another tool wrote anew. Compute kernels, kernel launches and backward ranges are frequent, and the
reader keeps only their times. The reader holds one chunk, one event and the times in memory."""

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regbot.ledgers.overlap import Spans
from regbot.ledgers.readers.kernels import classify
from regbot.ledgers.readers.kineto.layout import Layout, LayoutMismatch, find_candidates, learn_layout
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import parse_count
from regbot.records.files import MAX_DEPTH, check_depth
from regbot.records.text.clip import clip

MAX_EVENT_BYTES = 8 * 2**20
"""Largest size of one event."""
CHUNK_BYTES = 2**18
MAX_TIMES = 8_000_000
"""Largest number of compute kernels, kernel launches and backward ranges that are kept from one file. Each needs 16 to
20 bytes."""
MAX_THREADS = 2**12
"""Largest number of devices and threads of compute kernels, kernel launches and backward ranges."""
MAX_NAMES = 2**16
MAX_ENVELOPE_BYTES = 4 * 2**20
"""Largest number of bytes before the list of events, and also after the list. A trace of 1024 ranks lists all its
groups there, about 1 MiB."""


class TraceEvent(NamedTuple):
    category: str
    name: str
    pid: str
    """Process id; in the event of a kernel, the device."""
    tid: str
    """Thread id."""
    start_us: float
    end_us: float
    args: dict[str, Any]


Thread = tuple[str, str]
"""Process id and thread id of a thread on the host."""


@dataclass
class EventTimes:
    compute: dict[bytes, Spans] = field(default_factory=lambda: defaultdict(Spans))
    """Intervals of compute kernels, by device."""
    backward: dict[Thread, Spans] = field(default_factory=lambda: defaultdict(Spans))
    """Backward ranges, by thread. In such a range, autograd evaluates the backward function of one operator."""
    launches: "array[int]" = field(default_factory=lambda: array("q"))
    """Correlation ids of kernel launches. A launch and its kernel have the same id. ``launched_us`` and
    ``launch_threads`` have the same order."""
    launched_us: "array[float]" = field(default_factory=lambda: array("d"))
    """Host times of the kernel launches."""
    launch_threads: "array[int]" = field(default_factory=lambda: array("i"))
    """Numbers of the threads that launched the kernels."""
    threads: dict[Thread, int] = field(default_factory=dict)
    """Number of each thread that launched a kernel."""

    @property
    def count(self) -> int:
        return len(self.launches) + sum(
            len(spans.starts) for spans in (*self.compute.values(), *self.backward.values())
        )

    def add_launch(self, correlation: int, host_us: float, thread: Thread) -> None:
        self.launches.append(correlation)
        self.launched_us.append(host_us)
        self.launch_threads.append(self.threads.setdefault(thread, len(self.threads)))


KERNEL_CATEGORIES = ("kernel", "Kernel")
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "Runtime")
_RANGE_CATEGORIES = ("user_annotation",)
_OPERATOR_CATEGORIES = ("cpu_op", "Operator")
"""Categories of events, in current and in older versions of Kineto."""
METADATA_ROW = "record_param_comms"
"""Name of the host events in which torch records a collective with its sizes and its group."""
_BACKWARD_PREFIX = "autograd::engine::evaluate_function"
_OPERATOR_PREFIXES = (METADATA_ROW, "nccl:", "c10d::", "symm_mem::", _BACKWARD_PREFIX)

_KERNEL_BYTES, _LAUNCH_BYTES, _RANGE_BYTES, _OPERATOR_PREFIX_BYTES = (
    tuple(name.encode() for name in names)
    for names in (KERNEL_CATEGORIES, _LAUNCH_CATEGORIES, _RANGE_CATEGORIES, _OPERATOR_PREFIXES)
)
_BACKWARD_BYTES = _BACKWARD_PREFIX.encode()

_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""A surrogate as JSON can escape it. Alone it is in no UTF-8 text, and Kineto never escapes a pair of them."""
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d{1,18})\b')
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
for _ in range(2):  # args are usually flat; two more levels of nesting are allowed
    _OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _OBJECT + rb")*+\}"
_WHOLE_EVENT = re.compile(_OBJECT, re.DOTALL)
_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
"""A string as a whole, an opening bracket (group 1), or a closing bracket (group 2)."""


class TraceReader:
    """Reads the events of one file. Each reader can be used once. ``envelope`` holds the keys of the JSON object other
    than the event list. ``envelope`` and ``times`` are complete only after the iterator that ``events`` returns is
    exhausted."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.envelope: dict[str, Any] = {}
        self.times = EventTimes()
        self._compute_names: dict[bytes, bool] = {}
        """Names of compute kernels. Every value is True."""
        self._threads: dict[tuple[bytes, bytes], Thread] = {}
        """Threads by process id and thread id as the file spells them."""
        self._layout: Layout | None = None
        """The layout of the file, learned from its first event; None before."""

    def events(self) -> Iterator[TraceEvent]:
        """Yield the events that concern communication, steps or the optimizer, and add the other times to ``times``.
        Raises ReadError. Each chunk is cut at the start of its last event, because this event may be incomplete. The
        rest is scanned together with the next chunk."""
        rest = b""
        try:
            for chunk in self._read_list(self.source.chunks(CHUNK_BYTES)):
                buffer = rest + chunk
                last_event_key = max(buffer.rfind(b'"ph"'), 0)  # the first key of the last event; 0 if there is none
                cut = max(buffer.rfind(b"{", 0, last_event_key), 0)
                rest = buffer[cut:]
                if len(rest) > MAX_EVENT_BYTES:
                    raise self.source.error(
                        f"contains an event, or a part after its events, of more than {MAX_EVENT_BYTES:,} bytes"
                    )
                yield from self._scan_region(buffer[:cut])
                self._check_times()
            yield from self._scan_region(rest)
        except LayoutMismatch as error:
            raise self.source.error(
                "has events that are not written as Kineto writes them; give the trace as torch.profiler exported it"
            ) from error
        self._read_end(rest, max(rest.rfind(b'"ph"'), 0))

    def _read_list(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        beginning = b""
        for chunk in chunks:
            beginning += chunk
            match = _LIST_START.search(beginning)
            if match is not None:
                # The text ends before the key 'traceEvents'. An empty key and a brace make it a complete JSON object.
                envelope_text = beginning[: match.start()] + b'"":0}'
                self.envelope.update(self._parse_object(envelope_text, "the part before its events"))
                yield beginning[match.end() :]
                yield from chunks
                return
            if len(beginning) > MAX_ENVELOPE_BYTES:
                break
        raise self.source.error("is not a Kineto trace: it has no list 'traceEvents'")

    def _scan_region(self, region: bytes) -> Iterator[TraceEvent]:
        """Yield the events of interest in ``region``, which contains only complete events. Compute kernels, kernel
        launches and backward ranges are added to ``times`` instead, without decoding their events. All other events of
        interest are decoded. The loop runs for most events of a trace, so attributes that it needs are looked up before
        it."""
        if self._layout is None:
            self._layout = learn_layout(region)
            if self._layout is None:  # the region contains no event
                return
        compute_names, threads, match_header = self._compute_names, self._threads, self._layout.header.match
        add_launch, compute_spans, backward_spans = self.times.add_launch, self.times.compute, self.times.backward
        for category_offset, end_offset in find_candidates(region, self._layout):
            match = match_header(region, category_offset)
            if match is None:  # the event does not begin with the usual fields, so it is decoded as a whole
                yield from self._select_event(self._decode_event(region, category_offset))
                continue
            category, name, pid, tid, ts, dur = match.groups()
            if category in _KERNEL_BYTES:
                # A kernel with the key 'Collective name' belongs to a collective, whatever the name of the kernel is.
                is_compute = compute_names.get(name) or self._is_compute(name)
                if is_compute and region.find(b'"Collective name"', match.end(), end_offset) < 0:
                    start_us = float(ts)
                    compute_spans[pid].add(start_us, start_us + float(dur))
                else:
                    yield from self._select_event(self._decode_event(region, category_offset))
            elif category in _LAUNCH_BYTES:
                if b"Launch" in name and (correlation := _CORRELATION.search(region, match.end(), end_offset)):
                    add_launch(int(correlation[1]), float(ts), threads.get((pid, tid)) or self._parse_thread(pid, tid))
            elif name.startswith(_BACKWARD_BYTES):
                start_us = float(ts)
                backward_spans[threads.get((pid, tid)) or self._parse_thread(pid, tid)].add(
                    start_us, start_us + float(dur)
                )
            elif category in _RANGE_BYTES or name.startswith(_OPERATOR_PREFIX_BYTES):
                yield from self._select_event(self._decode_event(region, category_offset))

    def _is_compute(self, name: bytes) -> bool:
        is_compute = classify(name.decode("utf-8", "replace")) is None
        if is_compute and len(self._compute_names) < MAX_NAMES:
            self._compute_names[name] = True
        return is_compute

    def _parse_thread(self, pid: bytes, tid: bytes) -> Thread:
        return self._threads.setdefault((pid, tid), (_decode_name(pid), _decode_name(tid)))

    def _decode_event(self, region: bytes, offset: int) -> dict[str, Any]:
        assert self._layout is not None
        match = _WHOLE_EVENT.match(region, offset - len(self._layout.start))
        if match is None:
            raise self.source.error("ends in the middle of an event, or has an event that is not JSON; copy it again")
        return self._parse_object(match[0], "an event")

    def _select_event(self, document: dict[str, Any]) -> Iterator[TraceEvent]:
        """Yield ``document``, one decoded event, if it is of interest. If only its times are needed, add them to
        ``times`` instead. Raises ReadError if an event of interest has no valid times."""
        category, name = document.get("cat"), document.get("name")
        # The phase X marks a complete event, with a start and a duration.
        if document.get("ph") != "X" or not isinstance(category, str) or not isinstance(name, str):
            return
        args = document.get("args")
        args = args if isinstance(args, dict) else {}
        if not _is_wanted(category, name, args):
            return
        timestamp, duration = document.get("ts"), document.get("dur", 0)
        for key, value in (("ts", timestamp), ("dur", duration)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
                raise self.source.error(f"the event {clip(name, 100)!r} has no usable {key!r}: {clip(repr(value), 40)}")
        assert timestamp is not None
        if duration < 0:
            raise self.source.error(f"the event {clip(name, 100)!r} ends before it begins")
        start_us, end_us = float(timestamp), float(timestamp) + float(duration)
        thread = (str(document.get("pid")), str(document.get("tid")))
        times = self.times
        if category in _LAUNCH_CATEGORIES:
            times.add_launch(parse_count(args["correlation"]) or 0, start_us, thread)
        elif name.startswith(_BACKWARD_PREFIX):
            times.backward[thread].add(start_us, end_us)
        elif category in KERNEL_CATEGORIES and classify(name) is None and "Collective name" not in args:
            # A compute kernel: its name suggests no communication, and its arguments name no collective.
            process_id, _ = thread  # in the event of a kernel, the process id is the device
            times.compute[process_id.encode()].add(start_us, end_us)
        else:
            yield TraceEvent(category, name, *thread, start_us, end_us, args)

    def _check_times(self) -> None:
        times = self.times
        if len(times.compute) + len(times.backward) + len(times.threads) > MAX_THREADS:
            raise self.source.error(f"has kernels of more than {MAX_THREADS:,} devices and threads, not of one rank")
        if times.count > MAX_TIMES:
            raise self.source.error(f"contains more than {MAX_TIMES:,} kernels and kernel launches; record fewer steps")

    def _read_end(self, tail: bytes, start: int = 0) -> None:
        """Check that the event list is closed, and add the keys after the list to ``envelope``. ``tail`` is the end of
        the file. ``start`` is a position in it, inside of the event list or of its last event."""
        is_cut_off = self.source.error("is cut off: its list of events does not end; copy it again")
        depth = 0  # relative to the start
        ends: dict[int, int] = {}  # the end of the first bracket that closes down to each depth
        for token in _BRACKET.finditer(tail, start):
            if token[1] is not None:
                depth += 1
            elif token[2] is not None:
                depth -= 1
                ends.setdefault(depth, token.end())
            if abs(depth) > 2 * MAX_DEPTH:
                raise is_cut_off
        end = ends.get(depth + 1, 0) if depth < 0 else 0
        if tail[max(end - 1, 0) : end] != b"]":
            raise is_cut_off
        # An empty key makes the rest, such as ', "key": 1}', a complete JSON object.
        self.envelope.update(self._parse_object(b'{"":0' + tail[end:], "the part after its events"))

    def _parse_object(self, text: bytes, part: str) -> dict[str, Any]:
        try:
            json_text = _SURROGATE.sub(r"\\ufffd", text.decode("utf-8", "replace"))
            check_depth(json_text)
            document = json.loads(json_text, object_pairs_hook=_refuse_repeats)
        except ValueError as error:
            raise self.source.error(f"{part} is cut off or is not JSON ({error}); copy it again") from error
        return document if isinstance(document, dict) else {}


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs) and any(document[key] != value for key, value in pairs):
        raise ValueError("a key is given twice, with different values")
    return document


def _is_wanted(category: str, name: str, args: dict[str, Any]) -> bool:
    if category in KERNEL_CATEGORIES or category in _RANGE_CATEGORIES:
        return True
    if category in _LAUNCH_CATEGORIES:
        return "Launch" in name and parse_count(args.get("correlation")) is not None
    return category in _OPERATOR_CATEGORIES and name.startswith(_OPERATOR_PREFIXES)


def _decode_name(text: bytes) -> str:
    return text.strip(b'"').decode("utf-8", "replace")
