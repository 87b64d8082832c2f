"""One collective call out of one event: kind, group, element type, bytes.

Three kinds of events say it, in the order in which they are believed. Rows with a ``Collective name`` (torch's
``record_param_comms`` since 2.2, and kernels that carry its words) have everything. Annotations ``nccl:...`` have the
kind, and the shapes of the input where shapes were recorded. Dispatcher rows ``c10d::...`` are what a backend without
the other two leaves (gloo, fake): shapes by argument, no group. Names and argument orders: torch 2.0 to 2.13.
"""

import re
from typing import Any, NamedTuple

from regbot.ledgers.dtypes import width
from regbot.ledgers.readers.events import number
from regbot.ledgers.readers.kineto_groups import UNKNOWN, Group, Groups
from regbot.records.ledger import Kind, Role, Via

MAX_VOLUME = 2**53
_KINDS: dict[str, Kind] = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "allreduceoop": "all_reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "allgatherbase": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send_recv",
    "isend": "send_recv",
    "recv": "send_recv",
    "irecv": "send_recv",
    "recvanysource": "send_recv",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
}
_NO_COLLECTIVES = {"wait", "init", "startcoalescing", "endcoalescing", "destroy", "abort", "shutdown"}

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "longint": "int64",
    "int": "int32",
    "short": "int16",
    "shortint": "int16",
    "byte": "uint8",
    "unsignedchar": "uint8",
    "char": "int8",
    "signedchar": "int8",
}


class Argument(NamedTuple):
    """Place of the tensors that are counted. ``by_group``: their elements times the ranks of the group."""

    place: int
    by_group: bool = False


_DISPATCHED: dict[str, tuple[Kind, Argument | None]] = {
    "_allgather_base_": ("all_gather", Argument(0)),
    "allgather_": ("all_gather", Argument(1, True)),
    "allgather_coalesced_": ("all_gather", Argument(1, True)),
    "allgather_into_tensor_coalesced_": ("all_gather", Argument(0)),
    "_reduce_scatter_base_": ("reduce_scatter", Argument(1)),
    "reduce_scatter_": ("reduce_scatter", Argument(0, True)),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", Argument(1)),
    "allreduce_": ("all_reduce", Argument(0)),
    "allreduce_coalesced_": ("all_reduce", Argument(0)),
    "alltoall_base_": ("all_to_all", Argument(1)),
    "alltoall_": ("all_to_all", Argument(1)),
    "broadcast_": ("broadcast", Argument(0)),
    "reduce_": ("reduce", Argument(0)),
    "gather_": ("gather", Argument(1)),
    "scatter_": ("scatter", Argument(0)),
    "send": ("send_recv", Argument(0)),
    "recv_": ("send_recv", Argument(0)),
    "recv_any_source_": ("send_recv", Argument(0)),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("barrier", None),
}
_SYMMETRIC: dict[str, tuple[Kind, Argument]] = {
    "nvshmem_all_to_all": ("all_to_all", Argument(0)),
    "all_to_all_vdev": ("all_to_all", Argument(0)),
    "all_to_all_vdev_2d": ("all_to_all", Argument(0)),
    "all_to_all_vdev_2d_offset": ("all_to_all", Argument(0)),
    "nvshmem_broadcast": ("broadcast", Argument(0)),
    "multimem_all_gather_out": ("all_gather", Argument(2)),
    "multimem_all_reduce_": ("all_reduce", Argument(0)),
    "multimem_one_shot_all_reduce": ("all_reduce", Argument(0)),
    "one_shot_all_reduce": ("all_reduce", Argument(0)),
    "two_shot_all_reduce_": ("all_reduce", Argument(0)),
    "reduce_scatter_out": ("reduce_scatter", Argument(0)),
}
_NOT_DISPATCHED = {"check_for_nan"}


class Row(NamedTuple):
    """One event of communication. ``args`` may be shared by rows that say the same, and holds only ``KEPT``."""

    name: str
    thread: tuple[str, str]
    start_us: float
    end_us: float
    external: int | None
    args: dict[str, Any]


