"""One job that holds nodes for a seat, from its submission until the nodes are given back."""

import contextlib
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from regbot.config import SlurmSettings
from regbot.engines.engine import Needs, NoSeatError, SeatLostError
from regbot.engines.slurm.commands import RETRY_S, STANDING, WAITING, Job, Slurm
from regbot.engines.slurm.limits import Extent, Partition

HOLDER = Path(__file__).with_name("holder.py")
BEAT_S = 5.0
POLL_S, POLL_MOST_S = 0.2, 5.0
GONE_S = 90.0
"""How long a cancelled job may take to leave the queue: what ends while a controller is away is tried again after a
minute."""
ENDING_S = 10.0
MARGIN_MIN = 15.0

NEVER = {
    "PartitionNodeLimit": "it wants more nodes than the partition lets a job have; lower slurm.nodes",
    "PartitionTimeLimit": "it wants more time than the partition lets a job have; set slurm.time_limit_min",
    "InvalidAccount": "the account is not valid; set slurm.account",
    "InvalidQOS": "the QOS is not valid; set slurm.qos",
    "AccountNotAllowed": "the account may not use the partition; set slurm.account",
    "QOSNotAllowed": "the QOS may not use the partition; set slurm.qos",
    "JobHeldUser": "the job is held; release it (scontrol release), or cancel it",
    "JobHeldAdmin": "the job is held by an operator",
    "ReservationDeleted": "the reservation of slurm.reservation is gone",
}
"""Reasons for which a job waits without end, unless somebody does something."""


