"""Table of the operators that are collectives, and how to read kind, group and volume from their arguments.

An operator in ``NAMESPACES`` that no table lists stops the count with an error: a silently skipped collective would
make the whole count wrong. Namespaces and names are those of torch 2.8 to 2.13.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")


class CollectiveSpec(NamedTuple):
    """``volume`` names the argument whose bytes are counted: '' for none, 'result' for the operator's return value."""

    kind: str
    volume: str


_C10D = {
    "_allgather_base_": CollectiveSpec("all_gather", "output_tensor"),
    "allgather_": CollectiveSpec("all_gather", "output_tensors"),
    "allgather_coalesced_": CollectiveSpec("all_gather", "output_lists"),
    "allgather_into_tensor_coalesced_": CollectiveSpec("all_gather", "outputs"),
    "_reduce_scatter_base_": CollectiveSpec("reduce_scatter", "input_tensor"),
    "reduce_scatter_": CollectiveSpec("reduce_scatter", "input_tensors"),
    "reduce_scatter_tensor_coalesced_": CollectiveSpec("reduce_scatter", "inputs"),
    "allreduce_": CollectiveSpec("all_reduce", "tensors"),
    "allreduce_coalesced_": CollectiveSpec("all_reduce", "tensors"),
    "alltoall_base_": CollectiveSpec("all_to_all", "input"),
    "alltoall_": CollectiveSpec("all_to_all", "input_tensors"),
    "broadcast_": CollectiveSpec("broadcast", "tensors"),
    "reduce_": CollectiveSpec("reduce", "tensors"),
    "gather_": CollectiveSpec("gather", "input_tensors"),
    "scatter_": CollectiveSpec("scatter", "output_tensors"),
    "send": CollectiveSpec("send_recv", "tensors"),
    "recv_": CollectiveSpec("send_recv", "tensors"),
    "recv_any_source_": CollectiveSpec("send_recv", "tensors"),
    "barrier": CollectiveSpec("barrier", ""),
    "monitored_barrier_": CollectiveSpec("barrier", ""),
}
_FUNCTIONAL = {
    "all_gather_into_tensor": CollectiveSpec("all_gather", "result"),
    "all_gather_into_tensor_coalesced": CollectiveSpec("all_gather", "result"),
    "all_gather_into_tensor_out": CollectiveSpec("all_gather", "out"),
    "reduce_scatter_tensor": CollectiveSpec("reduce_scatter", "input"),
    "reduce_scatter_tensor_coalesced": CollectiveSpec("reduce_scatter", "inputs"),
    "reduce_scatter_tensor_out": CollectiveSpec("reduce_scatter", "input"),
    "all_reduce": CollectiveSpec("all_reduce", "input"),
    "all_reduce_": CollectiveSpec("all_reduce", "input"),
    "all_reduce_coalesced": CollectiveSpec("all_reduce", "inputs"),
    "all_reduce_coalesced_": CollectiveSpec("all_reduce", "inputs"),
    "all_to_all_single": CollectiveSpec("all_to_all", "input"),
    "broadcast": CollectiveSpec("broadcast", "input"),
    "broadcast_": CollectiveSpec("broadcast", "input"),
    "isend": CollectiveSpec("send_recv", "tensor"),
    "irecv": CollectiveSpec("send_recv", "tensor"),
    "batch_p2p_ops": CollectiveSpec("send_recv", "tensors"),
}
_SYMMETRIC = {
    "nvshmem_all_to_all": CollectiveSpec("all_to_all", "input"),
    "all_to_all_vdev": CollectiveSpec("all_to_all", "input"),
    "all_to_all_vdev_2d": CollectiveSpec("all_to_all", "input"),
    "all_to_all_vdev_2d_offset": CollectiveSpec("all_to_all", "input"),
    "nvshmem_broadcast": CollectiveSpec("broadcast", "input"),
    "multimem_all_gather_out": CollectiveSpec("all_gather", "out"),
    "multimem_all_reduce_": CollectiveSpec("all_reduce", "input"),
    "multimem_one_shot_all_reduce": CollectiveSpec("all_reduce", "input"),
    "one_shot_all_reduce": CollectiveSpec("all_reduce", "input"),
    "two_shot_all_reduce_": CollectiveSpec("all_reduce", "input"),
    "reduce_scatter_out": CollectiveSpec("reduce_scatter", "input"),
}
COLLECTIVES: dict[str, dict[str, CollectiveSpec]] = {
    "c10d": _C10D,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": {"shard_dim_alltoall": CollectiveSpec("all_to_all", "input")},
    "symm_mem": _SYMMETRIC,
}
NOT_COLLECTIVES = {
    "c10d": {"check_for_nan"},
    "_c10d_functional": {"wait_tensor", "_wrap_tensor_autograd"},
    "_dtensor": {"mesh_get_process_group"},
}
"""Operators in the same namespaces that exchange no data."""

