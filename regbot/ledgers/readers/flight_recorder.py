"""Reader of Flight Recorder dumps as JSON: the collectives of torch's process groups, with shapes and element types.

torch keeps the last N calls in a ring buffer and dumps them as a pickle or as JSON. The format is defined by
``FlightRecorderDetail.hpp``, versions 2.1 to 2.10 (torch 2.4 to 2.13). The reader was tested on one real sample, the
JSON of a gloo job with torch 2.13. Only JSON is read, because opening a pickle can run code. The dump does not mark
steps, so the ledger covers the whole dump. The dump does not contain calls of DeepEP, of symmetric memory or of
replayed CUDA graphs.

Each *entry* of a dump is one call that the buffer kept. It is not an entry of a ledger.

The ring buffer overwrites old calls. Calls are missing if the first ``record_id`` is not 0, or if the
``collective_seq_id`` values of a group have gaps. The ledger's ``guesses`` give the number of missing calls.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.dtypes import width
from regbot.ledgers.readers.kineto_calls import classify_role
from regbot.ledgers.readers.kineto_groups import format_ranks, parse_axis
from regbot.ledgers.readers.source import Source
from regbot.ledgers.readers.tally import (
    STEPS_UNKNOWN,
    UNKNOWN,
    CallSum,
    CallTally,
    SequenceNumbers,
    UnknownCalls,
    parse_count,
    parse_rank,
)
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Axis, CollectiveBackend, Kind, Ledger
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

NAME = "flight-recorder"
TITLE = "Flight Recorder dump as JSON"

MAX_BYTES = 32 * 2**20
"""Largest accepted size of a dump. Real dumps have at most about 20,000 calls of a few hundred bytes."""
MAX_ENTRY_BYTES = 2**20
"""Largest accepted size of one call. Calls that torch writes are many times smaller."""
MAX_PARTS = 1000
"""Largest number of keys in a dump, and of ranks in a file with several dumps. torch writes six keys."""
MAX_PART_BYTES = 4 * 2**20
"""Largest size of ``pg_config`` and of every other key except ``entries``. Ten thousand ranks need fewer bytes."""
MAX_RANKS = 65536
MAX_ELEMENTS = 2**50
"""The bytes of calls with this many elements or more are treated as unknown. No real call has so many."""

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
"""Ledger kind by operation. The operation is the ``profiling_name`` in lower case, without backend, underscores and
peers.
"""
_COALESCED_END = "coalesced"
"""Operation of the extra entry that ends a coalesced group. The collectives in the group have their own entries."""
_VIA_BY_BACKEND: dict[str, CollectiveBackend] = {"nccl": "nccl", "rccl": "nccl", "gloo": "gloo"}
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
"""Start of a pickle of protocol 2 to 5, or of protocol 0."""
_PROFILING_NAME = re.compile(r"([a-z]+):([A-Za-z_]+)(?: ?[0-9].*)?", re.DOTALL)
"""Backend and operation in a ``profiling_name`` such as 'nccl:all_reduce' or 'nccl:send 0->1'."""

_SPACE = re.compile(rb"[ \t\r\n]*+")
_EMPTY = re.compile(rb"\{[ \t\r\n]*\}|\[[ \t\r\n]*\]")
"""An empty object or an empty list."""
_KEY = re.compile(rb'[{,][ \t\r\n]*("(?:[^"\\]|\\.)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
"""A key of an object, with the brace or comma before it and the colon after it."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
"""A string, an opening bracket (group 1) or a closing bracket (group 2)."""
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]*+")

Entry = Mapping[str, Any]
"""One recorded call, as parsed from JSON."""


def recognises(head: bytes) -> bool:
    """Whether ``head``, the start of a file, is JSON with keys of a dump. Pickles are recognised too, because ``read``
    refuses them with advice.
    """
    if _PICKLE.match(head):
        return True
    is_object = head.lstrip().startswith(b"{")
    is_kineto = b'"traceEvents"' in head
    keys = (b'"profiling_name"', b'"comm_lib_version"', b'"nccl_comm_state"', b'"pg_status"')
    return is_object and not is_kineto and any(key in head for key in keys)


