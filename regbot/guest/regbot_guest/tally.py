"""Counts the collectives of one step, which three sources report: the dispatch mode of ``observer.py``, the kernels of
the paper GPU, and dispatchers whose library has its own kernels, by ``announce``.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from regbot_guest.axes import Axes
from regbot_guest.collectives import CollectiveSpec, find_process_group, flatten, read_volume
from regbot_guest.module_tracker import ModuleTracker
from regbot_guest.source_lines import begin_step, note_collective, noted_functions
from regbot_guest.tokens import RoutedTokens

ANNOUNCED_LIBRARIES = ("deepep", "hybridep")
"""Values of ``via`` for exchanges that their dispatcher announces. A dispatch mode does not see these exchanges."""


class Key(NamedTuple):
    """Key of a ledger entry. Counts and bytes of collectives with the same key are summed."""

    kind: str  # such as all_to_all
    axis: str  # such as ep, or ep|dp if the group spans both axes
    group_size: int
    dtype: str  # such as bfloat16; 'mixed' for several types, and 'none' for a collective without bytes
    phase: str  # forward, backward, optimizer or unknown
    role: str  # payload or control
    where: str  # path of the module; '' if it is unknown
    via: str  # backend or library that ran the collective, such as nccl or deepep
    line: str = ""  # 'path:number' of the call in the checkout; '' if it is unknown


class StepTally:
    def __init__(self) -> None:
        self.count: Counter[Key] = Counter()
        self.bytes: Counter[Key] = Counter()

    def entries(self) -> list[dict[str, Any]]:
        return [{**key._asdict(), "count": n, "bytes": self.bytes[key]} for key, n in self.count.items()]

    @property
    def total(self) -> int:
        """Number of collectives of torch.distributed, without announced exchanges, which have no sequence number."""
        return sum(n for key, n in self.count.items() if key.via not in ANNOUNCED_LIBRARIES)


class StepCounter:
    source = ""
    """Name of the counter in the ledger."""

    def __init__(
        self, axes: Axes, tracker: ModuleTracker | None = None, routed_tokens: RoutedTokens | None = None
    ) -> None:
        self.axes, self.tracker, self.routed_tokens = axes, tracker, routed_tokens
        self.phase = "unknown"
        self.new_step()

    def new_step(self) -> None:
        self.tally = StepTally()
        self.operators: Counter[str] = Counter()
        """Number of calls of each operator, by its full name, such as ``aten::mm``."""
        self.host_reads: Counter[str] = Counter()
        self.payload_splits: list[tuple[str, tuple[int, ...]]] = []
        """Axis, and rows sent to each rank, of each payload all-to-all in forward."""
        if self.tracker is not None:
            self.tracker.new_step()
        begin_step()

    def __enter__(self) -> "StepCounter":
        _active_counters.append(self)
        self._noting = noted_functions()
        self._noting.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._noting.__exit__(None, None, None)
        _active_counters.remove(self)

    def read_operators(self) -> None:
        """Bring ``operators`` up to date. This is needed only if the device counts operators, as the paper GPU does."""

    def fingerprint(self) -> str | None:
        """Return the fingerprint of the step, or None if it is unknown."""
        return None

    def program(self) -> dict[str, Any] | None:
        """Return what else the step does, as ``Program`` in ``regbot/records/ledger.py``. None if it is unknown."""
        return None

    def guesses(self) -> dict[str, str]:
        """Return what the trace assumed: kinds by sentence."""
        return {}

    def count_host_read(self) -> None:
        """Waits in the optimizer are not counted, because an optimizer always reads its own step count."""
        if self.phase != "optimizer":
            self.host_reads[self.module_path()] += 1

    def count_collective(self, func: Any, spec: CollectiveSpec, call_arguments: Mapping[str, Any], result: Any) -> None:
        """Count one executed collective. Those of a group of one rank exchange nothing and are not counted."""
        group = find_process_group(call_arguments)
        if group.size() < 2:
            return
        volume = read_volume(spec, call_arguments, result)
        module, axis = self.module_path(), self.axes.label(group)
        via = "symm-mem" if func.namespace == "symm_mem" else _backend(group)
        key = Key(spec.kind, axis, group.size(), volume.dtype, self.phase, volume.role, module, via, note_collective())
        self.tally.count[key] += 1
        self.tally.bytes[key] += volume.bytes
        is_forward_payload = volume.role == "payload" and self.phase == "forward"
        if spec.kind == "all_to_all" and is_forward_payload and (splits := _list_input_splits(call_arguments)):
            self.payload_splits.append((axis, tuple(splits)))
        # A control exchange on axis ep may contain the routing: row counts, or the experts of every token.
        sent = call_arguments.get("input", call_arguments.get("input_tensor"))
        is_control_on_ep = volume.role == "control" and "ep" in axis.split("|")
        if self.routed_tokens is not None and is_control_on_ep and sent is not None:
            self.routed_tokens.add(module, sent)

    def announce(
        self, via: str, group: dist.ProcessGroup, dtype: torch.dtype, sent_bytes: int, experts: torch.Tensor | None
    ) -> None:
        """Count one all-to-all of a library's own kernels. ``experts`` is None if an earlier exchange has reported
        them.
        """
        module = self.module_path()
        name = str(dtype).removeprefix("torch.")
        axis, line = self.axes.label(group), note_collective()
        key = Key("all_to_all", axis, group.size(), name, self.phase, "payload", module, via, line)
        self.tally.count[key] += 1
        self.tally.bytes[key] += sent_bytes
        if self.routed_tokens is not None and experts is not None:
            self.routed_tokens.add(module, experts)

    def module_path(self) -> str:
        return self.tracker.current_path() if self.tracker is not None else ""


_active_counters: list[StepCounter] = []


def announce(
    via: str,
    group: dist.ProcessGroup,
    dtype: torch.dtype,
    count_sent_bytes: Callable[[], int],
    experts: torch.Tensor | None = None,
) -> None:
    """Report an all-to-all that bypassed torch.distributed to all active counters. ``count_sent_bytes`` is called only
    if a counter is active, because it may wait for the device. ``experts``, ``[tokens, top_k]``, is None for all
    exchanges except a new dispatch, because the others reuse the routes of that dispatch.
    """
    for counter in _active_counters:
        with _disable_current_modes():  # the count is not part of the step
            counter.announce(via, group, dtype, count_sent_bytes(), experts)


def _list_input_splits(call_arguments: Mapping[str, Any]) -> list[int]:
    split_sizes: list[int] = call_arguments.get("input_split_sizes") or []
    return split_sizes or [len(part) if part.dim() else 1 for part in flatten(call_arguments.get("input_tensors"))]


def _backend(group: dist.ProcessGroup) -> str:
    """Return nccl for a combined backend such as ``cpu:gloo,cuda:nccl``."""
    name = str(dist.get_backend(group))
    return next((backend for backend in ("fake", "nccl", "gloo") if backend in name), name)
