"""Flight Recorder dump as JSON: every collective that torch's process groups enqueued, with shapes and element types.

torch keeps the last N calls in a ring and dumps them as a pickle or as JSON (``FlightRecorderDetail.hpp``, versions 2.1
to 2.10, torch 2.4 to 2.13, read from its source; the JSON of a gloo job of torch 2.13 is the sample at hand). Only JSON
is read: a pickle can run code when it is opened. The dump has no steps, so the ledger covers all of it. It knows
nothing of DeepEP, symmetric memory or replayed CUDA graphs.

The ring forgets: where ``record_id`` does not begin at 0, or ``collective_seq_id`` of a group skips, calls are missing,
and the ledger's guesses say how many.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from regbot.ledgers.dtypes import width
from regbot.ledgers.readers.kineto_calls import role
from regbot.ledgers.readers.kineto_groups import axis_of, compact
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import (
    STEPS_UNKNOWN,
    UNKNOWN,
    Call,
    Numbers,
    Tally,
    Unknowns,
    rank_in_name,
    whole,
)
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Axis, Kind, Ledger, Phase, Via
from regbot.text import printable

NAME = "flight-recorder"
TITLE = "Flight Recorder dump as JSON"

MAX_BYTES = 32 * 2**20
"""A dump has at most some 20,000 calls of a few hundred bytes."""
MAX_ENTRY_BYTES = 2**20
"""Of one call: many times what torch writes."""
MAX_PARTS = 1000
"""Keys of a dump, or ranks in one file: torch writes six."""
MAX_PART_BYTES = 4 * 2**20
"""Of ``pg_config`` and the others: those of ten thousand ranks have less."""
MAX_RANKS = 65536

_KINDS: dict[str, Kind] = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "allgather": "all_gather",
    "allgathersingle": "all_gather",
    "allgatherv": "all_gather",
    "allgatherbase": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescattersingle": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "alltoallvsingle": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send_recv",
    "recv": "send_recv",
    "recvanysource": "send_recv",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
}
"""``profiling_name`` without its backend, underscores and peers."""
_ENDS_A_GROUP = "coalesced"
"""Written once more at the end of a coalesced group, whose members have entries of their own."""
_VIAS: dict[str, Via] = {"nccl": "nccl", "rccl": "nccl", "gloo": "gloo"}
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "byte": "uint8",
    "char": "int8",
}
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\(dp0\n")
_NAME = re.compile(r"([a-z]+):([A-Za-z_]+)(?: ?[0-9].*)?", re.DOTALL)

_SPACE = re.compile(rb"[ \t\r\n]*+")
_EMPTY = re.compile(rb"\{[ \t\r\n]*\}|\[[ \t\r\n]*\]")
_KEY = re.compile(rb'[{,][ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]*+")

Dump = Mapping[str, Any]


def recognises(head: bytes) -> bool:
    if _PICKLE.match(head):
        return True
    keys = (b'"profiling_name"', b'"comm_lib_version"', b'"nccl_comm_state"', b'"pg_status"')
    return head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and any(key in head for key in keys)


def read(source: Source) -> Ledger:
    """The ledger of the dump in ``source``. Raises ReadError."""
    if _PICKLE.match(source.head):
        raise source.error(
            "is a pickle, which is never opened because that can run code; write JSON where the job runs: "
            "torch._C._distributed_c10d._dump_nccl_trace_json(), in gloo jobs _dump_fr_trace_json()"
        )
    dump = _Dump(source)
    groups = _Groups(dump.part("pg_config"))
    found = _Found(source, groups)
    for entry in dump.entries():
        found.add(entry)
    tally, axes = Tally(source), {}
    for call, count, ranks in found.calls():
        tally.add(call, count)
        if ranks:
            axes[call.axis] = Axis(size=len(ranks), ranks=list(ranks))
    if not tally and not found.unknown:
        raise source.error("holds no collective between several ranks; give the dump of a distributed job")
    world, largest = max(map(len, groups.ranks.values()), default=0), max(found.sizes.values(), default=0)
    rank, doubt = _rank(source, dump, groups)
    return Ledger(
        source="flight-recorder",
        scope="whole",
        steps=1,
        world_size=world or None,
        rank=rank,
        axes=axes,
        entries=tally.entries(largest),
        unclassified=found.unknown.records(),
        guesses=[STEPS_UNKNOWN, *found.guesses(largest)],
        warnings=[*doubt, *found.doubts()],
    )


class _Dump:
    """The document, or the one document in a mapping of file names to documents.

    Python's objects are twenty times the size of the JSON behind them, so only the places of its parts are kept and
    one entry at a time is made into objects.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = bytearray()
        for chunk in source.chunks():
            self._data += chunk
            if len(self._data) > MAX_BYTES:
                raise source.error(
                    f"holds more than the {MAX_BYTES:,} bytes that are read of a Flight Recorder dump; dump a shorter "
                    "ring: TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) is the number of calls that it keeps"
                )
        start = self._after_space(0)
        if self._byte(start) in (b"[", b""):
            raise source.error("is no JSON object, so it is no Flight Recorder dump")
        self._parts, end = self._members(start)
        if self._data[end:].strip():
            raise self._broken(f"there is more behind its end, at byte {end:,}")
        if "entries" not in self._parts:
            objects = (at for at, _ in self._parts.values() if self._byte(at) == b"{")
            inner = [parts for parts, _ in map(self._members, objects) if "entries" in parts]
            if len(inner) > 1:
                raise source.error(f"holds the dumps of {len(inner)} ranks; give the dump of one rank")
            self._parts = inner[0] if inner else self._parts

    def part(self, name: str) -> Any:
        """A part other than the entries, None where there is none."""
        start, end = self._parts.get(name, (0, 0))
        if end - start > MAX_PART_BYTES:
            raise self._source.error(f"has a {name} of more than {MAX_PART_BYTES:,} bytes; is it a whole job's?")
        return self._value(name, start, end) if end else None

    def entries(self) -> Iterator[Dump]:
        """The calls, one after the other."""
        at, _ = self._parts.get("entries", (0, 0))
        number = 0
        while self._byte(at) in (b"[", b",") and not _EMPTY.match(self._data, at):
            start = self._after_space(at + 1)
            end = self._end(start)
            number += 1
            if end - start > MAX_ENTRY_BYTES:
                raise self._source.error(f"entry {number:,} has more than {MAX_ENTRY_BYTES:,} bytes; is it a dump?")
            entry = self._value(f"entry {number:,}", start, end)
            if not isinstance(entry, dict):
                raise self._source.error("holds an entry that is no object; it is no Flight Recorder dump")
            yield entry
            at = self._next(end, b"]")
        if not number:
            raise self._source.error(
                "has no entries, so nothing was recorded; set TORCH_FR_BUFFER_SIZE above 0 and dump again"
            )

    def _members(self, at: int) -> tuple[dict[str, tuple[int, int]], int]:
        """Where the values of an object begin and end, by key, and where the object ends."""
        found: dict[str, tuple[int, int]] = {}
        if empty := _EMPTY.match(self._data, at):
            return found, empty.end()
        while True:
            key = _KEY.match(self._data, at)
            if key is None:
                raise self._broken(f"no key where one should be, at byte {at:,}")
            name, end = str(self._value("a key", *key.span(1))), self._end(key.end())
            if name in found:
                raise self._broken(f"the key {name[:80]!r} stands twice in one object")
            found[name] = key.end(), end
            if len(found) > MAX_PARTS:
                raise self._source.error(f"has more than {MAX_PARTS:,} parts; it is no Flight Recorder dump")
            at = self._next(end, b"}")
            if self._byte(at) == b"}":
                return found, at + 1

    def _next(self, end: int, closing: bytes) -> int:
        """Where the comma or the closing bracket behind a value is."""
        at = self._after_space(end)
        if self._byte(at) not in (b",", closing):
            raise self._broken(f"neither comma nor closing bracket at byte {at:,}")
        return at

    def _byte(self, at: int) -> bytes:
        return bytes(self._data[at : at + 1])

    def _after_space(self, at: int) -> int:
        found = _SPACE.match(self._data, at)
        return found.end() if found else at

    def _end(self, start: int) -> int:
        """The end of the value that begins at ``start``; that of the data where it was cut off."""
        if self._byte(start) not in (b'"', b"[", b"{"):
            found = _SCALAR.match(self._data, start)
            return found.end() if found else start
        depth = 0
        for token in _TOKEN.finditer(self._data, start):
            if token[1] is not None:
                depth += 1
            elif token[2] is not None:
                depth -= 1
            if not depth:
                return token.end()
        return len(self._data)

    def _value(self, what: str, start: int, end: int) -> Any:
        try:
            return parse_json(bytes(self._data[start:end]), what)
        except RecordError as error:
            raise self._source.error(f"{error}; dump or copy it again") from error

    def _broken(self, what: str) -> Exception:
        return self._source.error(f"is not valid JSON: {what}; dump or copy it again")