def read(source: Source) -> Ledger:
    """Return the ledger of the dump in ``source``. Raises ReadError."""
    if _PICKLE.match(source.head):
        raise source.error(
            "is a pickle; regbot never opens pickles, because that can run code. Write JSON where the job runs: "
            "torch._C._distributed_c10d._dump_nccl_trace_json(), in gloo jobs _dump_fr_trace_json()"
        )
    dump = _DumpReader(source)
    groups = _DumpGroups(dump.part("pg_config"))
    contents = _DumpContents(source, groups)
    for entry in dump.entries():
        contents.add(entry)
    tally, ranks_by_axis = CallTally(source), {}
    for counted in contents.calls():
        tally.add(counted.call, counted.calls)
        if counted.ranks and counted.call.axis not in ranks_by_axis:
            source.expand(len(counted.ranks))  # many groups can have the same ranks
            ranks_by_axis[counted.call.axis] = counted.ranks
    if not tally and not contents.unknown:
        raise source.error("contains no collective between several ranks; give the dump of a distributed job")
    world_size = max((len(ranks) for ranks in groups.ranks.values()), default=0)  # the largest group is the world
    largest_group = max(contents.sizes.values(), default=0)
    rank, rank_warnings = _find_rank(source, dump, groups)
    return Ledger(
        source="flight-recorder",
        scope="whole",
        steps=1,
        world_size=world_size or None,
        rank=rank,
        axes={axis: Axis(size=len(ranks), ranks=list(ranks)) for axis, ranks in ranks_by_axis.items()},
        entries=tally.entries(largest_group),  # groups of unknown size get the size of the largest group
        unclassified=contents.unknown.records(),
        guesses=[STEPS_UNKNOWN, *contents.guesses(largest_group)],
        warnings=[*rank_warnings, *contents.warnings()],
    )


