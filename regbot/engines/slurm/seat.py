"""A seat on a Slurm cluster. Each launch runs on all nodes of one reservation."""

import itertools
import math
import secrets
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from regbot.engines.launch import EngineError, Launch, LaunchResult, NoSeatError, SeatLostError
from regbot.engines.local import BACKSTOP_S
from regbot.engines.slurm.node import LAUNCH, SANDBOX
from regbot.engines.slurm.reports import Reports, combine_reports, find_missing_file
from regbot.engines.slurm.reservation import Reservation
from regbot.engines.torchrun import multi_node_command, single_node_command
from regbot.records.config import SandboxSettings, SlurmSettings
from regbot.records.run import Allocation, Node
from regbot.records.text.clip import clip_label

CHECK_S = 5.0
"""Seconds between two checks whether the nodes are still reserved."""
ABORT_S = 10.0
"""Seconds between a failure on one node and the end of the launch on the others. A node whose rank has died needs up to
5 s to notice it, in older versions of torchrun, and then says how it died."""


class SlurmSeat:
    def __init__(
        self, settings: SlurmSettings, reservation: Reservation, sandbox: SandboxSettings | None = None
    ) -> None:
        """``reservation`` has its nodes. Raises NoSeatError if a node cannot be used."""
        self._settings, self._reservation, self._sandbox = settings, reservation, sandbox
        self._facts = reservation.facts
        # Ports of the first node that were free when it reported its facts. Each launch takes the next one.
        self._ports = itertools.cycle(self._facts[0]["ports"])
        for facts in self._facts:
            if facts["sandbox_fault"]:
                raise NoSeatError(f"untrusted code cannot run there: {facts['host']}: {facts['sandbox_fault']}")
        if blind_hosts := [facts["host"] for facts in self._facts if not facts["sees_folder"]]:
            raise NoSeatError(
                f"{reservation.folder} is not visible on {', '.join(blind_hosts)}",
                "put regbot's cache (REGBOT_CACHE) and --out on a file system that all nodes share",
            )

    @property
    def allocation(self) -> Allocation:
        reservation = self._reservation
        return Allocation(
            engine="slurm",
            job=reservation.number,
            hosts=reservation.hosts,
            queued_s=reservation.queued_s,
            sandbox=self._facts[0]["sandbox"],
        )

    @cached_property
    def node(self) -> Node:
        """One ``Node`` that combines all nodes, such as ``2 nodes of 8 x H200``."""
        nodes = [Node.model_validate(facts["node"]) for facts in self._facts]
        count_by_class = Counter(node.node_class for node in nodes)
        classes = " + ".join(
            f"{count} nodes of {node_class}" if count > 1 else node_class
            for node_class, count in count_by_class.items()
        )
        drivers = dict.fromkeys(node.driver for node in nodes if node.driver is not None)
        return Node(
            name=clip_label(", ".join(self._reservation.hosts)),
            node_class=clip_label(classes),
            cores=sum(node.cores for node in nodes),
            gpus=[gpu for node in nodes for gpu in node.gpus],
            driver=clip_label(", ".join(drivers)) or None,
            container=nodes[0].container,
        )

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch``: its ranks on all nodes, or a program of one process on the first node. Launches of several
        threads run at the same time. Raises EngineError, or SeatLostError if nodes are lost."""
        hosts = self._reservation.hosts if launch.ranks else self._reservation.hosts[:1]
        launch = replace(launch, env={**launch.env, **self._settings.environment})
        # Ranks on several nodes need the host's network.
        sandbox = self._sandbox and self._sandbox.model_copy(
            update={"network": self._sandbox.network or len(hosts) > 1}
        )
        # The first host writes the launch's log. Each other host has a log of its own beside it.
        logs = [launch.log, *(launch.log.with_name(f"{launch.log.stem}.{host}.log") for host in hosts[1:])]
        request = {
            "id": secrets.token_hex(8),
            "launch": LAUNCH.dump_python(launch, mode="json"),
            "commands": self._commands(launch, len(hosts)),
            "logs": [str(path.absolute()) for path in logs],
            "sandbox": SANDBOX.dump_python(sandbox, mode="json"),
        }
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._reservation.send(request)
        reports = self._wait_for_reports(str(request["id"]), len(hosts), launch)
        for number, report in reports.items():
            if "error" in report:
                error_class = NoSeatError if report["no_room"] else EngineError
                raise error_class(f"{launch.command[0]}: {hosts[number]}: {report['error']}")
        # The report of a node on which the launch was aborted has no result.
        results = {number: report for number, report in reports.items() if "result" in report}
        self._wait_for_files(launch.record_dir, results)
        return combine_reports(results, hosts)

    def _commands(self, launch: Launch, nodes: int) -> list[tuple[str, ...]]:
        if nodes == 1:
            return [single_node_command(launch) if launch.ranks else launch.command]
        address, port = self._reservation.address, next(self._ports)
        return [multi_node_command(launch, nodes, number, address, port) for number in range(nodes)]

    def _wait_for_reports(self, launch_id: str, nodes: int, launch: Launch) -> Reports:
        """Return the reports of all nodes about one launch. If it fails on one node, end it on the others after ABORT_S
        seconds."""
        reservation = self._reservation
        deadline, check_at = time.monotonic() + launch.timeout_s + 2 * BACKSTOP_S, time.monotonic() + CHECK_S
        abort_at = math.inf
        while len(reports := reservation.inbox.reports(launch_id)) < nodes:
            if abort_at == math.inf and any(
                "error" in report or report["result"]["exit_code"] != 0 for report in reports.values()
            ):
                abort_at = time.monotonic() + ABORT_S
            if time.monotonic() > abort_at:
                reservation.send({"abort": launch_id})
            if reservation.has_ended or time.monotonic() > check_at:
                if reason := reservation.lost_reason():
                    messages = reservation.inbox.srun_messages[-500:]
                    raise SeatLostError(reason + (f"; srun messages: {messages}" if messages else ""))
                check_at = time.monotonic() + CHECK_S
            if time.monotonic() > deadline:
                raise SeatLostError(f"{launch.command[0]}: {nodes - len(reports)} of {nodes} nodes did not report")
            reservation.wait(1.0)
        return reports

    def _wait_for_files(self, folder: Path, reports: Reports) -> None:
        """Wait until the shared file system shows all files of the nodes. Raises SeatLostError after ``lag_s`` s."""
        deadline = time.monotonic() + self._settings.lag_s
        while missing_file := find_missing_file(folder, reports):
            if time.monotonic() > deadline:
                number, name = missing_file
                raise SeatLostError(
                    f"{folder / name}: written on {self._reservation.hosts[number]} and not visible here after "
                    f"{self._settings.lag_s:g} s",
                    "the shared file system lags: raise slurm.lag_s",
                )
            time.sleep(0.2)
