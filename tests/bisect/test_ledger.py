"""``regbot bisect --on ledger`` on real repositories and real traces."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bisect_repository import build
from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER

REGBOT = str(Path(sys.executable).with_name("regbot"))

SMALL = """\
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
"""

SUMS = """\
    def forward(self, x):
        for _ in range(SUMS):
            dist.all_reduce(torch.ones(4, device=x.device), group=self.group)
"""
SUMMING_LAYER = "SUMS = 0\n" + GOOD_LAYER.replace("    def forward(self, x):\n", SUMS)


class Case:
    """A repository, and ``regbot bisect`` on it. The repository is the same, byte for byte, at the end."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "repository"

    def bisect(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        before = Repository(self.path).fingerprint()
        env = {**os.environ, "REGBOT_CACHE": str(self.home / "cache")}
        command = [REGBOT, "bisect", *arguments, "--json", "--out", str(self.home / "out")]
        result = subprocess.run(
            command, cwd=self.path, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert Repository(self.path).fingerprint() == before
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.slow
def test_one_change_among_200_commits_is_found_exactly_in_at_most_nine_traces(case: Case) -> None:
    history = build(case.path)
    (case.home / "small.toml").write_text(SMALL)
    code, found = case.bisect(history.good, history.bad, "--config", str(case.home / "small.toml"))
    assert (code, found["found"], found["culprit"]) == (0, "culprit", history.sharding)
    (change,) = found["changes"]
    assert change["findings"][0]["pattern"] == "expert axis mapped twice"
    assert (found["search_runs"] <= 9, found["cached_runs"], found["confirm_runs"]) == (True, 0, 0)

    code, again = case.bisect(history.good, history.bad, "--config", str(case.home / "small.toml"))
    assert (code, again["culprit"]) == (0, history.sharding)
    assert (again["search_runs"], again["cached_runs"], again["builds"]) == (0, found["search_runs"], 0)


def summing(case: Case, sums: list[int], broken: frozenset[int] = frozenset()) -> list[str]:
    """A commit for each number of all-reduces in the layer."""
    repository = Repository.create(case.path)
    commits = []
    for number, each in enumerate(sums):
        layer = SUMMING_LAYER.replace("SUMS = 0", f"SUMS = {each}\nBUILD = {number}")
        layer = "import nothing\n" + layer if number in broken else layer
        commits.append(
            repository.commit(
                f"change {number} (#{number + 1})",
                {"userpkg/__init__.py": "", "userpkg/moe.py": layer, "regbot.toml": CONFIG},
            )
        )
    return commits


@pytest.mark.slow
def test_a_count_that_changed_twice_is_traced_to_both_commits(case: Case) -> None:
    commits = summing(case, [0, 1, 1, 2])
    code, result = case.bisect(commits[0], commits[-1])
    assert code == 0
    assert {change["candidates"][0]["point"]["commit"] for change in result["changes"]} == {commits[1], commits[3]}
    assert [change["undone"] for change in result["changes"]] == [False, False]
    assert all(change["findings"] for change in result["changes"])


@pytest.mark.long
def test_a_culprit_beside_commits_that_cannot_be_traced_is_a_set(case: Case) -> None:
    commits = summing(case, [0, 1, 1], broken=frozenset({1}))
    code, result = case.bisect(commits[0], commits[-1])
    assert (code, result["culprit"]) == (0, None)
    told = {each["point"]["commit"]: each["measurable"] for each in result["candidates"]}
    assert told == {commits[2]: True, commits[1]: False}
    assert all("nothing" in each["reason"] for each in result["candidates"] if not each["measurable"])


@pytest.mark.long
def test_equal_ledgers_leave_nothing_to_find(case: Case) -> None:
    commits = summing(case, [1, 1])
    code, found = case.bisect(commits[0], commits[-1])
    assert (code, found["found"], found["search_runs"]) == (3, "none", 2)
    assert "--on time" in found["reasons"][0]


@pytest.mark.long
def test_a_merge_that_is_to_blame_is_descended_into(case: Case) -> None:
    history = build(case.path, commits=24, sharding_at=11, slow_at=None, broken=2, merges=True)
    (case.home / "small.toml").write_text(SMALL)
    code, result = case.bisect(history.good, history.bad, "--config", str(case.home / "small.toml"))
    assert (code, result["culprit"]) == (0, history.sharding)
    assert result["changes"][0]["merge"] == history.merge
