"""The few events of a Kineto trace that can matter, read from a file of any size.

A trace is one JSON object with hundreds of thousands of events, nearly all of which say nothing about communication.
Where a file is written as Kineto writes it, the events of interest are found in its bytes and only those are decoded;
of kernels, launches and backward ranges only the times are taken. Any other file is decoded event by event, which is
exact and several times slower. Memory is bounded by a chunk, one event, and the times.
"""

import codecs
import json
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regbot.ledgers.readers.kernels import classify
from regbot.ledgers.readers.kineto_layout import Layout, candidates, learn
from regbot.ledgers.readers.source import Source

MAX_EVENT_BYTES = 8 * 2**20
CHUNK_BYTES = 2**18
MAX_TIMES = 8_000_000
"""Kernels, launches and backward ranges of one file, 16 to 20 bytes each."""
MAX_NAMES = 2**16
MAX_ENVELOPE_BYTES = 4 * 2**20
"""Of what stands before and after the list of events; a trace of 1024 ranks lists every group there, about 1 MiB."""


class Event(NamedTuple):
    """One complete event that has to be read."""

    category: str
    name: str
    pid: str
    tid: str
    start_us: float
    end_us: float
    args: dict[str, Any]


Thread = tuple[str, str]
"""Process and thread of the host."""


