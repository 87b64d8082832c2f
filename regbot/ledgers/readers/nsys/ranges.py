"""NCCL calls from the NVTX ranges that NCCL pushes: collectives, sizes, and all-to-alls built from sends.

NCCL 2.2x names each range after the function (``ncclAllGather``) and attaches a payload (``nvtx_payload_schemas.h``)
with the communicator and the message size, which is the size of one rank's piece. The range that creates a communicator
has the number of ranks instead."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.collectives import SCALED_BY_RANKS, classify_role, find_kind
from regbot.ledgers.readers.groups import UNKNOWN
from regbot.ledgers.readers.tally import MAX_VOLUME, EntryKey, parse_count
from regbot.records.files import RecordError, parse_json
from regbot.records.ledger import Kind

_SIZE, _COMMUNICATOR, _RANKS = "message size", "communicator id", "no. of ranks"
"""Parts of the names of the payload's fields."""
MAX_RANKS = 2**24
"""A larger number of ranks is taken for a broken payload."""


class NvtxRange(NamedTuple):
    """One range named after an NCCL function. Times are in nanoseconds."""

    start: int
    end: int
    thread: int
    """Nsight's globalTid, which contains the process too, or 0 if it is unknown."""
    name: str
    payload: str
    """JSON text, or '' if the range has no payload."""
    domain: object


class NvtxCall(NamedTuple):
    """One call; its ``bytes`` are None if they are unknown."""

    key: EntryKey
    bytes: int | None


class NvtxCalls(NamedTuple):
    calls: list[NvtxCall]
    exchanges: int
    """Number of groups of sends and receives that are counted as one all-to-all each."""
    largest_communicator: int
    """Number of ranks in the largest known communicator, or 0 if none is known."""


class _Function(NamedTuple):
    operation: str
    """Name of the function in lower case, without 'nccl': for example 'allgather', 'send' or 'groupstart'."""
    kind: Kind | None
    message_bytes: int | None
    communicator: str
    created_ranks: int
    """Number of ranks of the communicator that the function created; 0 if it created none."""


def read_calls(ranges: Iterable[NvtxRange]) -> NvtxCalls:
    ranges_by_thread: dict[int, list[NvtxRange]] = defaultdict(list)
    functions: dict[tuple[str, str], _Function] = {}  # by name and payload, which many ranges can share
    communicator_sizes: dict[str, int] = {}
    for nvtx_range in ranges:
        ranges_by_thread[nvtx_range.thread].append(nvtx_range)
        content = nvtx_range.name, nvtx_range.payload
        if content not in functions:
            functions[content] = function = _parse_function(*content)
            if function.created_ranks:
                communicator_sizes[function.communicator] = function.created_ranks
    calls: list[NvtxCall] = []
    exchange_count = 0
    for _, ranges_of_thread in sorted(ranges_by_thread.items()):
        # If two ranges start together, the longer one is the outer one and comes first.
        ordered_ranges = sorted(ranges_of_thread, key=lambda nvtx_range: (nvtx_range.start, -nvtx_range.end))
        for group in _split_groups(functions[nvtx_range.name, nvtx_range.payload] for nvtx_range in ordered_ranges):
            operations = [function.operation for function in group]
            # A smaller group can be a transfer between two ranks.
            is_exchange = operations.count("send") >= 2 and operations.count("recv") >= 2
            exchange_count += is_exchange
            calls += _convert_group(group, is_exchange, communicator_sizes)
    return NvtxCalls(calls, exchange_count, max(communicator_sizes.values(), default=0))


def _convert_group(
    group: list[_Function], is_exchange: bool, communicator_sizes: Mapping[str, int]
) -> Iterator[NvtxCall]:
    """Yield the collectives and transfers of one group. The sends and receives of an exchange are one all-to-all, whose
    bytes are the sum of the sends."""
    if is_exchange:
        sends = [function for function in group if function.operation == "send"]
        sizes = [function.message_bytes for function in sends if function.message_bytes is not None]
        # If the size of the communicator is unknown, each rank is assumed to get one send.
        ranks = communicator_sizes.get(sends[0].communicator, len(sends))
        yield _make_call("all_to_all", sends[0].communicator, ranks, sum(sizes) if len(sizes) == len(sends) else None)
    for function in group:
        ranks, size_bytes = communicator_sizes.get(function.communicator, 0), function.message_bytes
        kind = function.kind
        if kind is None or (is_exchange and kind == "send_recv"):
            continue
        if kind in SCALED_BY_RANKS:
            size_bytes = size_bytes * ranks if size_bytes is not None and ranks else None
        yield _make_call(kind, function.communicator, ranks, size_bytes)


def _make_call(kind: Kind, communicator: str, ranks: int, size_bytes: int | None) -> NvtxCall:
    size_bytes = min(size_bytes, MAX_VOLUME) if size_bytes is not None else None
    axis = f"communicator of {ranks} ranks" if communicator and ranks else UNKNOWN
    role = classify_role(kind, size_bytes, UNKNOWN)
    return NvtxCall(EntryKey(kind, axis, ranks, UNKNOWN, "unknown", role, "nccl"), size_bytes)


def _split_groups(functions: Iterable[_Function]) -> Iterator[list[_Function]]:
    """Yield the calls between ncclGroupStart and ncclGroupEnd as one group, and every other call as its own group."""
    group: list[_Function] = []
    depth = 0
    for function in functions:
        if function.operation == "groupstart":
            depth += 1
        elif function.operation == "groupend":
            depth = max(0, depth - 1)
        else:
            group.append(function)
        if not depth and group:
            yield group
            group = []
    if group:
        yield group


def _parse_function(name: str, payload_text: str) -> _Function:
    payload = _parse_payload(payload_text)
    communicator, ranks = _find_value(payload, _COMMUNICATOR), _find_number(payload, _RANKS) or 0
    creates = name.startswith("ncclComm") and communicator is not None and ranks <= MAX_RANKS
    operation = re.sub(r"[^a-z]", "", name.removeprefix("nccl").lower())
    return _Function(
        operation,
        find_kind(operation),
        message_bytes=_find_number(payload, _SIZE),
        communicator=str(communicator or ""),
        created_ranks=ranks if creates else 0,
    )


def _parse_payload(text: str) -> Mapping[str, Any]:
    """Parse a payload from JSON, with its keys in lower case. The members of nested objects become its own."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        document = parse_json(text.encode("utf-8", "replace"), "payload")
    except RecordError:
        return {}
    payload: dict[str, Any] = {}
    for key, value in document.items():
        payload.update(value if isinstance(value, dict) else {key: value})
    return {str(key).lower(): value for key, value in payload.items()}


def _find_value(payload: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in payload.items() if name in key), None)


def _find_number(payload: Mapping[str, Any], name: str) -> int | None:
    return parse_count(_find_value(payload, name))
