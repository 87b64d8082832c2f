"""A private Slurm of this user's own, in one folder: munged, slurmctld and a slurmd for each pseudo-node.

It needs no root, no systemd and no cgroups, starts in a fraction of a second, and does not see a Slurm that the machine
may have. Everything in it can be broken: nodes and controller are killed and started again, jobs are preempted and run
out of time. The number of a job's processes is not limited, which takes cgroups; its memory is, if jobacct_gather/linux
looks after it (settings JobAcctGatherParams=OverMemoryKill and SelectTypeParameters=CR_Core_Memory).

What it cannot imitate is the distance: all nodes share one disk, one clock and one host name. A node of another view
is made with ``prefix``, words in front of its slurmd, so that all of its jobs run behind them:

    a folder that lags or is full    ("bwrap", "--dev-bind", "/", "/", "--bind", other, shared, "--")
    an environment of its own        a script as setting TaskProlog, which prints "export NAME=value" where
                                     SLURMD_NODENAME is the node's
"""

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support import slurm_processes
from support.slurm_configuration import ADDRESS, gpu, gres_conf, slurm_conf
from support.slurm_processes import carrying, descendants, kill, members

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Debian keeps the daemons where only root looks."""
START_S, STOP_S = 20.0, 10.0
SAVED_S = 5.0
"""SAVE_MAX_WAIT of slurmctld."""
Answer = subprocess.CompletedProcess[str]


class ClusterError(Exception):
    """The private cluster did not do what it was told; the message ends with what its daemons logged."""


def missing() -> list[str]:
    """The programs that a cluster needs and this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=SEARCHED)]