class _DumpReader:
    """Reads a dump. The file contains either the dump itself or a mapping from one file name to the dump.

    Python objects need twenty times the memory of their JSON text. So the reader keeps only the byte positions of the
    dump's parts and parses one entry at a time.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = bytearray()
        self._parts: dict[str, tuple[int, int]]
        """Start and end position of the value of each key of the dump."""
        for chunk in source.chunks():
            self._data += chunk
            if len(self._data) > MAX_BYTES:
                raise source.error(
                    f"contains more than {MAX_BYTES:,} bytes, the limit for a Flight Recorder dump; dump a shorter "
                    "ring: TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) is the number of calls that it keeps"
                )
        start = self._skip_space(0)
        if self._byte(start) in (b"[", b""):
            raise source.error("is not a JSON object, so it is not a Flight Recorder dump")
        self._parts, end = self._find_members(start)
        if self._data[end:].strip():
            raise self._make_error(f"there is data after its end, at byte {end:,}")
        if "entries" not in self._parts:  # the file may map file names to dumps
            object_offsets = (offset for offset, _ in self._parts.values() if self._byte(offset) == b"{")
            dumps = [parts for parts, _ in map(self._find_members, object_offsets) if "entries" in parts]
            if len(dumps) > 1:
                raise source.error(f"contains the dumps of {len(dumps)} ranks; give the dump of one rank")
            self._parts = dumps[0] if dumps else self._parts

    def part(self, name: str) -> Any:
        """Return the value of a key of the dump, or None if the dump lacks it. For ``entries``, use ``entries()``."""
        if name not in self._parts:
            return None
        start, end = self._parts[name]
        if end - start > MAX_PART_BYTES:
            raise self._source.error(f"has a {name} of more than {MAX_PART_BYTES:,} bytes; give the dump of one rank")
        return self._parse_value(name, start, end)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the dump. Each entry is one call. Raises ReadError if there are none."""
        # Without the key, the offset is the start of the file, which is no list. So nothing is read.
        offset, _ = self._parts.get("entries", (0, 0))
        number = 0
        # The offset is at the opening bracket of the list, and then at the comma after each entry.
        while self._byte(offset) in (b"[", b",") and not _EMPTY.match(self._data, offset):
            start = self._skip_space(offset + 1)
            end = self._find_end(start)
            number += 1
            if end - start > MAX_ENTRY_BYTES:
                raise self._source.error(
                    f"entry {number:,} has more than {MAX_ENTRY_BYTES:,} bytes; this is not a Flight Recorder dump"
                )
            entry = self._parse_value(f"entry {number:,}", start, end)
            if not isinstance(entry, dict):
                raise self._source.error("has an entry that is not an object; this is not a Flight Recorder dump")
            yield entry
            offset = self._find_separator(end, b"]")
        if not number:
            raise self._source.error(
                "has no entries, so nothing was recorded; set TORCH_FR_BUFFER_SIZE above 0 and dump again"
            )

    def _find_members(self, offset: int) -> tuple[dict[str, tuple[int, int]], int]:
        """Return the members of the JSON object at ``offset``, and the position after the object.

        The members map each key to the start and end position of its value.
        """
        members: dict[str, tuple[int, int]] = {}
        if empty_match := _EMPTY.match(self._data, offset):
            return members, empty_match.end()
        while True:  # the offset is at the opening brace, and then at the comma after each member
            key_match = _KEY.match(self._data, offset)
            if key_match is None:
                raise self._make_error(f"a key is missing at byte {offset:,}")
            name = str(self._parse_value("a key", *key_match.span(1)))
            start = key_match.end()
            end = self._find_end(start)
            if name in members:
                raise self._make_error(f"the key {clip(name, 80)!r} occurs twice in one object")
            members[name] = start, end
            if len(members) > MAX_PARTS:
                raise self._source.error(f"has more than {MAX_PARTS:,} keys; this is not a Flight Recorder dump")
            offset = self._find_separator(end, b"}")
            if self._byte(offset) == b"}":
                return members, offset + 1

    def _find_separator(self, end: int, closing: bytes) -> int:
        """Return the position of the comma or closing bracket that follows a value. ``end`` is the end of the value."""
        offset = self._skip_space(end)
        if self._byte(offset) not in (b",", closing):
            raise self._make_error(f"neither comma nor closing bracket at byte {offset:,}")
        return offset

    def _byte(self, offset: int) -> bytes:
        """Return the byte at ``offset``, or b'' at the end of the data."""
        return bytes(self._data[offset : offset + 1])

    def _skip_space(self, offset: int) -> int:
        match = _SPACE.match(self._data, offset)
        return match.end() if match else offset

    def _find_end(self, start: int) -> int:
        """Return the end of the value that begins at ``start``. If the value is cut off, return the end of the data."""
        if self._byte(start) not in (b'"', b"[", b"{"):
            match = _SCALAR.match(self._data, start)
            return match.end() if match else start
        depth = 0
        for token in _TOKEN.finditer(self._data, start):
            if token[1] is not None:
                depth += 1
            elif token[2] is not None:
                depth -= 1
            if not depth:
                return token.end()
        return len(self._data)

    def _parse_value(self, noun: str, start: int, end: int) -> Any:
        """Parse the JSON value between two positions. ``noun`` names the value in the error message."""
        try:
            return parse_json(bytes(self._data[start:end]), noun)
        except RecordError as error:
            raise self._source.error(f"{error}; dump or copy it again") from error

    def _make_error(self, problem: str) -> Exception:
        return self._source.error(f"is not valid JSON: {problem}; dump or copy it again")


def _find_rank(source: Source, dump: _DumpReader, groups: "_DumpGroups") -> tuple[int, list[str]]:
    """Return the rank that wrote the dump, and warnings if the rank is uncertain.

    Dumps that torch writes do not contain the rank, and torch's tools read it from the file name. Some dumps have a key
    ``rank``, or give the rank in each communicator of ``nccl_comm_state``.
    """
    rank = parse_count(dump.part("rank"))
    if rank is None:
        rank = _find_rank_in_largest_communicator(dump.part("nccl_comm_state"))
    if rank is not None and groups.can_contain(rank):
        return rank, []
    file_rank = parse_rank(source)
    if file_rank is not None and groups.can_contain(file_rank):
        return file_rank, [f"the dump does not contain its rank: rank {file_rank} is the number in the file's name"]
    return 0, ["neither the dump nor the file's name contains the rank: rank 0 is assumed"]


