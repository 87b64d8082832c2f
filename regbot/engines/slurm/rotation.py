"""Rotation of nodes: a refresh measures each night on other nodes than the night before.

Without rotation, a scheduler often gives the same idle node every night. A fault of that node then looks like a slow
creep of main.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from regbot.engines.slurm.commands import Slurm
from regbot.records.files import write_text

HARDWARE_FIELDS = ("Arch", "CPUTot", "RealMemory", "Gres", "AvailableFeatures")
"""Fields of ``scontrol show node`` that are equal on two nodes of one node class."""


class Rotation:
    """The hosts of the last seat of each name, one file per name in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def last_hosts(self, name: str) -> frozenset[str]:
        """Return the hosts of the last seat ``name``; an empty set if there was none, or if its file is damaged."""
        try:
            hosts = json.loads(self._file(name).read_bytes())
        except (OSError, ValueError):
            return frozenset()
        return frozenset(host for host in hosts if isinstance(host, str)) if isinstance(hosts, list) else frozenset()

    def save(self, name: str, hosts: Collection[str]) -> None:
        write_text(self._file(name), json.dumps(sorted(hosts)))

    def _file(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def find_other_hosts(slurm: Slurm, hosts: Collection[str], last_hosts: frozenset[str]) -> frozenset[str]:
    """Return the idle nodes of ``hosts`` with the hardware of ``last_hosts``, without ``last_hosts`` themselves. The
    result is empty if there are no ``last_hosts``.

    Nodes of other hardware are left out, because another node class has another anchor. Busy nodes are left out,
    because a rotation is not worth a wait in the queue.
    """
    if not last_hosts:
        return frozenset()
    nodes = slurm.show("node")
    hardware = {node["NodeName"]: tuple(node.get(field) for field in HARDWARE_FIELDS) for node in nodes}
    known = {hardware[host] for host in last_hosts if host in hardware}
    idle = frozenset(node["NodeName"] for node in nodes if node.get("State") == "IDLE")
    return frozenset(host for host in (idle & frozenset(hosts)) - last_hosts if hardware[host] in known)
