"""Limits of a partition, as the Slurm controller reports them. A request that they forbid is refused before
queueing."""

import re
from dataclasses import dataclass

from regbot.config import SlurmSettings
from regbot.engines.engine import Needs
from regbot.engines.launch import NoSeatError
from regbot.engines.slurm.commands import Slurm

_GPUS = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[(,]|$))[^:,(]+)?:(\d+)")
"""Matches a GPU count in Slurm's Gres. The GPU type before the count is optional. A type may begin with a digit, such
as ``1g.10gb`` for a part of a divided GPU."""
UNUSABLE_STATES = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "MAINT")


@dataclass(frozen=True)
class SeatLayout:
    """Layout of a seat: the number of nodes, and the number of ranks and GPUs on each node."""

    nodes: int
    ranks: int
    gpus: int


@dataclass(frozen=True)
class Partition:
    """Current state and limits of one partition."""

    name: str
    nodes: tuple[str, ...]
    gpus: int
    """Number of GPUs of the node that has the most GPUs."""
    minutes: float | None
    """Time limit of a job in minutes; None for no limit."""
    state: str


def find_partition(slurm: Slurm, name: str) -> Partition:
    """Return the partition ``name``, or the default partition if ``name`` is ''.

    Raises NoSeatError if the partition does not exist. The error lists all partitions.
    """
    entries = slurm.show("partition")
    default = [entry for entry in entries if entry.get("Default") == "YES"]
    matches = [entry for entry in entries if entry.get("PartitionName") == name] if name else default
    if not matches:
        names = ", ".join(sorted(entry.get("PartitionName", "?") for entry in entries)) or "none"
        fault = f"there is no partition {name!r}" if name else "the cluster has no default partition"
        raise NoSeatError(fault, f"set slurm.partition to one of: {names}")
    match = matches[0]
    hosts = tuple(slurm.expand_hosts(match["Nodes"])) if match.get("Nodes") not in (None, "", "(null)") else ()
    nodes = [node for node in slurm.show("node") if node.get("NodeName") in hosts]
    gpus = max((parse_gpus(node.get("Gres", "")) for node in nodes), default=0)
    return Partition(
        match["PartitionName"], hosts, gpus, parse_minutes(match.get("MaxTime", "UNLIMITED")), match.get("State", "UP")
    )


def plan_layout(needs: Needs, settings: SlurmSettings, partition: Partition) -> SeatLayout:
    """Return the layout of a seat for ``needs`` in ``partition``. Raises NoSeatError if no layout is possible."""
    node_gpus = settings.gpus_per_node if settings.gpus_per_node is not None else partition.gpus
    if not needs.ranks:
        layout = SeatLayout(settings.nodes or 1, 0, node_gpus)
    elif needs.gpus:
        ranks_per_node = settings.ranks_per_node or min(node_gpus, needs.gpus)
        if not node_gpus:
            raise NoSeatError(
                f"{needs.name}: needs {needs.gpus} GPUs, and no node of partition {partition.name} has any (Gres)",
                "choose another slurm.partition, or time the variant cpu",
            )
        layout = SeatLayout(-(-needs.ranks // ranks_per_node), ranks_per_node, ranks_per_node)
    else:
        nodes = settings.nodes or 1
        layout = SeatLayout(nodes, -(-needs.ranks // nodes), 0)
    if layout.gpus > partition.gpus:
        raise NoSeatError(
            f"{needs.name}: needs {layout.gpus} GPUs on each node, and the nodes of partition {partition.name} have "
            f"at most {partition.gpus}",
            "lower slurm.gpus_per_node or slurm.ranks_per_node, or choose another partition",
        )
    if needs.ranks and layout.nodes * layout.ranks != needs.ranks:
        raise NoSeatError(
            f"{needs.name}: {needs.ranks} ranks cannot be spread evenly over nodes of {layout.ranks}",
            "set slurm.nodes or slurm.ranks_per_node to a divisor of the number of ranks",
        )
    if layout.nodes > len(partition.nodes):
        raise NoSeatError(
            f"{needs.name}: needs {layout.nodes} nodes, and partition {partition.name} has {len(partition.nodes)}",
            "choose another slurm.partition, or more ranks on each node (slurm.ranks_per_node)",
        )
    if partition.state != "UP":
        raise NoSeatError(f"partition {partition.name} is {partition.state}: no job starts there", "ask its operators")
    return layout


def usable_nodes(slurm: Slurm, hosts: tuple[str, ...], excluded: frozenset[str]) -> list[str]:
    """Return the nodes of ``hosts`` that can run jobs now or later: not down, not drained, and not in ``excluded``."""
    usable_hosts = []
    for node in slurm.show("node"):
        name, state = node.get("NodeName", ""), node.get("State", "")
        if name in hosts and name not in excluded and not any(word in state for word in UNUSABLE_STATES):
            usable_hosts.append(name)
    return usable_hosts


def parse_gpus(gres: str) -> int:
    """Return the number of GPUs in a Gres text such as ``gpu:h200:8(S:0-1)`` (8); 0 if it lists no GPUs."""
    return sum(int(count) for count in _GPUS.findall(gres))


def parse_minutes(limit: str) -> float | None:
    """Parse a time limit such as ``1-02:30:00`` and return minutes (1590); None for UNLIMITED."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit):
        return None
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    # Without days and with fewer than three parts, the first part is minutes. Otherwise the first part is hours.
    units = (60.0, 1.0, 1 / 60) if days or len(parts) == 3 else (1.0, 1 / 60)
    return int(days or 0) * 1440 + sum(part * unit for part, unit in zip(parts, units, strict=False))
