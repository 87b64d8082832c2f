"""Sums recorded collective calls into the entries of a ledger.

This module serves the formats that list calls but no steps: Flight Recorder, Nsight Systems, NCCL Inspector. All
readers use the same values for missing data: 'unknown' for axis and element type, 0 for bytes, and 2 for the group size
if no size is known. The reader reports missing data in the ``guesses`` of the ledger. Calls are summed as they are
read, so memory grows only with the number of distinct calls.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import CollectiveBackend, Entry, Kind, Phase, Role, UnclassifiedCommunication
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable

UNKNOWN = "unknown"
STEPS_UNKNOWN = "the number of steps in this recording is unknown"
"""Guess that every reader of a format without steps reports. Two files of such a format can be compared only if they
cover the same number of steps.
"""
MAX_VOLUME = 2**53
"""Largest number of bytes or calls of one entry. Up to this limit, integers are exact in JSON."""
MAX_ENTRIES = 200_000
MAX_UNCLASSIFIED = 1000
"""Largest number of names of unknown calls that are kept."""
MAX_SEQUENCE_RUNS = 64
"""Largest number of runs of consecutive sequence numbers that are kept. A gap between two runs is filled within a few
calls, or never.
"""

_RANK = re.compile(r"rank[ _.=-]?([0-9]{1,7})(?![0-9])", re.I)
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,7})$")
_SUFFIXES = re.compile(r"(?:\.(?:json|jsonl|txt|log|gz))+$", re.I)


class CallSum(NamedTuple):
    """One or more calls that have everything in common except their bytes."""

    kind: Kind
    axis: str
    group_size: int
    """Number of ranks in the group, or 0 if it is unknown."""
    dtype: str
    phase: Phase
    role: Role
    via: CollectiveBackend
    bytes: int | None
    """Sum over the calls, or None if it is unknown."""


class EntryKey(NamedTuple):
    """Fields that are equal for all calls of one entry."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: CollectiveBackend


class CallTally:
    """Number and bytes of calls, summed over calls that are equal in all other fields."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sums: dict[EntryKey, tuple[int, int]] = {}
        """Number of calls and sum of their bytes."""

    def add(self, call: CallSum, count: int = 1) -> None:
        """Add ``count`` equal calls. ``call.bytes`` is the sum of their bytes.

        Raises ReadError if there are too many distinct calls or too many bytes.
        """
        key = EntryKey(
            kind=call.kind,
            axis=clip_label(call.axis),
            group_size=call.group_size,
            dtype=clip_label(call.dtype),
            phase=call.phase,
            role=call.role,
            via=call.via,
        )
        count_before, bytes_before = self._sums.get(key, (0, 0))
        bytes_after = bytes_before + (call.bytes or 0)
        self._sums[key] = count_before + count, bytes_after
        check_limits(self._source, len(self._sums), bytes_after)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def entries(self, default_size: int) -> list[Entry]:
        """Return one entry per distinct key. Groups of unknown size get ``default_size``, but at least 2. Raises
        ReadError.
        """
        sums: dict[EntryKey, tuple[int, int]] = {}
        # Keys that differed only in an unknown size can now be equal, so their calls are summed again.
        for key, (count, size_bytes) in self._sums.items():
            sized_key = key._replace(group_size=max(key.group_size or default_size, 2))
            count_before, bytes_before = sums.get(sized_key, (0, 0))
            sums[sized_key] = count_before + count, bytes_before + size_bytes
        largest_bytes = max((size_bytes for _, size_bytes in sums.values()), default=0)
        check_limits(self._source, len(sums), largest_bytes)
        return [
            Entry(**key._asdict(), where="", count=count, bytes=size_bytes)  # no format names the module of a call
            for key, (count, size_bytes) in sorted(sums.items())
        ]


def sum_calls(source: Source, calls: Iterable[CallSum], default_size: int) -> list[Entry]:
    """Return the entries of ``calls``. Groups of unknown size get ``default_size``, but at least 2. Raises
    ReadError.
    """
    tally = CallTally(source)
    for call in calls:
        tally.add(call)
    return tally.entries(default_size)


def check_limits(source: Source, entry_count: int, volume: int) -> None:
    """Raise ReadError if a file has more entries than a ledger can have, or one entry has too many bytes or calls.

    ``volume`` is the largest number of bytes or calls of an entry.
    """
    if entry_count > MAX_ENTRIES:
        raise source.error(f"contains more than {MAX_ENTRIES:,} different collectives; record fewer steps")
    if volume > MAX_VOLUME:
        raise source.error("contains collectives of more than 2^53 bytes in total; its sizes are wrong, write it again")


class UnknownCalls:
    """Numbers of calls whose kind is unknown, by their name in the file."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Count one call. If the file has too many names, further names are counted together."""
        label = clip_label(printable(name))
        is_full = len(self._counts) >= MAX_UNCLASSIFIED - 1  # one place is kept for the calls of all further names
        if label not in self._counts and is_full:
            label = "calls of other names"
        self._counts[label] = self._counts.get(label, 0) + 1

    def __bool__(self) -> bool:
        return bool(self._counts)

    def records(self) -> list[UnclassifiedCommunication]:
        return [UnclassifiedCommunication(name=name, count=count) for name, count in sorted(self._counts.items())]

    def warnings(self) -> Iterator[str]:
        """Yield at most one warning that names the unknown calls."""
        if self._counts:
            names = ", ".join(repr(clip(name, 80)) for name in sorted(self._counts)[:3])
            yield f"{sum(self._counts.values()):,} calls of unknown kind are not counted: {names}"


