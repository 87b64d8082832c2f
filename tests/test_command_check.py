"""A check of a workload that is a command: step times decide, and what is not known is never taken for good."""

import pytest

from regbot.records.session import read_session
from test_check import Case, only

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


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(tmp_path)


def pull_request(case: Case, base: str, head: str) -> None:
    case.repository.commit("base", {"regbot.toml": CONFIG, "train.py": base})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": head})


def train(seconds: float) -> str:
    return TRAIN.replace("SECONDS", str(seconds))


def test_a_command_that_got_slower_fails_by_its_log(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (1, "FAIL")
    entry = only(verdict)
    assert entry["sharding"] is None
    assert (entry["throughput"]["decision"], entry["throughput"]["pairs"]) == ("regressed", 4)
    assert entry["throughput"]["estimate_pct"] == pytest.approx(150, abs=40)
    assert entry["validity"]["status"] == "PASS"
    assert any("neither its collectives nor the code that it ran are known" in w for w in verdict["warnings"])
    session = read_session(case.home / "out" / "session.jsonl")
    assert session.header.untraced == session.header.workloads == ["mixtral-8x7b@1/ep"]
    page = (case.home / "out" / "comment.md").read_text()
    assert "mixtral-8x7b@1/ep" in page
    assert (case.home / "out" / "report.html").stat().st_size > 10_000


def test_the_same_command_is_no_regression(case: Case) -> None:
    pull_request(case, train(0.02), "# a comment\n" + train(0.02))
    code, verdict = case.check("--budget", "5")
    assert verdict["verdict"] in ("PASS", "INCONCLUSIVE")
    assert code in (0, 3)


def test_a_command_that_is_not_timed_is_a_usage_error_and_never_green(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    answer = case.regbot("check", "--base", "main", "--no-timing")
    assert answer.returncode == 2
    assert "only step times can be measured" in answer.stderr


def test_a_head_whose_command_breaks_fails(case: Case) -> None:
    pull_request(case, train(0.02), "raise SystemExit('no such flag')")
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (1, "FAIL")
    assert "exited with code 1" in only(verdict)["validity"]["reasons"][0]


def test_a_dispatcher_that_a_command_was_asked_for_is_not_taken_to_have_run(case: Case) -> None:
    asked = CONFIG.replace('"{steps}"]', '"{steps}", "{dispatcher}"]\ndispatcher = "hybridep"')
    case.repository.commit("base", {"regbot.toml": asked, "train.py": train(0.02)})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": train(0.021)})
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert "does not show which one it executed" in only(verdict)["validity"]["reasons"][0]


def test_a_log_that_cannot_be_a_file_makes_its_workload_invalid_and_ends_no_check(case: Case) -> None:
    asked = CONFIG.replace('adapter = "command"', 'adapter = "command"\nlog = "train.py/steps.log"')
    case.repository.commit("base", {"regbot.toml": asked, "train.py": train(0.02)})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": train(0.021)})
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert "cannot be a file of the checkout" in only(verdict)["validity"]["reasons"][0]
