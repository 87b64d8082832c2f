"""A check of a workload that is a command: step times decide, and unknown facts never count as a pass."""

import json

import pytest

from regbot.records.session import read_session
from support.check_cases import Case, only
from support.command_cases import CONFIG, TRAIN, train


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
def test_the_same_command_is_no_regression(case: Case) -> None:
    pull_request(case, train(0.02), "# a comment\n" + train(0.02))
    code, verdict = case.check("--budget", "5")
    assert verdict["verdict"] in ("PASS", "INCONCLUSIVE")
    assert code in (0, 3)


@pytest.mark.slow
def test_a_command_that_is_not_timed_is_a_usage_error_and_never_green(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    result = case.regbot("check", "--base", "main", "--no-timing")
    assert result.returncode == 2
    assert "can only be timed; leave out --no-timing" in result.stderr


@pytest.mark.slow
def test_a_head_whose_command_breaks_fails(case: Case) -> None:
    pull_request(case, train(0.02), "raise SystemExit('no such flag')")
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (1, "FAIL")
    assert "exited with code 1" in only(verdict)["validity"]["reasons"][0]


@pytest.mark.slow
def test_a_requested_dispatcher_without_evidence_is_invalid(case: Case) -> None:
    config = CONFIG.replace('"{steps}"]', '"{steps}", "{dispatcher}"]\ndispatcher = "hybridep"')
    case.repository.commit("base", {"regbot.toml": config, "train.py": train(0.02)})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": train(0.021)})
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert "does not show which one it executed" in only(verdict)["validity"]["reasons"][0]


@pytest.mark.slow
def test_an_impossible_log_path_is_invalid_and_does_not_end_the_check(case: Case) -> None:
    config = CONFIG.replace('adapter = "command"', 'adapter = "command"\nlog = "train.py/steps.log"')
    case.repository.commit("base", {"regbot.toml": config, "train.py": train(0.02)})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": train(0.021)})
    code, verdict = case.check("--budget", "5")
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert "cannot be a file of the checkout" in only(verdict)["validity"]["reasons"][0]


@pytest.mark.long
def test_a_second_check_of_the_same_code_adds_pairs_to_the_earlier_ones(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    _, first = case.check("--budget", "5")
    assert (only(first)["throughput"]["pairs"], only(first)["throughput"]["alpha"]) == (4, pytest.approx(0.0204 / 2))
    code, second = case.check("--budget", "5")
    section = only(second)["throughput"]
    assert section["pairs"] > 4
    assert section["alpha"] == pytest.approx(0.01 / 2)
    assert (code, section["decision"]) == (1, "regressed")
    assert "4 earlier ones are judged together" in section["reasons"][0]
    judged = json.loads(case.regbot("judge", str(case.home / "out" / "session.jsonl"), "--json").stdout)
    assert judged == second, "the earlier pairs are in the session"
    _, third = case.check("--budget", "5", "--more", "4")
    assert section["pairs"] < only(third)["throughput"]["pairs"] <= section["pairs"] + 4
    source = (case.repository.path / "train.py").read_text()
    case.repository.commit("comment", {"train.py": f"# Another tree, and the same code.\n{source}"})
    _, fourth = case.check("--budget", "5", "--more", "4")
    assert only(fourth)["throughput"]["pairs"] > only(third)["throughput"]["pairs"]


@pytest.mark.long
def test_pairs_of_another_tree_are_not_added(case: Case) -> None:
    pull_request(case, train(0.02), train(0.05))
    case.check("--budget", "5")
    case.repository.commit("head", {"train.py": train(0.06)})
    _, verdict = case.check("--budget", "5")
    assert only(verdict)["throughput"]["alpha"] == pytest.approx(0.0204 / 2)


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


@pytest.mark.long
def test_a_check_cites_the_calibration_of_its_node_class(case: Case) -> None:
    config = CONFIG.replace('"{steps}"]', '"{steps}", "{slowdown_pct}"]')
    steady = TRAIN.replace("time.sleep(SECONDS)", "time.sleep(0.02 * (1 + float(sys.argv[2]) / 100))")
    case.repository.commit("base", {"regbot.toml": config, "train.py": steady})
    result = case.regbot("calibrate", "train", "--pairs", "4", "--inject", "50", "--injected-pairs", "4")
    assert result.returncode == 0, result.stderr
    case.repository.git("add", "baselines")
    case.repository.git("commit", "-q", "-m", "calibrated")
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("head", {"train.py": "# faster?\n" + steady})
    _, verdict = case.check("--budget", "5")
    cited = only(verdict)["throughput"]["calibrated"]
    assert (cited["pairs"], cited["false_flags"]["total"], cited["injected_pct"]) == (4, 1, 50.0)
    assert (
        "This node class was calibrated with pairs: two runs of one commit differ by"
        in (case.home / "out" / "comment.md").read_text()
    )
