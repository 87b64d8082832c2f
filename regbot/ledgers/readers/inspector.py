"""Reader of NCCL Inspector JSON lines: one line per collective or transfer that one process completed.

The reader was written from the published format (``plugins/profiler/inspector`` of NCCL, output v4.0 to v4.3). A line
has ``coll_perf``, ``p2p_perf``, ``dump_stats`` or ``proxy_trace``, which is no call. Up to v4.2, each line also has the
communicator (``header``) and the process that wrote it (``metadata``). From v4.3 on, only ``dump_stats`` has them, and
says how many lines after it are of the same communicator. There are neither steps nor element types. Sequence numbers
count the calls of one function on one communicator. The log leaves out:

- messages below 8192 bytes by default, which includes every exchange of token counts,
- calls that were overwritten in its ring buffer (``dump_stats`` and gaps in the sequence numbers show how many),
- calls without GPU timing,
- all-to-alls that NCCL runs as sends and receives; the log has these sends and receives instead."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.collectives import SCALED_BY_RANKS, classify_role, find_kind, normalize_name
from regbot.ledgers.readers.groups import UNKNOWN, parse_axis
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import (
    MAX_VOLUME,
    STEPS_UNKNOWN,
    CallTally,
    EntryKey,
    SequenceNumbers,
    Unclassified,
    parse_count,
)
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Ledger
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

NAME = "nccl-inspector"
TITLE = "NCCL Inspector JSON lines"

DEFAULT_MIN_BYTES = 8192
"""Default value of the environment variable NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES."""
MAX_LINE_BYTES = 2**20
MAX_RANKS = 2**24
"""A line with a larger number of ranks is refused."""
BARE_LINES = frozenset(("coll_perf", "p2p_perf", "proxy_trace"))
"""Keys of lines that need no header of their own."""
_LINE_START = re.compile(rb'\s*\{\s*"header"\s*:\s*\{')

LogLine = Mapping[str, Any]
"""One line of the log, as parsed from JSON."""


def recognises(head: bytes) -> bool:
    return _LINE_START.match(head) is not None and b'"metadata"' in head


def read(source: Source) -> Ledger:
    """Return the ledger of the log in ``source``. Raises ReadError."""
    contents = _LogContents(source)
    for number, text in enumerate(_read_lines(source), 1):
        if text.strip():
            contents.add(number, text)
    if not contents.tally and not contents.unclassified:
        raise source.error(
            "contains no collective between several ranks; if all messages are small, lower "
            "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES"
        )
    return Ledger(
        source="nccl-inspector",
        scope="whole",
        steps=1,
        world_size=None,
        rank=contents.membership.rank,
        entries=contents.tally.entries(),
        unclassified=contents.unclassified.records(),
        guesses=[STEPS_UNKNOWN, *contents.guesses()],
        warnings=[*contents.warnings()],
    )


def _read_lines(source: Source) -> Iterator[bytes]:
    line_start = b""  # the line that continues in the next chunk
    for chunk in source.chunks():
        first, *further_lines = chunk.split(b"\n")
        line_start += first
        if len(line_start) > MAX_LINE_BYTES:
            raise source.error(f"has a line of more than {MAX_LINE_BYTES:,} bytes; it is not an NCCL Inspector log")
        if further_lines:
            yield line_start
            yield from further_lines[:-1]
            line_start = further_lines[-1]
    yield line_start


class _Membership(NamedTuple):
    """Rank of the logging process in a communicator, and the number of ranks in this communicator."""

    rank: int
    size: int


class _LogContents:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.tally = CallTally(source)
        self.unclassified = Unclassified()
        self._writer = ""
        """Host and process that wrote the log; '' before the first line that names them."""
        self._memberships: dict[str, _Membership] = {}
        """By the communicator's id, as ``_axes``."""
        self._axes: dict[str, str] = {}
        self._unnamed_by_size: Counter[int] = Counter()
        self._sequences: dict[tuple[str, str], SequenceNumbers] = defaultdict(SequenceNumbers)
        self._dropped: dict[str, int] = {}
        self._communicator = self._communicator_name = ""
        """Those of the last header."""
        self._announced = self._absent = 0
        """Lines without a header that the last ``dump_stats`` announced and that are still to come, and all lines that
        an earlier one announced in vain."""
        self._has_bare_lines = False
        self._smallest_bytes = MAX_VOLUME
        self._has_transfers = False

    @property
    def membership(self) -> _Membership:
        """Rank of the logging process in the largest communicator (the first, if several are equally large). If that is
        the communicator of all ranks, the rank is the rank in the job."""
        return max(self._memberships.values(), key=lambda candidate: candidate.size, default=_Membership(0, 0))

    def add(self, number: int, text: bytes) -> None:
        try:
            line = parse_json(text, f"line {number}")
        except RecordError as error:
            raise self._source.error(f"{error}; was the log cut off? Copy it again, or remove the line") from error
        header = line.get("header") if isinstance(line, dict) else None
        if isinstance(header, dict):
            self._add_header(number, header, line)
        elif not isinstance(line, dict) or line.keys().isdisjoint(BARE_LINES):
            raise self._source.error(f"line {number} has no header; it is not an NCCL Inspector log")
        elif not self._announced:
            raise self._source.error(f"line {number} belongs to no dump_stats line before it; give the whole log")
        else:
            self._has_bare_lines = True
            self._announced -= 1
        for prefix in ("coll", "p2p"):
            call = line.get(f"{prefix}_perf")
            if isinstance(call, dict):
                self._add_call(number, prefix, call)

    def _add_header(self, number: int, header: LogLine, line: LogLine) -> None:
        communicator = clip(printable(str(header.get("id"))), 100)
        rank, size = parse_count(header.get("rank")), parse_count(header.get("n_ranks"))
        if rank is None or not size or size > MAX_RANKS:
            raise self._source.error(f"line {number} has no rank or no n_ranks")
        self._check_one_process(number, line, communicator, _Membership(rank, size))
        self._communicator, self._communicator_name = communicator, str(header.get("comm_name", ""))
        stats = line.get("dump_stats")
        if isinstance(stats, dict):

            def add_up(*keys: str) -> int:
                return min(sum(parse_count(stats.get(key)) or 0 for key in keys), MAX_VOLUME)

            dropped = add_up("coll_dropped_total", "p2p_dropped_total")  # running totals, so the largest value counts
            self._dropped[communicator] = max(self._dropped.get(communicator, 0), dropped)
            self._absent += self._announced
            self._announced = add_up("coll_records", "p2p_records", "proxy_records")

    def _check_one_process(self, number: int, line: LogLine, communicator: str, membership: _Membership) -> None:
        metadata = line.get("metadata")
        if isinstance(metadata, dict):
            writer = f"{metadata.get('hostname')} process {metadata.get('pid')}"
            self._writer = self._writer or writer
            if writer != self._writer:
                raise self._source.error(
                    f"line {number} comes from another process than the lines before; give the log of one process"
                )
        if self._memberships.setdefault(communicator, membership).rank != membership.rank:
            raise self._source.error(
                f"line {number} is of another rank of the same communicator; give the log of one rank"
            )

    def _add_call(self, number: int, prefix: str, call: LogLine) -> None:
        """Add one call. ``prefix`` is 'coll' for a collective and 'p2p' for a transfer; the keys of ``call`` begin with
        it."""
        communicator = self._communicator
        name, sequence = call.get(prefix), parse_count(call.get(f"{prefix}_sn"))
        message_bytes = parse_count(call.get(f"{prefix}_msg_size_bytes"))
        if not isinstance(name, str) or sequence is None or message_bytes is None:
            raise self._source.error(f"line {number} has no {prefix}, {prefix}_sn or {prefix}_msg_size_bytes")
        operation = normalize_name(name).removeprefix("nccl")
        kind, size = find_kind(operation), self._memberships[communicator].size
        if kind is None:
            self.unclassified.add(name)
            return
        if prefix == "coll" and not self._sequences[communicator, operation].add(sequence):
            return  # the line repeats a collective that was logged before
        self._smallest_bytes = min(self._smallest_bytes, message_bytes)
        if size == 1:  # one rank exchanges nothing
            return
        self._has_transfers |= kind == "send_recv"
        moved_bytes = min(message_bytes * size if kind in SCALED_BY_RANKS else message_bytes, MAX_VOLUME)
        axis, role = (
            self._find_axis(communicator, self._communicator_name, size),
            classify_role(kind, moved_bytes, UNKNOWN),
        )
        self.tally.add(EntryKey(kind, axis, size, UNKNOWN, "unknown", role, "nccl"), moved_bytes)

    def _find_axis(self, communicator: str, name: str, size: int) -> str:
        """Return the name that the program gave to the communicator. Unnamed communicators with equally many ranks are
        numbered. The communicator's id is not used, because ids differ from run to run."""
        if communicator not in self._axes:
            axis = parse_axis(printable(name)) if name != "unknown" else ""
            if not axis:
                self._unnamed_by_size[size] += 1
                axis = f"communicator of {size} ranks, no. {self._unnamed_by_size[size]}"
            self._axes[communicator] = axis
        return self._axes[communicator]

    def guesses(self) -> Iterator[str]:
        if self._has_bare_lines and (absent := self._absent + self._announced):
            yield f"{absent:,} calls are missing, because the log announces more lines than it has; counts are too low"
        if skipped := sum(numbers.missing for numbers in self._sequences.values()):
            yield (
                f"{skipped:,} collectives are missing, because the sequence numbers have gaps (small messages, "
                "overwritten calls, or calls without GPU timing); counts are too low"
            )
        if dropped := sum(self._dropped.values()):
            yield (
                f"the ring lost {dropped:,} calls; raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and "
                "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE or dump more often"
            )

    def warnings(self) -> Iterator[str]:
        yield (
            "the reader follows the published format and is not yet checked against a real log; "
            "element types are unknown, so control exchanges count as payload"
        )
        yield f"rank {self.membership.rank} is the rank in the largest communicator, of {self.membership.size} ranks"
        if self._smallest_bytes >= DEFAULT_MIN_BYTES:
            yield (
                f"the smallest message has {self._smallest_bytes:,} bytes: the Inspector leaves out those below "
                "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192 by default), so exchanges of token counts may be missing"
            )
        if self._has_transfers:
            yield "NCCL logs all-to-alls as sends and receives; regbot cannot recognise them and counts send_recv"
        yield from self.unclassified.warnings()
