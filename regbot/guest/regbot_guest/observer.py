"""The counter: a dispatch mode that sees every operator of a step, collectives with their group among them.

It counts where the dispatcher hands an operator to its kernel, so it sees plain ``torch.distributed`` calls, functional
collectives, FSDP's and DDP's own, and the backward of each. It does not see what never passes the dispatcher: replayed
CUDA graphs, kernels of other communication libraries (``announce`` is how a dispatcher of regbot's own tells of them),
and code that ``torch.compile`` would have fused (under a mode
that code runs eagerly, so its count would be of another program: ``compiled.py`` notices it). Never use it in a timed
step: it costs more than the step.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from regbot_guest.axes import Axes
from regbot_guest.collectives import arguments, collective_form, describe, flatten
from regbot_guest.fingerprint import Fingerprint
from regbot_guest.shadow import ShadowValues, Untraceable
from regbot_guest.tokens import RoutedTokens
from regbot_guest.where import Where

_DEVICE = torch.ops.prim.device.default
_READ = torch.ops.aten._local_scalar_dense.default

ANNOUNCED = ("deepep", "hybridep")
"""``via`` of exchanges that are told to the observer by the dispatcher that made them, not seen by it."""


class Key(NamedTuple):
    """What a ledger entry is counted by."""

    kind: str
    axis: str
    group_size: int
    dtype: str
    phase: str
    role: str
    where: str
    via: str


class Tally:
    """Counts and bytes by key, in order of first appearance."""

    def __init__(self) -> None:
        self.count: Counter[Key] = Counter()
        self.bytes: Counter[Key] = Counter()

    def entries(self) -> list[dict[str, Any]]:
        return [{**key._asdict(), "count": n, "bytes": self.bytes[key]} for key, n in self.count.items()]

    @property
    def total(self) -> int:
        """Collectives of torch.distributed: what its groups give sequence numbers to. Announced ones have none."""
        return sum(n for key, n in self.count.items() if key.via not in ANNOUNCED)


class Observer(TorchDispatchMode):
    """Sees operators while it is active. ``tally``, ``fingerprint`` and ``operators`` are those since ``new_step``."""

    supports_higher_order_operators = True

    def __init__(
        self,
        axes: Axes,
        where: Where | None = None,
        shadows: ShadowValues | None = None,
        routed: RoutedTokens | None = None,
    ) -> None:
        super().__init__()
        self.axes, self.where, self.shadows, self.routed = axes, where, shadows, routed
        self.phase = "unknown"
        self.new_step()

    def new_step(self, program: bool = True) -> None:
        """Start counting anew. Without ``program`` no fingerprint is made: it is a tenth of the time."""
        self.program = program
        self.tally = Tally()
        self.fingerprint = Fingerprint(self.axes.label, self.shadows.of if self.shadows is not None else lambda _: None)
        self.operators: Counter[str] = Counter()
        self.host_reads: Counter[str] = Counter()
        self.payload_splits: list[tuple[str, tuple[int, ...]]] = []
        if self.where is not None:
            self.where.new_step()

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
        if func is _READ and self.phase != "optimizer":
            self.host_reads[self.where.now() if self.where is not None else ""] += 1
        if form is not None:
            self._count(func, form, arguments(func, args, kwargs), result)
        if self.program:
            self.fingerprint.add(func, args, kwargs, result)
        return result

    def _count(self, func: Any, form: Any, given: Mapping[str, Any], result: Any) -> None:
        seen = describe(func, form, given, result)
        if self.shadows is not None:
            self.shadows.collective(form, given, result)
        if seen.group.size() < 2:
            return
        where = self.where.now() if self.where is not None else ""
        via = "symm-mem" if seen.symmetric else _backend(seen.group)
        axis = self.axes.label(seen.group)
        key = Key(seen.kind, axis, seen.group.size(), seen.dtype, self.phase, seen.role, where, via)
        self.tally.count[key] += 1
        self.tally.bytes[key] += seen.bytes
        splits = given.get("input_split_sizes") or [part.shape[0] for part in flatten(given.get("input_tensors"))]
        if seen.kind == "all_to_all" and seen.role == "payload" and self.phase == "forward" and splits:
            self.payload_splits.append((axis, tuple(splits)))
        sent = given.get("input", given.get("input_tensor"))
        if self.routed is not None and seen.role == "control" and "ep" in axis.split("|") and sent is not None:
            self.routed.note(where, sent)

    def announce(
        self, via: str, group: dist.ProcessGroup, dtype: torch.dtype, size: int, experts: torch.Tensor | None
    ) -> None:
        """Count one all-to-all that a library made in kernels of its own. ``size`` is what this rank sent, in bytes."""
        where = self.where.now() if self.where is not None else ""
        name = str(dtype).removeprefix("torch.")
        key = Key("all_to_all", self.axes.label(group), group.size(), name, self.phase, "payload", where, via)
        self.tally.count[key] += 1
        self.tally.bytes[key] += size
        if self.routed is not None and experts is not None:
            self.routed.note(where, experts)


def announce(
    via: str, group: dist.ProcessGroup, dtype: torch.dtype, size: Callable[[], int], experts: torch.Tensor | None = None
) -> None:
    """Tell the observer, where one is on, of an all-to-all that has just been made past torch.distributed.

    ``size`` gives the bytes and is asked only then, because it may wait for the device. ``experts`` are those of this
    rank's tokens, given where they have been routed anew.
    """
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, Observer):
            with _disable_current_modes():  # asking is not part of the step
                mode.announce(via, group, dtype, size(), experts)


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


def _backend(group: dist.ProcessGroup) -> str:
    """``cpu:gloo,cuda:nccl`` is not an answer; take the one that the tensor's device would use, nccl before gloo."""
    name = str(dist.get_backend(group))
    return next((known for known in ("fake", "nccl", "gloo") if known in name), name)
