"""The whole check with its timed half: faults in one arm or in both, identity, and ``regbot run``.

In most tests a real process replays real records (``layers.replay``), so that a session takes seconds. The most
important tests use real ranks.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from regbot.records.files import read_record
from regbot.records.run import Run
from support.check_cases import Case, guests_of, only
from support.guest_runs import Shared
from support.layers import TIMED_CONFIG, genuine_runs, replay

REPLAYED = TIMED_CONFIG.replace("[session]", 'python = "tools/python"\n[session]')
ENTRY = "mixtral-8x7b@1/ep"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture
def genuine(shared: Shared) -> Path:
    return shared("genuine runs", genuine_runs)


def replayed(case: Case, genuine: Path, base: str = "", head: str = "", config: str = REPLAYED) -> None:
    """Create a pull request whose timed runs replay real records, changed by the code in ``base`` and ``head``."""
    tool = case.repository.path / "tools" / "python"
    replay(tool, genuine, base)
    case.commit(config=config)
    case.repository.git("checkout", "-q", "-b", "pr")
    replay(tool, genuine, head)
    case.commit(config=config, **{"kernels.cu": "// faster\n"})


def timed(case: Case) -> list[dict[str, Any]]:
    return [run for run in case.runs() if run["tier"] == "timed"]


def places(case: Case) -> list[tuple[int, int, int, str]]:
    """Return block, slot, attempt and outcome of every timed run."""
    return [(run["position"]["block"], run["position"]["slot"], run["attempt"], run["outcome"]) for run in timed(case)]


# ---- verdicts of the timed half


def test_four_pairs_detect_a_slowdown_and_the_file_alone_gives_the_same_verdict(case: Case, genuine: Path) -> None:
    replayed(case, genuine, head="[scale(each, 1.5) for each in records]; seconds = total()")
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (1, "FAIL")
    throughput = only(verdict)["throughput"]
    assert (throughput["status"], throughput["decision"], throughput["pairs"]) == ("FAIL", "regressed", 4)
    assert throughput["estimate_pct"] == pytest.approx(50)
    assert only(verdict)["validity"]["status"] == "PASS"
    assert only(verdict)["sharding"]["status"] == "PASS"
    assert len(timed(case)) == 2 + 8, "the first look decides"
    again = case.regbot("judge", str(case.home / "out" / "session.jsonl"), "--json")
    assert (again.returncode, json.loads(again.stdout)) == (1, verdict)


@pytest.mark.slow
def test_a_changed_file_that_no_trace_loads_is_timed_except_with_no_timing(case: Case, genuine: Path) -> None:
    replayed(case, genuine)
    code, verdict = case.check("--no-timing")
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert only(verdict)["throughput"] is None
    assert timed(case) == []
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (0, "PASS")
    throughput = only(verdict)["throughput"]
    assert (throughput["decision"], throughput["by"], throughput["pairs"]) == ("no_change", "pairs", 4)


# ---- faults


HANG = "time.sleep(3600)"
FAULTS = {
    "crash": ("sys.exit('no such kernel')", "crashed", "head crashed"),
    "hang": (HANG, "hung", "head ran into the time limit"),
    "a wrong clock": ("[scale(each, 9) for each in records]", "bad_record", "by the system's clock they took"),
    "other routing": (
        "refuse(records[0], 'balanced routing was asked for'); records[0]['refusal']['kind'] = 'routing'",
        "refused",
        "head cannot be measured: balanced routing was asked for",
    ),
}
"""Code of a fault in a timed run, its outcome, and the reason. ``BROKEN`` lists outcomes that are the code's fault."""
QUICK = ("crash", "a wrong clock", "other routing")
"""One fault for each kind of result: FAIL, INVALID, and a refusal that is not repeated. The others are slow tests."""
BROKEN = ("crashed", "hung", "no_record", "short", "diverged")


@pytest.mark.parametrize(
    "fault", [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS]
)
def test_a_repeated_fault_of_the_head_alone_is_fail_or_invalid(case: Case, genuine: Path, fault: str) -> None:
    """A fault of the head's code is a FAIL. A fault that only prevents the measurement is INVALID."""
    fault_code, outcome, reason = FAULTS[fault]
    config = REPLAYED.replace("timeout_min = 1", "timeout_min = 0.08") if fault_code == HANG else REPLAYED
    replayed(case, genuine, head=fault_code, config=config)
    code, verdict = case.check()
    validity = only(verdict)["validity"]
    expected = ("FAIL", 1) if outcome in BROKEN else ("INVALID", 4)
    assert (validity["status"], code, verdict["verdict"]) == (expected[0], expected[1], expected[0]), validity
    assert reason in validity["reasons"][0], validity
    assert only(verdict)["sharding"]["status"] == "PASS", "the traces are sound"
    assert only(verdict)["throughput"]["decision"] != "no_change"
    first_attempts, second_attempts = [(0, 0, 1, "ok"), (0, 1, 1, outcome)], [(0, 0, 2, "ok"), (0, 1, 2, outcome)]
    assert places(case) == (first_attempts if outcome == "refused" else first_attempts + second_attempts)
    assert guests_of(case.home) == []


# ---- regbot run


@pytest.mark.long
def test_one_run_writes_a_record_for_a_commit_or_for_the_working_tree(case: Case) -> None:
    head = case.commit(config=TIMED_CONFIG)
    case.commit("raise RuntimeError('the files as they stand')\n", None)
    out = case.home / "run.json"
    result = case.regbot("run", "moe", "--rev", "HEAD~1", "--out", str(out), "--json")
    assert result.returncode == 0, result.stderr
    run = read_record(out, Run)
    assert json.loads(result.stdout) == json.loads(out.read_text())
    assert (run.tier, run.outcome, run.workload, run.arm.commit) == ("timed", "ok", ENTRY, head)
    assert run.timing is not None
    assert (run.timing.requested_steps, run.timing.cut) == (6, 1), "as the configuration has it, and as a check has it"
    working_tree = case.regbot("run", "moe", "--out", str(out))
    assert working_tree.returncode == 4
    assert "the files as they stand (userpkg/moe.py:1" in working_tree.stdout
    assert read_record(out, Run).outcome == "crashed"
