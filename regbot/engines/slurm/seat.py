"""A seat on a cluster: runs are job steps on all nodes of one reservation."""

import itertools
import json
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regbot.config import SlurmSettings
from regbot.engines.conversation import Answer, converse
from regbot.engines.engine import Ended, EngineError, Launch, NoSeatError, SeatLostError
from regbot.engines.local import NONCE
from regbot.engines.sandbox import Sandbox
from regbot.engines.slurm.commands import OUTAGE_S, RETRY_S, Slurm, is_away
from regbot.engines.slurm.node import as_told, order_of
from regbot.engines.slurm.reports import Reports, complaints, ended_of, missing, spoken
from regbot.engines.slurm.reservation import Reservation
from regbot.engines.torchrun import spread, standalone
from regbot.records.run import Allocation, Node

FACTS_S = 120.0
LOOK_S = 5.0
"""Between two questions whether the nodes are still there."""
SETTLE_S = 20.0
"""How long the controller may need to tell that a job is gone whose nodes are."""

OUT_OF_MEMORY = re.compile(r"exceeded (?:job |step )?memory limit|oom[-_ ]?kill|out of memory", re.IGNORECASE)
"""What Slurm says where a limit of memory took the whole step, our own process with it: the guest's doing."""


class SlurmSeat:
    """The nodes of one reservation."""

    def __init__(
        self, slurm: Slurm, settings: SlurmSettings, reservation: Reservation, sandbox: Sandbox | None = None
    ) -> None:
        self._slurm, self._settings, self._reservation, self._sandbox = slurm, settings, reservation, sandbox
        self._looked = 0.0

    @property
    def allocation(self) -> Allocation:
        held = self._reservation
        return Allocation(
            engine="slurm",
            job=held.number,
            hosts=list(held.hosts),
            queued_s=held.queued_s,
            sandbox=self._facts[0]["sandbox"],
        )

    @cached_property
    def node(self) -> Node:
        """The nodes as one: their class says how many they are. Raises NoSeatError where they do not answer alike."""
        hosts, found = self._reservation.hosts, self._facts
        nodes = [Node.model_validate(each["node"]) for each in found]
        kinds = {node.node_class: sum(other.node_class == node.node_class for other in nodes) for node in nodes}
        words = " + ".join(f"{count} nodes of {kind}" if count > 1 else kind for kind, count in kinds.items())
        drivers = dict.fromkeys(node.driver for node in nodes if node.driver is not None)
        return Node(
            name=", ".join(hosts)[:500],
            node_class=words[:500],
            cores=sum(node.cores for node in nodes),
            gpus=[gpu for node in nodes for gpu in node.gpus],
            driver=", ".join(drivers)[:500] or None,
            container=nodes[0].container,
        )

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` on one node, or its ranks on all. Raises EngineError, NoSeatError where nodes are lost."""
        hosts = self._reservation.hosts if launch.ranks else self._reservation.hosts[:1]
        launch = _with(launch, self._settings.environment)
        logs = [launch.log, *(launch.log.with_name(f"{launch.log.stem}.{host}.log") for host in hosts[1:])]
        order = order_of(launch) | {
            "commands": self._commands(launch, len(hosts)),
            "logs": [str(path.absolute()) for path in logs],
            "sandbox": self._confinement(len(hosts)),
        }
        order["env"][NONCE] = secrets.token_hex(16)
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        reports, answer = self._step(hosts, order, launch.command[0], launch.timeout_s)
        self._refuse_a_loss(reports, hosts, launch.command[0], answer)
        if faults := [f"{hosts[number]}: {each['error']}" for number, each in reports.items() if "error" in each]:
            raise EngineError(f"{launch.command[0]}: {faults[0]}")
        self._await(launch.record_dir, reports)
        return ended_of(reports, hosts, logs)

    def _commands(self, launch: Launch, nodes: int) -> list[tuple[str, ...]]:
        """Of every node."""
        if not launch.ranks:
            return [launch.command]
        if nodes == 1:
            return [standalone(launch)]
        port = next(self._ports)
        return [spread(launch, nodes, number, self._address, port) for number in range(nodes)]

    def _confinement(self, nodes: int) -> dict[str, Any] | None:
        """Ranks of several nodes meet over the host's network; on one node there is none."""
        if self._sandbox is None:
            return None
        return as_told(replace(self._sandbox, network=self._sandbox.network or nodes > 1))

    @cached_property
    def _ports(self) -> "itertools.cycle[int]":
        return itertools.cycle(self._facts[0]["ports"])

    @cached_property
    def _address(self) -> str:
        """Of the first node, as the others reach it."""
        (node,) = self._slurm.shown("node", self._reservation.hosts[0])
        return node.get("NodeAddr") or self._reservation.hosts[0]

    @cached_property
    def _facts(self) -> list[Mapping[str, Any]]:
        """Of every node in order. Raises NoSeatError where one does not see our folder, or says nothing."""
        hosts, folder = self._reservation.hosts, self._reservation.folder
        until = time.monotonic() + self._settings.lag_s
        while True:
            found, answer = self._step(hosts, {"facts": str(folder), "sandbox": self._confinement(1)}, "srun", FACTS_S)
            self._refuse_a_loss(found, hosts, "srun", answer)
            if faults := [f"{hosts[number]}: {each['error']}" for number, each in found.items() if "error" in each]:
                raise NoSeatError(faults[0])
            if open_ := [f"{hosts[number]}: {each['open']}" for number, each in found.items() if each["open"]]:
                raise NoSeatError(f"code that is not trusted is not run there: {open_[0]}")
            blind = [hosts[number] for number, each in found.items() if not each["sees"]]
            if not blind:
                return [found[number] for number in range(len(hosts))]
            if time.monotonic() > until:
                raise NoSeatError(
                    f"{folder} is not seen on {', '.join(blind)}; put regbot's cache (REGBOT_CACHE) and --out on a "
                    "file system that all nodes share"
                )
            time.sleep(1.0)

    def _step(
        self, hosts: Sequence[str], order: Mapping[str, Any], name: str, limit_s: float
    ) -> tuple[Reports, Answer]:
        """The reports of one job step by the number of the node; begun again where the controller was away, and no node
        has begun anything."""
        until = time.monotonic() + OUTAGE_S
        while True:
            words = self._srun(hosts)
            nonce = secrets.token_hex(8)
            told = json.dumps({**order, "hosts": list(hosts), "nonce": nonce}).encode()
            answer = converse(words, self._slurm.environment, told, name, limit_s, self._glance)
            said = spoken(answer, nonce, len(hosts))
            away = not any(said.values()) and is_away(answer.text.decode("utf-8", "replace"))
            if not away or time.monotonic() > until:
                return {number: lines[1] for number, lines in said.items() if len(lines) > 1}, answer
            time.sleep(RETRY_S)

    def _srun(self, hosts: Sequence[str]) -> list[str]:
        held = self._reservation
        gpus = held.extent.gpus
        return [
            "srun",
            f"--jobid={held.number}",
            f"--nodes={len(hosts)}",
            f"--ntasks={len(hosts)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(hosts)}",
            f"--cpus-per-task={held.cpus}",
            *([f"--gpus-per-node={gpus}"] if gpus else ["--gres=none"]),
            "--overlap",
            "--export=NONE",
            "--chdir=/",
            "--quiet",
            "--cpu-bind=none",
            "--mpi=none",
            "--kill-on-bad-exit=1",
            self._settings.python or sys.executable,
            *("-I", "-B", "-X", "utf8", "-c", "from regbot.engines.slurm.node import main; main()"),
        ]

    def _glance(self) -> None:
        """Raises NoSeatError where the nodes are no longer ours: nothing will come from them."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if why := self._reservation.gone():
            raise SeatLostError(why)

    def _refuse_a_loss(self, reports: Reports, hosts: Sequence[str], name: str, answer: Answer) -> None:
        """Raises where a node did not report: SeatLostError where it, or our right to it, is gone.

        Where one failed srun has ended the others, and they need not have reported; but what failed there may only be
        the connection to a node that is gone.
        """
        silent = [host for number, host in enumerate(hosts) if number not in reports]
        if not silent:
            return
        failed = any("node" not in report and report.get("exit_code") != 0 for report in reports.values())
        if failed and self._answer(silent):
            return
        until = time.monotonic() + SETTLE_S
        while not (why := self._reservation.gone()) and time.monotonic() < until:
            time.sleep(0.5)
        said = complaints(answer)
        if not why and OUT_OF_MEMORY.search(said):
            raise EngineError(
                f"{name}: was ended for want of memory on {', '.join(silent)}: {said[-500:]}; it may have what the job "
                "has: where that is less than the node's, ask for more with slurm.extra ('--mem=0' is all)"
            )
        if why:
            raise SeatLostError(f"{why}{f'; srun said: {said[-500:]}' if said else ''}")
        raise SeatLostError(
            f"{name}: {', '.join(silent)} ended without a report (srun's exit code {answer.code}): "
            f"{said[-1000:] or 'killed from outside, or for want of memory'}; nothing is known about this run"
        )

    def _answer(self, hosts: Sequence[str]) -> bool:
        """Whether these nodes run a step now."""
        try:
            found, _ = self._step(hosts, {"facts": str(self._reservation.folder), "sandbox": None}, "srun", 0.0)
        except EngineError:
            return False
        return len(found) == len(hosts)

    def _await(self, folder: Path, reports: Reports) -> None:
        """Until a shared file system shows what the nodes say they wrote. Raises SeatLostError after ``lag_s``."""
        until = time.monotonic() + self._settings.lag_s
        while unseen := missing(folder, reports):
            if time.monotonic() > until:
                number, name = unseen
                raise SeatLostError(
                    f"{folder / name}: written on {self._reservation.hosts[number]} and not seen here after "
                    f"{self._settings.lag_s:g} s; the shared file system lags: raise slurm.lag_s"
                )
            time.sleep(0.2)


def _with(launch: Launch, environment: Mapping[str, str]) -> Launch:
    return replace(launch, env={**launch.env, **environment}) if environment else launch