MAX_CONTROL_INDEX_BYTES = 16 * 2**20
MAX_CONTROL_SMALL_BYTES = 64 * 2**10
"""Largest sizes of calls with the role ``control``, which exchange token counts or indices.

The top-k indices of 4096 tokens x 16 ranks x 8 experts have 4 MiB. 8- and 16-bit integers may be a quantised payload.
"""


class UnknownCollective(Exception):
    """An operator in a namespace of collectives that is in none of the tables."""


def collective_spec(func: Any) -> CollectiveSpec | None:
    """Return how to read an operator, or None if it is not a collective. Raises UnknownCollective."""
    namespace, name = func.namespace, func._opname
    if namespace not in NAMESPACES or name in NOT_COLLECTIVES.get(namespace, ()):
        return None
    spec = COLLECTIVES.get(namespace, {}).get(name)
    if spec is None:
        raise UnknownCollective(
            f"{namespace}::{name} is a collective operator that regbot cannot count yet; no count was made. "
            "Please report it with the torch version"
        )
    return spec


def name_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def find_process_group(call_arguments: Mapping[str, Any]) -> dist.ProcessGroup:
    """Return the process group of a call, which is boxed in ``c10d``, a name or the group elsewhere."""
    boxed = call_arguments.get("process_group")
    if boxed is not None:
        return dist.ProcessGroup.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else boxed
    group_or_name = call_arguments["group_name"]
    if isinstance(group_or_name, dist.ProcessGroup):
        return group_or_name
    group: dist.ProcessGroup = dist.distributed_c10d._resolve_process_group(group_or_name)
    return group


class Volume(NamedTuple):
    """What one executed collective moved."""

    dtype: str  # such as bfloat16; 'mixed' for several types, and 'none' if no bytes are counted
    role: str  # payload or control
    bytes: int  # elements x element size, not the size of the storage


def read_volume(spec: CollectiveSpec, call_arguments: Mapping[str, Any], result: Any) -> Volume:
    tensors = flatten(result if spec.volume == "result" else call_arguments.get(spec.volume))
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    is_control = spec.kind == "barrier" or _is_control(tensors, num_bytes)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
    dtype = "mixed" if len(dtypes) > 1 else next(iter(dtypes), "none")
    return Volume(dtype, "control" if is_control else "payload", num_bytes)


_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""Names of reductions. The position of a name is its value in the C++ enum ``c10d::ReduceOp::RedOpType``."""


def reduction_name(value: Any) -> str:
    """Return the name of a reduction. Operators pass the reduction as a string, an enum or a boxed object."""
    if isinstance(value, torch.ScriptObject):
        if not hasattr(value, "op"):
            return "unknown"  # torch 2.8 does not expose the operation
        value = value.op()
    if isinstance(value, str):
        return value.lower()
    number = int(value)
    return _REDUCTIONS[number] if number < len(_REDUCTIONS) else f"reduction {number}"


def is_reduction(value: Any) -> bool:
    """Whether a boxed object is a reduction. Process groups and work handles are also passed as boxed objects."""
    return isinstance(value, torch.ScriptObject) and str(value._type()).endswith(".ReduceOp")


def flatten(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flatten(item)]
    return []


_INDEX_TYPES: tuple[torch.dtype, ...] = (torch.int32, torch.int64, torch.bool)
_SMALL_TYPES: tuple[torch.dtype, ...] = (torch.uint8, torch.int8, torch.int16)


def _is_control(tensors: Sequence[Tensor], num_bytes: int) -> bool:
    if not tensors:
        return False
    if all(tensor.dtype in _INDEX_TYPES for tensor in tensors):
        return num_bytes <= MAX_CONTROL_INDEX_BYTES
    are_integers = all(tensor.dtype in _INDEX_TYPES + _SMALL_TYPES for tensor in tensors)
    return are_integers and num_bytes <= MAX_CONTROL_SMALL_BYTES
