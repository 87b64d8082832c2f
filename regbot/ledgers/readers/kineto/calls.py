"""Parses one collective call from one Kineto event: kind, group, element type, bytes.

Rows with a ``Collective name`` are complete. Annotations ``nccl:...`` have the kind, and the input shapes if recorded.
Dispatcher rows ``c10d::...``, the only rows of gloo and the fake backend, have the shapes of each argument, but no
group. Names and orders of arguments are those of torch 2.0 to 2.13."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from regbot.ledgers.collectives import classify_role, find_kind, normalize_name
from regbot.ledgers.dtypes import parse_torch_dtype, width
from regbot.ledgers.readers.groups import UNKNOWN
from regbot.ledgers.readers.kineto.process_groups import ProcessGroup, ProcessGroups
from regbot.ledgers.readers.tally import MAX_VOLUME, parse_count
from regbot.records.ledger import CollectiveBackend, Kind, Role

MAX_ANNOTATION_TENSORS = 64
"""Largest number of tensors of an annotation that are measured."""
_SETUP_OPERATIONS = {"wait", "init", "startcoalescing", "endcoalescing", "destroy", "abort", "shutdown"}


SPLIT_SIZES = 4
"""Position of the argument of ``alltoall_base_`` that lists how many rows go to each rank."""
_OPERATORS_BY_ARGUMENT = {
    0: (
        "_allgather_base_", "allgather_into_tensor_coalesced_", "reduce_scatter_", "allreduce_", "allreduce_coalesced_",
        "broadcast_", "reduce_", "scatter_", "send", "recv_", "recv_any_source_", "barrier", "monitored_barrier_",
        "nvshmem_all_to_all", "all_to_all_vdev", "all_to_all_vdev_2d", "all_to_all_vdev_2d_offset",
        "nvshmem_broadcast", "multimem_all_reduce_", "multimem_one_shot_all_reduce", "one_shot_all_reduce",
        "two_shot_all_reduce_", "reduce_scatter_out",
    ),
    1: (
        "allgather_", "allgather_coalesced_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
        "alltoall_base_", "alltoall_", "gather_",
    ),
    2: ("multimem_all_gather_out",),
}  # fmt: skip
"""Operators ``c10d::`` and ``symm_mem::`` that communicate, by the position of the argument whose tensors count."""
_COUNTED_ARGUMENT = {name: position for position, names in _OPERATORS_BY_ARGUMENT.items() for name in names}
_TIMES_GROUP_SIZE = {"allgather_", "allgather_coalesced_", "reduce_scatter_"}
"""Operators whose counted tensors are those of one rank of the group."""
_LOCAL_DISPATCHER_OPS = {"check_for_nan"}
"""Operators ``c10d::`` that do not communicate."""


class CallRow(NamedTuple):
    name: str
    thread: tuple[str, str]
    start_us: float
    end_us: float
    external_id: int | None
    args: dict[str, Any]
    """Arguments with the keys in ``ARGUMENT_KEYS`` only. Rows with equal arguments share the same dictionary."""


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


def from_metadata(row: CallRow, groups: ProcessGroups) -> KinetoCall | str | None:
    """Return the call that a row with a ``Collective name`` records, None for waits and setup, or the name of
    communication that is in none of the tables of this module."""
    name = str(row.args.get("Collective name", row.name))
    operation = normalize_name(name)
    if operation in _SETUP_OPERATIONS:
        return None
    kind = find_kind(operation)
    if kind is None:
        return f"Collective name {name}"
    # Of these kinds, the ledger counts the output, and of all others the input.
    counts_output = kind in ("all_gather", "scatter") or operation.startswith(("recv", "irecv"))
    elements = parse_count(row.args.get("Out msg nelems" if counts_output else "In msg nelems"))
    dtype = _parse_dtype(row.args.get("dtype"))
    element_bytes = width(dtype)
    size_bytes = elements * element_bytes if elements is not None and element_bytes is not None else None
    return _make_call(row, kind, groups.find_group(row.args), dtype, size_bytes, via="nccl")


def from_annotation(row: CallRow, groups: ProcessGroups) -> KinetoCall | str | None:
    """Return the call that an ``nccl:`` annotation records, or None for waits and setup."""
    name = row.name.removeprefix("nccl:")
    operation = re.split(r"[ \d]", name, maxsplit=1)[0]  # the name can be 'nccl:send 0->1'
    if normalize_name(operation) in _SETUP_OPERATIONS:
        return None
    kind = find_kind(operation)
    if kind is None:
        return row.name
    measure = _measure_tensors(row.args, range(MAX_ANNOTATION_TENSORS))
    # For an all-gather the output is counted, but the annotation has only the input and no group.
    size_bytes = None if kind == "all_gather" else measure.bytes
    return _make_call(row, kind, ProcessGroup(UNKNOWN, groups.world_size), measure.dtype, size_bytes, via="nccl")


def from_dispatcher(
    row: CallRow, groups: ProcessGroups, via: CollectiveBackend, dtype_by_shape: dict[str, str]
) -> KinetoCall | str | None:
    """Return the call that a ``c10d::`` row records, or None for operators that do not communicate. ``via`` is the
    backend that ran the call, which the row does not name. Rows with lists of tensors contain shapes and no element
    type. The type is then looked up in ``dtype_by_shape``, whose keys are shapes as text."""
    name = row.name.removeprefix("c10d::")
    if name in _LOCAL_DISPATCHER_OPS:
        return None
    kind, position = find_kind(name), _COUNTED_ARGUMENT.get(name)
    if kind is None or position is None:
        return row.name
    group = groups.find_group_of_size(_infer_group_size(name, row.args))
    dtype, size_bytes, elements = _measure_tensors(row.args, (position,))
    if size_bytes is None and elements is not None:
        dims = row.args["Input Dims"]  # there are elements, so it is a list that has this position
        if shape_dtype := dtype_by_shape.get(format_shapes(dims[position])):
            dtype, element_bytes = shape_dtype, width(shape_dtype)
            size_bytes = elements * element_bytes if element_bytes else None
    if name in _TIMES_GROUP_SIZE:
        size_bytes = size_bytes * group.size if size_bytes is not None and group.size else None
    return _make_call(row, kind, group, dtype, size_bytes, via)


def from_symmetric(row: CallRow, groups: ProcessGroups) -> KinetoCall | None:
    """Return the call that a ``symm_mem::`` row records, or None for operators that only set up memory."""
    name = row.name.removeprefix("symm_mem::")
    kind, position = find_kind(name), _COUNTED_ARGUMENT.get(name)
    if kind is None or position is None:
        return None
    group = groups.find_expert_group() if kind == "all_to_all" else groups.find_group_of_size()
    measure = _measure_tensors(row.args, (position,))
    return _make_call(row, kind, group, measure.dtype, measure.bytes, via="symm-mem")


def format_shapes(dims: object) -> str:
    """Return the shapes of one argument, or of all tensors of an annotation, as text; '' if none were recorded."""
    return str(_parse_shapes(dims) or "")


def first_dtype(args: dict[str, Any]) -> str:
    """Return the element type of a row's first tensor, or '' if no element type was recorded."""
    types = args.get("Input type")
    if not isinstance(types, list) or not types or not isinstance(types[0], str):
        return ""
    return _parse_dtype(types[0])