class Cluster:
    """One private Slurm. Its nodes are n1, n2 and so on."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        cpus: int = 8,
        gpus: int = 0,
        settings: Mapping[str, str] | None = None,
        prefix: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """``folder`` is for this cluster alone, and its path short: a socket's may have 107 bytes. ``cpus`` and
        ``gpus`` are per node, and more may be named than there are. ``settings`` are lines of slurm.conf,
        which add to those of slurm_configuration or replace them. ``prefix`` has the words in front of a node's
        slurmd."""
        self.folder = folder.resolve()
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.configuration = self.folder / "etc/slurm.conf"
        self._cpus, self._gpus = cpus, gpus
        self._settings = dict(settings or {})
        self._prefix = dict(prefix or {})
        self._ports: list[int] = []
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    # ---- the whole

    def start(self) -> None:
        """Start all of it and wait until every node is idle. Raises ClusterError, and then nothing of it runs."""
        try:
            self._configure()
            self._watch()
            self._start("munged", self._munged(), lambda: self._socket.is_socket())
            self.start_controller()
            for name in self.nodes:
                self._start_slurmd(name)
            self.wait_idle()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill everything that belongs to the cluster: daemons, jobs, and those that wait for them. Its logs stay."""
        kill(self._members)
        for daemon in self._daemons.values():
            if daemon.stdin:
                daemon.stdin.close()
            daemon.wait(STOP_S)
        self._daemons.clear()
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        shutil.rmtree(self.folder / "spool", ignore_errors=True)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base``, by default this process's environment, for those who call srun, sbatch and the like."""
        inherited = os.environ if base is None else base
        kept = {name: value for name, value in inherited.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        return {**kept, "SLURM_CONF": str(self.configuration)}

    def run(self, *words: str | Path, timeout_s: float = 60.0) -> Answer:
        """The answer of one of Slurm's programs, as in ``run("srun", "-N2", "hostname")``. No exit code is an error."""
        command = [str(word) for word in words]
        return subprocess.run(
            command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=timeout_s
        )

    def logs(self, lines: int = 0) -> str:
        """What the daemons logged, each under its name; of each the last ``lines``, or everything."""
        parts = []
        for errors in sorted((self.folder / "log").glob("*.err")):
            log = errors.with_suffix(".log")
            said = (log if log.exists() else errors).read_text(errors="replace").splitlines()
            parts.append("\n".join([f"==> {errors.stem}", *said[-lines:]]))
        return "\n".join(parts)

    # ---- jobs

    def jobs(self) -> list[dict[str, str]]:
        """What waits, runs or ends: id, state, reason, nodes, partition and name of each job, as squeue has them."""
        names = ("id", "state", "reason", "nodes", "partition", "name")
        said = self._tell("squeue", "--all", "--noheader", "--format=%i|%T|%r|%N|%P|%j")
        return [dict(zip(names, line.split("|", len(names) - 1), strict=True)) for line in said.splitlines()]

    def job(self, job_id: str) -> dict[str, str]:
        """Everything Slurm says of one job, ended ones too; empty once it is forgotten."""
        answer = self.run("scontrol", "--oneliner", "show", "job", job_id)
        return dict(re.findall(r"([\w/:]+)=(.*?)(?=\s+[\w/:]+=|\s*$)", answer.stdout.strip()))

    def submit(self, script: str, *options: str) -> str:
        """Queue ``script``, lines of a shell, and return the job's id."""
        output = f"--output={self.folder}/job-%j.out"
        return self._tell("sbatch", "--parsable", output, *options, f"--wrap={script}").strip()

    def output(self, job_id: str) -> str:
        """What a job that was submitted here has printed until now."""
        path = self.folder / f"job-{job_id}.out"
        return path.read_text() if path.exists() else ""  # it is made after the job's state is RUNNING

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 30.0) -> dict[str, str]:
        """Wait until the job is in one of ``states``, and return what Slurm says of it."""
        found: dict[str, str] = {}

        def reached() -> bool:
            found.clear()
            found.update(self.job(job_id))
            return found.get("JobState") in states

        self._wait(reached, timeout_s, lambda: f"job {job_id} is {found.get('JobState')}, not {' or '.join(states)}")
        return found

    def cancel_all(self, timeout_s: float = 90.0) -> None:
        """Cancel every job and wait until none is left. What ended while the controller was dead takes a minute."""
        for job in self.jobs():
            self.run("scancel", job["id"])
        self._wait(lambda: not self.jobs(), timeout_s, lambda: f"these jobs outlived scancel: {self.jobs()}")

    # ---- nodes

    def states(self) -> dict[str, str]:
        """Slurm's word for every node: idle, mixed, allocated, down, drained; with a ``*`` where it does not answer."""
        said = self._tell("sinfo", "--noheader", "--Node", "--format=%N %T")
        return dict(line.split() for line in said.splitlines())

    def wait_idle(self, timeout_s: float = START_S) -> None:
        """Wait until no job is left and every node is idle."""
        self._wait(
            lambda: set(self.states().values()) == {"idle"} and not self.jobs(),
            timeout_s,
            lambda: f"not idle after {timeout_s:.0f} s: {self.states()}, {self.jobs()}",
        )

    def kill_node(self, name: str) -> None:
        """SIGKILL for a node's slurmd and for everything that it runs, as when the power fails."""
        kill(lambda: descendants(carrying(f"{_NODE}={name}".encode()) & self._members()))
        self._daemons.pop(name).wait(STOP_S)

    # ---- the controller

    def kill_controller(self) -> None:
        """SIGKILL for slurmctld and its helper. It writes its state up to 5 s late, which is waited for first: a job
        just started would be lost, or started a second time and its node drained."""
        time.sleep(SAVED_S)
        daemon = self._daemons.pop("slurmctld")
        kill(lambda: descendants([daemon.pid]))
        daemon.wait(STOP_S)

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        command = [_program("slurmctld"), "-D", "-f", str(self.configuration)]
        self._start("slurmctld", command, lambda: "is UP" in self.run("scontrol", "ping").stdout)

    # ---- inside

    @property
    def _socket(self) -> Path:
        return self.folder / "run/munge.sock"

    def _configure(self) -> None:
        shutil.rmtree(self.folder / "spool", ignore_errors=True)
        for name in ("etc", "run", "log", "spool", "gpu"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(1 + len(self.nodes))
        key = self.folder / "etc/munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for number in range(self._gpus):
            with contextlib.suppress(FileExistsError):
                gpu(self.folder, number).symlink_to(os.devnull)
        (self.folder / "spool/state").mkdir()
        (self.folder / "etc/gres.conf").write_text(gres_conf(self.folder, self._gpus))
        nodes = dict(zip(self.nodes, self._ports[1:], strict=True))
        self.configuration.write_text(
            slurm_conf(self.folder, self._ports[0], nodes, self._cpus, self._gpus, self._settings)
        )

    def _munged(self) -> list[str]:
        files = {"key-file": "etc/munge.key", "socket": "run/munge.sock", "pid-file": "run/munged.pid"}
        options = [f"--{name}={self.folder / path}" for name, path in files.items()]
        # Forced, because the folder above may be closed to other users, and only this one is served.
        return [_program("munged"), "--foreground", "--force", f"--seed-file={self.folder}/run/munged.seed", *options]

    def _watch(self) -> None:
        """A process that sees this one end, however it ends, and then kills what is left."""
        command = [sys.executable, "-I", "-S", slurm_processes.__file__, str(self.folder)]
        watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._daemons["watch"] = watch

    def _start_slurmd(self, name: str) -> None:
        port = self._ports[1 + self.nodes.index(name)]
        command = [_program("slurmd"), "-D", "-N", name, "-f", str(self.configuration)]
        self._start(name, [*self._prefix.get(name, ()), *command], lambda: _answers(port))

    def _start(self, name: str, command: Sequence[str], ready: Callable[[], bool]) -> None:
        """Start a daemon in the foreground, so that its end is seen, and wait until it is ready."""
        environment = {**self.environment(), _NODE: name}
        with (self.folder / f"log/{name}.err").open("ab") as said:
            daemon = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        self._daemons[name] = daemon

        self._wait(ready, START_S, lambda: f"{name} is not ready after {START_S:.0f} s", every_s=0.005)

    def _wait(
        self, done: Callable[[], bool], timeout_s: float, complaint: Callable[[], str], every_s: float = 0.05
    ) -> None:
        until = time.monotonic() + timeout_s
        while not done():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise ClusterError(f"{name} ended by itself with {daemon.returncode}\n{self.logs(20)}")
            if time.monotonic() > until:
                raise ClusterError(f"{complaint()}\n{self.logs(20)}")
            time.sleep(every_s)

    def _tell(self, *words: str) -> str:
        answer = self.run(*words)
        if answer.returncode:
            raise ClusterError(f"{' '.join(words)}: {answer.stderr.strip()}\n{self.logs(20)}")
        return answer.stdout

    def _members(self) -> set[int]:
        return members(self.folder)


_NODE = "REGBOT_PRIVATE_SLURM"
"""In the environment of every daemon, with its name. Those that hold jobs inherit it, the jobs do not."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. Below those that the kernel gives to clients, so that one stays free while its
    daemon is dead."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15000, 32000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind((ADDRESS, port))
            found.append(port)
    return found if len(set(found)) == count else free_ports(count)


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((ADDRESS, port)) == 0


def _program(name: str) -> str:
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        raise ClusterError(f"there is no {name} here: apt-get install slurm-wlm munge")
    return found


MakeCluster = Callable[..., Cluster]


def leftovers(shared: Cluster) -> str:
    """What a test left behind, in words; empty where the cluster is idle, or is so once its last jobs have ended."""
    jobs = [job for job in shared.jobs() if job["state"] != "COMPLETING"]
    if jobs:
        return f"the test left jobs in the queue: {jobs}"
    unfit = {name: state for name, state in shared.states().items() if state.startswith(("down", "drain", "unknown"))}
    if unfit:
        return f"the test left nodes unfit: {unfit}"
    shared.wait_idle(timeout_s=90)
    return ""