KEPT = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Global rank start", "Global rank stride",
    "Input Dims", "Input type", "Concrete Inputs",
)  # fmt: skip


class Call(NamedTuple):
    """One collective. ``bytes`` is None where shapes were not recorded."""

    kind: Kind
    group: Group
    dtype: str
    bytes: int | None
    role: Role
    via: Via
    row: Row


class Unknown(NamedTuple):
    """A communication row that no table lists."""

    name: str


def from_metadata(row: Row, groups: Groups) -> Call | Unknown | None:
    """The call of a row with a ``Collective name``; None for waits and set-up."""
    if "Collective name" not in row.args:  # a row of another name that only begins like one
        return Unknown(row.name)
    name = str(row.args["Collective name"])
    if _plain(name) in _NO_COLLECTIVES:
        return None
    kind = _KINDS.get(_plain(name))
    if kind is None:
        return Unknown(f"Collective name {name}")
    field = "Out msg nelems" if kind in ("all_gather", "scatter") or _plain(name).startswith(("recv", "irecv")) else ""
    dtype = _dtype(row.args.get("dtype"))
    size = width(dtype)
    elements = number(row.args.get(field or "In msg nelems"))
    found = elements * size if elements is not None and size is not None else None
    return _call(row, kind, groups.named(row.args), dtype, found, "nccl")


def from_annotation(row: Row, groups: Groups) -> Call | Unknown | None:
    """The call of an ``nccl:`` annotation."""
    name = row.name.removeprefix("nccl:")
    word = re.split(r"[ \d]", name, maxsplit=1)[0]  # 'nccl:send 0->1'
    if _plain(word) in _NO_COLLECTIVES:
        return None
    kind = _KINDS.get(_plain(word))
    if kind is None:
        return Unknown(row.name)
    dtype, found, _ = _volume(row.args, range(64))
    if kind == "all_gather":
        found = None  # its output is counted; the annotation has the input, and not the group
    return _call(row, kind, Group(UNKNOWN, groups.world_size), dtype, found, "nccl")


def from_dispatcher(row: Row, groups: Groups, via: Via, types: dict[str, str]) -> Call | Unknown | None:
    """The call of a ``c10d::`` row. ``types``: element types by shape, for lists of tensors, whose type no row has."""
    name = row.name.removeprefix("c10d::")
    if name in _NOT_DISPATCHED:
        return None
    if name not in _DISPATCHED:
        return Unknown(row.name)
    kind, argument = _DISPATCHED[name]
    group = groups.of_size(_group_size(name, row.args))
    if argument is None:
        return _call(row, kind, group, "none", 0, via)
    dtype, found, elements = _volume(row.args, (argument.place,))
    if found is None and elements is not None and (told := types.get(shape_key(row.args, argument.place))):
        size = width(told)
        dtype, found = told, elements * size if size else None
    if argument.by_group:
        found = found * group.size if found is not None and group.size else None
    return _call(row, kind, group, dtype, found, via)


def from_symmetric(row: Row, groups: Groups) -> Call | None:
    """The call of a ``symm_mem::`` row, None for those that only set something up."""
    form = _SYMMETRIC.get(row.name.removeprefix("symm_mem::"))
    if form is None:
        return None
    dtype, found, _ = _volume(row.args, (form[1].place,))
    return _call(
        row, form[0], groups.experts() if form[0] == "all_to_all" else groups.of_size(), dtype, found, "symm-mem"
    )


def shape_key(args: dict[str, Any], index: int = 0) -> str:
    """The shapes of one argument as a word, '' where none were recorded."""
    dims = args.get("Input Dims")
    if not isinstance(dims, list) or index >= len(dims):
        return ""
    return str(_shapes(dims[index]) or "")