class SequenceNumbers:
    """A set of sequence numbers. To limit memory, it is stored as runs of consecutive numbers.

    Numbers arrive nearly in order. If there are more than ``MAX_SEQUENCE_RUNS`` runs, the two lowest runs are merged.
    From then on, the numbers between these two runs count as missing.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        """First number of each run, in ascending order. ``_ends`` has the last numbers in the same order."""
        self._ends: list[int] = []
        self._merged_missing = 0
        """Number of missing numbers between runs that were merged."""

    def add(self, number: int) -> bool:
        """Add ``number`` and return whether it is new to the set."""
        starts, ends = self._starts, self._ends
        if ends and number == ends[-1] + 1:  # the usual case: the next number in order
            ends[-1] = number
            return True
        position = bisect_right(starts, number)  # the run before this position is the last that starts at or below
        if position and number <= ends[position - 1]:
            return False
        joins_lower = position > 0 and number == ends[position - 1] + 1
        joins_upper = position < len(starts) and number == starts[position] - 1
        if joins_lower and joins_upper:
            ends[position - 1] = ends[position]
            del starts[position], ends[position]
        elif joins_lower:
            ends[position - 1] = number
        elif joins_upper:
            starts[position] = number
        else:
            starts.insert(position, number)
            ends.insert(position, number)
        if len(starts) > MAX_SEQUENCE_RUNS:
            self._merge_lowest_runs()
        return True

    def _merge_lowest_runs(self) -> None:
        """Make the two lowest runs one run, and count the numbers between them as missing for good."""
        starts, ends = self._starts, self._ends
        self._merged_missing += starts[1] - ends[0] - 1
        ends[0] = ends[1]
        del starts[1], ends[1]

    @property
    def first(self) -> int:
        """The lowest number in the set, or 0 if the set is empty."""
        return self._starts[0] if self._starts else 0

    @property
    def missing(self) -> int:
        """Number of missing sequence numbers between the lowest and the highest number in the set."""
        gaps = zip(self._starts[1:], self._ends[:-1], strict=True)
        return self._merged_missing + sum(start - end - 1 for start, end in gaps)


def parse_count(value: object) -> int | None:
    """Return a JSON value as an integer from 0 to 2**53 - 1, or None if it is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOLUME else None


def parse_rank(source: Source) -> int | None:
    """Return the rank in the file's name, or None if there is none.

    Examples of such names are ``nccl_trace_rank_3``, ``rank0.json`` and ``dump_3.json``.
    """
    name = _SUFFIXES.sub("", source.path.name)
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(match[1]) if match else None
