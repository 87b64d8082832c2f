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
from regbot.ledgers.readers.tally import MAX_VOLUME, UNKNOWN, CallSum
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
_SIZE, _COMMUNICATOR, _RANKS = "message size", "communicator id", "no. of ranks"


class NvtxRange(NamedTuple):
    """One range named after an NCCL function. Times are in nanoseconds. ``payload`` is JSON text, or '' if there is
    none.
    """

    start: int
    end: int
    thread: int
    name: str
    payload: str
    domain: object


class NvtxCalls(NamedTuple):
    """NCCL calls of one process.

    ``exchanges`` is the number of groups of sends and receives that are counted as one all-to-all each.
    ``largest_communicator`` is the number of ranks in the largest known communicator, or 0 if none is known.
    """

    calls: list[CallSum]
    exchanges: int
    largest_communicator: int


class _NcclCall(NamedTuple):
    operation: str
    message_bytes: int | None
    communicator: str


def read_calls(ranges: Iterable[NvtxRange]) -> NvtxCalls:
    """Return the NCCL calls that the ranges of one process record."""
    ranges_by_thread: dict[int, list[NvtxRange]] = defaultdict(list)
    for nvtx_range in ranges:
        ranges_by_thread[nvtx_range.thread].append(nvtx_range)
    calls_by_thread = {
        thread: list(map(_parse_range, sorted(ranges_of_thread, key=_sort_key)))
        for thread, ranges_of_thread in sorted(ranges_by_thread.items())
    }
    ranks_by_communicator = dict(
        _read_communicator_sizes(
            nvtx_range for ranges_of_thread in ranges_by_thread.values() for nvtx_range in ranges_of_thread
        )
    )
    calls: list[CallSum] = []
    exchanges = 0
    for calls_of_thread in calls_by_thread.values():
        for group in _split_groups(calls_of_thread):
            sends = [nccl_call for nccl_call in group if nccl_call.operation == "send"]
            is_exchange = len(sends) >= 2 and sum(nccl_call.operation == "recv" for nccl_call in group) >= 2
            exchanges += is_exchange
            if is_exchange:
                moved_bytes = (
                    None
                    if any(nccl_call.message_bytes is None for nccl_call in sends)
                    else sum(nccl_call.message_bytes or 0 for nccl_call in sends)
                )
                num_ranks = ranks_by_communicator.get(sends[0].communicator, len(sends))
                calls.append(_make_call("all_to_all", sends[0].communicator, num_ranks, moved_bytes))
            for nccl_call in group:
                if nccl_call.operation in _TRANSFER_OPS and not is_exchange:
                    calls.append(
                        _make_call(
                            "send_recv",
                            nccl_call.communicator,
                            ranks_by_communicator.get(nccl_call.communicator, 0),
                            nccl_call.message_bytes,
                        )
                    )
                kind = _KINDS.get(nccl_call.operation)
                if kind is not None:
                    num_ranks = ranks_by_communicator.get(nccl_call.communicator, 0)
                    factor = num_ranks or None if kind in _SCALED_BY_RANKS else 1
                    moved_bytes = (
                        nccl_call.message_bytes * factor if nccl_call.message_bytes is not None and factor else None
                    )
                    calls.append(_make_call(kind, nccl_call.communicator, num_ranks, moved_bytes))
    return NvtxCalls(calls, exchanges, max(ranks_by_communicator.values(), default=0))


def _make_call(kind: Kind, communicator: str, num_ranks: int, moved_bytes: int | None) -> CallSum:
    moved_bytes = min(moved_bytes, MAX_VOLUME) if moved_bytes is not None else None
    axis = f"communicator of {num_ranks} ranks" if communicator and num_ranks else UNKNOWN
    return CallSum(
        kind, axis, num_ranks, UNKNOWN, "unknown", classify_role(kind, UNKNOWN, moved_bytes), "nccl", moved_bytes
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


def _parse_range(nvtx_range: NvtxRange) -> _NcclCall:
    payload = _parse_payload(nvtx_range.payload)
    message_bytes = _find_number(payload, _SIZE)
    return _NcclCall(_parse_operation(nvtx_range.name), message_bytes, str(_find_value(payload, _COMMUNICATOR) or ""))


def _sort_key(nvtx_range: NvtxRange) -> tuple[int, int]:
    return nvtx_range.start, -nvtx_range.end


def _parse_operation(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.removeprefix("nccl").lower())


def _read_communicator_sizes(ranges: Iterable[NvtxRange]) -> Iterator[tuple[str, int]]:
    """Yield the id and the number of ranks of each communicator that was created while the profiler ran."""
    for nvtx_range in ranges:
        if nvtx_range.name.startswith("ncclComm") and nvtx_range.payload:
            payload = _parse_payload(nvtx_range.payload)
            communicator, size = _find_value(payload, _COMMUNICATOR), _find_number(payload, _RANKS)
            if communicator is not None and size and size <= 2**24:
                yield str(communicator), size


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
    return next((value for key, value in payload.items() if name in key), None)


def _find_number(payload: Mapping[str, Any], name: str) -> int | None:
    value = _find_value(payload, name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOLUME else None
