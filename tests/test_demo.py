"""The demo: three pull requests whose effect is known, at full shape, through the real command.

``regbot demo`` itself, with its minutes of timed runs, is a stage of continuous integration. Here its pull requests are
checked one half at a time: the sharding at full shape, and the step times of the slow one in short runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regbot.config import Config
from regbot.demo import PullRequest, build_repository
from regbot.judge import judge
from regbot.ledgers.catalogue import INVERSE, MAPPED_TWICE, RESTORED
from regbot.records.run import Arm
from regbot.records.session import Session, read_session
from regbot.records.verdict import Verdict

ENTRIES = ["qwen3-30b-a3b@1/ep", "mixtral-8x7b@1/ep-dp"]
HALF = ("--workload", ENTRIES[0], "--workload", ENTRIES[1])
"""Every shape and every mesh once: a trace of a full shape takes its time. All four are in the command of the README,
which continuous integration runs."""
ONE = ("--workload", ENTRIES[1])
"""Where one entry shows all that is asked."""


def check(
    out: Path, pull_request: PullRequest, *arguments: str, reverted: bool = False
) -> subprocess.CompletedProcess[str]:
    """``regbot check`` of one of the demo's pull requests, or of its revert."""
    repository = build_repository(out / "repository", pull_request)
    base, head = (repository.head, repository.base) if reverted else (repository.base, repository.head)
    command = [regbot(), "check", "--base", base, "--head", head, "--json", "--out", str(out), *arguments]
    return run(command, repository.path, out / "cache")


def run(command: list[str], at: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "REGBOT_CACHE": str(cache)}
    return subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=900, check=False)


def regbot() -> str:
    return str(Path(sys.executable).with_name("regbot"))


def swapped(session: Session) -> Session:
    """The same records with base and head exchanged, as if the pull request were its own revert."""

    def other(arm: Arm) -> Arm:
        return arm.model_copy(update={"name": "head" if arm.name == "base" else "base"})

    header = session.header.model_copy(update={"base": other(session.header.head), "head": other(session.header.base)})
    runs = [run.model_copy(update={"arm": other(run.arm)}) for run in session.runs]
    return Session(header=header, runs=runs)


def patterns(verdict: Verdict | dict[str, Any]) -> dict[str, list[str]]:
    document = json.loads(verdict.to_json()) if isinstance(verdict, Verdict) else verdict
    return {
        entry["name"]: sorted(finding["pattern"] for finding in entry["sharding"]["findings"])
        for entry in document["workloads"]
    }


def inverse_findings(out: Path) -> None:
    """Exchanging the arms of every entry gives exactly the inverse of every finding."""
    session = read_session(out / "session.jsonl")
    forward, backward = patterns(judge(session, Config())), patterns(judge(swapped(session), Config()))
    for name in forward:
        assert backward[name] == sorted(INVERSE[pattern] for pattern in forward[name])


@pytest.mark.long
def test_the_fallback_fails_on_both_shapes_and_meshes(tmp_path: Path) -> None:
    found = check(tmp_path, "fallback", "--no-timing", *HALF)
    assert found.returncode == 1, found.stdout + found.stderr
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["verdict"] == "FAIL"
    assert [entry["name"] for entry in verdict["workloads"]] == ENTRIES
    for entry in verdict["workloads"]:
        sharding = entry["sharding"]
        layers = 48 if entry["name"].startswith("qwen3") else 32
        assert sharding["status"] == "FAIL"
        assert sharding["base"]["all_to_all"]["payload"] == 4 * layers
        assert sharding["head"]["all_to_all"]["payload"] == 0
        assert sharding["head"]["all_gather"]["payload"] > sharding["base"]["all_gather"]["payload"]
        named = [finding for finding in sharding["findings"] if finding["pattern"] == MAPPED_TWICE]
        assert [finding["status"] for finding in named] == ["FAIL"]
        assert any(module.startswith("layers.*.moe") for module in named[0]["modules"])
        assert sharding["wire"]["head_s"] > 1.05 * sharding["wire"]["base_s"]
        assert entry["validity"]["status"] == "PASS"
        assert entry["throughput"] is None
    comment = (tmp_path / "comment.md").read_text()
    assert MAPPED_TWICE in comment
    assert "FAIL" in comment.splitlines()[1] or "FAIL" in comment[:400]
    inverse_findings(tmp_path)