def _rank(source: Source, dump: _Dump, groups: "_Groups") -> tuple[int, list[str]]:
    """The rank that wrote the dump, and what to say of it. Torch's own dumps do not tell, and its tools read the rank
    from the file's name; some carry ``rank``, or the rank in every communicator in ``nccl_comm_state``."""
    told = whole(dump.part("rank"))
    if told is None:
        state = dump.part("nccl_comm_state")
        states = [one for one in state.values() if isinstance(one, dict)] if isinstance(state, dict) else []
        sized = [(_digits(one.get("nRanks")) or 0, _digits(one.get("rank"))) for one in states]
        largest = {rank for size, rank in sized if size == max(size for size, _ in sized)}
        told = largest.pop() if len(largest) == 1 else None
    if told is not None and groups.may_be(told):
        return told, []
    named = rank_in_name(source)
    if named is not None and groups.may_be(named):
        return named, [f"the dump does not tell its rank: rank {named} is the number in the file's name"]
    return 0, ["neither the dump nor the file's name tells the rank: it is taken for rank 0"]


class _Groups:
    """Ranks of the process groups by their names, as far as ``pg_config`` lists them."""

    def __init__(self, config: object) -> None:
        self.ranks: dict[str, tuple[int, ...]] = {}
        self._described: dict[str, str] = {}
        for key, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                name = str(group.get("name", key))
                ranks = _ranks(group.get("ranks"))
                if len(ranks) > 0:
                    self.ranks[name] = ranks
                self._described[name] = str(group.get("desc", ""))

    def of(self, entry: Dump) -> tuple[str, str]:
        """Name and description of the group of an entry."""
        given = entry.get("process_group", entry.get("pg_name"))
        if isinstance(given, list) and len(given) == 2:
            return str(given[0]), str(given[1])
        name = str(given if isinstance(given, str) else entry.get("pg_id", ""))
        return name, self._described.get(name, "")

    def may_be(self, rank: int) -> bool:
        """Whether a rank is in any of the groups, where they list their ranks."""
        return not self.ranks or any(rank in ranks for ranks in self.ranks.values())

    def label(self, name: str, description: str) -> str:
        axis = axis_of(description)
        if axis:
            return axis
        ranks = self.ranks.get(name, ())
        return f"[{compact(ranks)}]" if ranks else f"pg {name}"


