"""Collectives on a paper GPU. There is only one rank, and all other ranks are assumed to have the same values.

Every collective of ``torch.distributed``, including functional collectives and those of FSDP, calls a kernel of
``c10d`` for the dispatch key CUDA. The Python kernels here report to the counter, write the values of the outputs, and
return a work handle that is already complete.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FakeWork

from regbot_guest.collective_values import find_source, output_values, outputs_and_inputs
from regbot_guest.collectives import COLLECTIVES, CollectiveSpec, find_process_group, name_arguments
from regbot_guest.paper.device import Device

Listener = Callable[[Any, CollectiveSpec, Mapping[str, Any], Any], None]
"""Function that is called after each collective. Its arguments are the collective's operator, spec, arguments by name,
and outputs.
"""

_listener: "Listener | None" = None
_library: Any = None


def set_listener(listener: "Listener | None") -> "Listener | None":
    """Report every collective to ``listener`` from now on, or to nobody if it is None. Return the previous listener."""
    global _listener
    previous, _listener = _listener, listener
    return previous


def install_kernels(device: Device) -> None:
    """Replace the kernels of ``c10d`` for the paper GPU."""
    global _library
    _library = torch.library.Library("c10d", "IMPL")
    for name, spec in COLLECTIVES["c10d"].items():
        if hasattr(torch.ops.c10d, name):
            packet = getattr(torch.ops.c10d, name)
            for overload in packet.overloads():
                func = getattr(packet, overload)
                _library.impl(func, _make_kernel(device, func, spec), "CUDA")


def _make_kernel(device: Device, func: Any, spec: CollectiveSpec) -> Callable[..., Any]:
    num_results = len(func._schema.returns)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        call_arguments = name_arguments(func, args, kwargs)
        outputs = _write_outputs(device, spec, call_arguments)
        if _listener is not None:
            _listener(func, spec, call_arguments, outputs)
        work = FakeWork().boxed()
        if num_results == 1:
            return work
        first_argument = next(iter(call_arguments.values()))
        return first_argument, work

    return kernel


def _write_outputs(device: Device, spec: CollectiveSpec, call_arguments: Mapping[str, Any]) -> list[Tensor]:
    """Write the values of a collective's outputs, and return the outputs.

    The inputs of every rank are assumed to equal the inputs of this rank. If the values of an output cannot be derived
    from them, they become unknown.
    """
    outputs, inputs = outputs_and_inputs(call_arguments)
    group = find_process_group(call_arguments)
    for index, output in enumerate(outputs):
        source = find_source(index, spec, len(outputs), inputs, group)
        values = device.values(source) if source is not None and _may_be_known(source) else None
        if not (spec.kind == "send_recv" and output is source):
            device.write(
                output, output_values(spec.kind, values, output.shape, call_arguments) if values is not None else None
            )
    return outputs


def _may_be_known(tensor: Tensor) -> bool:
    """Return whether the values of ``tensor`` are looked up. Large float tensors are treated as unknown."""
    return not tensor.is_floating_point() or tensor.numel() <= 2**20
