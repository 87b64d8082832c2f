"""Recorded collective calls, one by one, added up into the entries of a ledger.

For formats that list calls (Flight Recorder, Nsight Systems, NCCL Inspector) and know nothing of steps. What a format
does not tell has one word everywhere: axis and element type 'unknown', bytes 0, a group of 2 where even its size is
missing; the reader says so among the ledger's guesses. Calls are added up as they come: a recording of millions takes
as much memory as it has different ones.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Entry, Kind, Phase, Role, Unclassified, Via
from regbot.text import printable

UNKNOWN = "unknown"
STEPS_UNKNOWN = "how many steps these calls are of is not known"
"""Guess of every format without steps: the counts of two files are those of equal work only by chance."""
MAX_VOLUME = 2**53
MAX_ENTRIES = 200_000
MAX_UNCLASSIFIED = 1000
MAX_RUNS = 64
"""Most runs of sequence numbers that are told apart: a gap is filled within a few calls or never."""

_RANK = re.compile(r"rank[ _.=-]?([0-9]{1,7})(?![0-9])", re.I)
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,7})$")
_SUFFIXES = re.compile(r"(?:\.(?:json|jsonl|txt|log|gz))+$", re.I)


class Call(NamedTuple):
    """Calls that are alike. ``group_size`` is 0 and ``bytes``, those of all of them, None where they are not known."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: Via
    bytes: int | None


class Words(NamedTuple):
    """What the calls of one entry share."""

    kind: Kind
    axis: str
    group_size: int
    dtype: str
    phase: Phase
    role: Role
    via: Via


class Tally:
    """Calls by everything but their bytes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sums: dict[Words, tuple[int, int]] = {}

    def add(self, call: Call, count: int = 1) -> None:
        """``count`` calls that are alike. Raises ReadError where too many are different, or they move too much."""
        words = Words(call.kind, call.axis[:500], call.group_size, call.dtype[:500], call.phase, call.role, call.via)
        before, size = self._sums.get(words, (0, 0))
        self._sums[words] = before + count, size + (call.bytes or 0)
        within_limits(self._source, len(self._sums), self._sums[words][1])

    def __bool__(self) -> bool:
        return bool(self._sums)

    def entries(self, size_otherwise: int) -> list[Entry]:
        """One entry for all calls that share every word; ``size_otherwise``: for groups of unknown size."""
        sums: dict[Words, tuple[int, int]] = {}
        for words, (count, size) in self._sums.items():
            known = words._replace(group_size=max(words.group_size or size_otherwise, 2))
            before, moved = sums.get(known, (0, 0))
            sums[known] = before + count, moved + size
        within_limits(self._source, len(sums), max((size for _, size in sums.values()), default=0))
        return [
            Entry(**words._asdict(), where="", count=count, bytes=size) for words, (count, size) in sorted(sums.items())
        ]


def entries(source: Source, calls: Iterable[Call], size_otherwise: int) -> list[Entry]:
    """The entries of a list of calls. Raises ReadError as ``Tally`` does."""
    tally = Tally(source)
    for call in calls:
        tally.add(call)
    return tally.entries(size_otherwise)


def within_limits(source: Source, different: int, volume: int) -> None:
    """Raises ReadError where a file has more different collectives than a ledger may, or one kind of them moves more
    than a machine can."""
    if different > MAX_ENTRIES:
        raise source.error(f"holds more than {MAX_ENTRIES:,} different collectives; give fewer steps")
    if volume > MAX_VOLUME:
        raise source.error("holds collectives of more than 2^53 bytes in all; its sizes are wrong, write it again")


class Unknowns:
    """Calls of unknown kind by the name that the file has for them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> None:
        key = printable(name)[:500]
        if key not in self._counts and len(self._counts) >= MAX_UNCLASSIFIED - 1:
            key = "calls of other names"
        self._counts[key] = self._counts.get(key, 0) + 1

    def __bool__(self) -> bool:
        return bool(self._counts)

    def records(self) -> list[Unclassified]:
        return [Unclassified(name=name, count=count) for name, count in sorted(self._counts.items())]

    def doubts(self) -> Iterator[str]:
        """What to say of them."""
        if self._counts:
            names = ", ".join(repr(name[:80]) for name in sorted(self._counts)[:3])
            yield f"{sum(self._counts.values()):,} calls of unknown kind are in no count: {names}"


class Numbers:
    """Sequence numbers that were seen, as runs without a gap, so that a million in a row take no more than one.

    Numbers come nearly in order. Of more than ``MAX_RUNS`` runs the two lowest become one, and the gap between them is
    counted as missing for good.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._given_up = 0

    def add(self, number: int) -> bool:
        """Whether ``number`` is new."""
        starts, ends = self._starts, self._ends
        if ends and number == ends[-1] + 1:
            ends[-1] = number
            return True
        place = bisect_right(starts, number)
        if place and number <= ends[place - 1]:
            return False
        joins_left = place > 0 and number == ends[place - 1] + 1
        joins_right = place < len(starts) and number == starts[place] - 1
        if joins_left and joins_right:
            ends[place - 1] = ends[place]
            del starts[place], ends[place]
        elif joins_left:
            ends[place - 1] = number
        elif joins_right:
            starts[place] = number
        else:
            starts.insert(place, number)
            ends.insert(place, number)
        if len(starts) > MAX_RUNS:
            self._given_up += starts[1] - ends[0] - 1
            ends[0] = ends[1]
            del starts[1], ends[1]
        return True

    @property
    def first(self) -> int:
        """The lowest; 0 where there is none."""
        return self._starts[0] if self._starts else 0

    @property
    def missing(self) -> int:
        """How many are missing between the lowest and the highest."""
        between = zip(self._starts[1:], self._ends[:-1], strict=True)
        return self._given_up + sum(start - end - 1 for start, end in between)


def whole(value: object) -> int | None:
    """A JSON value as a whole number that a record can hold, None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOLUME else None


def rank_in_name(source: Source) -> int | None:
    """The rank that tools put into the names of their files: ``nccl_trace_rank_3``, ``rank0.json``, ``dump_3.json``."""
    name = _SUFFIXES.sub("", source.path.name)
    found = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(found[1]) if found else None
