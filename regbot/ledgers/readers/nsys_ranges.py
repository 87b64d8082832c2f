"""NCCL calls from the NVTX ranges that NCCL pushes: collectives, sizes, and all-to-alls built from sends.

NCCL 2.2x names each range after the function (``ncclAllGather``) and attaches a payload (``nvtx_payload_schemas.h``).
The payload has the communicator and the message size. The range that creates a communicator has the number of ranks
instead of a message size. A message size is the size of one rank's piece. For all-gather, reduce-scatter and
all-to-all, the reader multiplies it by the number of ranks.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from regbot.ledgers.readers.kineto_calls import classify_role
from regbot.ledgers.readers.tally import MAX_VOLUME, UNKNOWN, CallSum, parse_count
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
_TRANSFER_OPS = ("send", "recv")
_SCALED_BY_RANKS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
"""Kinds whose bytes in the ledger are the size of one rank's piece times the number of ranks."""
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
    """Number of the NVTX domain."""

    @property
    def content(self) -> tuple[str, str]:
        return self.name, self.payload


class NvtxCalls(NamedTuple):
    """NCCL calls of one process.

    ``exchanges`` is the number of groups of sends and receives that are counted as one all-to-all each.
    ``largest_communicator`` is the number of ranks in the largest known communicator, or 0 if none is known.
    """

    calls: list[CallSum]
    exchanges: int
    largest_communicator: int


class _NcclCall(NamedTuple):
    """One call of an NCCL function."""

    operation: str
    """Name of the function in lower case, without 'nccl': for example 'allgather', 'send' or 'groupstart'."""
    message_bytes: int | None
    """Size of one rank's piece; None if it is unknown."""
    communicator: str
    """Id of the communicator; '' if it is unknown."""
    created_ranks: int
    """Number of ranks of the communicator that the function created; 0 if it created none."""


def read_calls(ranges: Iterable[NvtxRange]) -> NvtxCalls:
    """Return the NCCL calls that the ranges of one process record."""
    ranges_by_thread: dict[int, list[NvtxRange]] = defaultdict(list)
    parsed_calls: dict[tuple[str, str], _NcclCall] = {}  # by name and payload, which many ranges can share
    ranks_by_communicator: dict[str, int] = {}
    for nvtx_range in ranges:
        ranges_by_thread[nvtx_range.thread].append(nvtx_range)
        if nvtx_range.content not in parsed_calls:
            parsed_calls[nvtx_range.content] = parsed = _parse_call(*nvtx_range.content)
            if parsed.created_ranks:
                ranks_by_communicator[parsed.communicator] = parsed.created_ranks
    calls: list[CallSum] = []
    exchange_count = 0
    for _, ranges_of_thread in sorted(ranges_by_thread.items()):
        ordered_ranges = sorted(ranges_of_thread, key=_sort_key)
        for group in _split_groups(parsed_calls[nvtx_range.content] for nvtx_range in ordered_ranges):
            is_exchange = _is_all_to_all(group)
            exchange_count += is_exchange
            calls += _convert_group(group, is_exchange, ranks_by_communicator)
    return NvtxCalls(calls, exchange_count, max(ranks_by_communicator.values(), default=0))


def _is_all_to_all(group: list[_NcclCall]) -> bool:
    """Whether a group has at least two sends and two receives. A smaller group can be a transfer between two ranks."""
    operations = [nccl_call.operation for nccl_call in group]
    return operations.count("send") >= 2 and operations.count("recv") >= 2