class Reservation:
    """Nodes of a cluster, and the heartbeat that keeps them."""

    def __init__(
        self,
        slurm: Slurm,
        settings: SlurmSettings,
        partition: Partition,
        extent: Extent,
        needs: Needs,
        folder: Path,
    ) -> None:
        """``folder``: of this reservation alone, on the file system that all nodes share. Nothing is asked for yet."""
        self._slurm, self._settings, self._partition, self._needs = slurm, settings, partition, needs
        self.extent, self.folder = extent, folder
        self._begun = time.monotonic()
        self.hosts: tuple[str, ...] = ()
        self.cpus = 1
        self.queued_s = 0.0
        self._stop = threading.Event()
        self.number = ""
        self._doubtful = True
        """May there be another job than that of ``number``?"""

    def submit(self) -> None:
        """Queue the job. Raises NoSeatError with what Slurm says."""
        self.folder.mkdir(parents=True)
        self._beat(0)
        threading.Thread(target=self._keep_beating, name=self.folder.name, daemon=True).start()
        options = _options(self._settings, self._partition, self.extent, self._needs, self.folder)
        asked = time.monotonic()
        self.number = self._slurm.submit(options, _script(self._settings, self.folder), self.folder.name)
        self._doubtful = time.monotonic() - asked >= RETRY_S  # it may have been asked for more than once

    def wait(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Until the nodes are there. Raises NoSeatError, with the reason and what to do."""
        pause, told = POLL_S, ""
        while True:
            job = self._slurm.jobs().get(self.number)
            if job is not None and job.state in STANDING and job.hosts:
                break
            if job is None or job.state not in (*WAITING, *STANDING):
                raise SeatLostError(f"job {self.number} did not begin: {_end_of(job)}; {self._told()}")
            if why := NEVER.get(job.reason.split(",")[0]):
                raise NoSeatError(f"job {self.number} will never begin ({job.reason}): {why}")
            waited = time.monotonic() - self._begun
            if waited > self._settings.queue_min * 60:
                raise NoSeatError(
                    f"job {self.number} has waited {waited / 60:.3g} min for nodes of partition {self._partition.name} "
                    f"({job.reason or 'no reason given'}); raise slurm.queue_min, or ask for less"
                )
            if job.reason not in (told, "", "None"):
                told = job.reason
                say(f"job {self.number} waits for nodes of {self._partition.name}: {told}")
            time.sleep(pause)
            pause = min(POLL_MOST_S, 1.3 * pause)
        self.queued_s = time.monotonic() - self._begun
        self.hosts = tuple(self._slurm.hosts(job.hosts))
        self.cpus = max(1, job.cpus // len(self.hosts))

    def gone(self) -> str:
        """Why the nodes are no longer ours, '' while they are."""
        until = time.monotonic() + ENDING_S
        while (job := self._slurm.jobs().get(self.number)) is not None and time.monotonic() < until:
            if job.state in STANDING:
                return ""
            if job.state != "COMPLETING":
                break
            time.sleep(POLL_S)  # how it ended is known once it has
        return f"job {self.number} on {', '.join(self.hosts)}: {_end_of(job)}"

    def release(self) -> None:
        """Give the nodes back; returns once they are. Raises NoSeatError where Slurm does not let the job go.

        A submission that was interrupted has no number yet, and one that was repeated may have queued a second job,
        which the same heartbeat keeps alive: both are found by what they are tagged with.
        """
        self._stop.set()
        with contextlib.suppress(OSError):  # a disk that is full, or away: the job is cancelled all the same
            (self.folder / "released").touch()
        if self.number:
            self._slurm.cancel(self.number)
        for number in self._slurm.tagged(self.folder.name) if self._doubtful else []:
            if number != self.number:
                self._slurm.cancel(number)
        until = time.monotonic() + GONE_S
        leaving = (*WAITING, *STANDING, "COMPLETING")
        while (job := self._slurm.jobs().get(self.number)) is not None and job.state in leaving:
            if time.monotonic() > until:
                if job.state == "COMPLETING":
                    break  # nothing of ours runs any more; the rest is the cluster's
                raise NoSeatError(
                    f"job {self.number} is still {job.state} {GONE_S:.0f} s after it was cancelled; see to it: "
                    f"scancel {self.number}"
                )
            time.sleep(POLL_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _told(self) -> str:
        """What the holder itself said, where that can be read."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "holder.log").read_text(errors="replace").strip().splitlines()
            if lines:
                return f"its last line: {lines[-1][:500]}"
        return "it left no output"

    def _keep_beating(self) -> None:
        number = 0
        while not self._stop.wait(BEAT_S):
            number += 1
            with contextlib.suppress(OSError):
                self._beat(number)

    def _beat(self, number: int) -> None:
        fresh = self.folder / "heartbeat.new"
        fresh.write_text(str(number))
        fresh.replace(self.folder / "heartbeat")


def _options(settings: SlurmSettings, partition: Partition, extent: Extent, needs: Needs, folder: Path) -> list[str]:
    minutes = _minutes(settings, partition, needs)
    given = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "reservation": settings.reservation,
        "constraint": settings.constraint,
        "exclude": ",".join(settings.exclude),
        "gpus-per-node": str(extent.gpus or ""),
        "time": str(math.ceil(minutes)) if minutes else "",
    }
    return [
        f"--job-name={needs.name}",
        f"--nodes={extent.nodes}",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--export=NONE",
        "--chdir=/",
        f"--output={str(folder / 'holder.log').replace('%', '%%')}",
        *([] if not settings.exclusive or needs.shared else ["--exclusive"]),
        *(f"--{name}={value}" for name, value in given.items() if value),
        *settings.extra,
    ]


def _minutes(settings: SlurmSettings, partition: Partition, needs: Needs) -> float:
    """Of the reservation, no more than the partition gives: a session that needs longer goes on in another seat. 0 for
    the partition's default."""
    if settings.time_limit_min is not None:
        return settings.time_limit_min
    wanted = 0.0 if needs.minutes is None else 1.5 * needs.minutes + MARGIN_MIN
    return wanted if partition.minutes is None else min(wanted, partition.minutes)


def _script(settings: SlurmSettings, folder: Path) -> str:
    python = settings.python or sys.executable
    words: Sequence[str] = (python, "-I", "-S", "-B", str(HOLDER), str(folder), f"{settings.silent_s:g}")
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    return f"#!/bin/sh\nexec {quoted}\n"


ENDS = {
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "it was preempted by a job of higher priority",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "its time limit passed; raise slurm.time_limit_min",
    "COMPLETED": "it has ended",
    "FAILED": "it failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "its deadline passed",
}


def _end_of(job: Job | None) -> str:
    if job is None:
        return "the cluster no longer knows it"
    state = job.state.split(" ")[0].rstrip("+")
    why = ENDS.get(state, f"it is {state}")
    return f"{why} ({state}{f', {job.reason}' if job.reason not in ('', 'None') else ''})"
