"""The commands of a Slurm cluster, as this machine has them, and what they print.

Only what every Slurm since 20.11 prints is read: no JSON, whose form changes between releases, and no accounting, which
many clusters do not have. A controller that does not answer, as one that is restarted, is waited for.
"""

import math
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbot.engines.engine import NoSeatError

OUTAGE_S = 300.0
"""How long a controller may not answer."""
RETRY_S = 1.0
COMMAND_S = 60.0
FRESH_S = 0.5
"""Age up to which one answer about all jobs serves everybody who asks."""

AWAY = (
    "unable to contact slurm controller",
    "connection refused",
    "socket timed out",
    "zero bytes were transmitted",
    "connection timed out",
    "slurm_persist_conn",
    "unexpected message received",
    "backup controller",
    "memory required by task is not available",
)
"""Words of a command whose controller is not there, or has just come back and has not heard from its nodes yet: it may
be better in a moment."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
DEFAULTS = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_")

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
STANDING = frozenset({"RUNNING"})


@dataclass(frozen=True)
class Job:
    """A job as the controller tells of it."""

    state: str
    """As squeue has it, in full: RUNNING, PENDING, PREEMPTED."""
    reason: str
    hosts: str
    """The list of its nodes, compressed as Slurm does it; '' before it has any."""
    cpus: int


class Slurm:
    """Any number of threads may ask. ``environment`` is the commands', this process's by default."""

    def __init__(self, environment: Mapping[str, str] | None = None, outage_s: float = OUTAGE_S) -> None:
        given = os.environ if environment is None else environment
        # A default of the operator's, or the job that regbot itself was started in, would change what is asked for.
        self._environment = {
            name: value for name, value in given.items() if name in KEPT or not name.startswith(DEFAULTS)
        }
        self._outage_s = outage_s
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._seen = -math.inf

    @property
    def environment(self) -> dict[str, str]:
        """Of the commands."""
        return dict(self._environment)

    def submit(self, options: Sequence[str], script: str, tag: str) -> str:
        """The number of the job that ``script`` is queued as. Raises NoSeatError with what Slurm says.

        ``tag`` is this job's alone: a controller that took it, and was away before it could say so, is not asked twice.
        """
        words = ["sbatch", "--parsable", f"--comment={tag}", *options]
        until = time.monotonic() + self._outage_s
        while True:
            answer = self._once(words, script)
            if not answer.returncode:
                number = answer.stdout.strip().partition(";")[0]
                with self._lock:  # what was seen is of before; to look again for each of many jobs is too much to ask
                    self._jobs = {**self._jobs, number: Job("PENDING", "", "", 0)}
                return number
            if not is_away(answer.stderr) or time.monotonic() > until:
                raise NoSeatError(f"sbatch: {_said(answer.stderr) or f'failed with exit code {answer.returncode}'}")
            time.sleep(RETRY_S)
            if found := self.tagged(tag):
                self._look_again()
                return found[0]

    def tagged(self, tag: str) -> list[str]:
        """The numbers of this user's jobs that have not ended and carry ``tag``."""
        lines = self.ask(["squeue", "--me", "--noheader", "--format=%i|%k"]).splitlines()
        return [line.partition("|")[0].strip() for line in lines if line.partition("|")[2].strip() == tag]

    def jobs(self) -> Mapping[str, Job]:
        """This user's jobs, and those that have ended a short while ago."""
        with self._lock:
            if time.monotonic() - self._seen > FRESH_S:
                form = "%i|%T|%r|%C|%N"
                lines = self.ask(["squeue", "--me", "--noheader", "--states=all", "--array", f"--format={form}"])
                self._jobs = dict(_job(line) for line in lines.splitlines() if line.count("|") >= 4)
                self._seen = time.monotonic()
            return self._jobs

    def cancel(self, number: str) -> None:
        """End a job; one that has ended already is no error."""
        answer = self._try(["scancel", "--quiet", number], "")
        self._look_again()
        if answer.returncode and "invalid job id" not in answer.stderr.lower():
            raise NoSeatError(
                f"job {number} could not be cancelled: {_said(answer.stderr)}; see to it: scancel {number}"
            )

    def _look_again(self) -> None:
        """What was seen is of before a change of ours."""
        with self._lock:
            self._seen = -math.inf

    def shown(self, kind: str, name: str = "") -> list[dict[str, str]]:
        """What ``scontrol show KIND NAME`` prints, a dictionary for each."""
        words = ["scontrol", "--oneliner", "show", kind, *([name] if name else [])]
        return [_fields(line) for line in self.ask(words).splitlines() if "=" in line]

    def hosts(self, compressed: str) -> list[str]:
        """``n[1-2]`` as n1, n2."""
        return self.ask(["scontrol", "show", "hostnames", compressed]).split()

    def ask(self, words: Sequence[str], given: str = "") -> str:
        """What a command prints. Raises NoSeatError where it fails, or its controller stays away."""
        answer = self._try(words, given)
        if answer.returncode:
            raise NoSeatError(f"{words[0]}: {_said(answer.stderr) or f'failed with exit code {answer.returncode}'}")
        return answer.stdout

    def _try(self, words: Sequence[str], given: str) -> "subprocess.CompletedProcess[str]":
        until = time.monotonic() + self._outage_s
        while True:
            answer = self._once(words, given)
            if not answer.returncode or not is_away(answer.stderr) or time.monotonic() > until:
                return answer
            time.sleep(RETRY_S)

    def _once(self, words: Sequence[str], given: str) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                words,
                input=given,
                env=self._environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_S,
                check=False,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NoSeatError(
                f"{words[0]} was not found on PATH; --engine slurm is for machines that submit to a Slurm cluster"
            ) from error
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(list(words), 1, "", "socket timed out")


def is_away(complaint: str) -> bool:
    """Whether a command complains that its controller does not answer."""
    return any(word in complaint.lower() for word in AWAY)


def _job(line: str) -> tuple[str, Job]:
    number, state, reason, cpus, hosts = line.split("|", 4)
    return number, Job(state, reason, hosts, int(cpus) if cpus.isdigit() else 0)


def _fields(line: str) -> dict[str, str]:
    """``A=1 B=2`` as a dictionary; a value may hold blanks, and then it goes up to the next key."""
    found: dict[str, str] = {}
    last = ""
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals and key and key.replace(":", "").replace("_", "").replace("/", "").isalnum():
            found[key], last = value, key
        elif last:
            found[last] += f" {word}"
    return found


def _said(text: str) -> str:
    """What a command complains of, in one line."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in text.splitlines()]
    return "; ".join(line for line in lines if line)[:1000]
