"""Recorded collective calls, one by one, added up into the entries of a ledger.

For formats that list calls (Flight Recorder, Nsight Systems, NCCL Inspector) and know nothing of steps. What a format
does not tell has one word everywhere: axis and element type 'unknown', bytes 0, a group of 2 where even its size is
missing; the reader says so in a warning.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from regbot.ledgers.readers.source import Source
from regbot.records.ledger import Entry, Kind, Phase, Role, Via

UNKNOWN = "unknown"
MAX_VOLUME = 2**53
MAX_ENTRIES = 200_000


class Call(NamedTuple):
    """One call. ``group_size`` is 0 and ``bytes`` None where they are not known."""

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


def entries(source: Source, calls: Iterable[Call], size_otherwise: int) -> list[Entry]:
    """One entry for all calls that share every word but their bytes; ``size_otherwise``: for groups of unknown size.
    Raises ReadError where they add up to more than a machine can move."""
    sums: dict[Words, list[int]] = defaultdict(lambda: [0, 0])
    for call in calls:
        size = max(call.group_size or size_otherwise, 2)
        words = Words(call.kind, call.axis[:500], size, call.dtype[:500], call.phase, call.role, call.via)
        total = sums[words]
        total[0] += 1
        total[1] += call.bytes or 0
    if len(sums) > MAX_ENTRIES:
        raise source.error(f"holds more than {MAX_ENTRIES:,} different collectives; record fewer steps")
    if any(size > MAX_VOLUME for _, size in sums.values()):
        raise source.error("holds collectives of more than 2^53 bytes in all; its sizes are wrong")
    return [
        Entry(**words._asdict(), where="", count=count, bytes=size) for words, (count, size) in sorted(sums.items())
    ]
