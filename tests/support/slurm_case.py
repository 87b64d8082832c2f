"""Whole checks on a private cluster: a repository whose workload is a command that does as a test tells it by files."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regbot.records.files import RecordError
from regbot.records.run import Run
from regbot.records.session import read_session
from support.check_cases import REGBOT
from support.git_repos import Repository
from support.slurm_cluster import Cluster
from support.slurm_processes import carrying

PATIENCE_S = 90.0
CONFIG = """
version = 1
[workloads.train]
adapter = "command"
command = ["{python}", "-S", "train.py", "{steps}"]
shapes = ["mixtral-8x7b"]
environment = { CONTROL = "CONTROL_FOLDER" }
timeout_min = MINUTES
[session]
steps = 5
warmup = 1
"""
TRAIN = """
import os, pathlib, sys, time
control = pathlib.Path(os.environ["CONTROL"])
number = 0
while True:
    try:
        (control / f"launch.{number}").open("x").close()
        break
    except FileExistsError:
        number += 1
while (control / f"hold.{number}").exists() or (control / "hold.all").exists():
    time.sleep(0.02)
steps = int(sys.argv[1])
for step in range(steps):
    took = MILLISECONDS * (1 + 0.002 * ((7 * number + step) % 5)) / 1000
    time.sleep(took)
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, loss: 7.{steps - step}")
"""
"""What it logs depends on the number of the launch alone: no load of the machine shows in it."""


def train(milliseconds: float) -> str:
    return TRAIN.replace("MILLISECONDS", str(milliseconds))


@dataclass
class Answer:
    """How a command ended."""

    code: int
    out: str
    told: str

    @property
    def verdict(self) -> dict[str, Any]:
        assert self.out, self.told
        return dict(json.loads(self.out))

    @property
    def only(self) -> dict[str, Any]:
        (entry,) = self.verdict["workloads"]
        return dict(entry)


@dataclass
class SlurmCase:
    """A pull request to a training code that got slower by a half, and a cluster to time it on."""

    home: Path
    cluster: Cluster
    settings: Mapping[str, Any] = field(default_factory=dict)
    limit_min: float = 1.0

    def __post_init__(self) -> None:
        self.control = self.home / "control"
        self.control.mkdir()
        self.out = self.home / "out"
        self.repository = Repository.create(self.home / "repository")
        self.configure(**self.settings)
        self.repository.commit("base", {"train.py": train(4)})
        self.repository.git("checkout", "-q", "-b", "pr")
        self.repository.commit("head", {"train.py": train(6)})

    def configure(self, **settings: Any) -> None:
        """``settings`` as the table slurm of the configuration."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        text = CONFIG.replace("CONTROL_FOLDER", str(self.control)).replace("MINUTES", str(self.limit_min))
        (self.home / "regbot.toml").write_text("\n".join([text, "[slurm]", *lines, ""]))

    # ---- the command

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """``regbot`` in the background, in a session of its own as a shell would start it."""
        return subprocess.Popen(
            [REGBOT, *words],
            cwd=self.repository.path,
            env={**self.cluster.environment(), "REGBOT_CACHE": str(self.home / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def check(self, *words: str) -> "subprocess.Popen[str]":
        config = str(self.home / "regbot.toml")
        given = ("--base", "main", "--engine", "slurm", "--json", "--config", config, "--out", str(self.out))
        return self.begin("check", *given, *words)

    def end(self, process: "subprocess.Popen[str]") -> Answer:
        """Wait for its end. One that does not come to it is killed, and its test fails."""
        try:
            out, told = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, told = process.communicate()
            raise AssertionError(f"it did not end: {told}\n{self.cluster.jobs()}\n{self.said()}") from None
        return Answer(process.returncode, out, told)

    def whole(self, *words: str) -> Answer:
        return self.end(self.check(*words))

    # ---- what runs meanwhile

    def hold(self, number: int | str = "all") -> None:
        """Let the launch of that number, from 0, wait before its steps."""
        (self.control / f"hold.{number}").touch()

    def let_go(self, number: int | str = "all") -> None:
        (self.control / f"hold.{number}").unlink()

    def begun(self, number: int) -> None:
        """Wait until the launch of that number is there."""
        wait(lambda: (self.control / f"launch.{number}").exists(), f"launch {number} does not come", self.said)

    @property
    def launches(self) -> int:
        return len(list(self.control.glob("launch.*")))

    def guests(self) -> set[int]:
        """Living launches."""
        return carrying(f"CONTROL={self.control}".encode())

    def host(self) -> str:
        """The node that holds the session, which has one."""
        (job,) = self.held()
        return job["nodes"]

    def held(self) -> list[dict[str, str]]:
        """Jobs that have nodes."""
        return [job for job in self.cluster.jobs() if job["state"] == "RUNNING"]

    # ---- what is written

    def runs(self) -> list[Run]:
        return [run for run in read_session(self.out / "session.jsonl").runs if run.tier == "timed"]

    def said(self) -> str:
        """The session in short, for a test that fails."""
        try:
            return "\n".join(f"{place(run)} {run.outcome} {hosts(run)} {run.reason[:300]}" for run in self.runs())
        except RecordError as error:
            return str(error)


def wait(reached: Callable[[], bool], complaint: str, more: Callable[[], str] = str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < until, f"{complaint}; {more()}"
        time.sleep(0.02)


def place(run: Run) -> tuple[int, int, int, str]:
    """Block, attempt, slot and arm."""
    assert run.position is not None
    return run.position.block, run.attempt, run.position.slot, run.arm.name


def hosts(run: Run) -> list[str]:
    return run.allocation.hosts if run.allocation is not None else []


def assert_whole(case: SlurmCase, answer: Answer, unrecorded: int = 0) -> list[Run]:
    """The slowdown is found by four pairs, each on one node; no run stands twice, none is missing but ``unrecorded``
    that were begun by a regbot that was killed. Returns the runs."""
    said = f"{answer.told}\n{answer.out}\n{case.said()}"
    assert answer.code == 1, said
    entry = answer.only
    assert (entry["throughput"]["decision"], entry["throughput"]["pairs"]) == ("regressed", 4), said
    assert entry["validity"]["status"] == "PASS", said
    runs = case.runs()
    assert max(Counter(map(place, runs)).values()) == 1, said
    assert case.launches == sum(run.allocation is not None for run in runs) + unrecorded, said
    for block in (1, 2):
        last = max(run.attempt for run in runs if place(run)[0] == block)
        counted = [run for run in runs if place(run)[:2] == (block, last)]
        assert [(place(run)[2], run.outcome) for run in counted] == [(slot, "ok") for slot in range(4)], said
        assert len({(tuple(hosts(run)), run.node and run.node.name) for run in counted}) == 1, said
    return runs


def nothing_left(cluster: Cluster, timeout_s: float = 95.0) -> None:
    """Not a job in the queue. What ended while the controller was away may take a minute to leave."""
    assert [job for job in cluster.jobs() if job["state"] != "COMPLETING"] == []
    until = time.monotonic() + timeout_s
    while cluster.jobs():
        assert time.monotonic() < until, cluster.jobs()
        time.sleep(0.2)


def minutes_told(text: str) -> float:
    found = re.search(r"has waited ([\d.]+) min", text)
    assert found, text
    return float(found[1])


def interrupt(process: "subprocess.Popen[str]") -> None:
    os.kill(process.pid, signal.SIGINT)
