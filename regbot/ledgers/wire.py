"""Modelled wire time: how long the payload of a step would take on an idle network.

    seconds = payload bytes x factor(kind, n) / bandwidth of the axis, for a group of n ranks

``factor`` is the number of bytes that a bandwidth-optimal algorithm sends per rank and per byte in the ledger (Thakur,
Rabenseifner, Gropp 2005, as in the bus-bandwidth rules of nccl-tests). The model ranks ledgers. It leaves out latency,
overlap with compute, contention, the topology inside a node, and control exchanges, which cost hardly any bytes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from regbot.records.config import WireBandwidths
from regbot.records.ledger import Axis, Kind, Ledger

GIGA = 1e9


def factor(kind: Kind, n: int) -> float:
    """Return the number of bytes that a rank sends per byte in the ledger. ``n`` is the number of ranks in the group.
    The bytes in the ledger are the input of all_to_all, reduce_scatter and all_reduce, and the output of all_gather.
    For gather and scatter, the bytes in the ledger are the piece of one rank. The root receives or sends the pieces of
    the ``n - 1`` other ranks. For send_recv, the ledger of a rank has what it sends and what it receives, and both
    travel at the same time."""
    match kind:
        case "all_to_all" | "all_gather" | "reduce_scatter":
            return (n - 1) / n
        case "all_reduce":
            return 2 * (n - 1) / n
        case "gather" | "scatter":
            return n - 1
        case "broadcast" | "reduce" | "permute":
            return 1
        case "send_recv":
            return 1 / 2
        case "barrier":
            return 0


@dataclass(frozen=True)
class WireModel:
    """The bandwidths in ``regbot.toml``, and the ranks of each axis of one ledger."""

    wire: WireBandwidths
    axes: Mapping[str, Axis]

    def seconds(self, kind: Kind, axis: str, group_size: int, payload_bytes: int) -> float:
        crosses_nodes = self.spans_nodes(axis, group_size)
        gb_s = self.wire.inter_node_gb_s if crosses_nodes else self.wire.node_local_gb_s
        # A pipeline stage at an end sends in one phase and receives in the other, so nothing travels at the same time.
        directions = 2 if kind == "send_recv" and "pp" in axis.split("|") else 1
        return directions * payload_bytes * factor(kind, group_size) / (gb_s * GIGA)

    def spans_nodes(self, axis: str, group_size: int) -> bool:
        """Whether the group spans several nodes. If the ledger does not list exactly ``group_size`` ranks for its axis,
        and the label is no list of ranks, the size decides. The label 'ep|dp' stands for one of two axes that have the
        same ranks, so the ranks of either name are right."""
        for name in (axis, *axis.split("|")):
            named_axis = self.axes.get(name)
            if named_axis is not None and len(named_axis.ranks) == group_size:
                return name in self._axes_over_nodes
        if axis.startswith("["):  # ranks in ascending order, such as [0,8] or [0-14:2]
            ranks = re.findall(r"[0-9]+", axis.partition(":")[0])
            return len({int(rank) // self.wire.gpus_per_node for rank in ranks}) > 1
        return group_size > self.wire.gpus_per_node

    @cached_property
    def _axes_over_nodes(self) -> frozenset[str]:
        gpus = self.wire.gpus_per_node
        return frozenset(name for name, axis in self.axes.items() if len({rank // gpus for rank in axis.ranks}) > 1)


def wire_s(ledger: Ledger, wire: WireBandwidths) -> float:
    """Return the modelled wire time of all payload in ``ledger``, in seconds."""
    model = WireModel(wire, ledger.axes)
    return sum(
        model.seconds(entry.kind, entry.axis, entry.group_size, entry.bytes)
        for entry in ledger.entries
        if entry.role == "payload"
    )
