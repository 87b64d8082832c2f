"""A job that reserves nodes for a seat, from its submission until the nodes are released."""

import contextlib
import math
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from regbot.engines.engine import Needs
from regbot.engines.launch import NoSeatError, SeatLostError
from regbot.engines.slurm.commands import WAITING_STATES, Job, Slurm
from regbot.engines.slurm.limits import Partition, SeatLayout
from regbot.records.config import SlurmSettings
from regbot.records.text.clip import clip_label

HOLDER = Path(__file__).with_name("holder.py")
HEARTBEAT_S = 5.0
POLL_S, MAX_POLL_S = 0.2, 5.0
"""First and longest pause between two queries of the job's state."""
CANCEL_S = 90.0
"""Seconds that a cancelled job may take to leave the queue."""
COMPLETING_S = 10.0
"""Seconds to wait until Slurm has completed a job and reports why the job ended."""
DURATION_FACTOR = 1.5
"""Factor between a session's expected duration and the time limit of its reservation, without MARGIN_MIN."""
MARGIN_MIN = 15.0
"""Minutes that a reservation's time limit has in addition to the estimated duration."""

NEVER_STARTS = (
    "PartitionNodeLimit", "PartitionTimeLimit", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
    "JobHeldUser", "JobHeldAdmin", "ReservationDeleted",
)  # fmt: skip
"""Slurm's reasons for waiting. A job that waits for one of these reasons starts only if somebody acts."""