def _convert_group(
    group: list[_NcclCall], is_exchange: bool, ranks_by_communicator: Mapping[str, int]
) -> Iterator[CallSum]:
    """Yield the collectives and transfers of one group of calls.

    With ``is_exchange``, the sends and receives of the group together are one all-to-all. Its bytes are the sum of the
    sends.
    """
    if is_exchange:
        sends = [nccl_call for nccl_call in group if nccl_call.operation == "send"]
        sent_bytes = [nccl_call.message_bytes for nccl_call in sends if nccl_call.message_bytes is not None]
        moved_bytes = sum(sent_bytes) if len(sent_bytes) == len(sends) else None
        communicator = sends[0].communicator
        # If the size of the communicator is unknown, each rank is assumed to get one send.
        num_ranks = ranks_by_communicator.get(communicator, len(sends))
        yield _make_call("all_to_all", communicator, num_ranks, moved_bytes)
    for nccl_call in group:
        communicator, moved_bytes = nccl_call.communicator, nccl_call.message_bytes
        num_ranks = ranks_by_communicator.get(communicator, 0)
        kind = _KINDS.get(nccl_call.operation)
        if nccl_call.operation in _TRANSFER_OPS and not is_exchange:
            yield _make_call("send_recv", communicator, num_ranks, moved_bytes)
        elif kind is not None:
            if kind in _SCALED_BY_RANKS:
                moved_bytes = moved_bytes * num_ranks if moved_bytes is not None and num_ranks else None
            yield _make_call(kind, communicator, num_ranks, moved_bytes)


def _make_call(kind: Kind, communicator: str, num_ranks: int, moved_bytes: int | None) -> CallSum:
    """Return one call. ``num_ranks`` is 0 if the communicator's size is unknown."""
    moved_bytes = min(moved_bytes, MAX_VOLUME) if moved_bytes is not None else None
    return CallSum(
        kind,
        axis=f"communicator of {num_ranks} ranks" if communicator and num_ranks else UNKNOWN,
        group_size=num_ranks,
        dtype=UNKNOWN,
        phase="unknown",
        role=classify_role(kind, UNKNOWN, moved_bytes),
        via="nccl",
        bytes=moved_bytes,
    )


def _split_groups(calls: Iterable[_NcclCall]) -> Iterator[list[_NcclCall]]:
    """Yield the calls between ncclGroupStart and ncclGroupEnd as one group, and every other call as its own group."""
    group: list[_NcclCall] = []
    depth = 0
    for call in calls:
        if call.operation == "groupstart":
            depth += 1
        elif call.operation == "groupend":
            depth = max(0, depth - 1)
        else:
            group.append(call)
        if not depth and group:
            yield group
            group = []
    if group:
        yield group


def _parse_call(name: str, payload_text: str) -> _NcclCall:
    payload = _parse_payload(payload_text)
    communicator, ranks = _find_value(payload, _COMMUNICATOR), _find_number(payload, _RANKS) or 0
    creates = name.startswith("ncclComm") and communicator is not None and ranks <= MAX_RANKS
    return _NcclCall(
        operation=re.sub(r"[^a-z]", "", name.removeprefix("nccl").lower()),  # 'allgather' for ``ncclAllGather``
        message_bytes=_find_number(payload, _SIZE),
        communicator=str(communicator or ""),
        created_ranks=ranks if creates else 0,
    )


def _sort_key(nvtx_range: NvtxRange) -> tuple[int, int]:
    """Sort by start. If two ranges start together, the longer one is the outer one and comes first."""
    return nvtx_range.start, -nvtx_range.end


def _parse_payload(text: str) -> Mapping[str, Any]:
    """Parse a payload from JSON. Keys become lower case, and the members of nested objects become members of the
    payload.

    Return an empty mapping if the text is not a JSON object.
    """
    if not text.lstrip().startswith("{"):
        return {}
    try:
        document = parse_json(text.encode("utf-8", "replace"), "payload")
    except RecordError:
        return {}
    payload: dict[str, Any] = {}
    for key, value in document.items() if isinstance(document, dict) else ():
        payload.update(value if isinstance(value, dict) else {key: value})
    return {str(key).lower(): value for key, value in payload.items()}


def _find_value(payload: Mapping[str, Any], name: str) -> Any:
    """Return the value of the first key that contains ``name``, or None if there is none."""
    return next((value for key, value in payload.items() if name in key), None)


def _find_number(payload: Mapping[str, Any], name: str) -> int | None:
    """Return the number of the first key that contains ``name``, or None if there is no valid number."""
    value = _find_value(payload, name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        value = int(value)
    return parse_count(value)
