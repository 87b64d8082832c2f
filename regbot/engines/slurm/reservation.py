"""The layout of a seat, and its srun process: the job that reserves the nodes, and regbot's program on each of them.
The job ends when srun or the program ends, and the program ends when regbot is gone."""

import contextlib
import json
import math
import os
import re
import secrets
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regbot.engines.engine import Needs
from regbot.engines.launch import NoSeatError, SeatLostError
from regbot.engines.local import BACKSTOP_S, write_all
from regbot.engines.slurm.commands import WAITING_STATES, Job, Partition, Slurm, find_partition
from regbot.engines.slurm.node import FACTS, HEARTBEAT, SANDBOX
from regbot.engines.slurm.reports import Inbox
from regbot.records.config import SandboxSettings, SlurmSettings

HEARTBEAT_S = 5.0
FACTS_S = 120.0
"""Seconds that the nodes may take to report their facts, in addition to ``slurm.lag_s``."""
POLL_S, MAX_POLL_S = 0.2, 5.0
"""First and longest pause between two queries of the job's state."""
CANCEL_S = 90.0
"""Seconds that a cancelled job may take to leave the queue."""
COMPLETING_S = 10.0
"""Seconds to wait until Slurm has completed a job: only then it reports why the job ended."""
DURATION_FACTOR = 1.5
"""Factor between a session's expected duration and the time limit of its reservation, without MARGIN_MIN."""
MARGIN_MIN = 15.0
"""Minutes that a reservation's time limit has in addition to the estimated duration."""

NEVER_STARTS = (
    "PartitionNodeLimit", "PartitionTimeLimit", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
    "JobHeldUser", "JobHeldAdmin", "ReservationDeleted", "PartitionDown", "PartitionInactive",
)  # fmt: skip
"""Slurm's reasons for waiting. A job that waits for one of these reasons starts only if somebody acts."""
_QUEUED, _ALLOCATED = re.compile(r"job (\d+) queued and waiting"), re.compile(r"job \d+ has been allocated")
"""What srun prints if the job must wait, and when it begins."""


@dataclass(frozen=True)
class SeatLayout:
    nodes: int
    ranks: int
    """On each node; 0 for a program of one process."""
    gpus: int
    """On each node."""


