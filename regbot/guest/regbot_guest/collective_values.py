"""Output values of collectives, assuming that every rank has the same input values, as under balanced routing.

A trace has one rank. It needs few values: token counts, and splits computed from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.collectives import CollectiveSpec, find_process_group, flatten, reduction_name

_OUTPUTS = ("output", "output_tensor", "output_tensors", "output_lists", "outputs", "out", "arriving")
_INPUTS = ("input", "input_tensor", "input_tensors", "input_list", "inputs")


def outputs_and_inputs(call_arguments: Mapping[str, Any], result: Any = None) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output and the input tensors, found by the argument names of the schema, or outputs in ``result``."""
    in_place = flatten(call_arguments.get("tensors"))
    if in_place:
        return in_place, in_place
    outputs = [tensor for name in _OUTPUTS for tensor in flatten(call_arguments.get(name))]
    inputs = [tensor for name in _INPUTS for tensor in flatten(call_arguments.get(name))]
    return outputs or flatten(result), inputs


def find_source(
    index: int, spec: CollectiveSpec, num_outputs: int, inputs: Sequence[Any], group: dist.ProcessGroup
) -> Any:
    """Return the input that determines the values of output ``index``, or None if there is no such single input."""
    if len(inputs) == 1:
        return inputs[0]
    has_input_per_rank = spec.kind in ("all_to_all", "scatter") or (spec.kind == "reduce_scatter" and num_outputs == 1)
    if has_input_per_rank and len(inputs) == group.size():
        return inputs[group.rank()]  # every other rank sends this rank the same values as this rank sends itself
    return inputs[index] if len(inputs) == num_outputs else None


def output_values(kind: str, values: Tensor, shape: torch.Size, call_arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the output of ``shape`` if every rank's input is ``values``, or None if they are unknown."""
    group = find_process_group(call_arguments)
    ranks, elements = group.size(), shape.numel()
    output: Tensor | None
    if kind == "all_to_all" and "output_tensors" not in call_arguments:  # one tensor with the rows for all ranks
        splits = call_arguments.get("input_split_sizes") or [values.shape[0] // ranks] * ranks
        rows_for_this_rank = values.split(list(splits))[group.rank()]
        output = torch.cat([rows_for_this_rank] * ranks)  # every rank sends the same rows
    elif kind == "all_gather" and values.numel() != elements:  # one output tensor for the inputs of all ranks
        output = torch.cat([values.reshape(-1)] * ranks)
    elif kind == "all_reduce":
        output = _reduce_equal(values, ranks, call_arguments)
    elif kind == "reduce_scatter":
        is_own_piece = values.numel() == elements
        own_piece = values if is_own_piece else values.flatten().chunk(ranks)[group.rank()]
        output = _reduce_equal(own_piece, ranks, call_arguments)
    elif kind in ("all_to_all", "all_gather", "broadcast", "gather", "scatter"):
        output = values  # the output is a copy of some rank's input, and all inputs are equal
    else:
        return None
    if output is None or output.numel() != elements:
        return None
    return output.reshape(shape).clone()


def _reduce_equal(values: Tensor, ranks: int, call_arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the reduction of equal inputs of all ranks, or None for a reduction that this module does not compute."""
    name = reduction_name(call_arguments["reduce_op"])
    if name == "sum":
        return values * ranks
    return values if name in ("avg", "min", "max", "band", "bor") else None