def _find_rank_in_largest_communicator(state: object) -> int | None:
    """Return the rank of the process in the largest communicator. If this communicator contains all ranks of the job,
    the result is the rank in the job.

    ``state`` is the ``nccl_comm_state`` of the dump. Return None if the communicator has no rank, or if several equally
    large communicators give different ranks.
    """
    if not isinstance(state, dict):
        return None
    ranks_by_size: dict[int, set[int | None]] = defaultdict(set)
    for communicator in state.values():
        if isinstance(communicator, dict):
            size = _parse_digits(communicator.get("nRanks")) or 0
            ranks_by_size[size].add(_parse_digits(communicator.get("rank")))
    if not ranks_by_size:
        return None
    ranks = ranks_by_size[max(ranks_by_size)]
    return ranks.pop() if len(ranks) == 1 else None


class _DumpGroups:
    """Process groups of the dump."""

    def __init__(self, config: object) -> None:
        """``config`` is the ``pg_config`` of the dump."""
        self.ranks: dict[str, tuple[int, ...]] = {}
        """Ranks of each group by the group's name, where ``pg_config`` lists them."""
        self._descriptions: dict[str, str] = {}
        self._labels: dict[tuple[str, str], str] = {}
        """Axis labels by the name and the description of a group."""
        for key, group_config in config.items() if isinstance(config, dict) else ():
            if isinstance(group_config, dict):
                name = str(group_config.get("name", key))
                ranks = _parse_ranks(group_config.get("ranks"))
                if len(ranks) > 0:
                    self.ranks[name] = ranks
                self._descriptions[name] = str(group_config.get("desc", ""))

    def find_group(self, entry: Entry) -> tuple[str, str]:
        """Return the name and the description of the process group of ``entry``.

        An entry has both as a list, or only a name or an id. The description then comes from ``pg_config``.
        """
        value = entry.get("process_group", entry.get("pg_name"))
        if isinstance(value, list) and len(value) == 2:
            return str(value[0]), str(value[1])
        name = str(value if isinstance(value, str) else entry.get("pg_id", ""))
        return name, self._descriptions.get(name, "")

    def can_contain(self, rank: int) -> bool:
        """Whether some group lists ``rank``. Also True if no group lists any ranks."""
        return not self.ranks or any(rank in ranks for ranks in self.ranks.values())

    def label(self, name: str, description: str) -> str:
        """Return the axis label of a group: the axis in its description, or else its ranks, or else its name."""
        key = name, description
        if key not in self._labels:
            axis, ranks = parse_axis(description), self.ranks.get(name, ())
            label = axis or (f"[{format_ranks(ranks)}]" if ranks else f"pg {name}")
            self._labels[key] = printable(label)
        return self._labels[key]


class _CallVolume:
    """Number of equal calls, the sum of their known bytes, and the number of these calls whose bytes are unknown."""

    __slots__ = ("bytes", "count", "unsized")

    def __init__(self) -> None:
        self.count = self.bytes = self.unsized = 0


class _CountedCall(NamedTuple):
    """All calls of one group that have everything in common except their bytes."""

    call: CallSum
    """What the calls have in common, with the sum of their bytes."""
    calls: int
    """Number of calls."""
    ranks: tuple[int, ...]
    """Ranks of the group; empty if the dump does not list them."""


