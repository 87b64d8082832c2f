"""Sums recorded calls into the entries of a ledger.

All readers use the same values for missing data: 'unknown' for axis and element type, 0 for bytes, and 2 for the group
size if no size is known. ``guesses`` reports what is missing. Memory grows only with the number of distinct calls."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import CollectiveBackend, Entry, Kind, Phase, Role, UnclassifiedCommunication
from regbot.records.text.clip import clip, clip_label
from regbot.records.text.printable import printable

STEPS_UNKNOWN = "the number of steps in this recording is unknown"
"""Guess that every reader of a format without steps reports. Two files of such a format can be compared only if they
cover the same number of steps."""
MAX_VOLUME = 2**53
"""Largest number of bytes or calls of one entry. Up to this limit, integers are exact in JSON."""
MAX_ENTRIES = 200_000
MAX_UNCLASSIFIED = 1000
"""Largest number of names of unknown communication that are kept."""
MAX_SECONDS = 1e7
"""Largest plausible time of all kernels of an entry, about four months."""

_RANK = re.compile(r"rank[ _.=-]?([0-9]{1,7})(?![0-9])", re.I)
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,7})$")
_SUFFIXES = re.compile(r"(?:\.(?:json|jsonl|txt|log|gz))+$", re.I)


class EntryKey(NamedTuple):
    """Fields that are equal for all calls of one entry."""

    kind: Kind
    axis: str
    group_size: int
    """Number of ranks in the group, or 0 if it is unknown."""
    dtype: str
    phase: Phase
    role: Role
    via: CollectiveBackend
    where: str = ""
    line: str = ""


class CallTally:
    """Number and bytes of calls, summed over calls that are equal in all other fields."""

    def __init__(self, source: Source, default_size: int = 0) -> None:
        """Groups of unknown size get ``default_size``, but at least 2."""
        self._source, self._default_size = source, default_size
        self._sums: dict[EntryKey, tuple[int, int, int]] = {}

    def add(self, key: EntryKey, size_bytes: int | None, count: int = 1) -> None:
        """Add ``count`` equal calls. ``size_bytes`` is the sum of their bytes, or None if it is unknown. Raises
        ReadError if there are too many distinct calls or too many bytes."""
        size = max(key.group_size or self._default_size, 2)
        key = key._replace(axis=clip_label(key.axis), group_size=size, dtype=clip_label(key.dtype))
        count_before, bytes_before, additions = self._sums.get(key, (0, 0, 0))
        count_after, bytes_after = count_before + count, bytes_before + (size_bytes or 0)
        self._sums[key] = count_after, bytes_after, additions + 1
        if len(self._sums) > MAX_ENTRIES:
            raise self._source.error(f"contains more than {MAX_ENTRIES:,} different collectives; record fewer steps")
        if max(count_after, bytes_after) > MAX_VOLUME:
            raise self._source.error(
                "contains collectives of more than 2^53 bytes in total; its sizes are wrong, write it again"
            )

    def __bool__(self) -> bool:
        return bool(self._sums)

    def entries(self, is_program: bool = False) -> list[Entry]:
        """Return one entry per distinct key. With ``is_program``, each call of ``add`` was a line of a compiled
        program."""
        return [
            Entry(**key._asdict(), count=count, bytes=size_bytes, static_count=additions if is_program else None)
            for key, (count, size_bytes, additions) in sorted(self._sums.items())
        ]


class Unclassified:
    """Communication of unknown kind, by its name in the file."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, float]] = {}

    def add(self, name: str, count: int = 1, seconds: float = 0.0) -> None:
        """Count calls. If the file has too many names, further names are counted together."""
        label = clip_label(printable(name))
        is_full = len(self._sums) >= MAX_UNCLASSIFIED - 1  # one place is kept for the calls of all further names
        if label not in self._sums and is_full:
            label = "calls of other names"
        count_before, seconds_before = self._sums.get(label, (0, 0.0))
        self._sums[label] = count_before + count, seconds_before + seconds

    def __bool__(self) -> bool:
        return bool(self._sums)

    def records(self) -> list[UnclassifiedCommunication]:
        return [
            UnclassifiedCommunication(name=name, count=count, seconds=min(seconds, MAX_SECONDS) or None)
            for name, (count, seconds) in sorted(self._sums.items())
        ]

    def warnings(self) -> Iterator[str]:
        if self._sums:
            names = ", ".join(f"{count:,} x {clip(name, 80)}" for name, (count, _) in sorted(self._sums.items())[:3])
            more = f" and {len(self._sums) - 3} more" if len(self._sums) > 3 else ""
            yield f"communication of unknown kind is not counted: {names}{more}"


class SequenceNumbers:
    """A set of sequence numbers."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def add(self, number: int) -> bool:
        """Add ``number`` and return whether it is new to the set."""
        is_new = number not in self._numbers
        self._numbers.add(number)
        return is_new

    @property
    def first(self) -> int:
        return min(self._numbers, default=0)

    @property
    def missing(self) -> int:
        """Number of missing sequence numbers between the lowest and the highest number in the set."""
        return max(self._numbers) - self.first + 1 - len(self._numbers) if self._numbers else 0


def parse_count(value: object) -> int | None:
    """Return a JSON value as an integer from 0 to 2**53 - 1, or None if it is not one. Strings of digits and floats
    with an integral value are accepted too."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,16}", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOLUME else None


def parse_rank(source: Source) -> int | None:
    """Return the rank in the file's name (``nccl_trace_rank_3``, ``rank0.json``, ``dump_3.json``), or None."""
    name = _SUFFIXES.sub("", source.path.name)
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(match[1]) if match else None