class _Volume:
    """Calls that are alike: how many, their bytes, and of how many the bytes are not known."""

    __slots__ = ("bytes", "count", "unsized")

    def __init__(self) -> None:
        self.count = self.bytes = self.unsized = 0


class _Found:
    """What the entries of one dump say."""

    def __init__(self, source: Source, groups: _Groups) -> None:
        self._source, self._groups = source, groups
        self._volumes: dict[tuple[Call, str], _Volume] = defaultdict(_Volume)
        self.sizes: dict[str, int] = {name: len(ranks) for name, ranks in groups.ranks.items()}
        self.unknown = Unknowns()
        self._entries = 0
        self._records = Numbers()
        self._sequences: dict[str, Numbers] = defaultdict(Numbers)
        self._waiting = self._completed = 0

    def add(self, entry: Dump) -> None:
        """One entry of the dump."""
        name = entry.get("profiling_name")
        if not isinstance(name, str):
            raise self._source.error("holds an entry without profiling_name; it is no Flight Recorder dump")
        record, sequence = (whole(entry.get(key)) for key in ("record_id", "collective_seq_id"))
        pg, description = self._groups.of(entry)
        pg, description = pg[:200], description[:200]
        self._entries += 1
        if record is not None:
            self._records.add(record)
        if sequence and entry.get("is_p2p") is not True:
            self._sequences[pg].add(sequence)
        state = entry.get("state")
        self._waiting += state in ("scheduled", "started")
        self._completed += state == "completed"
        parts = _NAME.fullmatch(name)
        word = parts[2].lower().replace("_", "") if parts else ""
        via, kind = _VIAS.get(parts[1] if parts else ""), _KINDS.get(word)
        if word == _ENDS_A_GROUP:
            return
        if via is None or kind is None:
            self.unknown.add(name)
            return
        given, received = (_Tensors.of(entry, side) for side in ("input", "output"))
        if kind in ("all_gather", "reduce_scatter") and pg not in self.sizes:
            small, large = sorted((given.elements, received.elements))
            if small and large % small == 0:
                self.sizes[pg] = large // small
        moved = received if kind in ("all_gather", "scatter") or word.startswith("recv") else given
        dtype, size = ("none", 0) if kind == "barrier" else (moved.dtype, moved.bytes)
        phase: Phase = "backward" if str(entry.get("thread_name", "")).startswith("pt_autograd") else "unknown"
        axis = printable(self._groups.label(pg, description))
        volume = self._volumes[Call(kind, axis, 0, dtype, phase, role(kind, dtype, size), via, None), pg]
        volume.count += 1
        volume.bytes += size or 0
        volume.unsized += size is None

    def calls(self) -> Iterator[tuple[Call, int, tuple[int, ...]]]:
        """The calls between several ranks: how many are alike, and the ranks of their group where they are known."""
        for (call, pg), volume in self._volumes.items():
            size = self.sizes.get(pg, 0)
            if size != 1:
                alike = call._replace(group_size=size, bytes=volume.bytes)
                yield alike, volume.count, self._groups.ranks.get(pg, ())

    def guesses(self, largest: int) -> Iterator[str]:
        """What is missing from the dump, and what had to be taken for granted."""
        if forgotten := self._records.first:
            yield (
                f"the ring lost {forgotten:,} calls before the {self._entries:,} that it kept; the counts are of what "
                "it kept. Set TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) above the calls of the job"
            )
        missing = max(self._records.missing, sum(seen.missing for seen in self._sequences.values()))
        if missing:
            yield (
                f"{missing:,} calls are missing between those that are there: their sequence numbers skip; counts are "
                "too low"
            )
        sizes = {(call, pg): self.sizes.get(pg, 0) for call, pg in self._volumes}
        if unsized := sum(self._volumes[key].unsized for key, size in sizes.items() if size != 1):
            yield f"bytes are unknown, and shown as 0, of {unsized:,} calls: their element types have no known width"
        if unknown := sorted({call.axis for (call, _), size in sizes.items() if not size}):
            size = f"{largest}, that of the largest group" if largest > 1 else "2, as nothing is known"
            yield f"the dump does not tell the size of {', '.join(unknown[:3])}; it is shown as {size}"

    def doubts(self) -> Iterator[str]:
        if self._waiting and self._completed:
            yield f"{self._waiting:,} collectives had not completed when the dump was written; they are counted"
        yield from self.unknown.doubts()