@dataclass
class Spans:
    """Intervals, many."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, start_us: float, end_us: float) -> None:
        self.starts.append(start_us)
        self.ends.append(end_us)


@dataclass
class Times:
    """What a trace holds many of, and of which only times matter."""

    compute: dict[bytes, Spans] = field(default_factory=lambda: defaultdict(Spans))
    """Kernels that communicate with nobody, by device."""
    backward: dict[Thread, Spans] = field(default_factory=lambda: defaultdict(Spans))
    launches: "array[int]" = field(default_factory=lambda: array("q"))
    """Correlation of every kernel launch; host time and place of its thread in ``threads`` beside it."""
    launched_us: "array[float]" = field(default_factory=lambda: array("d"))
    launch_threads: "array[int]" = field(default_factory=lambda: array("i"))
    threads: dict[Thread, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.launches) + sum(
            len(spans.starts) for spans in (*self.compute.values(), *self.backward.values())
        )

    def launch(self, correlation: int, at_us: float, thread: Thread) -> None:
        self.launches.append(correlation)
        self.launched_us.append(at_us)
        self.launch_threads.append(self.threads.setdefault(thread, len(self.threads)))


KERNEL = ("kernel", "Kernel")
_LAUNCH = ("cuda_runtime", "cuda_driver", "Runtime")
_RANGE = ("user_annotation",)
_OPERATOR = ("cpu_op", "Operator")
METADATA = "record_param_comms"
_BACKWARD = "autograd::engine::evaluate_function"
_OPERATORS = (METADATA, "nccl:", "c10d::", "symm_mem::", _BACKWARD)

_KERNEL_BYTES, _LAUNCH_BYTES, _RANGE_BYTES, _OPERATORS_BYTES = (
    tuple(name.encode() for name in names) for names in (KERNEL, _LAUNCH, _RANGE, _OPERATORS)
)
_BACKWARD_BYTES = _BACKWARD.encode()

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d{1,18})\b')
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
for _ in range(2):  # args are flat; two levels more are allowed
    _OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _OBJECT + rb")*+\}"
_WHOLE = re.compile(_OBJECT, re.DOTALL)
_CLOSING = re.compile(rb"(?:\A|\})\s*\]")
_SPACE = re.compile(r"[\s,]*")


class Trace:
    """The events of a file, to be read once. ``envelope``: what stands around them. Both it and ``times`` are complete
    once ``events`` is exhausted."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.envelope: dict[str, Any] = {}
        self.times = Times()
        self._computes: dict[bytes, bool] = {}
        self._threads: dict[tuple[bytes, bytes], Thread] = {}
        self._layout: Layout | None = None

    def events(self, ordered: bool) -> Iterator[Event]:
        """The events that have to be read, ``times`` being filled meanwhile. ``ordered``: trust Kineto's order of keys.

        Raises ReadError, and OtherLayout where ``ordered`` and the file does not keep it.
        """
        chunks = self._list(self.source.chunks(CHUNK_BYTES))
        return self._ordered(chunks) if ordered else self._decoded(chunks)

    def _list(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """What stands after the bracket that opens the list of events; what stands before it becomes envelope."""
        head = b""
        for chunk in chunks:
            head += chunk
            found = _LIST.search(head)
            if found is None and head.lstrip()[:1] == b"[":  # the bare list of events is a trace too
                yield head[head.index(b"[") + 1 :]
                yield from chunks
                return
            if found is not None:
                self.envelope.update(self._object(head[: found.start()] + b'"":0}', "what stands before its events"))
                yield head[found.end() :]
                yield from chunks
                return
            if len(head) > MAX_ENVELOPE_BYTES:
                break
        raise self.source.error("is no Kineto trace: it has no list 'traceEvents'")

    def _ordered(self, chunks: Iterator[bytes]) -> Iterator[Event]:
        rest = b""
        for chunk in chunks:
            buffer = rest + chunk
            last = max(buffer.rfind(b"{", 0, max(buffer.rfind(b'"ph"'), 0)), 0)  # an event that may go on
            rest = buffer[last:]
            if len(rest) > MAX_EVENT_BYTES:
                raise self.source.error(f"holds an event, or an end, of more than {MAX_EVENT_BYTES:,} bytes")
            yield from self._found(buffer[:last])
            self._check_times()
        yield from self._found(rest)
        self._close(rest)

    def _found(self, region: bytes) -> Iterator[Event]:
        """Events that lie wholly in ``region``. Kernels that compute, launches and backward go to ``times``."""
        if self._layout is None:
            self._layout = learn(region)
            if self._layout is None:
                return
        computes, threads, header = self._computes, self._threads, self._layout.header.match
        launch, compute, backward = self.times.launch, self.times.compute, self.times.backward
        for at, end in candidates(region, self._layout):
            found = header(region, at)
            if found is None:
                yield from self._event(self._whole(region, at))
                continue
            category, name, pid, tid, ts, dur = found.groups()
            if category in _KERNEL_BYTES:
                plain = computes.get(name) or self._is_compute(name)
                if plain and region.find(b'"Collective name"', found.end(), end) < 0:
                    start = float(ts)
                    compute[pid].add(start, start + float(dur))
                else:
                    yield from self._event(self._whole(region, at))
            elif category in _LAUNCH_BYTES:
                if b"Launch" in name and (correlation := _CORRELATION.search(region, found.end(), end)):
                    launch(int(correlation[1]), float(ts), threads.get((pid, tid)) or self._thread(pid, tid))
            elif name.startswith(_BACKWARD_BYTES):
                start = float(ts)
                backward[threads.get((pid, tid)) or self._thread(pid, tid)].add(start, start + float(dur))
            elif category in _RANGE_BYTES or name.startswith(_OPERATORS_BYTES):
                yield from self._event(self._whole(region, at))

    def _is_compute(self, name: bytes) -> bool:
        """Whether a kernel of this name communicates with nobody; remembered where so."""
        compute = classify(name.decode("utf-8", "replace")) is None
        if compute and len(self._computes) < MAX_NAMES:
            self._computes[name] = True
        return compute

    def _thread(self, pid: bytes, tid: bytes) -> Thread:
        return self._threads.setdefault((pid, tid), (_word(pid), _word(tid)))

    def _whole(self, region: bytes, at: int) -> dict[str, Any]:
        """The event whose category stands at ``at``, decoded."""
        assert self._layout is not None
        found = _WHOLE.match(region, at - len(self._layout.start))
        if found is None:
            raise self.source.error("ends in the middle of an event, or holds one that is not JSON; copy it again")
        return self._object(found[0], "an event")

    def _decoded(self, chunks: Iterator[bytes]) -> Iterator[Event]:
        """Every event decoded, whatever the order of its keys."""
        decoder = json.JSONDecoder(object_pairs_hook=_unique)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        text, at = "", 0
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] == "]":
                break
            try:
                if at == len(text):
                    raise ValueError
                document, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                chunk = next(chunks, None)
                if chunk is None or len(text) - at > MAX_EVENT_BYTES or isinstance(error, (RecursionError, Repeated)):
                    raise self._broken("an event", error) from error
                text, at = text[at:] + decode(chunk), 0
                self._check_times()
                continue
            if isinstance(document, dict):
                yield from self._event(document)
        tail = text[at:]
        for chunk in chunks:
            tail += decode(chunk)
            if len(tail) > MAX_ENVELOPE_BYTES:
                raise self.source.error(f"goes on for more than {MAX_ENVELOPE_BYTES:,} bytes after its events")
        self._close(tail.encode())

    def _event(self, document: dict[str, Any]) -> Iterator[Event]:
        """``document`` as an event that has to be read; nothing where only its times matter, or nothing of it."""
        category, name = document.get("cat"), document.get("name")
        if document.get("ph") != "X" or not isinstance(category, str) or not isinstance(name, str):
            return
        args = document.get("args")
        args = args if isinstance(args, dict) else {}
        if not _wanted(category, name, args):
            return
        start, duration = document.get("ts"), document.get("dur", 0)
        for key, value in (("ts", start), ("dur", duration)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
                raise self.source.error(f"the event {name[:100]!r} has no usable {key!r}: {repr(value)[:40]}")
        assert start is not None
        if duration < 0:
            raise self.source.error(f"the event {name[:100]!r} ends before it begins")
        name, args = _clean(name), _clean(args)
        begin, end = float(start), float(start) + float(duration)
        thread = (_clean(str(document.get("pid"))), _clean(str(document.get("tid"))))
        times = self.times
        if category in _LAUNCH:
            times.launch(number(args["correlation"]) or 0, begin, thread)
        elif name.startswith(_BACKWARD):
            times.backward[thread].add(begin, end)
        elif category in KERNEL and classify(name) is None and "Collective name" not in args:
            times.compute[thread[0].encode()].add(begin, end)
        else:
            yield Event(category, name, *thread, begin, end, args)

    def _check_times(self) -> None:
        if self.times.count > MAX_TIMES:
            raise self.source.error(f"holds more than {MAX_TIMES:,} kernels and launches; record fewer steps")

    def _close(self, tail: bytes) -> None:
        """The end of the file, from somewhere in its events on: they must be closed, what follows is envelope."""
        found = None
        for match in _CLOSING.finditer(tail, max(tail.rfind(b'"ph"'), 0)):
            after = tail[match.end() :]
            if not after.strip() and not self.envelope:
                return
            try:
                found = json.loads((b'{"":0' + after).decode("utf-8", "replace"), object_pairs_hook=_unique)
                break
            except (ValueError, RecursionError):
                continue
        if found is None:
            raise self.source.error("is cut off: its list of events does not end; copy it again")
        self.envelope.update(found)

    def _object(self, text: bytes, what: str) -> dict[str, Any]:
        try:
            found = json.loads(text.decode("utf-8", "replace"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._broken(what, error) from error
        return found if isinstance(found, dict) else {}

    def _broken(self, what: str, error: Exception) -> Exception:
        if isinstance(error, Repeated):
            return self.source.error(
                f"{what} gives {error} twice, with two values; the trace was not written by Kineto"
            )
        detail = f" ({error})" if str(error) else ""
        return self.source.error(f"{what} is cut off or is not JSON{detail}; copy it again")


class Repeated(ValueError):
    """One key with two values."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen and seen[key] != value:
                raise Repeated(repr(key[:100]))
            seen[key] = value
    return found


def _wanted(category: str, name: str, args: dict[str, Any]) -> bool:
    if category in KERNEL or category in _RANGE:
        return True
    if category in _LAUNCH:
        return "Launch" in name and number(args.get("correlation")) is not None
    return category in _OPERATOR and name.startswith(_OPERATORS)


def _clean(value: Any) -> Any:
    """``value`` without halves of surrogate pairs, which JSON can spell and nothing can write out again."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


def _word(text: bytes) -> str:
    return text.strip(b'"').decode("utf-8", "replace")


def number(value: object) -> int | None:
    """A whole number of at least 0 as traces give it, None where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
