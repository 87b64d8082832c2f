"""A seat on a Slurm cluster. Each run is a job step on all nodes of one reservation."""

import itertools
import json
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regbot.engines.conversation import SupervisorOutput, run_supervisors
from regbot.engines.launch import EngineError, Launch, LaunchResult, NoSeatError, SeatLostError
from regbot.engines.local import NONCE
from regbot.engines.sandbox import Sandbox
from regbot.engines.slurm.commands import OUTAGE_S, RETRY_S, Slurm, is_outage
from regbot.engines.slurm.node import dump_sandbox, step_request
from regbot.engines.slurm.reports import Reports, combine_reports, find_missing_file, parse_messages, srun_messages
from regbot.engines.slurm.reservation import Reservation
from regbot.engines.torchrun import multi_node_command, single_node_command
from regbot.records.config import SlurmSettings
from regbot.records.run import Allocation, Node
from regbot.records.text.clip import clip_label

FACTS_S = 120.0
"""Time limit for the nodes to report their facts."""
CHECK_S = 5.0
"""Seconds between two checks whether the nodes are still reserved."""
SETTLE_S = 20.0
"""Seconds that the controller may take to report the end of a job whose nodes are lost."""

OUT_OF_MEMORY = re.compile(r"exceeded (?:job |step )?memory limit|oom[-_ ]?kill|out of memory", re.IGNORECASE)
"""Messages of Slurm if a memory limit ended a whole job step, including regbot's program on the node. Such a run failed
because the guest used too much memory, and not because the node is lost."""