class Reservation:
    """A job that reserves nodes, and the heartbeat that keeps it alive: a file with a number that increases."""

    def __init__(
        self,
        slurm: Slurm,
        settings: SlurmSettings,
        partition: Partition,
        layout: SeatLayout,
        needs: Needs,
        folder: Path,
    ) -> None:
        self._slurm, self._settings, self._partition, self._needs = slurm, settings, partition, needs
        self.layout, self.folder = layout, folder
        self._created_at = time.monotonic()
        self._stop = threading.Event()
        self.number = ""
        # Set when the job runs: its nodes, the processors of each, and the seconds in the queue.
        self.hosts: tuple[str, ...] = ()
        self.cpus = 1
        self.queued_s = 0.0

    def submit(self) -> None:
        self.folder.mkdir(parents=True)
        self._write_heartbeat(number=0)
        threading.Thread(target=self._write_heartbeats, name=self.folder.name, daemon=True).start()
        options = _sbatch_options(self._settings, self._partition, self.layout, self._needs, self.folder)
        self.number = self._slurm.submit(options, _holder_script(self._settings, self.folder))

    def wait(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the job runs. Raises NoSeatError with the reason if it does not start."""
        pause, last_reason = POLL_S, ""
        while True:
            job = self._slurm.job(self.number)
            if job is not None and job.state == "RUNNING" and job.hosts:
                break
            if job is None or job.state not in {*WAITING_STATES, "RUNNING"}:
                raise SeatLostError(f"job {self.number} did not begin: {_describe_end(job)}", self._holder_output())
            if job.reason.split(",")[0] in NEVER_STARTS:  # details may follow after a comma
                raise NoSeatError(
                    f"job {self.number} will never begin ({job.reason})", "change the table [slurm], or release the job"
                )
            waited_s = time.monotonic() - self._created_at
            if waited_s > self._settings.queue_min * 60:
                raise NoSeatError(
                    f"job {self.number} has waited {waited_s / 60:.3g} min for nodes of partition "
                    f"{self._partition.name} ({job.reason or 'no reason given'})",
                    "raise slurm.queue_min, or request less",
                )
            if job.reason not in (last_reason, "", "None"):
                last_reason = job.reason
                say(f"job {self.number} waits for nodes of {self._partition.name}: {last_reason}")
            time.sleep(pause)
            pause = min(MAX_POLL_S, 1.3 * pause)
        self.queued_s = time.monotonic() - self._created_at
        self.hosts = tuple(self._slurm.expand_hosts(job.hosts))
        self.cpus = max(1, job.cpus // len(self.hosts))

    def lost_reason(self) -> str:
        """Return why the nodes are no longer reserved; '' if they are still reserved."""
        deadline = time.monotonic() + COMPLETING_S
        while (job := self._slurm.job(self.number)) is not None and time.monotonic() < deadline:
            if job.state == "RUNNING":
                return ""
            if job.state != "COMPLETING":
                break
            time.sleep(POLL_S)  # Slurm reports the final reason only after the job has completed
        return f"job {self.number} on {', '.join(self.hosts)}: {_describe_end(job)}"

    def release(self) -> None:
        """Release the nodes and wait until they are free. Raises NoSeatError. A job of an interrupted submission, whose
        number is not known, ends itself when it starts."""
        self._stop.set()
        with contextlib.suppress(OSError):  # if the disk is full or unavailable, cancelling the job is enough
            (self.folder / "released").touch()
        if self.number:
            self._slurm.cancel(self.number)
            self._wait_for_end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + CANCEL_S
        active_states = (*WAITING_STATES, "RUNNING", "COMPLETING")
        while (job := self._slurm.job(self.number)) is not None and job.state in active_states:
            if time.monotonic() > deadline:
                if job.state == "COMPLETING":
                    break  # regbot's processes have ended; the cluster cleans up the rest
                raise NoSeatError(
                    f"job {self.number} is still {job.state} {CANCEL_S:.0f} s after it was cancelled",
                    f"cancel it: scancel {self.number}",
                )
            time.sleep(POLL_S)

    def _holder_output(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.folder / "holder.log").read_text(errors="replace").strip().splitlines()
            if lines:
                return f"its last line: {clip_label(lines[-1])}"
        return "it left no output"

    def _write_heartbeats(self) -> None:
        number = 0
        while not self._stop.wait(HEARTBEAT_S):
            number += 1
            with contextlib.suppress(OSError):
                self._write_heartbeat(number)

    def _write_heartbeat(self, number: int) -> None:
        new_file = self.folder / "heartbeat.new"  # so that no reader sees a part of a number
        new_file.write_text(str(number))
        new_file.replace(self.folder / "heartbeat")


def _sbatch_options(
    settings: SlurmSettings, partition: Partition, layout: SeatLayout, needs: Needs, folder: Path
) -> list[str]:
    # The time limit is by default the expected duration with a margin, but at most that of the partition. A session
    # that needs more time continues in another seat. 0 selects the partition's default limit.
    minutes = settings.time_limit_min
    if minutes is None:
        estimate = 0.0 if needs.minutes is None else DURATION_FACTOR * needs.minutes + MARGIN_MIN
        minutes = estimate if partition.minutes is None else min(estimate, partition.minutes)
    options = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "reservation": settings.reservation,
        "constraint": settings.constraint,
        "exclude": ",".join(settings.exclude),
        "gpus-per-node": str(layout.gpus or ""),
        "time": str(math.ceil(minutes)) if minutes else "",
    }
    log = str(folder / "holder.log").replace("%", "%%")  # Slurm replaces patterns such as %j
    return [
        f"--job-name={needs.name}",
        f"--nodes={layout.nodes}",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--export=NONE",
        "--chdir=/",
        f"--output={log}",
        *(["--exclusive"] if settings.exclusive and not needs.shared else []),
        *(f"--{name}={value}" for name, value in options.items() if value),
        *settings.extra,
    ]


def _holder_script(settings: SlurmSettings, folder: Path) -> str:
    python = settings.python or sys.executable
    arguments = (python, "-I", "-S", "-B", str(HOLDER), str(folder), f"{settings.silent_s:g}")
    return f"#!/bin/sh\nexec {shlex.join(arguments)}\n"


END_REASONS = {
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "it was preempted by a job of higher priority",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "its time limit passed; raise slurm.time_limit_min",
}
"""Description of how a job ended, by its final state."""


def _describe_end(job: Job | None) -> str:
    if job is None:
        return "the cluster no longer knows it"
    state = job.state.split(" ")[0].rstrip("+")  # "CANCELLED by 1000" -> "CANCELLED"
    reason = f", {job.reason}" if job.reason not in ("", "None") else ""
    return f"{END_REASONS.get(state, 'it has ended')} ({state}{reason})"
