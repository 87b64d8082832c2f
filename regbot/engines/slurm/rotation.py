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
    """Remembers the hosts of the last seat of each name, in one file for each name in ``folder``.

    The name of a seat contains the workload that is timed in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def last_hosts(self, name: str) -> frozenset[str]:
        """Return the hosts of the last seat ``name``; an empty set if there was none, or if its file is damaged."""
        try:
            hosts = json.loads(self._file(name).read_bytes())
        except (OSError, ValueError):
            return frozenset()
        if not isinstance(hosts, list):
            return frozenset()
        return frozenset(host for host in hosts if isinstance(host, str))

    def save(self, name: str, hosts: Collection[str]) -> None:
        write_text(self._file(name), json.dumps(sorted(hosts)))

    def _file(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def find_other_hosts(slurm: Slurm, hosts: Collection[str], last_hosts: frozenset[str]) -> frozenset[str]:
    """Return the nodes of ``hosts`` that can replace ``last_hosts``; an empty set if there were no last hosts.

    These nodes are idle, are not among ``last_hosts``, and have the same hardware as one of them. Times are not
    compared with those of other hardware. Busy nodes are left out, because a rotation is not worth a wait in the queue.
    """
    if not last_hosts:
        return frozenset()
    nodes = slurm.show("node")
    hardware = {node["NodeName"]: tuple(node.get(field) for field in HARDWARE_FIELDS) for node in nodes}
    last_hardware = {hardware[host] for host in last_hosts if host in hardware}
    idle_hosts = frozenset(node["NodeName"] for node in nodes if node.get("State") == "IDLE")
    candidates = (idle_hosts & frozenset(hosts)) - last_hosts
    return frozenset(host for host in candidates if hardware[host] in last_hardware)