class SlurmSeat:
    def __init__(
        self, slurm: Slurm, settings: SlurmSettings, reservation: Reservation, sandbox: Sandbox | None = None
    ) -> None:
        self._slurm, self._settings, self._reservation, self._sandbox = slurm, settings, reservation, sandbox
        self._checked_at = 0.0

    @property
    def allocation(self) -> Allocation:
        reservation = self._reservation
        return Allocation(
            engine="slurm",
            job=reservation.number,
            hosts=list(reservation.hosts),
            queued_s=reservation.queued_s,
            sandbox=self._facts[0]["sandbox"],
        )

    @cached_property
    def node(self) -> Node:
        """One ``Node`` that combines all nodes, such as ``2 nodes of 8 x H200``. Raises NoSeatError if one is
        unusable."""
        hosts, facts = self._reservation.hosts, self._facts
        nodes = [Node.model_validate(node_facts["node"]) for node_facts in facts]
        count_by_class = Counter(node.node_class for node in nodes)
        classes = " + ".join(
            f"{count} nodes of {node_class}" if count > 1 else node_class
            for node_class, count in count_by_class.items()
        )
        drivers = dict.fromkeys(node.driver for node in nodes if node.driver is not None)
        return Node(
            name=clip_label(", ".join(hosts)),
            node_class=clip_label(classes),
            cores=sum(node.cores for node in nodes),
            gpus=[gpu for node in nodes for gpu in node.gpus],
            driver=clip_label(", ".join(drivers)) or None,
            container=nodes[0].container,
        )

    def run(self, launch: Launch) -> LaunchResult:
        """Run ``launch``: its ranks on all nodes, or a program of one process on the first node.

        Raises EngineError, or SeatLostError if nodes are lost.
        """
        hosts = self._reservation.hosts if launch.ranks else self._reservation.hosts[:1]
        launch = replace(launch, env={**launch.env, **self._settings.environment})
        # The first host writes the launch's log. Each other host has a log of its own beside it.
        logs = [launch.log, *(launch.log.with_name(f"{launch.log.stem}.{host}.log") for host in hosts[1:])]
        request = step_request(launch) | {
            "commands": self._commands(launch, len(hosts)),
            "logs": [str(path.absolute()) for path in logs],
            "sandbox": self._sandbox_settings(len(hosts)),
        }
        request["env"][NONCE] = secrets.token_hex(16)  # marks the processes of the launch
        for folder in (launch.record_dir, launch.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        reports, output = self._run_step(hosts, request, launch.command[0], launch.timeout_s)
        self._require_reports(reports, hosts, launch.command[0], output)
        if fault := _first_text(reports, hosts, "error"):
            is_without_room = any(report.get("no_room") for report in reports.values())
            raise (NoSeatError if is_without_room else EngineError)(f"{launch.command[0]}: {fault}")
        self._wait_for_files(launch.record_dir, reports)
        return combine_reports(reports, hosts, logs)

    def _commands(self, launch: Launch, nodes: int) -> list[tuple[str, ...]]:
        if not launch.ranks:
            return [launch.command]
        if nodes == 1:
            return [single_node_command(launch)]
        port = next(self._ports)
        return [multi_node_command(launch, nodes, number, self._address, port) for number in range(nodes)]

    def _sandbox_settings(self, nodes: int) -> dict[str, Any] | None:
        # Ranks on several nodes need the host's network.
        if self._sandbox is None:
            return None
        return dump_sandbox(replace(self._sandbox, network=self._sandbox.network or nodes > 1))

    @cached_property
    def _ports(self) -> "itertools.cycle[int]":
        """Ports of the first node that were free when it reported its facts. Each launch takes the next one."""
        return itertools.cycle(self._facts[0]["ports"])

    @cached_property
    def _address(self) -> str:
        """The first node's address, as seen from the other nodes."""
        (node,) = self._slurm.show("node", self._reservation.hosts[0])
        return node.get("NodeAddr") or self._reservation.hosts[0]

    @cached_property
    def _facts(self) -> list[Mapping[str, Any]]:
        """Facts of every node (``node.collect_facts``), in the order of the hosts. Raises NoSeatError."""
        hosts, folder = self._reservation.hosts, self._reservation.folder
        deadline = time.monotonic() + self._settings.lag_s
        while True:
            request = {
                "facts": str(folder),
                "sandbox": self._sandbox_settings(nodes=1),
                "has_gpus": bool(self._reservation.layout.gpus),
            }
            reports, output = self._run_step(hosts, request, "srun", FACTS_S)
            self._require_reports(reports, hosts, "srun", output)
            if fault := _first_text(reports, hosts, "error"):
                raise NoSeatError(fault)
            if sandbox_fault := _first_text(reports, hosts, "sandbox_fault"):
                raise NoSeatError(f"untrusted code cannot run there: {sandbox_fault}")
            blind_hosts = [hosts[number] for number, report in reports.items() if not report["sees_folder"]]
            if not blind_hosts:
                return [reports[number] for number in range(len(hosts))]
            if time.monotonic() > deadline:
                raise NoSeatError(
                    f"{folder} is not visible on {', '.join(blind_hosts)}",
                    "put regbot's cache (REGBOT_CACHE) and --out on a file system that all nodes share",
                )
            time.sleep(1.0)

    def _run_step(
        self, hosts: Sequence[str], request: Mapping[str, Any], name: str, limit_s: float
    ) -> tuple[Reports, SupervisorOutput]:
        """Run one job step. Return the reports of the nodes and the output of srun. The step is repeated if the
        controller did not answer and no node has begun it."""
        deadline = time.monotonic() + OUTAGE_S
        while True:
            arguments = self._srun_command(hosts)
            nonce = secrets.token_hex(8)
            line = json.dumps({**request, "hosts": list(hosts), "nonce": nonce}).encode()
            output = run_supervisors(arguments, self._slurm.environment, line, name, limit_s, self._check_reservation)
            messages = parse_messages(output, nonce, len(hosts))
            should_retry = not any(messages.values()) and is_outage(output.text.decode("utf-8", "replace"))
            if not should_retry or time.monotonic() > deadline:
                # The first message of a node says that it has begun.
                return {number: texts[1] for number, texts in messages.items() if len(texts) > 1}, output
            time.sleep(RETRY_S)

    def _srun_command(self, hosts: Sequence[str]) -> list[str]:
        reservation = self._reservation
        gpus = reservation.layout.gpus
        return [
            "srun",
            f"--jobid={reservation.number}",
            f"--nodes={len(hosts)}",
            f"--ntasks={len(hosts)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(hosts)}",
            f"--cpus-per-task={reservation.cpus}",
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

    def _check_reservation(self) -> None:
        """Raise SeatLostError if the nodes are no longer reserved, because then no node will report."""
        if time.monotonic() - self._checked_at < CHECK_S:
            return
        self._checked_at = time.monotonic()
        if reason := self._reservation.lost_reason():
            raise SeatLostError(reason)

    def _require_reports(self, reports: Reports, hosts: Sequence[str], name: str, output: SupervisorOutput) -> None:
        """Raise SeatLostError if a node without a report is lost, and EngineError if it ran out of memory.

        When the guest fails on one node, srun ends the step on all nodes. The other nodes then have no report, although
        they are fine. A lost connection to a node looks the same. So a test step must succeed on these nodes.
        """
        silent_hosts = [host for number, host in enumerate(hosts) if number not in reports]
        if not silent_hosts:
            return
        # A report with "node" has facts about a node, and not the result of a guest.
        guest_has_failed = any("node" not in report and report.get("exit_code") != 0 for report in reports.values())
        if guest_has_failed and self._can_run_step(silent_hosts):
            return
        deadline = time.monotonic() + SETTLE_S
        while not (reason := self._reservation.lost_reason()) and time.monotonic() < deadline:
            time.sleep(0.5)
        messages = srun_messages(output)
        if not reason and OUT_OF_MEMORY.search(messages):
            raise EngineError(
                f"{name}: was killed for lack of memory on {', '.join(silent_hosts)}: {messages[-500:]}",
                "its limit is the memory of the job; "
                "where that is less than the node's, request more with slurm.extra ('--mem=0' is all)",
            )
        if reason:
            raise SeatLostError(reason + (f"; srun messages: {messages[-500:]}" if messages else ""))
        raise SeatLostError(
            f"{name}: {', '.join(silent_hosts)} ended without a report (srun's exit code {output.code}): "
            f"{messages[-1000:] or 'killed from outside, or for lack of memory'}",
            "the result of this run is unknown",
        )

    def _can_run_step(self, hosts: Sequence[str]) -> bool:
        try:
            # Every step gets some time in addition to its limit (``conversation.BACKSTOP_S``), which is enough here.
            facts_request = {"facts": str(self._reservation.folder), "sandbox": None, "has_gpus": False}
            reports, _ = self._run_step(hosts, facts_request, "srun", limit_s=0.0)
        except EngineError:
            return False
        return len(reports) == len(hosts)

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


def _first_text(reports: Reports, hosts: Sequence[str], key: str) -> str:
    """Return the first text under ``key`` of a report, with its host; '' if there is none."""
    return next((f"{hosts[number]}: {report[key]}" for number, report in reports.items() if report.get(key)), "")
