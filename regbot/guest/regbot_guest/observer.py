"""The counter: a dispatch mode that sees every operator of a step, including collectives with their group.

It does not see what bypasses torch's dispatcher: replayed CUDA graphs, and kernels of other communication libraries
(regbot's dispatchers report these with ``tally.announce``). Never use it in a timed step: it takes longer than the step
itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from regbot_guest.axes import Axes
from regbot_guest.collectives import collective_spec, name_arguments
from regbot_guest.crash import call_unchanged
from regbot_guest.fingerprint import Fingerprint
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.tally import StepCounter
from regbot_guest.tokens import RoutedTokens
from regbot_guest.untraceable import Untraceable

_DEVICE_OPERATOR = torch.ops.prim.device.default
_ITEM_OPERATOR = torch.ops.aten._local_scalar_dense.default


class Observer(StepCounter, TorchDispatchMode):
    """Counts operators while active. ``shadows`` are the shadow values of a static trace; None means real tensors."""

    source = "dispatch-mode"
    supports_higher_order_operators = True
    """Torch then passes higher-order operators to ``__torch_dispatch__``, which raises Untraceable for them."""

    def __init__(
        self,
        axes: Axes,
        tracker: ModuleTracker | None = None,
        shadows: ShadowValues | None = None,
        routed_tokens: RoutedTokens | None = None,
    ) -> None:
        self.shadows = shadows
        TorchDispatchMode.__init__(self)
        StepCounter.__init__(self, axes, tracker, routed_tokens)

    def new_step(self, with_fingerprint: bool = True) -> None:
        """Set all counts to zero. A fingerprint takes about a tenth of the time of the counted step."""
        super().new_step()
        self.with_fingerprint = with_fingerprint
        find_values = self.shadows.find_values if self.shadows is not None else lambda _: None
        self.digest = Fingerprint(self.axes.label, find_values)

    def __enter__(self) -> "Observer":
        StepCounter.__enter__(self)
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)
        StepCounter.__exit__(self, *error)

    def fingerprint(self) -> str | None:
        return self.digest.hexdigest()

    def guesses(self) -> dict[str, str]:
        return self.shadows.guesses if self.shadows is not None else {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE_OPERATOR and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # a shortcut: this operator is called about as often as all others together
        if _has_own_dispatch(types):
            return NotImplemented  # the tensor's own dispatch calls operators on its inner tensors, which come here
        if isinstance(func, HigherOrderOperator):
            raise Untraceable(f"{func.name()} runs a program of its own, whose operators cannot be counted one by one")
        kwargs = kwargs or {}
        spec = collective_spec(func)  # None if func is not a collective
        if self.shadows is None or spec is not None:  # the shadows of a collective's outputs are set below
            result = call_unchanged(func, args, kwargs)
        else:
            result = self.shadows.call(func, args, kwargs)
        self.operators[func._schema.name] += 1
        if func is _ITEM_OPERATOR:
            self.count_host_read()
        if spec is not None:
            call_arguments = name_arguments(func, args, kwargs)
            if self.shadows is not None:
                self.shadows.update_collective(spec, call_arguments, result)
            self.count_collective(func, spec, call_arguments, result)
        if self.with_fingerprint:
            self.digest.add(func, args, kwargs, result)
        return result


def _has_own_dispatch(types: Sequence[type]) -> bool:
    """Whether an argument is a tensor that consists of other tensors (DTensor, float8, quantised)."""
    plain = torch._C._disabled_torch_dispatch_impl  # torch's value for a class without a dispatch of its own
    return any(kind is not FakeTensor and getattr(kind, "__torch_dispatch__", plain) is not plain for kind in types)
