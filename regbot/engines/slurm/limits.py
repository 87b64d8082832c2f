"""Limits of a partition, as the Slurm controller reports them. A request that they forbid is refused before
queueing."""

import math
import re
from dataclasses import dataclass

from regbot.engines.engine import Needs
from regbot.engines.launch import NoSeatError
from regbot.engines.slurm.commands import Slurm
from regbot.records.config import SlurmSettings

_GPUS = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[(,]|$))[^:,(]+)?:(\d+)")
"""A GPU count in Slurm's Gres, after an optional type, which may begin with a digit, such as ``1g.10gb``."""


@dataclass(frozen=True)
class SeatLayout:
    nodes: int
    ranks: int
    """On each node; 0 for a program of one process."""
    gpus: int
    """On each node."""


@dataclass(frozen=True)
class Partition:
    name: str
    nodes: tuple[str, ...]
    gpus: int
    """Of the node that has most."""
    minutes: float | None
    """Time limit of a job in minutes; None for no limit."""


def find_partition(slurm: Slurm, name: str) -> Partition:
    """Return the partition ``name``, or the default partition if ``name`` is ''. Raises NoSeatError."""
    # Each line is a node in a partition. The name of the default partition has an asterisk.
    output = slurm.query(["sinfo", "--noheader", "--Node", "--format=%R|%P|%N|%l|%G"])
    rows = [line.split("|", 4) for line in output.splitlines()]
    nodes = [row for row in rows if (row[0] == name if name else row[1].endswith("*"))]
    if not nodes:
        names = ", ".join(sorted({partition for partition, *_ in rows})) or "none"
        fault = f"there is no partition {name!r}" if name else "the cluster has no default partition"
        raise NoSeatError(fault, f"set slurm.partition to one of: {names}")
    return Partition(
        name=nodes[0][0],
        nodes=tuple(host for _, _, host, _, _ in nodes),
        gpus=max(parse_gpus(gres) for *_, gres in nodes),
        minutes=parse_minutes(nodes[0][3]),
    )


def plan_layout(needs: Needs, settings: SlurmSettings, partition: Partition) -> SeatLayout:
    """Return the layout of a seat for ``needs``. A program of one process gets all GPUs of its nodes. Ranks on GPUs get
    one each. Ranks on CPUs are spread evenly over ``settings.nodes`` nodes. Raises NoSeatError."""
    node_gpus = settings.gpus_per_node if settings.gpus_per_node is not None else partition.gpus
    if needs.ranks == 0:
        layout = SeatLayout(settings.nodes or 1, ranks=0, gpus=node_gpus)
    elif needs.gpus:
        ranks_per_node = settings.ranks_per_node or min(node_gpus, needs.gpus)
        if node_gpus == 0:
            raise NoSeatError(
                f"{needs.name}: needs {needs.gpus} GPUs, and no node of partition {partition.name} has any (Gres)",
                "choose another slurm.partition, or time the variant cpu",
            )
        layout = SeatLayout(math.ceil(needs.ranks / ranks_per_node), ranks=ranks_per_node, gpus=ranks_per_node)
    else:
        nodes = settings.nodes or 1
        layout = SeatLayout(nodes, ranks=math.ceil(needs.ranks / nodes), gpus=0)
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
    return layout


def parse_gpus(gres: str) -> int:
    """Return the number of GPUs in a Gres text such as ``gpu:h200:8(S:0-1)`` (8); 0 if it lists no GPUs."""
    return sum(int(count) for count in _GPUS.findall(gres))


def parse_minutes(limit: str) -> float | None:
    """Parse a time limit such as ``1-02:30:00`` and return minutes (1590); None for no limit."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit):
        return None
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    # The first part is hours after days ("1-02") and in "H:M:S". It is minutes in "M" and "M:S".
    begins_with_hours = bool(days) or len(parts) == 3
    minutes_per_unit = (60.0, 1.0, 1 / 60) if begins_with_hours else (1.0, 1 / 60)
    clock_minutes = sum(part * unit for part, unit in zip(parts, minutes_per_unit, strict=False))
    return int(days or 0) * 24 * 60 + clock_minutes
