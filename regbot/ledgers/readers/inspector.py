"""NCCL Inspector JSON lines: one line for each collective or transfer that one process completed.

Built from the published format (NCCL 2.28 to 2.30, ``plugins/profiler/inspector``, output v4.0 to v4.2); no log of a
real job was at hand. A line has the communicator (``header``), the writer (``metadata``) and one of ``coll_perf``,
``p2p_perf``, ``dump_stats``. There are no steps and no element types. Message sizes are those of one rank's piece: NCCL
multiplies them by the ranks for all-gather and reduce-scatter, and so does this reader; all-to-all by its counts per
peer likewise.

The Inspector leaves things out: messages below 8192 bytes by default, which is every exchange of token counts; calls
that were overwritten in its ring (``dump_stats``, gaps in the sequence numbers, which count each function of each
communicator); calls without GPU timing; and all-to-alls, which NCCL runs as sends and receives and logs as such.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from regbot.ledgers.readers.kineto_calls import role
from regbot.ledgers.readers.kineto_groups import axis_of
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import MAX_VOLUME, UNKNOWN, Call, entries
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Kind, Ledger, Unclassified
from regbot.text import printable

NAME = "nccl-inspector"
TITLE = "NCCL Inspector JSON lines"

SMALLEST = 8192
"""Default of NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES."""
MAX_LINE_BYTES = 2**20
MAX_CALLS = 5_000_000

_KINDS: dict[str, Kind] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send_recv",
    "recv": "send_recv",
    "sendrecv": "send_recv",
}
_BY_RANKS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
_BEGIN = re.compile(rb'\s*\{\s*"header"\s*:\s*\{')

Line = Mapping[str, Any]


def recognises(head: bytes) -> bool:
    return _BEGIN.match(head) is not None and b'"metadata"' in head


def read(source: Source) -> Ledger:
    """The ledger of the log in ``source``. Raises ReadError."""
    found = _Found(source)
    for number, text in enumerate(_lines(source), 1):
        if text.strip():
            found.add(number, _line(source, number, text))
    if not found.calls and not found.unclassified:
        raise source.error(
            "holds no collective between several ranks; were all of them below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES?"
        )
    return Ledger(
        source="nccl-inspector",
        scope="whole",
        steps=1,
        world_size=None,
        entries=entries(source, found.calls, 0),
        unclassified=[Unclassified(name=name, count=count) for name, count in sorted(found.unclassified.items())],
        warnings=[*found.doubts()],
    )


def _lines(source: Source) -> Iterator[bytes]:
    rest = b""
    for chunk in source.chunks():
        first, *more = chunk.split(b"\n")
        rest += first
        if len(rest) > MAX_LINE_BYTES:
            raise source.error(f"holds a line of more than {MAX_LINE_BYTES:,} bytes; it is no NCCL Inspector log")
        if more:
            yield rest
            yield from more[:-1]
            rest = more[-1]
    yield rest


def _line(source: Source, number: int, text: bytes) -> Line:
    try:
        line = parse_json(text, f"line {number}")
    except RecordError as error:
        raise source.error(f"{error}; was the log cut off? Copy it again, or remove the line") from error
    if not isinstance(line, dict) or not isinstance(line.get("header"), dict):
        raise source.error(f"line {number} has no header; it is no NCCL Inspector log")
    return line


class _Found:
    """What the lines of one process say."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.calls: list[Call] = []
        self.unclassified: dict[str, int] = {}
        self._writer = ""
        self._ranks: dict[str, int] = {}
        self._axes: dict[str, str] = {}
        self._numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._dropped: dict[str, int] = {}
        self._repeated = 0
        self._smallest = MAX_VOLUME
        self._timed_by_cpu = False

    def add(self, number: int, line: Line) -> None:
        """One line of the log."""
        header = line["header"]
        communicator = printable(str(header.get("id")))[:100]
        rank, size = _whole(header.get("rank")), _whole(header.get("n_ranks"))
        if rank is None or not size or size > 2**24:
            raise self._error(number, "has no rank or no n_ranks")
        self._one_process(number, line, communicator, rank)
        stats, transfer, collective = (line.get(key) for key in ("dump_stats", "p2p_perf", "coll_perf"))
        if isinstance(stats, dict):
            lost = sum(_whole(stats.get(key)) or 0 for key in ("coll_dropped_total", "p2p_dropped_total"))
            self._dropped[communicator] = max(self._dropped.get(communicator, 0), min(lost, MAX_VOLUME))
        for prefix, record in (("coll", collective), ("p2p", transfer)):
            if isinstance(record, dict):
                self._call(number, prefix, record, communicator, header, size)

    def _one_process(self, number: int, line: Line, communicator: str, rank: int) -> None:
        metadata = line.get("metadata")
        if isinstance(metadata, dict):
            writer = f"{metadata.get('hostname')} process {metadata.get('pid')}"
            self._writer = self._writer or writer
            if writer != self._writer:
                raise self._error(number, "comes from another process than the lines before; give one process's log")
        if self._ranks.setdefault(communicator, rank) != rank:
            raise self._error(number, "is of another rank of the same communicator; give the log of one rank")

    def _call(self, number: int, prefix: str, record: Line, communicator: str, header: Line, size: int) -> None:
        name, sequence = record.get(prefix), _whole(record.get(f"{prefix}_sn"))
        message = _whole(record.get(f"{prefix}_msg_size_bytes"))
        if not isinstance(name, str) or sequence is None or message is None:
            raise self._error(number, f"has no {prefix}, {prefix}_sn or {prefix}_msg_size_bytes")
        if prefix == "coll":
            seen = self._numbers[communicator, name[:100]]
            if sequence in seen:
                self._repeated += 1
                return
            seen.add(sequence)
        if len(self.calls) >= MAX_CALLS:
            raise self._source.error(f"holds more than {MAX_CALLS:,} calls; record fewer steps")
        kind = _KINDS.get(name.lower().removeprefix("nccl").replace("_", ""))
        if kind is None:
            if len(self.unclassified) < 1000:
                key = printable(name)[:500]
                self.unclassified[key] = self.unclassified.get(key, 0) + 1
            return
        self._timed_by_cpu |= str(record.get(f"{prefix}_timing_source", "")).endswith("_cpu")
        self._smallest = min(self._smallest, message)
        if size == 1:
            return
        moved = message * size if kind in _BY_RANKS else message
        axis = self._axis(communicator, str(header.get("comm_name", "")), size)
        self.calls.append(
            Call(kind, axis, size, UNKNOWN, "unknown", role(kind, UNKNOWN, moved), "nccl", min(moved, MAX_VOLUME))
        )

    def _axis(self, communicator: str, name: str, size: int) -> str:
        """The name that the program gave the communicator, else its place among those of its size: their numbers are
        drawn anew in each run."""
        if communicator not in self._axes:
            named = axis_of(printable(name)) if name != "unknown" else ""
            before = sum(axis.startswith(f"communicator of {size} ranks") for axis in self._axes.values())
            self._axes[communicator] = named or f"communicator of {size} ranks, no. {before + 1}"
        return self._axes[communicator]

    def doubts(self) -> Iterator[str]:
        """What the log leaves out."""
        yield (
            "read as published for NCCL 2.28 to 2.30, not yet checked against a real log; element types are unknown, "
            "and control is not told from payload"
        )
        if self._smallest >= SMALLEST:
            yield (
                f"the smallest message has {self._smallest:,} bytes: the Inspector leaves out those below "
                "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192 by default), so exchanges of token counts may be missing"
            )
        skipped = sum(max(seen) - min(seen) + 1 - len(seen) for seen in self._numbers.values())
        if skipped:
            yield (
                f"{skipped:,} collectives are missing by their sequence numbers (left out as small, overwritten, or "
                "without GPU timing); counts are too low"
            )
        if dropped := sum(self._dropped.values()):
            yield (
                f"the Inspector's ring lost {dropped:,} calls; raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and "
                "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE or dump more often"
            )
        if any(call.kind == "send_recv" for call in self.calls):
            yield "NCCL runs all-to-alls as sends and receives, and the log does not say which: they are send_recv here"
        if self._repeated:
            yield f"{self._repeated:,} lines repeat a collective that was logged before; each is counted once"
        if self._timed_by_cpu:
            yield "some calls were timed by the CPU; the log has no seconds that could be compared"
        if self.unclassified:
            names = ", ".join(repr(name[:80]) for name in sorted(self.unclassified)[:3])
            yield f"{sum(self.unclassified.values()):,} calls of unknown kind are in no count: {names}"

    def _error(self, number: int, what: str) -> Exception:
        return self._source.error(f"line {number} {what}")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