class _DumpContents:
    """Sums over the entries of one dump, and what is missing from the dump."""

    def __init__(self, source: Source, groups: _DumpGroups) -> None:
        self._source, self._groups = source, groups
        self._volumes: dict[tuple[CallSum, str], _CallVolume] = defaultdict(_CallVolume)
        """Volume by call and group name. These calls have neither a group size nor bytes, because both are known only
        after the last entry.
        """
        self.sizes: dict[str, int] = {name: len(ranks) for name, ranks in groups.ranks.items()}
        """Number of ranks by group name, where it is known."""
        self.unknown = UnknownCalls()
        self._entry_count = 0
        self._record_ids = SequenceNumbers()
        self._sequences: dict[str, SequenceNumbers] = defaultdict(SequenceNumbers)
        """The ``collective_seq_id`` of all collectives, by group name."""
        self._unfinished = self._completed = 0

    def add(self, entry: Entry) -> None:
        """Add one entry of the dump."""
        name = entry.get("profiling_name")
        if not isinstance(name, str):
            raise self._source.error("has an entry without profiling_name; this is not a Flight Recorder dump")
        group, description = (clip(text, 200) for text in self._groups.find_group(entry))
        self._note_progress(entry, group)
        name_match = _PROFILING_NAME.fullmatch(name)
        backend, operation = name_match.groups() if name_match else ("", "")
        operation = operation.lower().replace("_", "")
        # ``via`` is the library that runs the collective. Here it is the backend of the process group.
        via, kind = _VIA_BY_BACKEND.get(backend), _KINDS.get(operation)
        if operation == _COALESCED_END:  # the collectives of the coalesced group have entries of their own
            return
        if via is None or kind is None:
            self.unknown.add(name)
            return
        inputs, outputs = (_TensorSide.parse(entry, side) for side in ("input", "output"))
        if kind in ("all_gather", "reduce_scatter"):
            self._infer_group_size(group, inputs, outputs)
        # Of these kinds, the ledger counts the output tensors, and of all others the input tensors.
        counts_output = kind in ("all_gather", "scatter") or operation.startswith("recv")
        counted_side = outputs if counts_output else inputs
        dtype, size_bytes = ("none", 0) if kind == "barrier" else (counted_side.dtype, counted_side.bytes)
        is_backward = str(entry.get("thread_name", "")).startswith("pt_autograd")  # a thread of the autograd engine
        call = CallSum(
            kind,
            axis=self._groups.label(group, description),
            group_size=0,  # ``calls`` sets the size and the bytes, which are known only after the last entry
            dtype=dtype,
            phase="backward" if is_backward else "unknown",
            role=classify_role(kind, dtype, size_bytes),
            via=via,
            bytes=None,
        )
        volume = self._volumes[call, group]
        volume.count += 1
        volume.bytes += size_bytes or 0
        volume.unsized += size_bytes is None

    def _note_progress(self, entry: Entry, group: str) -> None:
        """Note the numbers and the state of an entry, from which missing and unfinished calls are counted."""
        record_id, sequence_id = parse_count(entry.get("record_id")), parse_count(entry.get("collective_seq_id"))
        self._entry_count += 1
        if record_id is not None:
            self._record_ids.add(record_id)
        if sequence_id and entry.get("is_p2p") is not True:  # not a point-to-point call (send or receive)
            self._sequences[group].add(sequence_id)
        self._unfinished += entry.get("state") in ("scheduled", "started")
        self._completed += entry.get("state") == "completed"

    def _infer_group_size(self, group: str, inputs: "_TensorSide", outputs: "_TensorSide") -> None:
        """Infer the size of a group from an all-gather or reduce-scatter, if the size is not known. It is the ratio of
        the gathered elements to those of one rank.
        """
        piece, whole = sorted((inputs.elements, outputs.elements))
        if group not in self.sizes and piece and whole % piece == 0 and whole // piece <= MAX_RANKS:
            self.sizes[group] = whole // piece

    def calls(self) -> Iterator[_CountedCall]:
        """Yield one item for all equal calls. Calls in groups of one rank are left out."""
        for (call, group), volume in self._volumes.items():
            size = self.sizes.get(group, 0)
            if size != 1:
                call_sum = call._replace(group_size=size, bytes=volume.bytes)
                yield _CountedCall(call_sum, volume.count, self._groups.ranks.get(group, ()))

    def guesses(self, largest_group: int) -> Iterator[str]:
        """Yield one sentence for each thing that is missing from the dump or was assumed."""
        if lost := self._record_ids.first:  # the ids begin at 0, so the first id is the number of lost calls
            yield (
                f"the ring lost {lost:,} calls before the {self._entry_count:,} that it kept; only those are counted. "
                "Set TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) above the number of calls of the job"
            )
        # Both kinds of numbers can show the same missing call, so the two counts are not added.
        missing = max(self._record_ids.missing, sum(numbers.missing for numbers in self._sequences.values()))
        if missing:
            yield (f"{missing:,} calls are missing, because the sequence numbers have gaps; counts are too low")
        unsized = sum(volume.unsized for (_, group), volume in self._volumes.items() if self.sizes.get(group) != 1)
        if unsized:
            yield f"the bytes of {unsized:,} calls are unknown and shown as 0: their element types have no known width"
        axes_of_unknown_size = sorted({call.axis for call, group in self._volumes if not self.sizes.get(group)})
        if axes_of_unknown_size:
            size = f"{largest_group}, that of the largest group" if largest_group > 1 else "2, as nothing is known"
            axes = ", ".join(axes_of_unknown_size[:3])
            yield f"the dump does not contain the size of {axes}; it is shown as {size}"

    def warnings(self) -> Iterator[str]:
        """Yield the warnings of the ledger. Unfinished calls get one only if the dump marks others as completed."""
        if self._unfinished and self._completed:
            yield f"{self._unfinished:,} collectives had not completed when the dump was written; they are counted"
        yield from self.unknown.warnings()


