"""Run Slurm's commands on this machine, and parse their output.

The parsers need only output that every Slurm since 20.11 prints. They use neither JSON output, whose format changes
between releases, nor accounting, which many clusters do not have. Commands are retried while the controller does not
answer, for example during its restart.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbot.engines.launch import NoSeatError
from regbot.records.text.clip import clip

OUTAGE_S = 300.0
"""Seconds to retry commands while the controller does not answer."""
RETRY_S = 1.0
"""Seconds between two attempts at a command."""
COMMAND_S = 60.0
"""Time limit of one command."""

OUTAGE_MESSAGES = (
    "unable to contact slurm controller", "connection refused", "socket timed out", "zero bytes were transmitted",
    "connection timed out", "slurm_persist_conn", "unexpected message received", "backup controller",
)  # fmt: skip
"""Error messages of a controller that does not run. The same command may succeed later."""

KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
"""Variables of Slurm that the commands keep. They say which cluster to contact and how to log in."""
DROPPED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_")
"""All other variables with these prefixes are removed, because they would change options of the commands."""

WAITING_STATES = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})


_GPUS = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[(,]|$))[^:,(]+)?:(\d+)")
"""A GPU count in Slurm's Gres, after an optional type, which may begin with a digit, such as ``1g.10gb``."""


@dataclass(frozen=True)
class Job:
    state: str
    """State in squeue's long form: RUNNING, PENDING, PREEMPTED."""
    reason: str
    """Why the job waits or has ended, in Slurm's words; 'None' if there is no reason."""


@dataclass(frozen=True)
class Partition:
    name: str
    addresses: Mapping[str, str]
    """By which each node's address is known to the others, by its name."""
    gpus: int
    """Of the node that has most."""
    minutes: float | None
    """Time limit of a job in minutes; None for no limit."""


class Slurm:
    """Runs Slurm's commands. Thread-safe.

    ``environment`` is the environment of the commands; None for that of this process. Variables that would change
    options of the commands are removed. ``outage_s`` is how many seconds to retry while the controller does not answer.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, outage_s: float = OUTAGE_S) -> None:
        inherited = os.environ if environment is None else environment
        self.environment = {
            name: value
            for name, value in inherited.items()
            if name in KEPT_VARIABLES or not name.startswith(DROPPED_PREFIXES)
        }
        self._outage_s = outage_s

    def start(self, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a long-lived command whose standard input and output are pipes."""
        return subprocess.Popen(
            arguments,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,  # regbot itself handles an interrupt from the terminal
        )

    def job(self, number: str) -> Job | None:
        """Return a job; None if the controller has forgotten it. Raises NoSeatError."""
        command = ["squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%r"]
        state, _, reason = self.query(command, accepted_error="invalid job id").strip().partition("|")
        return Job(state, reason) if state else None

    def cancel(self, number: str) -> None:
        """Cancel the job ``number``. If the job has already ended, do nothing. Raises NoSeatError."""
        self.query(["scancel", "--quiet", number], f"cancel it: scancel {number}", accepted_error="invalid job id")

    def query(self, arguments: Sequence[str], advice: str = "", accepted_error: str | None = None) -> str:
        """Run a command and return its output. Raises NoSeatError if it fails, or if an outage exceeds ``outage_s``. An
        error that contains ``accepted_error`` counts as no output."""
        result = self._run(arguments)
        if result.returncode == 0 or (accepted_error is not None and accepted_error in result.stderr.lower()):
            return result.stdout
        lines = [line.removeprefix("error: ").strip() for line in result.stderr.splitlines()]
        why = clip("; ".join(filter(None, lines)), 1000) or f"failed with exit code {result.returncode}"
        raise NoSeatError(f"{arguments[0]}: {why}", advice)

    def _run(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command, again and again during an outage of the controller, and return the last result."""
        deadline = time.monotonic() + self._outage_s
        while True:
            try:
                result = subprocess.run(
                    arguments,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=COMMAND_S,
                    check=False,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise NoSeatError(
                    f"{arguments[0]} was not found on PATH",
                    "--engine slurm needs a machine that submits to a Slurm cluster",
                ) from error
            except subprocess.TimeoutExpired:
                result = subprocess.CompletedProcess(list(arguments), 1, stdout="", stderr="socket timed out")
            is_outage = any(word in result.stderr.lower() for word in OUTAGE_MESSAGES)
            should_retry = result.returncode != 0 and is_outage and time.monotonic() <= deadline
            if not should_retry:
                return result
            time.sleep(RETRY_S)


def find_partition(slurm: Slurm, name: str) -> Partition:
    """Return the partition ``name``, or the default partition if ``name`` is ''. Raises NoSeatError."""
    # Each line is a node in a partition. The name of the default partition has an asterisk.
    output = slurm.query(["sinfo", "--noheader", "--Node", "--format=%R|%P|%N|%o|%l|%G"])
    rows = [line.split("|", 5) for line in output.splitlines()]
    nodes = [row for row in rows if (row[0] == name if name else row[1].endswith("*"))]
    if not nodes:
        names = ", ".join(sorted({partition for partition, *_ in rows})) or "none"
        fault = f"there is no partition {name!r}" if name else "the cluster has no default partition"
        raise NoSeatError(fault, f"set slurm.partition to one of: {names}")
    return Partition(
        name=nodes[0][0],
        addresses={host: address or host for _, _, host, address, _, _ in nodes},
        gpus=max(parse_gpus(gres) for *_, gres in nodes),
        minutes=parse_minutes(nodes[0][4]),
    )


def parse_gpus(gres: str) -> int:
    """Return the number of GPUs in a Gres text such as ``gpu:h200:8(S:0-1)`` (8); 0 if it lists no GPUs."""
    return sum(int(count) for count in _GPUS.findall(gres))


def parse_minutes(limit: str) -> float | None:
    """Parse a time limit such as ``1-02:30:00`` and return minutes (1590); None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if match is None:
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    # The first part is hours after days ("1-02") and in "H:M:S". It is minutes in "M" and "M:S".
    begins_with_hours = match.group(1) or match.group(4)
    return days * 24 * 60 + (first * 60 + second + third / 60 if begins_with_hours else first + second / 60)
