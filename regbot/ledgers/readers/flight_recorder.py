"""Reader of Flight Recorder dumps as JSON: the collectives of torch's process groups, with shapes and element types.

torch keeps the last N calls in a ring buffer and dumps them as a pickle or as JSON. The format is defined by
``FlightRecorderDetail.hpp``, versions 2.1 to 2.10 (torch 2.4 to 2.13). The reader was tested on one real sample, of a
gloo job with torch 2.13. Only JSON is read, because opening a pickle can run code. A dump marks no steps, and does not
contain calls of DeepEP, of symmetric memory or of replayed CUDA graphs. Calls are missing if the first ``record_id`` is
not 0, or if the ``collective_seq_id`` values of a group have gaps; the ledger's ``guesses`` say how many. An *entry* of
a dump is one call, not an entry of a ledger."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regbot.ledgers.collectives import classify_role, find_kind
from regbot.ledgers.dtypes import join_dtypes, parse_torch_dtype, width
from regbot.ledgers.readers.groups import MAX_RANKS, UNKNOWN, format_ranks, parse_axis, parse_ranks
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import (
    STEPS_UNKNOWN,
    CallTally,
    EntryKey,
    SequenceNumbers,
    Unclassified,
    parse_count,
    parse_rank,
)
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Axis, CollectiveBackend, Ledger
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

NAME = "flight-recorder"
TITLE = "Flight Recorder dump as JSON"

MAX_BYTES = 32 * 2**20
"""Largest accepted size of a dump. Real dumps have at most about 20,000 calls of a few hundred bytes."""
MAX_ELEMENTS = 2**50
"""The bytes of calls with this many elements or more are treated as unknown. No real call has so many."""
_COALESCED_END = "coalesced"
"""Operation of the extra entry that ends a coalesced group. The collectives in the group have their own entries."""
_VIA_BY_BACKEND: dict[str, CollectiveBackend] = {"nccl": "nccl", "rccl": "nccl", "gloo": "gloo"}
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\(dp0\n")
_PROFILING_NAME = re.compile(r"([a-z]+):([A-Za-z_]+)(?: ?[0-9].*)?", re.DOTALL)
"""Backend and operation in a ``profiling_name`` such as 'nccl:all_reduce' or 'nccl:send 0->1'."""

Entry = Mapping[str, Any]


def recognises(head: bytes) -> bool:
    """Whether ``head``, the start of a file, is JSON with keys of a dump. Pickles are recognised too, because ``read``
    refuses them with advice."""
    if _PICKLE.match(head):
        return True
    is_object = head.lstrip().startswith(b"{")
    is_kineto = b'"traceEvents"' in head
    keys = (b'"profiling_name"', b'"comm_lib_version"', b'"nccl_comm_state"', b'"pg_status"')
    return is_object and not is_kineto and any(key in head for key in keys)


def read(source: Source) -> Ledger:
    """Return the ledger of the dump in ``source``. Raises ReadError."""
    dump = _read_dump(source)
    groups = _DumpGroups(dump.get("pg_config"))
    contents = _DumpContents(source, groups)
    for entry in dump["entries"]:
        contents.add(entry)
    largest_group = max(contents.sizes.values(), default=0)
    tally = CallTally(source, default_size=largest_group)
    axes = contents.count_calls(tally)
    if not tally and not contents.unclassified:
        raise source.error("contains no collective between several ranks; give the dump of a distributed job")
    world_size = max((len(ranks) for ranks in groups.ranks.values()), default=0)  # the largest group is the world
    rank, rank_warnings = _find_rank(source, dump, groups)
    return Ledger(
        source="flight-recorder",
        scope="whole",
        steps=1,
        world_size=world_size or None,
        rank=rank,
        axes=axes,
        entries=tally.entries(),
        unclassified=contents.unclassified.records(),
        guesses=[STEPS_UNKNOWN, *contents.guesses(largest_group)],
        warnings=[*rank_warnings, *contents.warnings()],
    )


def _read_dump(source: Source) -> dict[str, Any]:
    if _PICKLE.match(source.head):
        raise source.error(
            "is a pickle; regbot never opens pickles, because that can run code. Write JSON where the job runs: "
            "torch._C._distributed_c10d._dump_nccl_trace_json(), in gloo jobs _dump_fr_trace_json()"
        )
    ring = "TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE)"
    try:
        dump = parse_json(source.read(MAX_BYTES), "the dump")
    except RecordError as error:
        raise source.error(f"{error}; dump or copy it again; a smaller ring ({ring}) gives a smaller dump") from error
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list) or not dump["entries"]:
        raise source.error(f"has no entries, so nothing was recorded; set {ring} above 0 and dump again")
    return dump


def _find_rank(source: Source, dump: Mapping[str, Any], groups: "_DumpGroups") -> tuple[int, list[str]]:
    """Return the rank that wrote the dump, and warnings if the rank is uncertain. Dumps that torch writes do not
    contain the rank, and torch's tools read it from the file name. Some dumps have a key ``rank``, or give the rank in
    each communicator of ``nccl_comm_state``."""
    state = dump.get("nccl_comm_state")
    communicators = [value for value in (state.values() if isinstance(state, dict) else ()) if isinstance(value, dict)]
    # Usually the communicator of the whole job.
    largest = max(communicators, key=lambda communicator: parse_count(communicator.get("nRanks")) or 0, default={})
    rank = parse_count(dump.get("rank", largest.get("rank")))
    if rank is not None and groups.can_contain(rank):
        return rank, []
    file_rank = parse_rank(source)
    if file_rank is not None and groups.can_contain(file_rank):
        return file_rank, [f"the dump does not contain its rank: rank {file_rank} is the number in the file's name"]
    return 0, ["neither the dump nor the file's name contains the rank: rank 0 is assumed"]


class _DumpGroups:
    def __init__(self, config: object) -> None:
        self.ranks: dict[str, tuple[int, ...]] = {}
        """Ranks of each group by the group's name, where ``pg_config`` lists them."""
        self._descriptions: dict[str, str] = {}
        self._labels: dict[tuple[str, str], str] = {}
        for key, group_config in config.items() if isinstance(config, dict) else ():
            if isinstance(group_config, dict):
                name = str(group_config.get("name", key))
                if ranks := parse_ranks(group_config.get("ranks")):
                    self.ranks[name] = ranks
                self._descriptions[name] = str(group_config.get("desc", ""))

    def find_group(self, entry: Entry) -> tuple[str, str]:
        value = entry.get("process_group", entry.get("pg_name"))
        if isinstance(value, list) and len(value) == 2:
            return str(value[0]), str(value[1])
        name = str(value if isinstance(value, str) else entry.get("pg_id", ""))
        return name, self._descriptions.get(name, "")

    def can_contain(self, rank: int) -> bool:
        """Whether some group lists ``rank``. Also True if no group lists any ranks."""
        return not self.ranks or any(rank in ranks for ranks in self.ranks.values())

    def label(self, name: str, description: str) -> str:
        key = name, description
        if key not in self._labels:
            ranks = self.ranks.get(name, ())
            self._labels[key] = printable(parse_axis(description) or (format_ranks(ranks) if ranks else f"pg {name}"))
        return self._labels[key]