class _TensorSide:
    """Element type, number of elements and bytes of all input tensors or all output tensors of one call.

    ``dtype`` is 'mixed' if the tensors have different types, 'none' if there are no tensors, and 'unknown' if the entry
    does not have a valid shape and a type for each tensor. ``bytes`` is None if the size is unknown.
    """

    def __init__(self, dtype: str, elements: int, size_bytes: int | None) -> None:
        self.dtype, self.elements, self.bytes = dtype, elements, size_bytes

    @classmethod
    def parse(cls, entry: Entry, side: str) -> "_TensorSide":
        """Parse one side of an entry. ``side`` is 'input' or 'output'."""
        shapes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if not isinstance(shapes, list) or not isinstance(types, list):
            return cls(UNKNOWN, 0, None)
        dtypes = [_parse_dtype(name) for name in types]
        if len(dtypes) == 1:  # one type stands for all tensors
            dtypes *= len(shapes)
        counts = [_count_elements(shape) for shape in shapes]
        elements = sum(count or 0 for count in counts)
        if len(dtypes) != len(counts) or None in counts:
            return cls(UNKNOWN, elements, None)
        widths = [width(dtype) for dtype in dtypes]
        size_bytes = None
        if None not in widths and elements < MAX_ELEMENTS:
            size_bytes = sum(
                (count or 0) * (element_bytes or 0) for count, element_bytes in zip(counts, widths, strict=True)
            )
        if not dtypes:
            dtype = "none"
        else:
            dtype = dtypes[0] if len(set(dtypes)) == 1 else "mixed"
        return cls(dtype, elements, size_bytes)


def _count_elements(shape: object) -> int | None:
    """Return the number of elements of a shape, or None if it is not a valid shape."""
    if not isinstance(shape, list) or len(shape) > 64:  # torch's tensors have at most 64 dimensions
        return None
    sizes = [parse_count(size) for size in shape]
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def _parse_dtype(name: object) -> str:
    plain = printable(str(name)).lower()
    return clip(_DTYPES.get(plain, plain), 100)


def _parse_digits(value: object) -> int | None:
    """Return a number that the dump has as a number or as text, or None if it is neither."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else parse_count(value)


def _parse_ranks(value: object) -> tuple[int, ...]:
    """Parse ranks from text such as ``"[0, 1, 2]"`` or from a list. Return () if the text is shortened or invalid."""
    if isinstance(value, str):
        if len(value) > 2**20 or not re.fullmatch(r"\[[0-9, ]*\]", value):
            return ()
        value = [int(word) for word in re.findall(r"[0-9]{1,9}", value)]
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        return ()
    ranks = [rank for rank in map(parse_count, value) if rank is not None]
    return tuple(ranks) if len(ranks) == len(value) else ()
