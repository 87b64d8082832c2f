"""Flight Recorder dump as JSON: every collective that torch's process groups enqueued, with shapes and element types.

torch keeps the last N calls in a ring and dumps them as a pickle or as JSON (``FlightRecorderDetail.hpp``, versions 2.1
to 2.10, torch 2.4 to 2.13, read from its source; the JSON of a gloo job of torch 2.13 is the sample at hand). Only JSON
is read: a pickle can run code when it is opened. The dump has no steps, so the ledger covers all of it. It knows
nothing of DeepEP, symmetric memory or replayed CUDA graphs.

The ring forgets: where ``record_id`` does not begin at 0, or ``collective_seq_id`` of a group skips, calls are missing,
and the ledger says how many.
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
from regbot.ledgers.readers.tally import UNKNOWN, Call, entries
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Axis, Kind, Ledger, Phase, Unclassified, Via
from regbot.text import printable

NAME = "flight-recorder"
TITLE = "Flight Recorder dump as JSON"

MAX_BYTES = 128 * 2**20
"""A dump has at most some 20,000 calls of a few hundred bytes, ten times that where stacks were kept."""
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
    dump = _dump(source)
    recorded = dump.get("entries")
    if not isinstance(recorded, list) or not recorded:
        raise source.error("has no entries, so nothing was recorded; set TORCH_FR_BUFFER_SIZE above 0 and dump again")
    groups = _Groups(dump.get("pg_config"))
    found = _Found(source, groups)
    for entry in recorded:
        if not isinstance(entry, dict):
            raise source.error("holds an entry that is no object; it is no Flight Recorder dump")
        found.add(entry)
    calls = list(found.calls())
    if not calls and not found.unclassified:
        raise source.error("holds no collective between several ranks; give the dump of a distributed job")
    world, largest = max(map(len, groups.ranks.values()), default=0), max(found.sizes.values(), default=0)
    named = {call.axis: ranks for call, ranks in calls if ranks}
    return Ledger(
        source="flight-recorder",
        scope="whole",
        steps=1,
        world_size=world or None,
        axes={axis: Axis(size=len(ranks), ranks=list(ranks)) for axis, ranks in named.items()},
        entries=entries(source, (call for call, _ in calls), largest),
        unclassified=[Unclassified(name=name, count=count) for name, count in sorted(found.unclassified.items())],
        warnings=[*found.doubts([call for call, _ in calls], largest)],
    )


def _dump(source: Source) -> Dump:
    """The document, or the one document in a mapping of file names to documents."""
    try:
        document = parse_json(source.read(MAX_BYTES), source.name)
    except RecordError as error:
        raise source.error(f"{str(error).removeprefix(f'{source.name}: ')}; dump or copy it again") from error
    if not isinstance(document, dict):
        raise source.error("is JSON, but no Flight Recorder dump")
    inner = [value for value in document.values() if isinstance(value, dict) and "entries" in value]
    if "entries" not in document and len(inner) > 1:
        raise source.error(f"holds the dumps of {len(inner)} ranks; give the dump of one rank")
    return inner[0] if "entries" not in document and inner else document


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

    def label(self, name: str, description: str) -> str:
        axis = axis_of(description)
        if axis:
            return axis
        ranks = self.ranks.get(name, ())
        return f"[{compact(ranks)}]" if ranks else f"pg {name}"


class _Found:
    """What the entries of one dump say."""

    def __init__(self, source: Source, groups: _Groups) -> None:
        self._source, self._groups = source, groups
        self._calls: list[tuple[Call, str]] = []
        self.sizes: dict[str, int] = {name: len(ranks) for name, ranks in groups.ranks.items()}
        self._records: list[int] = []
        self._sequences: dict[str, set[int]] = defaultdict(set)
        self._states: dict[str, int] = defaultdict(int)
        self.unclassified: dict[str, int] = {}

    def add(self, entry: Dump) -> None:
        """One entry of the dump."""
        name = entry.get("profiling_name")
        if not isinstance(name, str):
            raise self._source.error("holds an entry without profiling_name; it is no Flight Recorder dump")
        record, sequence = (_whole(entry.get(key)) for key in ("record_id", "collective_seq_id"))
        pg, description = self._groups.of(entry)
        pg, description = pg[:200], description[:200]
        if record is not None:
            self._records.append(record)
        if sequence and entry.get("is_p2p") is not True:
            self._sequences[pg].add(sequence)
        self._states[str(entry.get("state"))] += 1
        parts = _NAME.fullmatch(name)
        word = parts[2].lower().replace("_", "") if parts else ""
        via, kind = _VIAS.get(parts[1] if parts else ""), _KINDS.get(word)
        if word == _ENDS_A_GROUP:
            return
        if via is None or kind is None:
            if len(self.unclassified) < 1000:
                key = printable(name)[:500]
                self.unclassified[key] = self.unclassified.get(key, 0) + 1
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
        self._calls.append((Call(kind, axis, 0, dtype, phase, role(kind, dtype, size), via, size), pg))

    def calls(self) -> Iterator[tuple[Call, tuple[int, ...]]]:
        """The calls between several ranks, each with the ranks of its group where they are known."""
        for call, pg in self._calls:
            size = self.sizes.get(pg, 0)
            if size != 1:
                yield call._replace(group_size=size), self._groups.ranks.get(pg, ())

    def doubts(self, calls: list[Call], largest: int) -> Iterator[str]:
        """What is missing from the dump or not known."""
        forgotten = min(self._records, default=0)
        if forgotten:
            yield (
                f"the ring kept the last {len(self._records):,} calls and lost the {forgotten:,} before them; the "
                "counts are of what it kept. Set TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) above the "
                "calls of the job"
            )
        between = len(set(self._records)) and max(self._records) - forgotten + 1 - len(set(self._records))
        skipped = sum(max(seen) - min(seen) + 1 - len(seen) for seen in self._sequences.values())
        if between > 0 or skipped > 0:
            yield (
                f"{max(between, skipped):,} calls are missing between those that are there: their sequence numbers "
                "skip; counts are too low"
            )
        waiting = self._states.get("scheduled", 0) + self._states.get("started", 0)
        if waiting and self._states.get("completed"):
            yield f"{waiting:,} collectives had not completed when the dump was written; they are counted"
        if self.unclassified:
            names = ", ".join(repr(name[:80]) for name in sorted(self.unclassified)[:3])
            yield f"{sum(self.unclassified.values()):,} calls of unknown kind are in no count: {names}"
        unsized = sum(call.bytes is None for call in calls)
        if unsized:
            yield f"bytes are unknown, and shown as 0, of {unsized:,} calls: their element types have no known width"
        unknown = sorted({call.axis for call in calls if not call.group_size})
        if unknown:
            size = f"{largest}, that of the largest group" if largest > 1 else "2, as nothing is known"
            yield f"the dump does not tell the size of {', '.join(unknown[:3])}; it is shown as {size}"


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
    sizes = [_whole(size) for size in shape]
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def _dtype(name: object) -> str:
    plain = printable(str(name)).lower()
    return _DTYPES.get(plain, plain)[:100]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _ranks(given: object) -> tuple[int, ...]:
    """Ranks of ``"[0, 1, 2]"`` or of a list; none where the text was shortened."""
    if isinstance(given, str):
        if len(given) > 2**20 or not re.fullmatch(r"\[[0-9, ]*\]", given):
            return ()
        given = [int(word) for word in re.findall(r"[0-9]{1,9}", given)]
    if not isinstance(given, list) or len(given) > MAX_RANKS:
        return ()
    ranks = [rank for rank in map(_whole, given) if rank is not None]
    return tuple(ranks) if len(ranks) == len(given) else ()
