"""Parses one collective call from one Kineto event: kind, group, element type, bytes.

There are three kinds of events. The most trusted kind comes first:

- Rows with a ``Collective name`` are complete. They are torch's ``record_param_comms`` rows since torch 2.2, and
  kernels with the same metadata.
- Annotations ``nccl:...`` have the kind of the collective. They also have the input shapes if shapes were recorded.
- Dispatcher rows ``c10d::...`` are the only rows that gloo and the fake backend write. They have the shapes of each
  argument, but no group.

The names and the orders of arguments are those of torch 2.0 to 2.13.
"""

import re
from typing import Any, NamedTuple

from regbot.ledgers.dtypes import width
from regbot.ledgers.readers.events import parse_number
from regbot.ledgers.readers.kineto_groups import UNKNOWN, ProcessGroup, ProcessGroups
from regbot.records.ledger import CollectiveBackend, Kind, Role
from regbot.text.clip import clip

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
_SETUP_OPERATIONS = {"wait", "init", "startcoalescing", "endcoalescing", "destroy", "abort", "shutdown"}

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
    """Position of the argument whose tensors are counted.

    If ``times_group_size`` is True, the bytes of the tensors are multiplied by the number of ranks in the group.
    """

    position: int
    times_group_size: bool = False


_DISPATCHER_OPS: dict[str, tuple[Kind, Argument | None]] = {
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
_SYMMETRIC_OPS: dict[str, tuple[Kind, Argument]] = {
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
_LOCAL_DISPATCHER_OPS = {"check_for_nan"}


class CallRow(NamedTuple):
    """One communication event.

    ``args`` contains only the keys in ``ARGUMENT_KEYS``. Rows with equal ``args`` share the same dictionary.
    """

    name: str
    thread: tuple[str, str]
    start_us: float
    end_us: float
    external_id: int | None
    args: dict[str, Any]


ARGUMENT_KEYS = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Global rank start", "Global rank stride",
    "Input Dims", "Input type", "Concrete Inputs",
)  # fmt: skip


class KinetoCall(NamedTuple):
    """One collective call. ``bytes`` is None if the size is unknown, for example because no shapes were recorded."""

    kind: Kind
    group: ProcessGroup
    dtype: str
    bytes: int | None
    role: Role
    via: CollectiveBackend
    row: CallRow


class UnknownCall(NamedTuple):
    """A communication row whose name is in none of the tables of this module."""

    name: str


def from_metadata(row: CallRow, groups: ProcessGroups) -> KinetoCall | UnknownCall | None:
    """Return the call that a row with a ``Collective name`` records, or None for waits and setup."""
    if "Collective name" not in row.args:  # the row's name only begins like the name of a metadata row
        return UnknownCall(row.name)
    name = str(row.args["Collective name"])
    if _normalize(name) in _SETUP_OPERATIONS:
        return None
    kind = _KINDS.get(_normalize(name))
    if kind is None:
        return UnknownCall(f"Collective name {name}")
    field = (
        "Out msg nelems" if kind in ("all_gather", "scatter") or _normalize(name).startswith(("recv", "irecv")) else ""
    )
    dtype = _parse_dtype(row.args.get("dtype"))
    element_bytes = width(dtype)
    elements = parse_number(row.args.get(field or "In msg nelems"))
    size_bytes = elements * element_bytes if elements is not None and element_bytes is not None else None
    return _make_call(row, kind, groups.find_group(row.args), dtype, size_bytes, "nccl")


def from_annotation(row: CallRow, groups: ProcessGroups) -> KinetoCall | UnknownCall | None:
    """Return the call that an ``nccl:`` annotation records, or None for waits and setup."""
    name = row.name.removeprefix("nccl:")
    operation = re.split(r"[ \d]", name, maxsplit=1)[0]  # the name can be 'nccl:send 0->1'
    if _normalize(operation) in _SETUP_OPERATIONS:
        return None
    kind = _KINDS.get(_normalize(operation))
    if kind is None:
        return UnknownCall(row.name)
    dtype, size_bytes, _ = _measure_tensors(row.args, range(64))
    if kind == "all_gather":
        size_bytes = None  # the output is counted, but the annotation has only the input and no group
    return _make_call(row, kind, ProcessGroup(UNKNOWN, groups.world_size), dtype, size_bytes, "nccl")


def from_dispatcher(
    row: CallRow, groups: ProcessGroups, via: CollectiveBackend, types: dict[str, str]
) -> KinetoCall | UnknownCall | None:
    """Return the call that a ``c10d::`` row records, or None for operators that do not communicate.

    ``types`` maps shapes, as text, to element types. Rows with lists of tensors contain no element type, so the type
    is looked up in ``types`` by shape.
    """
    name = row.name.removeprefix("c10d::")
    if name in _LOCAL_DISPATCHER_OPS:
        return None
    if name not in _DISPATCHER_OPS:
        return UnknownCall(row.name)
    kind, argument = _DISPATCHER_OPS[name]
    group = groups.find_group_of_size(_infer_group_size(name, row.args))
    if argument is None:
        return _make_call(row, kind, group, "none", 0, via)
    dtype, size_bytes, elements = _measure_tensors(row.args, (argument.position,))
    if (
        size_bytes is None
        and elements is not None
        and (shape_dtype := types.get(format_shape(row.args, argument.position)))
    ):
        element_bytes = width(shape_dtype)
        dtype, size_bytes = shape_dtype, elements * element_bytes if element_bytes else None
    if argument.times_group_size:
        size_bytes = size_bytes * group.size if size_bytes is not None and group.size else None
    return _make_call(row, kind, group, dtype, size_bytes, via)


def from_symmetric(row: CallRow, groups: ProcessGroups) -> KinetoCall | None:
    """Return the call that a ``symm_mem::`` row records, or None for operators that only set up memory."""
    operator = _SYMMETRIC_OPS.get(row.name.removeprefix("symm_mem::"))
    if operator is None:
        return None
    dtype, size_bytes, _ = _measure_tensors(row.args, (operator[1].position,))
    return _make_call(
        row,
        operator[0],
        groups.find_expert_group() if operator[0] == "all_to_all" else groups.find_group_of_size(),
        dtype,
        size_bytes,
        "symm-mem",
    )


def format_shape(args: dict[str, Any], index: int = 0) -> str:
    """Return the shapes of the argument at ``index`` as text, or '' if no shapes were recorded."""
    dims = args.get("Input Dims")
    if not isinstance(dims, list) or index >= len(dims):
        return ""
    return str(_parse_shapes(dims[index]) or "")


def format_all_shapes(args: dict[str, Any]) -> str:
    """Return the shapes of all tensors of an annotation as text, or '' if no shapes were recorded."""
    return str(_parse_shapes(args.get("Input Dims")) or "")


def first_dtype(args: dict[str, Any]) -> str:
    """Return the element type of a row's first tensor, or '' if no element type was recorded."""
    types = args.get("Input type")
    return _parse_dtype(types[0]) if isinstance(types, list) and types and isinstance(types[0], str) else ""


def _make_call(
    row: CallRow, kind: Kind, group: ProcessGroup, dtype: str, size_bytes: int | None, via: CollectiveBackend
) -> KinetoCall:
    if kind == "barrier":
        dtype, size_bytes = "none", 0
    if size_bytes is not None and size_bytes > MAX_VOLUME:
        size_bytes = None
    return KinetoCall(kind, group, dtype, size_bytes, classify_role(kind, dtype, size_bytes), via, row)


MAX_CONTROL_INDEX_BYTES = 16 * 2**20
MAX_CONTROL_SMALL_INTEGER_BYTES = 64 * 2**10


def classify_role(kind: Kind, dtype: str, size_bytes: int | None) -> Role:
    """Return control for barriers, token counts and indices, else payload.

    The guest uses the same rule: int32, int64 and bool up to 16 MiB and smaller integers up to 64 KiB are control.
    Calls of unknown size are payload.
    """
    if kind == "barrier":
        return "control"
    if size_bytes is None:
        return "payload"
    if dtype in ("int32", "int64", "bool"):
        return "control" if size_bytes <= MAX_CONTROL_INDEX_BYTES else "payload"
    return (
        "control"
        if dtype in ("uint8", "int8", "int16") and size_bytes <= MAX_CONTROL_SMALL_INTEGER_BYTES
        else "payload"
    )


def _normalize(name: str) -> str:
    return name.lower().replace("_", "")


def _parse_dtype(value: object) -> str:
    name = str(value or "").removeprefix("c10::").lower().replace(" ", "")
    return clip(_DTYPES.get(name, name), 100) or "unknown"


def _measure_tensors(args: dict[str, Any], indices: "range | tuple[int, ...]") -> tuple[str, int | None, int | None]:
    """Return the element type, the bytes and the number of elements of the tensors at ``indices``.

    The bytes are None if the width of an element type is unknown. Bytes and elements are both None if no shapes were
    recorded.
    """
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return "unknown", None, None
    elements: dict[str, int] = {}
    for index in indices:
        if index >= min(len(dims), len(types)):
            break
        dtype = _parse_dtype(types[index])
        # a 0-dimensional tensor and an argument that is not a tensor both have the shape []
        if shapes := _parse_shapes(dims[index]) or ([[]] if dims[index] == [] and width(dtype) else []):
            elements[dtype] = elements.get(dtype, 0) + sum(map(_count_elements, shapes))
    if not elements:
        return "unknown", None, None
    widths = [width(dtype) for dtype in elements]
    known_widths = [element_bytes for element_bytes in widths if element_bytes is not None]
    size_bytes = (
        sum(count * element_bytes for count, element_bytes in zip(elements.values(), known_widths, strict=True))
        if len(known_widths) == len(widths)
        else None
    )
    dtype = next(iter(elements)) if len(elements) == 1 else "mixed"
    return (dtype if size_bytes is not None else "unknown"), size_bytes, sum(elements.values())


def _parse_shapes(dims: object) -> list[list[int]]:
    """Parse the shapes of one argument: ``[8, 4]`` is one shape, and ``[[8, 4], [2]]`` is a list of shapes.

    Return an empty list for anything else.
    """
    if not isinstance(dims, list) or not dims:
        return []
    candidates = dims if all(isinstance(dimensions, list) for dimensions in dims) else [dims]
    shapes = [
        [size for size in dimensions if parse_number(size) is not None and isinstance(size, int)]
        for dimensions in candidates
    ]
    return (
        shapes if all(len(shape) == len(candidate) for shape, candidate in zip(shapes, candidates, strict=True)) else []
    )


def _count_elements(shape: list[int]) -> int:
    elements = 1
    for size in shape:
        elements = min(elements * size, 2 * MAX_VOLUME)
    return elements


def _infer_group_size(name: str, args: dict[str, Any]) -> int:
    """Return the group size of a call that does not name its group, or 0 if it is unknown.

    The size is inferred from the splits of an all-to-all, or from the ratio of output to input sizes.
    """
    dims = args.get("Input Dims")
    if name == "alltoall_base_":
        inputs = args.get("Concrete Inputs")
        splits = inputs[4] if isinstance(inputs, list) and len(inputs) > 4 else None
        return len(re.findall(r"\d+", splits)) if isinstance(splits, str) and "..." not in splits else 0
    if name not in ("_allgather_base_", "_reduce_scatter_base_") or not isinstance(dims, list) or len(dims) < 2:
        return 0
    first, second = (sum(map(_count_elements, _parse_shapes(argument))) for argument in dims[:2])
    small, large = (second, first) if name == "_allgather_base_" else (first, second)
    return large // small if small and large % small == 0 else 0
