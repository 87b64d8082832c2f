"""Resuming an interrupted check: after any interruption no run is lost and none is repeated."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.check_cases import REGBOT, Case, guests_of, only
from support.command_cases import CONFIG as COMMAND_CONFIG
from support.command_cases import train
from support.guest_runs import Shared
from support.layers import CONFIG, GOOD_LAYER, TIMED_CONFIG, genuine_runs, replay

SEED = int(os.environ.get("REGBOT_TEST_SEED", "20261121"))
COMBINE = "Exchange.apply(F.silu(self.experts(Exchange.apply(x, self.group))), self.group)"
MORE_EXCHANGES = GOOD_LAYER.replace(COMBINE, f"Exchange.apply(Exchange.apply({COMBINE}, self.group), self.group)")
REPLAYED = TIMED_CONFIG.replace("[session]", 'python = "tools/python"\n[session]')


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture
def genuine(shared: Shared) -> Path:
    return shared("genuine runs", genuine_runs)


@pytest.fixture
def replayed(case: Case, genuine: Path) -> Case:
    """A pull request that changes a kernel. Its runs replay real records, so that a session takes seconds."""
    replay(case.repository.path / "tools" / "python", genuine)
    case.pull_request(GOOD_LAYER, config=REPLAYED)
    case.commit(config=None, **{"kernels.cu": "// faster\n"})
    return case


def begin(case: Case, *arguments: str, program: Sequence[str] = (REGBOT,)) -> "subprocess.Popen[str]":
    """Start ``regbot check`` in the background, in its own process session."""
    return subprocess.Popen(
        [*program, "check", "--base", "main", "--json", "--out", str(case.home / "out"), *arguments],
        cwd=case.repository.path,
        env={**os.environ, "REGBOT_CACHE": str(case.home / "cache"), "REGBOT_TEST_CASE": str(case.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def session_file(case: Case) -> Path:
    return case.home / "out" / "session.jsonl"


def complete_lines(case: Case) -> bytes:
    """Return the complete lines of the session file."""
    text = session_file(case).read_bytes() if session_file(case).exists() else b""
    return text[: text.rfind(b"\n") + 1]


def wait_for_runs(case: Case, number: int) -> None:
    """Wait until ``number`` runs are in the session."""
    until = time.monotonic() + 120
    while complete_lines(case).count(b"\n") < 1 + number:
        assert time.monotonic() < until, "the session does not grow"
        time.sleep(0.02)


def guests(case: Case) -> list[str]:
    """Return guest processes of this test that still exist after ten seconds."""
    until = time.monotonic() + 10.0
    while (remaining := guests_of(case.home)) and time.monotonic() < until:
        time.sleep(0.05)
    return remaining


def kill_often(case: Case, kills: int, latest_s: float, *arguments: str) -> bytes:
    """Kill regbot, but not its guests, at random moments. Return the lines that are written after the last kill."""
    random_moments = random.Random(SEED)
    print(f"REGBOT_TEST_SEED={SEED}")  # pytest prints it if a test fails
    kept_lines = b""
    for _ in range(kills):
        moment = random_moments.uniform(0.1, latest_s)
        process = begin(case, "--resume", *arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.kill()
        _, output = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0, 1, 3), output
        written = complete_lines(case)
        assert written.startswith(kept_lines), "written lines never change"
        kept_lines = written
        assert guests(case) == []
    return kept_lines


def change_workload(case: Case, tier: str) -> None:
    """Create a pull request that is traced only, or a slower one that is timed only. Its runs take little time."""
    if tier == "timed":
        case.repository.commit("base", {"regbot.toml": COMMAND_CONFIG, "train.py": train(0.02)})
        case.repository.git("checkout", "-q", "-b", "pr")
        case.repository.commit("head", {"train.py": train(0.05)})
    else:
        case.pull_request(MORE_EXCHANGES, config=f'{CONFIG}device = "cpu"\n')


def essence(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on the measured times."""
    entry = only(verdict)
    decision = entry["throughput"] and entry["throughput"]["decision"]
    return {"verdict": verdict["verdict"], "sharding": entry["sharding"], "decision": decision}


@pytest.mark.long
@pytest.mark.parametrize("tier", ["static", "timed"])
def test_a_check_that_is_killed_at_twenty_random_moments_ends_like_an_undisturbed_one(
    tmp_path: Path, tier: str
) -> None:
    undisturbed, killed = Case(tmp_path / "undisturbed"), Case(tmp_path / "killed")
    change_workload(undisturbed, tier)
    change_workload(killed, tier)
    start = time.monotonic()
    code, verdict = undisturbed.check()
    duration_s = time.monotonic() - start
    kept = kill_often(killed, 20, duration_s if tier == "static" else duration_s / 2)  # a trace must be able to end
    killed_code, killed_verdict = killed.check("--resume")
    assert (killed_code, essence(killed_verdict)) == (code, essence(verdict))
    assert session_file(killed).read_bytes().startswith(kept)
    runs = [(run["tier"], run["arm"]["name"], run["position"], run["attempt"]) for run in killed.runs()]
    assert len({json.dumps(run) for run in runs}) == len(runs), "no run is repeated"


# ---- other interruptions


@pytest.mark.slow
def test_a_session_of_another_check_is_neither_resumed_nor_changed(replayed: Case) -> None:
    replayed.check("--no-timing")
    written = session_file(replayed).read_bytes()
    arguments = ("check", "--base", "main", "--out", str(replayed.home / "out"), "--resume")
    for options, difference in (
        (("--head-set", "fast=true", "--no-timing"), "head"),
        (("--base-set", "fast=true", "--no-timing"), "base"),
        ((), "timing"),
    ):
        result = replayed.regbot(*arguments, *options)
        assert result.returncode == 2, result.stdout
        assert f"is of another check ({difference} differs)" in result.stderr
        assert "leave out --resume to begin anew, or give another --out" in result.stderr
        assert session_file(replayed).read_bytes() == written


@pytest.mark.slow
def test_an_interrupted_check_says_how_to_resume_and_can_be_resumed(replayed: Case) -> None:
    process = begin(replayed)
    wait_for_runs(replayed, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert guests(replayed) == []
    kept = complete_lines(replayed)
    code, verdict = replayed.check("--resume")
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert session_file(replayed).read_bytes().startswith(kept)
    runs = [(run["tier"], run["arm"]["name"], json.dumps(run["position"])) for run in replayed.runs()]
    assert len(runs) == len(set(runs)) == 2 + 2 + 8, "no run is missing or repeated"
