"""NCCL calls from the NVTX ranges that NCCL pushes: what was called, how large, and which sends make an all-to-all.

NCCL 2.2x names each range after the function (``ncclAllGather``) and attaches a payload (``nvtx_payload_schemas.h``):
communicator, message size, and at communicator creation the number of ranks. The message size is that of one rank's
piece, to be multiplied by the ranks for all-gather, reduce-scatter and all-to-all.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.readers.kineto_calls import role
from regbot.ledgers.readers.tally import MAX_VOLUME, UNKNOWN, Call
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Kind

_KINDS: dict[str, Kind] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_TRANSFERS = ("send", "recv")
_BY_RANKS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
_SIZE, _COMMUNICATOR, _RANKS = "message size", "communicator id", "no. of ranks"


class Range(NamedTuple):
    """One range of NCCL's domain. Times in nanoseconds; ``payload`` is JSON or ''."""

    start: int
    end: int
    thread: int
    name: str
    payload: str
    domain: object


class Told(NamedTuple):
    """``grouped``: groups of sends and receives that were taken for an all-to-all; ``largest``: the largest known
    communicator, 0 if none is."""

    calls: list[Call]
    grouped: int
    largest: int


class _Read(NamedTuple):
    word: str
    message: int | None
    communicator: str


def calls_of(ranges: Iterable[Range]) -> Told:
    """The collectives of one process."""
    threads: dict[int, list[Range]] = defaultdict(list)
    for each in ranges:
        threads[each.thread].append(each)
    reads = {thread: list(map(_read, sorted(ours, key=_began))) for thread, ours in sorted(threads.items())}
    sizes = dict(_sizes(each for ours in threads.values() for each in ours))
    calls: list[Call] = []
    grouped = 0
    for ours in reads.values():
        for group in _groups(ours):
            sends = [one for one in group if one.word == "send"]
            exchange = len(sends) >= 2 and sum(one.word == "recv" for one in group) >= 2
            grouped += exchange
            if exchange:
                moved = None if any(one.message is None for one in sends) else sum(one.message or 0 for one in sends)
                size = sizes.get(sends[0].communicator, len(sends))
                calls.append(_call("all_to_all", sends[0].communicator, size, moved))
            for one in group:
                if one.word in _TRANSFERS and not exchange:
                    calls.append(_call("send_recv", one.communicator, sizes.get(one.communicator, 0), one.message))
                kind = _KINDS.get(one.word)
                if kind is not None:
                    size = sizes.get(one.communicator, 0)
                    times = size or None if kind in _BY_RANKS else 1
                    moved = one.message * times if one.message is not None and times else None
                    calls.append(_call(kind, one.communicator, size, moved))
    return Told(calls, grouped, max(sizes.values(), default=0))


def _call(kind: Kind, communicator: str, size: int, moved: int | None) -> Call:
    moved = min(moved, MAX_VOLUME) if moved is not None else None
    axis = f"communicator of {size} ranks" if communicator and size else UNKNOWN
    return Call(kind, axis, size, UNKNOWN, "unknown", role(kind, UNKNOWN, moved), "nccl", moved)


def _groups(ours: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Calls between ncclGroupStart and ncclGroupEnd together, every other call alone."""
    group: list[_Read] = []
    depth = 0
    for one in ours:
        if one.word == "groupstart":
            depth += 1
        elif one.word == "groupend":
            depth = max(0, depth - 1)
        else:
            group.append(one)
        if not depth and group:
            yield group
            group = []
    if group:
        yield group


def _read(one: Range) -> _Read:
    payload = _payload(one.payload)
    message = _number(payload, _SIZE)
    return _Read(_word(one.name), message, str(_value(payload, _COMMUNICATOR) or ""))


def _began(one: Range) -> tuple[int, int]:
    return one.start, -one.end


def _word(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.removeprefix("nccl").lower())


def _sizes(ranges: Iterable[Range]) -> Iterator[tuple[str, int]]:
    """Ranks of the communicators that were made while the profiler ran."""
    for one in ranges:
        if one.name.startswith("ncclComm") and one.payload:
            payload = _payload(one.payload)
            communicator, size = _value(payload, _COMMUNICATOR), _number(payload, _RANKS)
            if communicator is not None and size and size <= 2**24:
                yield str(communicator), size


def _payload(text: str) -> Mapping[str, Any]:
    """The payload by lower-case names; nested objects are flattened."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        given = parse_json(text.encode("utf-8", "replace"), "payload")
    except RecordError:
        return {}
    found: dict[str, Any] = {}
    for key, value in given.items() if isinstance(given, dict) else ():
        found.update(value if isinstance(value, dict) else {key: value})
    return {str(key).lower(): value for key, value in found.items()}


def _value(payload: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in payload.items() if name in key), None)


def _number(payload: Mapping[str, Any], name: str) -> int | None:
    value = _value(payload, name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOLUME else None