def _make_call(
    row: CallRow, kind: Kind, group: ProcessGroup, dtype: str, size_bytes: int | None, via: CollectiveBackend
) -> KinetoCall:
    if kind == "barrier":
        dtype, size_bytes = "none", 0
    if size_bytes is not None and size_bytes > MAX_VOLUME:
        size_bytes = None
    return KinetoCall(kind, group, dtype, size_bytes, classify_role(kind, size_bytes, dtype), via, row)


def _parse_dtype(value: object) -> str:
    return parse_torch_dtype(str(value or "")) or UNKNOWN


class _TensorMeasure(NamedTuple):
    """Size of the tensors in some arguments of a row."""

    dtype: str
    """Element type; 'mixed' if there are several, 'unknown' if ``bytes`` is None."""
    bytes: int | None
    """None if no shapes were recorded, or if the width of an element type is unknown."""
    elements: int | None


def _measure_tensors(args: dict[str, Any], positions: Iterable[int]) -> _TensorMeasure:
    nothing_recorded = _TensorMeasure("unknown", None, None)
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return nothing_recorded
    elements_by_dtype: dict[str, int] = {}
    for position in positions:
        if position >= min(len(dims), len(types)):
            break
        dtype = _parse_dtype(types[position])
        shapes = _parse_shapes(dims[position])
        # A 0-dimensional tensor and an argument that is not a tensor both have the shape []. Only the tensor has an
        # element type.
        if dims[position] == [] and width(dtype):
            shapes = [[]]
        if shapes:
            elements_by_dtype[dtype] = elements_by_dtype.get(dtype, 0) + sum(map(_count_elements, shapes))
    if not elements_by_dtype:
        return nothing_recorded
    elements = sum(elements_by_dtype.values())
    size_bytes = 0
    for dtype, count in elements_by_dtype.items():
        element_bytes = width(dtype)
        if element_bytes is None:
            return _TensorMeasure("unknown", None, elements)
        size_bytes += count * element_bytes
    dtype = next(iter(elements_by_dtype)) if len(elements_by_dtype) == 1 else "mixed"
    return _TensorMeasure(dtype, size_bytes, elements)


def _parse_shapes(dims: object) -> list[list[int]]:
    """Parse the shapes of one argument: ``[8, 4]`` is one shape, and ``[[8, 4], [2]]`` is a list of shapes. Return an
    empty list for anything else."""
    if not isinstance(dims, list) or not dims:
        return []
    shapes = dims if all(isinstance(item, list) for item in dims) else [dims]
    is_valid = all(isinstance(size, int) and parse_count(size) is not None for shape in shapes for size in shape)
    return shapes if is_valid else []


def _count_elements(shape: list[int]) -> int:
    """Return the product of the sizes. A product above the largest valid volume is cut off, so that a hostile shape
    cannot make huge numbers."""
    elements = 1
    for size in shape:
        elements = min(elements * size, 2 * MAX_VOLUME)
    return elements


def _infer_group_size(name: str, args: dict[str, Any]) -> int:
    """Return the group size of a call that does not name its group, or 0 if it is unknown. The size is inferred from
    the splits of an all-to-all, or from the ratio of output to input sizes."""
    if name == "alltoall_base_":
        inputs = args.get("Concrete Inputs")
        splits = inputs[SPLIT_SIZES] if isinstance(inputs, list) and len(inputs) > SPLIT_SIZES else None
        if not isinstance(splits, str) or "..." in splits:  # a long list is shortened with '...'
            return 0
        return len(re.findall(r"\d+", splits))
    dims = args.get("Input Dims")
    if name not in ("_allgather_base_", "_reduce_scatter_base_") or not isinstance(dims, list) or len(dims) < 2:
        return 0
    output_elements, input_elements = (sum(map(_count_elements, _parse_shapes(argument))) for argument in dims[:2])
    if name == "_allgather_base_":
        piece, whole = input_elements, output_elements
    else:
        piece, whole = output_elements, input_elements
    return whole // piece if piece and whole % piece == 0 else 0