class Reservation:
    def __init__(
        self,
        slurm: Slurm,
        settings: SlurmSettings,
        partition: Partition,
        layout: SeatLayout,
        needs: Needs,
        folder: Path,
    ) -> None:
        """Submit the job."""
        self._slurm, self._settings, self._needs = slurm, settings, needs
        self.partition, self.layout, self.folder = partition, layout, folder
        self._nonce = secrets.token_hex(8)
        self.inbox = Inbox(self._nonce)
        self._send_lock = threading.Lock()
        self.has_ended = False
        """Whether srun has ended, so that no node will answer."""
        self.facts: list[Mapping[str, Any]] = []
        """Facts of every node (``node.collect_facts``), in the order of the hosts. Set when the job runs."""
        self.queued_s = 0.0
        folder.mkdir(parents=True)
        (folder / HEARTBEAT).touch()
        self._process = slurm.start(_srun_command(settings, partition, layout, needs))
        assert self._process.stdin is not None
        self._requests = self._process.stdin
        threading.Thread(target=self._listen, name=folder.name, daemon=True).start()

    @property
    def number(self) -> str:
        """Number of the job; '' if it is not known yet."""
        if self.facts:
            return str(self.facts[0]["job"])
        queued = _QUEUED.search(self.inbox.srun_messages)
        return queued.group(1) if queued else ""

    @property
    def hosts(self) -> list[str]:
        return [facts["host"] for facts in self.facts]

    @cached_property
    def address(self) -> str:
        """The first node's address, which Slurm may know only now that the node runs."""
        return find_partition(self._slurm, self.partition.name).addresses.get(self.hosts[0], self.hosts[0])

    def wait_for_nodes(self, sandbox: SandboxSettings | None, say: Callable[[str], None]) -> None:
        """Wait until all nodes have reported their facts. Raises NoSeatError with the reason if they do not."""
        setup = {
            "nonce": self._nonce,
            "folder": str(self.folder),
            "lag_s": self._settings.lag_s,
            "sandbox": SANDBOX.dump_python(sandbox, mode="json"),
            "has_gpus": bool(self.layout.gpus),
        }
        self.send(setup)
        created_at = allocated_at = time.monotonic()
        pause, last_reason = POLL_S, ""
        while len(facts := self.inbox.reports(FACTS)) < self.layout.nodes:
            messages, number = self.inbox.srun_messages, self.number
            job = self._slurm.job(number) if number else None
            if self.has_ended:
                if not number:
                    raise NoSeatError(messages or "srun ended without a message")
                raise SeatLostError(f"job {number} did not begin: {_describe_end(job)}; {messages}")
            is_booting = job is not None and job.state == "CONFIGURING"
            if number and (is_booting or not _ALLOCATED.search(messages)):
                allocated_at = time.monotonic()
                reason = job.reason if job is not None and job.state in WAITING_STATES else ""
                self._check_waiting(number, reason, allocated_at - created_at)
                if reason not in (last_reason, "", "None"):
                    last_reason = reason
                    say(f"job {number} waits for nodes of {self.partition.name}: {reason}")
            elif time.monotonic() - allocated_at > FACTS_S + self._settings.lag_s:
                raise NoSeatError(f"{self._needs.name}: not all nodes answered within {FACTS_S:.0f} s: {messages}")
            self.wait(pause)
            pause = min(MAX_POLL_S, 1.3 * pause)
        self.queued_s = allocated_at - created_at
        self.facts = [facts[number] for number in range(self.layout.nodes)]

    def send(self, request: Mapping[str, Any] | None) -> None:
        """Send a request to all nodes, or a heartbeat. If srun has ended, do nothing."""
        line = b"" if request is None else json.dumps(request).encode()
        with self._send_lock:
            if not self._requests.closed:
                write_all(self._requests.fileno(), line + b"\n")

    def wait(self, seconds: float) -> None:
        """Wait until srun prints something or ends, at most some seconds."""
        with self.inbox.changed:
            self.inbox.changed.wait(0 if self.has_ended else seconds)

    def lost_reason(self) -> str:
        """Return why the nodes are no longer reserved; '' if they are still reserved."""
        job = self._slurm.job(self.number)
        if job is not None and job.state == "RUNNING" and not self.has_ended:
            return ""
        job = self._wait_while(COMPLETING_S, "RUNNING", "COMPLETING")
        return f"job {self.number} on {', '.join(self.hosts)}: {_describe_end(job)}"

    def _wait_while(self, seconds: float, *states: str) -> Job | None:
        """Wait at most ``seconds`` while the job is in one of ``states``, and return it; None if Slurm forgets it."""
        deadline = time.monotonic() + seconds
        while (job := self._slurm.job(self.number)) is not None and job.state in states and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return job

    def release(self) -> None:
        """Release the nodes, and wait until they are free or CANCEL_S have passed. Raises NoSeatError."""
        with self._send_lock:
            self._requests.close()  # the nodes then end their launches
        if not self.facts:
            self._process.terminate()  # srun then takes the job out of the queue
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=BACKSTOP_S)
        try:
            if self.number:
                self._slurm.cancel(self.number)
                self._wait_while(CANCEL_S, *WAITING_STATES, "RUNNING", "COMPLETING")
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _check_waiting(self, number: str, reason: str, waited_s: float) -> None:
        if reason.split(",")[0] in NEVER_STARTS:  # details may follow after a comma
            raise NoSeatError(
                f"job {number} will never begin ({reason})", "change the table [slurm], or release the job"
            )
        if waited_s > self._settings.queue_min * 60:
            raise NoSeatError(
                f"job {number} has waited {waited_s / 60:.3g} min for nodes of partition "
                f"{self.partition.name} ({reason or 'no reason given'})",
                "raise slurm.queue_min, or request less",
            )

    def _listen(self) -> None:
        """Receive srun's output until it ends. Send heartbeats as soon as a node has begun to read."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        beaten_at = 0.0
        while True:
            if select.select([descriptor], [], [], HEARTBEAT_S)[0]:
                data = os.read(descriptor, 65536)
                if not data:
                    break
                self.inbox.receive(data)
            if self.inbox.reports(FACTS) and time.monotonic() - beaten_at >= HEARTBEAT_S:
                beaten_at = time.monotonic()
                self.send(None)
        with self.inbox.changed:
            self.has_ended = True
            self.inbox.changed.notify_all()


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
    if needs.ranks and layout.nodes * layout.ranks != needs.ranks:
        raise NoSeatError(
            f"{needs.name}: {needs.ranks} ranks cannot be spread evenly over nodes of {layout.ranks}",
            "set slurm.nodes or slurm.ranks_per_node to a divisor of the number of ranks",
        )
    if layout.nodes > len(partition.addresses):
        raise NoSeatError(
            f"{needs.name}: needs {layout.nodes} nodes, and partition {partition.name} has {len(partition.addresses)}",
            "choose another slurm.partition, or more ranks on each node (slurm.ranks_per_node)",
        )
    return layout


def _srun_command(settings: SlurmSettings, partition: Partition, layout: SeatLayout, needs: Needs) -> list[str]:
    # The time limit is by default the expected duration with a margin, but at most that of the partition. A session
    # that needs more time continues in another seat. 0 selects the partition's default limit.
    minutes = settings.time_limit_min
    if minutes is None:
        estimate = 0.0 if needs.minutes is None else DURATION_FACTOR * needs.minutes + MARGIN_MIN
        minutes = estimate if partition.minutes is None else min(estimate, partition.minutes)
    options = {
        **{name: getattr(settings, name) for name in ("partition", "account", "qos", "reservation", "constraint")},
        "exclude": ",".join(settings.exclude),
        "gpus-per-node": str(layout.gpus or ""),
        "time": str(math.ceil(minutes)) if minutes else "",
    }
    return [
        "srun",
        f"--job-name={needs.name}",
        f"--nodes={layout.nodes}",
        f"--ntasks={layout.nodes}",
        "--ntasks-per-node=1",
        "--export=NONE",
        "--chdir=/",
        "--cpu-bind=none",
        "--mpi=none",
        *(["--exclusive"] if settings.exclusive and not needs.shared else []),
        *(f"--{name}={value}" for name, value in options.items() if value),
        *settings.extra,
        settings.python or sys.executable,
        *("-I", "-B", "-X", "utf8", "-c", "from regbot.engines.slurm.node import main; main()"),
        f"{settings.silent_s:g}",
    ]


END_REASONS = {
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "it was preempted by a job of higher priority",
    "CANCELLED": "it was cancelled",
    "OUT_OF_MEMORY": "it needed more memory than its limit; request more with slurm.extra ('--mem=0' is all)",
    "TIMEOUT": "its time limit passed; raise slurm.time_limit_min",
}
"""Description of how a job ended, by its final state."""


def _describe_end(job: Job | None) -> str:
    if job is None:
        return "the cluster no longer knows it"
    state = job.state.split(" ")[0].rstrip("+")  # "CANCELLED by 1000" -> "CANCELLED"
    reason = f", {job.reason}" if job.reason not in ("", "None") else ""
    return f"{END_REASONS.get(state, 'it has ended')} ({state}{reason})"
