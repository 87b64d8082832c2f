"""A check of a workload that is a command: step times decide, and unknown facts never count as a pass."""

import pytest

from regbot.records.session import read_session
from support.check_cases import Case, only

CONFIG = """
version = 1
[workloads.train]
adapter = "command"
command = ["{python}", "train.py", "{steps}"]
shapes = ["mixtral-8x7b"]
[session]
steps = 5
warmup = 1
"""


TRAIN = """
import sys, time
for step in range(int(sys.argv[1])):
    begun = time.perf_counter()
    time.sleep(SECONDS)
    took = time.perf_counter() - begun
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, loss: 7.{9 - step}")
"""


def train(seconds: float) -> str:
    return TRAIN.replace("SECONDS", str(seconds))


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(tmp_path)


def pull_request(case: Case, base: str, head: str) -> None:
    case.repository.commit("base", {"regbot.toml": CONFIG, "train.py": base})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": head})


def test_a_command_that_got_slower_fails_by_its_log(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (1, "FAIL")
    entry = only(verdict)
    assert entry["sharding"] is None
    assert (entry["throughput"]["decision"], entry["throughput"]["pairs"]) == ("regressed", 4)
    assert entry["throughput"]["estimate_pct"] == pytest.approx(150, abs=40)
    assert entry["validity"]["status"] == "PASS"
    assert any("its collectives and the code that it ran are not known" in w for w in verdict["warnings"])
    session = read_session(case.home / "out" / "session.jsonl")
    assert session.header.untraced == session.header.workloads == ["mixtral-8x7b@1/ep"]
    page = (case.home / "out" / "comment.md").read_text()
    assert "mixtral-8x7b@1/ep" in page
    (node_line,) = [line for line in page.splitlines() if "Timed on" in line]
    assert ", times from the log of a command. The result compares base and head" in node_line
    assert "rank" not in node_line, "it is one process"
    assert (case.home / "out" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_command_that_is_not_timed_is_a_usage_error_and_never_green(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    result = case.regbot("check", "--base", "main", "--no-timing")
    assert result.returncode == 2
    assert "can only be timed; leave out --no-timing" in result.stderr


@pytest.mark.slow
def test_two_configurations_of_one_commit_are_compared_by_the_same_test(case: Case) -> None:
    config = CONFIG.replace('"{steps}"]', '"{steps}", "{fused}"]\nconfig = { fused = "no" }')
    slow = TRAIN.replace("SECONDS", '0.05 if sys.argv[2] == "yes" else 0.02')
    case.repository.commit("base", {"regbot.toml": config, "train.py": slow})
    code, verdict = case.check("--head", "main", "--head-set", "fused=yes", "--budget", "5")
    entry = only(verdict)
    assert (code, entry["throughput"]["decision"], entry["sharding"]) == (1, "regressed", None)
    assert verdict["head"]["overrides"] == {"fused": "yes"}
    assert verdict["base"]["commit"] == verdict["head"]["commit"]
