"""A check of a workload that is a command: step times decide, and what is not known is never taken for good."""

import json

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
    (place,) = [line for line in page.splitlines() if "Timed on" in line]
    assert ", by what a command logs: compares two arms" in place
    assert "rank" not in place, "it is one process"
    assert (case.home / "out" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.long
def test_trying_again_adds_pairs_to_the_earlier_ones_instead_of_a_new_chance(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    _, first = case.check("--budget", "5")
    assert (only(first)["throughput"]["pairs"], only(first)["throughput"]["alpha"]) == (4, pytest.approx(0.0204 / 2))
    code, again = case.check("--budget", "5")
    section = only(again)["throughput"]
    assert section["pairs"] > 4
    assert section["alpha"] == pytest.approx(0.01 / 2)
    assert (code, section["decision"]) == (1, "regressed")
    assert "4 earlier pairs count too" in section["reasons"][0]
    judged = json.loads(case.regbot("judge", str(case.home / "out" / "session.jsonl"), "--json").stdout)
    assert judged == again, "the earlier pairs are in the session"
    _, third = case.check("--budget", "5", "--more", "4")
    assert section["pairs"] < only(third)["throughput"]["pairs"] <= section["pairs"] + 4


@pytest.mark.long
def test_another_tree_is_another_question_and_joins_nothing(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    case.check("--budget", "5")
    case.repository.commit("head", {"train.py": train(0.06)})
    _, verdict = case.check("--budget", "5")
    assert only(verdict)["throughput"]["alpha"] == pytest.approx(0.0204 / 2)


@pytest.mark.slow
def test_two_configurations_of_one_commit_are_compared_by_the_same_test(case: Case) -> None:
    asked = CONFIG.replace('"{steps}"]', '"{steps}", "{fused}"]\nconfig = { fused = "no" }')
    slow = TRAIN.replace("SECONDS", '0.05 if sys.argv[2] == "yes" else 0.02')
    case.repository.commit("base", {"regbot.toml": asked, "train.py": slow})
    code, verdict = case.check("--head", "main", "--head-set", "fused=yes", "--budget", "5")
    entry = only(verdict)
    assert (code, entry["throughput"]["decision"], entry["sharding"]) == (1, "regressed", None)
    assert verdict["head"]["overrides"] == {"fused": "yes"}
    assert verdict["base"]["commit"] == verdict["head"]["commit"]


@pytest.mark.long
def test_a_check_cites_what_placebo_sessions_on_its_node_class_showed(case: Case) -> None:
    asked = CONFIG.replace('"{steps}"]', '"{steps}", "{slowdown_pct}"]')
    steady = TRAIN.replace("time.sleep(SECONDS)", "time.sleep(0.02 * (1 + float(sys.argv[2]) / 100))")
    case.repository.commit("base", {"regbot.toml": asked, "train.py": steady})
    answer = case.regbot("calibrate", "train", "--pairs", "4", "--inject", "50", "--injected-pairs", "4")
    assert answer.returncode == 0, answer.stderr
    case.repository.git("add", "baselines")
    case.repository.git("commit", "-q", "-m", "calibrated")
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": "# faster?\n" + steady})
    _, verdict = case.check("--budget", "5")
    cited = only(verdict)["throughput"]["calibrated"]
    assert (cited["pairs"], cited["false_flags"]["total"], cited["injected_pct"]) == (4, 1, 50.0)
    assert "Calibrated here by pairs: they differ by" in (case.home / "out" / "comment.md").read_text()


@pytest.mark.slow
def test_a_shadow_check_blocks_nothing_and_is_noted_down(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    code, verdict = case.check("--budget", "5", "--shadow")
    assert (code, verdict["verdict"]) == (0, "FAIL")
    shown = json.loads(case.regbot("shadow", "show", "--json").stdout)
    assert (shown["checks"], shown["would_block"]) == (1, 1)
    assert case.regbot("check", "--base", "nowhere", "--shadow").returncode == 2
