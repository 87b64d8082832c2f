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
    """Return the nodes of ``hosts`` on which a session can start now and that are not in ``last_hosts``.

    They have the same hardware as the nodes of ``last_hosts``: another node class has another anchor. Busy nodes are
    left out, because a rotation is not worth a wait in the queue.
    """
    nodes = {node.get("NodeName", ""): node for node in slurm.show("node")}
    hardware = {tuple(nodes[host].get(field) for field in HARDWARE_FIELDS) for host in last_hosts if host in nodes}
    return frozenset(
        host
        for host in hosts
        if host in nodes
        and host not in last_hosts
        and nodes[host].get("State") == "IDLE"
        and tuple(nodes[host].get(field) for field in HARDWARE_FIELDS) in hardware
    )
