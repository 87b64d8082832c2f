"""Counting the collectives of one step: by kind, axis, group, dtype, phase, role, module and library.

``StepCounter`` is what every way of seeing a collective feeds: the dispatch mode of ``observer.py``, the kernels of the
paper GPU, and libraries that tell of their own exchanges.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from regbot_guest.axes import Axes
from regbot_guest.collectives import Form, describe, flatten
from regbot_guest.tokens import RoutedTokens
from regbot_guest.where import Where

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


class StepCounter:
    """What one step exchanged, since ``new_step``."""

    def __init__(self, axes: Axes, where: Where | None = None, routed: RoutedTokens | None = None) -> None:
        self.axes, self.where, self.routed = axes, where, routed
        self.phase = "unknown"
        self.new_step()

    def new_step(self) -> None:
        """Start counting anew."""
        self.tally = Tally()
        self.operators: Counter[str] = Counter()
        self.host_reads: Counter[str] = Counter()
        self.payload_splits: list[tuple[str, tuple[int, ...]]] = []
        if self.where is not None:
            self.where.new_step()

    def __enter__(self) -> "StepCounter":
        listen(self)
        return self

    def __exit__(self, *_: Any) -> None:
        stop_listening(self)

    def count_host_read(self) -> None:
        """The host waited for a value of the device; in the optimizer every program does, for its step number."""
        if self.phase != "optimizer":
            self.host_reads[self.module()] += 1

    def count_collective(self, func: Any, form: Form, given: Mapping[str, Any], result: Any) -> None:
        """One executed operator of ``collectives.COLLECTIVES``. Groups of one rank are no collectives."""
        seen = describe(func, form, given, result)
        if seen.group.size() < 2:
            return
        where = self.module()
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
        where = self.module()
        name = str(dtype).removeprefix("torch.")
        key = Key("all_to_all", self.axes.label(group), group.size(), name, self.phase, "payload", where, via)
        self.tally.count[key] += 1
        self.tally.bytes[key] += size
        if self.routed is not None and experts is not None:
            self.routed.note(where, experts)

    def module(self) -> str:
        """Path of the module at work, '' where it is not known."""
        return self.where.now() if self.where is not None else ""


_listening: list[StepCounter] = []
"""The counters that are on: libraries with kernels of their own tell them of their exchanges."""


def listen(counter: StepCounter) -> None:
    """From now on ``announce`` tells ``counter``."""
    _listening.append(counter)


def stop_listening(counter: StepCounter) -> None:
    """Undo ``listen``."""
    _listening.remove(counter)


def announce(
    via: str, group: dist.ProcessGroup, dtype: torch.dtype, size: Callable[[], int], experts: torch.Tensor | None = None
) -> None:
    """Tell the counters that are on of an all-to-all that has just been made past torch.distributed.

    ``size`` gives the bytes and is called only then, because it may wait for the device. ``experts`` are those of this
    rank's tokens, given where they have been routed anew.
    """
    for counter in _listening:
        with _disable_current_modes():  # this is not part of the step
            counter.announce(via, group, dtype, size(), experts)


def _backend(group: dist.ProcessGroup) -> str:
    """``cpu:gloo,cuda:nccl`` is not an answer; take the one that the tensor's device would use, nccl before gloo."""
    name = str(dist.get_backend(group))
    return next((known for known in ("fake", "nccl", "gloo") if known in name), name)