def annotated_shapes(args: dict[str, Any]) -> str:
    """The shapes of all tensors of an annotation, in the same form."""
    return str(_shapes(args.get("Input Dims")) or "")


def type_of(args: dict[str, Any]) -> str:
    """The element type of the first tensor of a row, '' where none was recorded."""
    types = args.get("Input type")
    return _dtype(types[0]) if isinstance(types, list) and types and isinstance(types[0], str) else ""


def _call(row: Row, kind: Kind, group: Group, dtype: str, found: int | None, via: Via) -> Call:
    if kind == "barrier":
        dtype, found = "none", 0
    if found is not None and found > MAX_VOLUME:
        found = None
    return Call(kind, group, dtype, found, role(kind, dtype, found), via, row)


CONTROL_INDEX_BYTES = 16 * 2**20
CONTROL_BYTE_BYTES = 64 * 2**10


def role(kind: Kind, dtype: str, size: int | None) -> Role:
    """Counts and indices are control, by the guest's rule: 32- and 64-bit integers up to 16 MiB, bytes up to 64 KiB."""
    if kind == "barrier":
        return "control"
    if size is None:
        return "payload"
    if dtype in ("int32", "int64", "bool"):
        return "control" if size <= CONTROL_INDEX_BYTES else "payload"
    return "control" if dtype in ("uint8", "int8", "int16") and size <= CONTROL_BYTE_BYTES else "payload"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _dtype(given: object) -> str:
    name = str(given or "").removeprefix("c10::").lower().replace(" ", "")
    return _DTYPES.get(name, name)[:100] or "unknown"


def _volume(args: dict[str, Any], indices: "range | tuple[int, ...]") -> tuple[str, int | None, int | None]:
    """Element type, bytes and elements of the tensors at ``indices``; bytes are None where type or shape is unknown."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return "unknown", None, None
    found: dict[str, int] = {}
    for index in indices:
        if index >= min(len(dims), len(types)):
            break
        dtype = _dtype(types[index])
        # a tensor of no dimension and an argument that is no tensor both have the shape []
        if shapes := _shapes(dims[index]) or ([[]] if dims[index] == [] and width(dtype) else []):
            found[dtype] = found.get(dtype, 0) + sum(map(_product, shapes))
    if not found:
        return "unknown", None, None
    widths = [width(dtype) for dtype in found]
    known = [size for size in widths if size is not None]
    size = sum(a * b for a, b in zip(found.values(), known, strict=True)) if len(known) == len(widths) else None
    dtype = next(iter(found)) if len(found) == 1 else "mixed"
    return (dtype if size is not None else "unknown"), size, sum(found.values())


def _shapes(dims: object) -> list[list[int]]:
    """``[8, 4]`` and ``[[8, 4], [2]]`` both as a list of shapes; nothing where it is neither."""
    if not isinstance(dims, list) or not dims:
        return []
    nested = dims if all(isinstance(one, list) for one in dims) else [dims]
    shapes = [[n for n in one if number(n) is not None and isinstance(n, int)] for one in nested]
    return shapes if all(len(a) == len(b) for a, b in zip(shapes, nested, strict=True)) else []


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total = min(total * size, 2 * MAX_VOLUME)
    return total


def _group_size(name: str, args: dict[str, Any]) -> int:
    """Ranks of a call that does not name its group, from what goes in and comes out; 0 where that does not tell."""
    dims = args.get("Input Dims")
    if name == "alltoall_base_":
        given = args.get("Concrete Inputs")
        splits = given[4] if isinstance(given, list) and len(given) > 4 else None
        return len(re.findall(r"\d+", splits)) if isinstance(splits, str) and "..." not in splits else 0
    if name not in ("_allgather_base_", "_reduce_scatter_base_") or not isinstance(dims, list) or len(dims) < 2:
        return 0
    first, second = (sum(map(_product, _shapes(one))) for one in dims[:2])
    small, large = (second, first) if name == "_allgather_base_" else (first, second)
    return large // small if small and large % small == 0 else 0
