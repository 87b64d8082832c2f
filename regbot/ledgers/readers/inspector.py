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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.readers.kineto_calls import role
from regbot.ledgers.readers.kineto_groups import axis_of
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import MAX_VOLUME, STEPS_UNKNOWN, UNKNOWN, Call, Numbers, Tally, Unknowns, whole
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Kind, Ledger
from regbot.text import printable

NAME = "nccl-inspector"
TITLE = "NCCL Inspector JSON lines"

SMALLEST = 8192
"""Default of NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES."""
MAX_LINE_BYTES = 2**20
MAX_COMMUNICATORS = 10_000

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
    if not found.tally and not found.unknown:
        raise source.error(
            "holds no collective between several ranks; were all of them below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES?"
        )
    return Ledger(
        source="nccl-inspector",
        scope="whole",
        steps=1,
        world_size=None,
        rank=found.place.rank,
        entries=found.tally.entries(0),
        unclassified=found.unknown.records(),
        guesses=[STEPS_UNKNOWN, *found.guesses()],
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


class _Place(NamedTuple):
    """The rank of the process in a communicator of ``size`` ranks."""

    rank: int
    size: int


class _Found:
    """What the lines of one process say, added up line by line."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.tally = Tally(source)
        self.unknown = Unknowns()
        self._writer = ""
        self._places: dict[str, _Place] = {}
        self._axes: dict[str, str] = {}
        self._unnamed: Counter[int] = Counter()
        self._numbers: dict[tuple[str, str], Numbers] = defaultdict(Numbers)
        self._dropped: dict[str, int] = {}
        self._repeated = 0
        self._smallest = MAX_VOLUME
        self._timed_by_cpu = self._transfers = False

    @property
    def place(self) -> _Place:
        """The place in the largest communicator, the first of equal ones: in that of all ranks it is the job's rank."""
        return max(self._places.values(), key=lambda place: place.size, default=_Place(0, 0))

    def add(self, number: int, line: Line) -> None:
        """One line of the log."""
        header = line["header"]
        communicator = printable(str(header.get("id")))[:100]
        rank, size = whole(header.get("rank")), whole(header.get("n_ranks"))
        if rank is None or not size or size > 2**24:
            raise self._error(number, "has no rank or no n_ranks")
        self._one_process(number, line, communicator, _Place(rank, size))
        stats, transfer, collective = (line.get(key) for key in ("dump_stats", "p2p_perf", "coll_perf"))
        if isinstance(stats, dict):
            lost = sum(whole(stats.get(key)) or 0 for key in ("coll_dropped_total", "p2p_dropped_total"))
            self._dropped[communicator] = max(self._dropped.get(communicator, 0), min(lost, MAX_VOLUME))
        for prefix, record in (("coll", collective), ("p2p", transfer)):
            if isinstance(record, dict):
                self._call(number, prefix, record, communicator, header, size)

    def _one_process(self, number: int, line: Line, communicator: str, place: _Place) -> None:
        metadata = line.get("metadata")
        if isinstance(metadata, dict):
            writer = f"{metadata.get('hostname')} process {metadata.get('pid')}"
            self._writer = self._writer or writer
            if writer != self._writer:
                raise self._error(number, "comes from another process than the lines before; give one process's log")
        if self._places.setdefault(communicator, place).rank != place.rank:
            raise self._error(number, "is of another rank of the same communicator; give the log of one rank")
        if len(self._places) > MAX_COMMUNICATORS:
            raise self._error(number, f"is of more than {MAX_COMMUNICATORS:,} communicators; give one process's log")

    def _call(self, number: int, prefix: str, record: Line, communicator: str, header: Line, size: int) -> None:
        name, sequence = record.get(prefix), whole(record.get(f"{prefix}_sn"))
        message = whole(record.get(f"{prefix}_msg_size_bytes"))
        if not isinstance(name, str) or sequence is None or message is None:
            raise self._error(number, f"has no {prefix}, {prefix}_sn or {prefix}_msg_size_bytes")
        word = name.lower().removeprefix("nccl").replace("_", "")
        kind = _KINDS.get(word)
        if kind is None:
            self.unknown.add(name)
            return
        if prefix == "coll" and not self._numbers[communicator, word].add(sequence):
            self._repeated += 1
            return
        self._timed_by_cpu |= str(record.get(f"{prefix}_timing_source", "")).endswith("_cpu")
        self._smallest = min(self._smallest, message)
        if size == 1:
            return
        self._transfers |= kind == "send_recv"
        moved = min(message * size if kind in _BY_RANKS else message, MAX_VOLUME)
        axis = self._axis(communicator, str(header.get("comm_name", "")), size)
        self.tally.add(Call(kind, axis, size, UNKNOWN, "unknown", role(kind, UNKNOWN, moved), "nccl", moved))

    def _axis(self, communicator: str, name: str, size: int) -> str:
        """The name that the program gave the communicator, else its place among those of its size: their numbers are
        drawn anew in each run."""
        if communicator not in self._axes:
            axis = axis_of(printable(name)) if name != "unknown" else ""
            if not axis:
                self._unnamed[size] += 1
                axis = f"communicator of {size} ranks, no. {self._unnamed[size]}"
            self._axes[communicator] = axis
        return self._axes[communicator]

    def guesses(self) -> Iterator[str]:
        """What the log lost."""
        if skipped := sum(seen.missing for seen in self._numbers.values()):
            yield (
                f"{skipped:,} collectives are missing by their sequence numbers (left out as small, overwritten, or "
                "without GPU timing); counts are too low"
            )
        if dropped := sum(self._dropped.values()):
            yield (
                f"the ring lost {dropped:,} calls; raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and "
                "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE or dump more often"
            )

    def doubts(self) -> Iterator[str]:
        """What the log leaves out."""
        yield (
            "read as published for NCCL 2.28 to 2.30, not yet checked against a real log; element types are unknown, "
            "and control is not told from payload"
        )
        yield f"rank {self.place.rank} is that in the largest communicator, of {self.place.size} ranks"
        if self._smallest >= SMALLEST:
            yield (
                f"the smallest message has {self._smallest:,} bytes: the Inspector leaves out those below "
                "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192 by default), so exchanges of token counts may be missing"
            )
        if self._transfers:
            yield "NCCL runs all-to-alls as sends and receives, and the log does not say which: they are send_recv here"
        if self._repeated:
            yield f"{self._repeated:,} lines repeat a collective that was logged before; each is counted once"
        if self._timed_by_cpu:
            yield "some calls were timed by the CPU; the log has no seconds that could be compared"
        yield from self.unknown.doubts()

    def _error(self, number: int, what: str) -> Exception:
        return self._source.error(f"line {number} {what}")
