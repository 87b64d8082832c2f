"""The main job on a cluster: a check of the demo's pull request, its ranks spread over both nodes of a reservation."""

import json
import subprocess
from pathlib import Path

import pytest

from regbot.cli.demo import build_repository
from regbot.records.session import read_session
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


def test_a_check_of_the_demo_is_timed_by_ranks_on_both_nodes(cluster: Cluster, tmp_path: Path) -> None:
    repository, config, out = tmp_path / "repository", tmp_path / "regbot.toml", tmp_path / "out"
    build_repository(repository, "fallback")
    config.write_text((repository / "regbot.toml").read_text() + SHORT)
    command = [REGBOT, "check", "--base", "main", "--workload", ENTRY, "--config", str(config), "--engine", "slurm"]
    environment = {**cluster.environment(), "REGBOT_CACHE": str(tmp_path / "cache")}
    answer = subprocess.run(
        [*command, "--json", "--out", str(out)], cwd=repository, env=environment, capture_output=True, text=True,
        timeout=540, check=False,
    )  # fmt: skip
    assert answer.stdout, answer.stderr
    (entry,) = json.loads(answer.stdout)["workloads"]
    assert (answer.returncode, entry["sharding"]["status"]) == (1, "FAIL"), answer.stderr
    assert entry["validity"]["status"] == "PASS", entry["validity"]
    assert entry["throughput"]["pairs"] >= 2
    timed = [run for run in read_session(out / "session.jsonl").runs if run.tier == "timed"]
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
    assert entry["throughput"]["cost"]["minutes"] == pytest.approx(sum(run.wall_s for run in timed) / 60, abs=0.01)
    nothing_left(cluster)
