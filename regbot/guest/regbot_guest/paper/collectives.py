"""Collectives on a paper GPU. There is only one rank, and all other ranks are assumed to have the same values.

Every collective of ``torch.distributed`` calls a kernel of ``c10d`` for the dispatch key CUDA. The kernels here report
to the counter, write the values of the outputs, and return a work handle that is already complete.
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
"""Called after each collective with its operator, spec, arguments by name, and outputs."""

_MAX_FLOATS = 2**20

_listener: "Listener | None" = None
_library: Any = None


def set_listener(listener: "Listener | None") -> "Listener | None":
    """Report every collective to ``listener`` from now on, or to nobody if it is None. Return the previous listener."""
    global _listener
    previous, _listener = _listener, listener
    return previous


def install_kernels(device: Device) -> None:
    """Replace the kernels of ``c10d`` for the paper GPU. Operators that this version of torch lacks are skipped."""
    global _library
    _library = torch.library.Library("c10d", "IMPL")  # global, because the kernels vanish with this object
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
        work = FakeWork().boxed()  # a complete work handle, in the form in which an operator returns an object
        if num_results == 1:
            return work
        outputs_argument = next(iter(call_arguments.values()))  # these operators return their first argument too
        return outputs_argument, work

    return kernel


def _write_outputs(device: Device, spec: CollectiveSpec, call_arguments: Mapping[str, Any]) -> list[Tensor]:
    """Every rank's inputs are assumed to equal this rank's. Outputs that do not follow from them become unknown."""
    outputs, inputs = outputs_and_inputs(call_arguments)
    group = find_process_group(call_arguments)
    for index, output in enumerate(outputs):
        # The source is the input from which the values of this output follow, or None.
        source = find_source(index, spec, len(outputs), inputs, group)
        # The argument ``tensors`` of a send or receive is input and output. It keeps its values.
        keeps_values = spec.kind == "send_recv" and output is source
        if keeps_values:
            continue
        # Large float tensors count as unknown without a look-up.
        is_large = source is not None and source.is_floating_point() and source.numel() > _MAX_FLOATS
        input_values = device.values(source) if source is not None and not is_large else None
        if input_values is None:
            device.write(output, None)
        else:
            device.write(output, output_values(spec.kind, input_values, output.shape, call_arguments))
    return outputs