@pytest.mark.long
def test_a_real_check_of_the_revert_finds_the_inverse(tmp_path: Path) -> None:
    """Not the records exchanged but the commits: base is the pull request, head is main."""
    found = check(tmp_path, "fallback", "--no-timing", *ONE, reverted=True)
    assert found.returncode == 0, found.stderr
    verdict = json.loads(found.stdout)
    assert verdict["verdict"] == "PASS"
    assert all(RESTORED in names for names in patterns(verdict).values())


@pytest.mark.long
def test_the_harmless_one_is_proven_identical(tmp_path: Path) -> None:
    found = check(tmp_path, "harmless", "--no-timing", *ONE)
    assert found.returncode == 0, found.stdout + found.stderr
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["verdict"] == "PASS"
    for entry in verdict["workloads"]:
        assert entry["sharding"]["status"] == "PASS"
        assert entry["sharding"]["identical_program"] is True
        assert entry["sharding"]["reasons"][0].startswith("device program identical")
        assert entry["sharding"]["findings"] == []
    inverse_findings(tmp_path)


@pytest.mark.long
def test_the_slow_one_has_the_same_collectives_and_another_program(tmp_path: Path) -> None:
    found = check(tmp_path, "slow", "--no-timing", *ONE)
    assert found.returncode == 0, found.stdout + found.stderr
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    for entry in verdict["workloads"]:
        assert entry["sharding"]["status"] == "PASS"
        assert entry["sharding"]["identical_program"] is False
        assert entry["sharding"]["findings"] == []
        assert entry["sharding"]["base"] == entry["sharding"]["head"]
    inverse_findings(tmp_path)


SHORT = """\
version = 1
[workloads.moe]
adapter = "module"
entry = "moetrain.moe:build_layer"
source_roots = ["src"]
shapes = ["mixtral-8x7b"]
meshes = ["ep"]
variant = "cpu"
[session]
steps = 15
warmup = 3
"""


@pytest.mark.long
def test_the_slow_one_is_slower_outside_of_its_collectives(tmp_path: Path) -> None:
    """On cores that other tests use too, so the interval may be open; the estimate is not to be mistaken."""
    (tmp_path / "short.toml").write_text(SHORT)
    found = check(tmp_path, "slow", "--config", str(tmp_path / "short.toml"), "--budget", "6")
    assert found.returncode in (1, 3), found.stdout + found.stderr
    (entry,) = json.loads(found.stdout)["workloads"]
    throughput = entry["throughput"]
    assert (entry["sharding"]["status"], entry["validity"]["status"]) == ("PASS", "PASS")
    assert throughput["decision"] in ("regressed", "undecided")
    assert throughput["pairs"] >= 4
    assert throughput["estimate_pct"] > 15
    assert throughput["decision"] == "undecided" or throughput["wall"].startswith("compute or host")


def test_two_pull_requests_at_once_are_a_usage_error(tmp_path: Path) -> None:
    found = run([regbot(), "demo", "--harmless", "--slow", "--out", str(tmp_path)], tmp_path, tmp_path / "cache")
    assert found.returncode == 2
    assert "give one of them" in found.stderr


@pytest.mark.parametrize("name", ["fallback", "harmless", "slow"])
def test_the_carried_patches_are_the_planted_ones(name: str) -> None:
    from importlib import resources

    assert (resources.files("regbot.demo") / "patches" / f"{name}.patch").is_file()
