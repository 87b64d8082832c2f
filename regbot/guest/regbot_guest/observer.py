"""The counter: a dispatch mode that sees every operator of a step, collectives with their group among them.

It counts where the dispatcher hands an operator to its kernel, so it sees plain ``torch.distributed`` calls, functional
collectives, FSDP's and DDP's own, and the backward of each. It does not see what never passes the dispatcher: replayed
CUDA graphs, kernels of other communication libraries (``tally.announce`` is how a dispatcher of regbot's own tells of
them), and code that ``torch.compile`` would have fused (under a mode that code runs eagerly, so its count would be of
another program: ``compiled.py`` notices it). Never use it in a timed step: it costs more than the step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from regbot_guest.axes import Axes
from regbot_guest.collectives import arguments, collective_form
from regbot_guest.fingerprint import Fingerprint
from regbot_guest.shadow import ShadowValues
from regbot_guest.tally import StepCounter
from regbot_guest.tokens import RoutedTokens
from regbot_guest.untraceable import Untraceable
from regbot_guest.where import Where

_DEVICE = torch.ops.prim.device.default
_READ = torch.ops.aten._local_scalar_dense.default


class Observer(StepCounter, TorchDispatchMode):
    """Sees operators while it is active. ``tally``, ``fingerprint`` and ``operators`` are those since ``new_step``."""

    supports_higher_order_operators = True

    def __init__(
        self,
        axes: Axes,
        where: Where | None = None,
        shadows: ShadowValues | None = None,
        routed: RoutedTokens | None = None,
    ) -> None:
        self.shadows = shadows
        TorchDispatchMode.__init__(self)
        StepCounter.__init__(self, axes, where, routed)

    def new_step(self, program: bool = True) -> None:
        """Start counting anew. Without ``program`` no fingerprint is made: it is a tenth of the time."""
        super().new_step()
        self.program = program
        self.fingerprint = Fingerprint(self.axes.label, self.shadows.of if self.shadows is not None else lambda _: None)

    def __enter__(self) -> "Observer":
        StepCounter.__enter__(self)
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)
        StepCounter.__exit__(self, *error)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for about as often as all operators together
        if _unwraps_itself(types):
            return NotImplemented  # the operators on the tensors inside come back here
        if isinstance(func, HigherOrderOperator):
            raise Untraceable(f"{func.name()} carries a program of its own, whose operators are not seen one by one")
        kwargs = kwargs or {}
        form = collective_form(func)
        if self.shadows is None or form is not None:
            result = func(*args, **kwargs)
        else:
            result = self.shadows.call(func, args, kwargs)
        self.operators[func._schema.name] += 1
        if func is _READ:
            self.count_host_read()
        if form is not None:
            given = arguments(func, args, kwargs)
            if self.shadows is not None:
                self.shadows.collective(form, given, result)
            self.count_collective(func, form, given, result)
        if self.program:
            self.fingerprint.add(func, args, kwargs, result)
        return result


class Shadowing(TorchDispatchMode):
    """Keeps shadows and counts nothing."""

    def __init__(self, shadows: ShadowValues) -> None:
        super().__init__()
        self._shadows = shadows

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if _unwraps_itself(types):
            return NotImplemented
        if isinstance(func, HigherOrderOperator) or collective_form(func) is not None:
            return func(*args, **(kwargs or {}))
        return self._shadows.call(func, args, kwargs or {})


def _unwraps_itself(types: Sequence[type]) -> bool:
    """Whether an argument is a tensor made of tensors (DTensor, float8, quantised): it knows what it does with them."""
    plain = torch._C._disabled_torch_dispatch_impl
    return any(kind is not FakeTensor and getattr(kind, "__torch_dispatch__", plain) is not plain for kind in types)
