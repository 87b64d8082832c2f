"""Modelled wire time: what a step's payload would cost on an idle network. A model that ranks, never a measurement.

    seconds = payload bytes x factor(kind, n) / bandwidth of the axis          n ranks in the group

Factors are the bytes that a bandwidth-optimal algorithm sends per rank and byte of the ledger (Thakur, Rabenseifner,
Gropp 2005, as in the bus-bandwidth rules of nccl-tests). Latency, overlap with compute, contention and topology inside
a node are left out on purpose: the number answers "which of two ledgers moves more, and over which wires", no more.
Control exchanges (token counts) cost latency and hardly any bytes; they are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from regbot.config import Wire
from regbot.records.ledger import Axis, Kind, Ledger

GIGA = 1e9


def factor(kind: Kind, n: int) -> float:
    """Bytes that a rank sends per byte of the ledger, in a group of ``n``.

    Ledger bytes are the input of all_to_all, reduce_scatter and all_reduce, the output of all_gather, and one rank's
    piece of gather and scatter, where the root handles the ``n - 1`` others.
    """
    match kind:
        case "all_to_all" | "all_gather" | "reduce_scatter":
            return (n - 1) / n
        case "all_reduce":
            return 2 * (n - 1) / n
        case "gather" | "scatter":
            return n - 1
        case "broadcast" | "reduce" | "permute" | "send_recv":
            return 1
        case "barrier":
            return 0


@dataclass(frozen=True)
class WireModel:
    """The bandwidths of ``regbot.toml`` and the ranks behind the axes of one ledger."""

    wire: Wire
    axes: Mapping[str, Axis]

    def seconds(self, kind: Kind, axis: str, group_size: int, payload_bytes: int) -> float:
        """Modelled seconds of ``payload_bytes`` of one kind on one axis."""
        between = self.spans_nodes(axis, group_size)
        gb_s = self.wire.inter_node_gb_s if between else self.wire.node_local_gb_s
        return payload_bytes * factor(kind, group_size) / (gb_s * GIGA)

    def spans_nodes(self, axis: str, group_size: int) -> bool:
        """Whether the group reaches past one node; by its size alone where its ranks are not known."""
        ranks = self._ranks(axis, group_size)
        if ranks is None:
            return group_size > self.wire.gpus_per_node
        return len({rank // self.wire.gpus_per_node for rank in ranks}) > 1

    def _ranks(self, axis: str, group_size: int) -> list[int] | None:
        """Ranks of ``axis``; any part of a joint label such as 'ep|dp' will do, they are the same ranks."""
        for part in (axis, *axis.split("|")):
            known = self.axes.get(part)
            if known is not None and len(known.ranks) == group_size:
                return known.ranks
        return None


def wire_s(ledger: Ledger, wire: Wire) -> float:
    """Modelled wire time of all payload in ``ledger``, in seconds."""
    model = WireModel(wire, ledger.axes)
    return sum(model.seconds(e.kind, e.axis, e.group_size, e.bytes) for e in ledger.entries if e.role == "payload")
