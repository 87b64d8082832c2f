"""Which dispatched operators are collectives, and how to read kind, group and volume from their arguments.

The table is complete on purpose: an operator of these namespaces that is not listed stops the count with an error,
because a collective that is skipped silently makes every number after it worthless. Arguments are found by their
schema name, so positional and keyword calls read the same. Namespaces and names: torch 2.8 to 2.13.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")


class Form(NamedTuple):
    """``volume``: the argument whose elements are counted ('' for none, 'result' for what the operator returns)."""

    kind: str
    volume: str


_C10D = {
    "_allgather_base_": Form("all_gather", "output_tensor"),
    "allgather_": Form("all_gather", "output_tensors"),
    "allgather_coalesced_": Form("all_gather", "output_lists"),
    "allgather_into_tensor_coalesced_": Form("all_gather", "outputs"),
    "_reduce_scatter_base_": Form("reduce_scatter", "input_tensor"),
    "reduce_scatter_": Form("reduce_scatter", "input_tensors"),
    "reduce_scatter_tensor_coalesced_": Form("reduce_scatter", "inputs"),
    "allreduce_": Form("all_reduce", "tensors"),
    "allreduce_coalesced_": Form("all_reduce", "tensors"),
    "alltoall_base_": Form("all_to_all", "input"),
    "alltoall_": Form("all_to_all", "input_tensors"),
    "broadcast_": Form("broadcast", "tensors"),
    "reduce_": Form("reduce", "tensors"),
    "gather_": Form("gather", "input_tensors"),
    "scatter_": Form("scatter", "output_tensors"),
    "send": Form("send_recv", "tensors"),
    "recv_": Form("send_recv", "tensors"),
    "recv_any_source_": Form("send_recv", "tensors"),
    "barrier": Form("barrier", ""),
    "monitored_barrier_": Form("barrier", ""),
}
_FUNCTIONAL = {
    "all_gather_into_tensor": Form("all_gather", "result"),
    "all_gather_into_tensor_coalesced": Form("all_gather", "result"),
    "all_gather_into_tensor_out": Form("all_gather", "out"),
    "reduce_scatter_tensor": Form("reduce_scatter", "input"),
    "reduce_scatter_tensor_coalesced": Form("reduce_scatter", "inputs"),
    "reduce_scatter_tensor_out": Form("reduce_scatter", "input"),
    "all_reduce": Form("all_reduce", "input"),
    "all_reduce_": Form("all_reduce", "input"),
    "all_reduce_coalesced": Form("all_reduce", "inputs"),
    "all_reduce_coalesced_": Form("all_reduce", "inputs"),
    "all_to_all_single": Form("all_to_all", "input"),
    "broadcast": Form("broadcast", "input"),
    "broadcast_": Form("broadcast", "input"),
    "isend": Form("send_recv", "tensor"),
    "irecv": Form("send_recv", "tensor"),
    "batch_p2p_ops": Form("send_recv", "tensors"),
}
_SYMMETRIC = {
    "nvshmem_all_to_all": Form("all_to_all", "input"),
    "all_to_all_vdev": Form("all_to_all", "input"),
    "all_to_all_vdev_2d": Form("all_to_all", "input"),
    "all_to_all_vdev_2d_offset": Form("all_to_all", "input"),
    "nvshmem_broadcast": Form("broadcast", "input"),
    "multimem_all_gather_out": Form("all_gather", "out"),
    "multimem_all_reduce_": Form("all_reduce", "input"),
    "multimem_one_shot_all_reduce": Form("all_reduce", "input"),
    "one_shot_all_reduce": Form("all_reduce", "input"),
    "two_shot_all_reduce_": Form("all_reduce", "input"),
    "reduce_scatter_out": Form("reduce_scatter", "input"),
}
COLLECTIVES: dict[str, dict[str, Form]] = {
    "c10d": _C10D,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": {"shard_dim_alltoall": Form("all_to_all", "input")},
    "symm_mem": _SYMMETRIC,
}
NOT_COLLECTIVES = {
    "c10d": {"check_for_nan"},
    "_c10d_functional": {"wait_tensor", "_wrap_tensor_autograd"},
    "_dtensor": {"mesh_get_process_group"},
}

CONTROL_INDEX_BYTES = 16 * 2**20
CONTROL_BYTE_BYTES = 64 * 2**10
"""Role: integers of 32 or 64 bits and booleans are token counts and indices up to 16 MiB a call (the top-k indices of
4096 tokens x 16 ranks x 8 are 4 MiB); 8- and 16-bit integers may be a quantised payload, so only up to 64 KiB."""


class UnknownCollective(Exception):
    """An operator of a collective namespace that the table does not know."""


class Seen(NamedTuple):
    """One executed collective."""

    kind: str
    group: dist.ProcessGroup
    dtype: str
    role: str
    bytes: int
    symmetric: bool


def collective_form(func: Any) -> Form | None:
    """The form of a dispatched operator, None where it is no collective. Raises UnknownCollective."""
    namespace, name = func.namespace, func._opname
    if namespace not in NAMESPACES or name in NOT_COLLECTIVES.get(namespace, ()):
        return None
    form = COLLECTIVES.get(namespace, {}).get(name)
    if form is None:
        raise UnknownCollective(
            f"{namespace}::{name} is a collective operator that regbot cannot count yet; no count was made. "
            "Please report it with the torch version"
        )
    return form


def arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All given arguments by their schema name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def process_group(given: Mapping[str, Any]) -> dist.ProcessGroup:
    """The group of a call: c10d operators carry the object (boxed), functional ones its name."""
    boxed = given.get("process_group")
    if boxed is not None:
        return dist.ProcessGroup.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else boxed
    name = given["group_name"]
    if isinstance(name, dist.ProcessGroup):
        return name
    group: dist.ProcessGroup = dist.distributed_c10d._resolve_process_group(name)
    return group


def describe(func: Any, form: Form, given: Mapping[str, Any], result: Any) -> Seen:
    """Read one executed collective. Bytes are elements x element size, never the storage behind a view."""
    group = process_group(given)
    tensors = flatten(result if form.volume == "result" else given.get(form.volume)) if form.volume else []
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    dtypes = {tensor.dtype for tensor in tensors}
    dtype = str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else ("mixed" if dtypes else "none")
    role = "control" if form.kind == "barrier" or _is_control(tensors, size) else "payload"
    return Seen(form.kind, group, dtype, role, size, func.namespace == "symm_mem")


_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""Names by the number of ``c10d::ReduceOp::RedOpType``."""