class _Tensors:
    """The tensors on one side of a call."""

    def __init__(self, dtype: str, elements: int, size: int | None) -> None:
        self.dtype, self.elements, self.bytes = dtype, elements, size

    @classmethod
    def of(cls, entry: Dump, side: str) -> "_Tensors":
        shapes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if not isinstance(shapes, list) or not isinstance(types, list):
            return cls(UNKNOWN, 0, None)
        names = [_dtype(name) for name in types] * (len(shapes) if len(types) == 1 else 1)
        counts = [_elements(shape) for shape in shapes]
        elements = sum(count or 0 for count in counts)
        if len(names) != len(counts) or None in counts:
            return cls(UNKNOWN, elements, None)
        widths = [width(name) for name in names]
        known = None not in widths and elements < 2**50
        size = sum((count or 0) * (one or 0) for count, one in zip(counts, widths, strict=True)) if known else None
        dtype = names[0] if len(set(names)) == 1 else ("mixed" if names else "none")
        return cls(dtype, elements, size)


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or len(shape) > 64:
        return None
    sizes = [whole(size) for size in shape]
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def _dtype(name: object) -> str:
    plain = printable(str(name)).lower()
    return _DTYPES.get(plain, plain)[:100]


def _digits(value: object) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else whole(value)


def _ranks(given: object) -> tuple[int, ...]:
    """Ranks of ``"[0, 1, 2]"`` or of a list; none where the text was shortened."""
    if isinstance(given, str):
        if len(given) > 2**20 or not re.fullmatch(r"\[[0-9, ]*\]", given):
            return ()
        given = [int(word) for word in re.findall(r"[0-9]{1,9}", given)]
    if not isinstance(given, list) or len(given) > MAX_RANKS:
        return ()
    ranks = [rank for rank in map(whole, given) if rank is not None]
    return tuple(ranks) if len(ranks) == len(given) else ()
