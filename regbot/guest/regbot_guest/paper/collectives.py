"""Collectives on a paper GPU: there is one rank, and all others are taken to hold what it holds.

Every collective of ``torch.distributed``, the functional ones and FSDP's included, reaches a kernel of ``c10d`` on the
key CUDA. These are in Python: they tell the counter, write what the outputs hold, and return a finished work.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork

from regbot_guest.collectives import COLLECTIVES, Form, arguments, flatten, process_group, reduction
from regbot_guest.paper.device import Device

Listener = Callable[[Any, Form, Mapping[str, Any], Any], None]
"""Called after each collective with its operator, its form, its arguments by name, and its result."""

_listener: "Listener | None" = None
_library: Any = None


def listen(listener: "Listener | None") -> None:
    """Tell ``listener`` of every collective from now on, None for nobody."""
    global _listener
    _listener = listener


def fill(device: Device) -> None:
    """Replace the kernels of ``c10d`` for the paper GPU."""
    global _library
    _library = torch.library.Library("c10d", "IMPL")
    for name, form in COLLECTIVES["c10d"].items():
        if hasattr(torch.ops.c10d, name):
            packet = getattr(torch.ops.c10d, name)
            for overload in packet.overloads():
                func = getattr(packet, overload)
                _library.impl(func, _kernel(device, func, form), "CUDA")


def _kernel(device: Device, func: Any, form: Form) -> Callable[..., Any]:
    returns = len(func._schema.returns)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = arguments(func, args, kwargs)
        outputs = _exchange(device, form, given)
        if _listener is not None:
            _listener(func, form, given, outputs)
        work = FakeWork().boxed()
        if returns == 1:
            return work
        first = next(iter(given.values()))
        return first, work

    return kernel


def _exchange(device: Device, form: Form, given: Mapping[str, Any]) -> list[Tensor]:
    """Write what the outputs hold if every rank's inputs are this rank's; unknown where that is not plain."""
    outputs, inputs = ends(given)
    group = process_group(given)
    source: Tensor | None
    for index, output in enumerate(outputs):
        if len(inputs) == 1:
            source = inputs[0]
        elif form.kind == "all_to_all" and len(inputs) == group.size():
            source = inputs[group.rank()]  # the list form: every rank's tensor for this one is like ours
        elif form.kind == "reduce_scatter" and len(outputs) == 1 and len(inputs) == group.size():
            source = inputs[group.rank()]
        else:
            source = inputs[index] if len(inputs) == len(outputs) else None
        values = device.values(source) if source is not None and _is_small(source) else None
        outcome = exchanged(form.kind, values, output.shape, group, given) if values is not None else None
        if not (form.kind == "send_recv" and output is source):
            device.write(output, outcome)
    return outputs


def _is_small(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or tensor.numel() <= 2**20


def ends(given: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, inputs) of a collective, by the argument names of its schema."""
    outputs: list[Tensor] = []
    inputs: list[Tensor] = []
    for name in ("output", "output_tensor", "output_tensors", "output_lists", "outputs", "out"):
        outputs += flatten(given.get(name))
    for name in ("input", "input_tensor", "input_tensors", "input_list", "inputs"):
        inputs += flatten(given.get(name))
    in_place = flatten(given.get("tensors"))
    return (in_place, in_place) if in_place else (outputs, inputs)


def exchanged(
    kind: str, values: Tensor, shape: "torch.Size", group: dist.ProcessGroup, given: Mapping[str, Any]
) -> "Tensor | None":
    """What an output of ``shape`` holds after the collective if every rank's input is ``values``; None if unclear."""
    size, elements = group.size(), shape.numel()
    outcome: Tensor | None
    if kind == "all_to_all" and "output_tensors" not in given:
        splits: Sequence[int] = given.get("input_split_sizes") or [values.shape[0] // size] * size
        outcome = torch.cat([values.split(list(splits))[group.rank()]] * size)
    elif kind == "all_gather" and values.numel() != elements:
        outcome = torch.cat([values.reshape(-1)] * size)
    elif kind == "all_reduce":
        outcome = _reduced(values, size, given)
    elif kind == "reduce_scatter":
        mine = values if values.numel() == elements else values.flatten().chunk(size)[group.rank()]
        outcome = _reduced(mine, size, given)
    elif kind in ("all_to_all", "all_gather", "broadcast", "gather", "scatter"):
        outcome = values
    else:
        return None
    return outcome.reshape(shape).clone() if outcome is not None and outcome.numel() == elements else None


def _reduced(values: Tensor, size: int, given: Mapping[str, Any]) -> "Tensor | None":
    """``size`` equal inputs, reduced; None for reductions whose result is not plain."""
    name = reduction(given["reduce_op"])
    if name == "sum":
        return values * size
    return values if name in ("avg", "min", "max", "band", "bor") else None