def reduction(given: Any) -> str:
    """The name of a reduction, however an operator carries it: by name, as an enum, or boxed."""
    if isinstance(given, torch.ScriptObject):
        given = given.op()  # type: ignore[attr-defined]
    if isinstance(given, str):
        return given.lower()
    number = int(given)
    return _REDUCTIONS[number] if number < len(_REDUCTIONS) else f"reduction {number}"


def is_reduction(value: Any) -> bool:
    """Whether a boxed object is a reduction; a process group and a handle of work are boxed too."""
    return isinstance(value, torch.ScriptObject) and str(value._type()).endswith(".ReduceOp")


def flatten(value: Any) -> list[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flatten(item)]
    return []


_INDEX_TYPES: tuple[torch.dtype, ...] = (torch.int32, torch.int64, torch.bool)
_BYTE_TYPES: tuple[torch.dtype, ...] = (torch.uint8, torch.int8, torch.int16)


def _is_control(tensors: Sequence[Tensor], size: int) -> bool:
    if not tensors:
        return False
    if all(tensor.dtype in _INDEX_TYPES for tensor in tensors):
        return size <= CONTROL_INDEX_BYTES
    return all(tensor.dtype in _INDEX_TYPES + _BYTE_TYPES for tensor in tensors) and size <= CONTROL_BYTE_BYTES
