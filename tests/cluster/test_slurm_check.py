"""The main job on a cluster: a check of the demo's pull request, its ranks spread over both nodes of a reservation."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regbot.cli.demo import build_repository
from regbot.records.run import Run
from regbot.records.session import Session, read_session
from support.check_cases import REGBOT
from support.slurm_case import hosts, nothing_left, place
from support.slurm_cluster import Cluster

ENTRY = "mixtral-8x7b@1/ep"
SHORT = """
[session]
steps = 5
warmup = 1
budget_min = 2.5
[throughput]
threshold_pct = 50
[slurm]
nodes = 2
"""
"""What it costs to start torch on both nodes is most of a run: a few pairs, and no more than the budget."""


class Checked:
    """A check that was run, and what it left."""

    def __init__(self, answer: "subprocess.CompletedProcess[str]", out: Path) -> None:
        assert answer.stdout, answer.stderr
        self.code, self.told = answer.returncode, answer.stderr
        self.verdict: dict[str, Any] = json.loads(answer.stdout)
        self.session: Session = read_session(out / "session.jsonl")
        self.out = out

    @property
    def entry(self) -> dict[str, Any]:
        (entry,) = self.verdict["workloads"]
        return dict(entry)

    def runs(self, tier: str) -> list[Run]:
        return [run for run in self.session.runs if run.tier == tier]


def check(home: Path, config: Path, out: str, environment: dict[str, str], *words: str) -> Checked:
    """``regbot check`` of the demo's pull request in ``home``."""
    command = [REGBOT, "check", "--base", "main", "--workload", ENTRY, "--config", str(config), "--json"]
    answer = subprocess.run(
        [*command, "--out", str(home / out), *words],
        cwd=home / "repository",
        env={**environment, "REGBOT_CACHE": str(home / "cache")},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    return Checked(answer, home / out)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's repository with its pull request checked out, and a configuration for short runs on two nodes."""
    folder = tmp_path_factory.mktemp("demo")
    build_repository(folder / "repository", "fallback")
    (folder / "regbot.toml").write_text((folder / "repository" / "regbot.toml").read_text() + SHORT)
    return folder


@pytest.fixture(scope="module")
def on_the_cluster(home: Path, cluster: Cluster) -> Iterator[Checked]:
    """The whole check through both nodes, which another job has for some seconds after the traces."""
    done = threading.Event()

    def come_between() -> None:
        while not any(job["state"] == "RUNNING" for job in cluster.jobs()) and not done.wait(0.1):
            pass
        cluster.submit("sleep 5", "-N2", "--exclusive")

    thread = threading.Thread(target=come_between)
    thread.start()
    try:
        yield check(home, home / "regbot.toml", "out", cluster.environment(), "--engine", "slurm")
    finally:
        done.set()
        thread.join()


def test_a_check_of_the_demo_is_timed_by_ranks_on_both_nodes(cluster: Cluster, on_the_cluster: Checked) -> None:
    checked = on_the_cluster
    assert (checked.code, checked.verdict["verdict"]) == (1, "FAIL"), checked.told
    assert checked.entry["sharding"]["status"] == "FAIL"
    assert checked.entry["validity"]["status"] == "PASS", checked.entry["validity"]
    timed = checked.runs("timed")
    assert checked.entry["throughput"]["pairs"] >= 2
    assert {run.outcome for run in timed} == {"ok"}, [(place(run), run.reason) for run in timed]
    for run in timed:
        assert run.allocation is not None
        assert run.timing is not None
        assert run.node is not None
        assert (run.allocation.engine, hosts(run)) == ("slurm", ["n1", "n2"])
        assert sorted(run.timing.ranks) == ["0", "1"]
        assert run.node.name == "n1, n2"
        assert run.node.node_class.startswith("2 nodes of ")
    assert len({run.allocation.job for run in timed if run.allocation}) == 1
    nothing_left(cluster)


def test_what_was_waited_in_the_queue_is_recorded_and_in_no_budget(on_the_cluster: Checked) -> None:
    timed = on_the_cluster.runs("timed")
    (queued_s,) = {run.allocation.queued_s for run in timed if run.allocation}
    assert 4 < queued_s < 60
    cost = on_the_cluster.entry["throughput"]["cost"]
    assert cost["minutes"] == pytest.approx(sum(run.wall_s for run in timed) / 60, abs=0.01)


def test_the_sharding_verdict_is_the_local_engines(home: Path, cluster: Cluster, on_the_cluster: Checked) -> None:
    local = check(home, home / "regbot.toml", "local", dict(os.environ), "--no-timing")
    assert local.entry["sharding"] == on_the_cluster.entry["sharding"]
    ledgers = [{run.arm.name: run.ledger for run in each.runs("static")} for each in (local, on_the_cluster)]
    assert ledgers[0] == ledgers[1]
    assert None not in ledgers[0].values()
    assert {run.tier for run in local.session.runs} == {"static"}
    assert cluster.jobs() == []