class _DumpContents:
    def __init__(self, source: Source, groups: _DumpGroups) -> None:
        self._source, self._groups = source, groups
        self._calls: list[tuple[EntryKey, str, int | None]] = []
        """Entry, group name and bytes. The group sizes are 0 here, because they are known only after the last call."""
        self._unsized = 0
        self._axes_of_unknown_size: set[str] = set()
        self.sizes: dict[str, int] = {name: len(ranks) for name, ranks in groups.ranks.items()}
        self.unclassified = Unclassified()
        self._entry_count = 0
        self._record_ids = SequenceNumbers()
        self._sequences: dict[str, SequenceNumbers] = defaultdict(SequenceNumbers)
        self._unfinished = self._completed = 0

    def add(self, entry: Entry) -> None:
        name = entry.get("profiling_name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise self._source.error("has an entry without profiling_name; this is not a Flight Recorder dump")
        group, description = (clip(text, 200) for text in self._groups.find_group(entry))
        self._note_progress(entry, group)
        name_match = _PROFILING_NAME.fullmatch(name)
        backend, operation = name_match.groups() if name_match else ("", "")
        via, kind = _VIA_BY_BACKEND.get(backend), find_kind(operation)
        if operation == _COALESCED_END:
            return
        if via is None or kind is None:
            self.unclassified.add(name)
            return
        inputs, outputs = (_TensorSide.parse(entry, side) for side in ("input", "output"))
        if kind in ("all_gather", "reduce_scatter") and group not in self.sizes:
            # The group size is the ratio of the gathered elements to those of one rank.
            piece, whole = sorted((inputs.elements, outputs.elements))
            if piece and whole % piece == 0 and whole // piece <= MAX_RANKS:
                self.sizes[group] = whole // piece
        # Of these kinds, the ledger counts the output tensors, and of all others the input tensors.
        counts_output = kind in ("all_gather", "scatter") or operation.startswith("recv")
        counted_side = outputs if counts_output else inputs
        dtype, size_bytes = ("none", 0) if kind == "barrier" else (counted_side.dtype, counted_side.bytes)
        is_backward = str(entry.get("thread_name", "")).startswith("pt_autograd")  # a thread of the autograd engine
        key = EntryKey(
            kind,
            axis=self._groups.label(group, description),
            group_size=0,
            dtype=dtype,
            phase="backward" if is_backward else "unknown",
            role=classify_role(kind, size_bytes, dtype),
            via=via,
        )
        self._calls.append((key, group, size_bytes))

    def _note_progress(self, entry: Entry, group: str) -> None:
        record_id, sequence_id = parse_count(entry.get("record_id")), parse_count(entry.get("collective_seq_id"))
        self._entry_count += 1
        if record_id is not None:
            self._record_ids.add(record_id)
        if sequence_id and entry.get("is_p2p") is not True:  # not a point-to-point call (send or receive)
            self._sequences[group].add(sequence_id)
        self._unfinished += entry.get("state") in ("scheduled", "started")
        self._completed += entry.get("state") == "completed"

    def count_calls(self, tally: CallTally) -> dict[str, Axis]:
        """Add all calls to ``tally``, and return the axes whose ranks are known."""
        axes: dict[str, Axis] = {}
        for key, group, size_bytes in self._calls:
            size, ranks = self.sizes.get(group, 0), self._groups.ranks.get(group, ())
            if size == 1:
                continue
            tally.add(key._replace(group_size=size), size_bytes)
            self._unsized += size_bytes is None
            if not size:
                self._axes_of_unknown_size.add(key.axis)
            if ranks and key.axis not in axes:
                self._source.expand(len(ranks))  # many groups can have the same ranks
                axes[key.axis] = Axis(size=len(ranks), ranks=list(ranks))
        return axes

    def guesses(self, largest_group: int) -> Iterator[str]:
        if lost := self._record_ids.first:  # the ids begin at 0, so the first id is the number of lost calls
            yield (
                f"the ring lost {lost:,} calls before the {self._entry_count:,} that it kept; only those are counted. "
                "Set TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) above the number of calls of the job"
            )
        # Both kinds of numbers can show the same missing call, so the two counts are not added.
        missing = max(self._record_ids.missing, sum(numbers.missing for numbers in self._sequences.values()))
        if missing:
            yield f"{missing:,} calls are missing, because the sequence numbers have gaps; counts are too low"
        if unsized := self._unsized:
            yield f"the bytes of {unsized:,} calls are unknown and shown as 0: their element types have no known width"
        if self._axes_of_unknown_size:
            size = f"{largest_group}, that of the largest group" if largest_group > 1 else "2, as nothing is known"
            axes = ", ".join(sorted(self._axes_of_unknown_size)[:3])
            yield f"the dump does not contain the size of {axes}; it is shown as {size}"

    def warnings(self) -> Iterator[str]:
        """Yield the warnings of the ledger. Unfinished calls get one only if the dump marks others as completed."""
        if self._unfinished and self._completed:
            yield f"{self._unfinished:,} collectives had not completed when the dump was written; they are counted"
        yield from self.unclassified.warnings()


@dataclass(frozen=True)
class _TensorSide:
    """All input tensors or all output tensors of one call.

    ``dtype`` is 'mixed' if the tensors have different types, 'none' if there are no tensors, and 'unknown' if the entry
    does not have a valid shape and a type for each tensor.
    """

    dtype: str
    elements: int
    bytes: int | None

    @classmethod
    def parse(cls, entry: Entry, side: str) -> "_TensorSide":
        shapes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if not isinstance(shapes, list) or not isinstance(types, list):
            return cls(UNKNOWN, 0, None)
        dtypes = [parse_torch_dtype(printable(str(name))) for name in types]
        if len(dtypes) == 1:  # one type stands for all tensors
            dtypes *= len(shapes)
        counts = [count for count in map(_count_elements, shapes) if count is not None]
        elements = sum(counts)
        if not len(dtypes) == len(counts) == len(shapes):
            return cls(UNKNOWN, elements, None)
        sizes = [(width(dtype) or 0) * count for dtype, count in zip(dtypes, counts, strict=True)]
        is_sized = all(map(width, dtypes)) and elements < MAX_ELEMENTS
        return cls(join_dtypes(dtypes), elements, sum(sizes) if is_sized else None)


def _count_elements(shape: object) -> int | None:
    """Return the number of elements of a shape, or None if it is not a valid shape."""
    if not isinstance(shape, list) or len(shape) > 64:  # torch's tensors have at most 64 dimensions
        return None
    sizes = [size for size in map(parse_count, shape) if size is not None]
    return math.prod(sizes) if len(sizes) == len(shape) else None
