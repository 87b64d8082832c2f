"""What a partition can give, asked of the controller, so that what can never be is explained before it is queued."""

import re
from dataclasses import dataclass

from regbot.config import SlurmSettings
from regbot.engines.engine import Needs, NoSeatError
from regbot.engines.slurm.commands import Slurm

_GPUS = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[(,]|$))[^:,(]+)?:(\d+)")
"""With a type or without; a type may begin with a digit, as ``1g.10gb`` of a GPU that is divided."""
GONE = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "MAINT")


@dataclass(frozen=True)
class Extent:
    """How a seat is laid out: nodes, and on each so many ranks and GPUs."""

    nodes: int
    ranks: int
    gpus: int


@dataclass(frozen=True)
class Partition:
    """One partition, as it stands now."""

    name: str
    nodes: tuple[str, ...]
    gpus: int
    """Of the node with the most."""
    minutes: float | None
    """Longest job; None for no limit."""
    state: str


def partition_of(slurm: Slurm, name: str) -> Partition:
    """The partition of that name, the default one for ''. Raises NoSeatError, which names those there are."""
    every = slurm.shown("partition")
    default = [each for each in every if each.get("Default") == "YES"]
    found = [each for each in every if each.get("PartitionName") == name] if name else default
    if not found:
        names = ", ".join(sorted(each.get("PartitionName", "?") for each in every)) or "none"
        asked = f"there is no partition {name!r}" if name else "the cluster has no default partition"
        raise NoSeatError(f"{asked}; set slurm.partition to one of: {names}")
    one = found[0]
    hosts = tuple(slurm.hosts(one["Nodes"])) if one.get("Nodes") not in (None, "", "(null)") else ()
    nodes = [each for each in slurm.shown("node") if each.get("NodeName") in hosts]
    gpus = max((gpus_in(each.get("Gres", "")) for each in nodes), default=0)
    return Partition(
        one["PartitionName"], hosts, gpus, minutes_in(one.get("MaxTime", "UNLIMITED")), one.get("State", "UP")
    )


def extent_of(needs: Needs, settings: SlurmSettings, partition: Partition) -> Extent:
    """How a seat for ``needs`` is laid out in ``partition``. Raises NoSeatError where it can never be."""
    own = settings.gpus_per_node if settings.gpus_per_node is not None else partition.gpus
    if not needs.ranks:
        extent = Extent(settings.nodes or 1, 0, own)
    elif needs.gpus:
        each = settings.ranks_per_node or min(own, needs.gpus)
        if not own:
            raise NoSeatError(
                f"{needs.name}: wants {needs.gpus} GPUs, and no node of partition {partition.name} has any (Gres); "
                "choose another slurm.partition, or time the variant cpu"
            )
        extent = Extent(-(-needs.ranks // each), each, each)
    else:
        nodes = settings.nodes or 1
        extent = Extent(nodes, -(-needs.ranks // nodes), 0)
    if extent.gpus > partition.gpus:
        raise NoSeatError(
            f"{needs.name}: wants {extent.gpus} GPUs on each node, and the nodes of partition {partition.name} have "
            f"{partition.gpus} at most; lower slurm.gpus_per_node or slurm.ranks_per_node, or choose another partition"
        )
    if needs.ranks and extent.nodes * extent.ranks != needs.ranks:
        raise NoSeatError(
            f"{needs.name}: {needs.ranks} ranks cannot be spread evenly over nodes of {extent.ranks}; set "
            "slurm.nodes or slurm.ranks_per_node to a divisor of it"
        )
    if extent.nodes > len(partition.nodes):
        raise NoSeatError(
            f"{needs.name}: wants {extent.nodes} nodes, and partition {partition.name} has {len(partition.nodes)}; "
            "choose another slurm.partition, or more ranks on each node (slurm.ranks_per_node)"
        )
    if partition.state != "UP":
        raise NoSeatError(f"partition {partition.name} is {partition.state}: nothing starts there; see its operators")
    return extent


def usable(slurm: Slurm, hosts: tuple[str, ...], excluded: frozenset[str]) -> list[str]:
    """Nodes that could run something now or later: not down, not drained, not excluded."""
    found = []
    for node in slurm.shown("node"):
        name, state = node.get("NodeName", ""), node.get("State", "")
        if name in hosts and name not in excluded and not any(word in state for word in GONE):
            found.append(name)
    return found


def gpus_in(gres: str) -> int:
    """``gpu:h200:8(S:0-1)`` as 8; 0 without GPUs."""
    return sum(int(count) for count in _GPUS.findall(gres))


def minutes_in(limit: str) -> float | None:
    """``1-02:30:00`` as 1590; None for UNLIMITED."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit):
        return None
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (60.0, 1.0, 1 / 60) if days or len(parts) == 3 else (1.0, 1 / 60)  # hours first, or minutes
    return int(days or 0) * 1440 + sum(part * unit for part, unit in zip(parts, units, strict=False))
