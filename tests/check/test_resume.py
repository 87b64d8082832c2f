"""Resuming an interrupted check: after any interruption no run is lost and none is repeated."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.check_cases import REGBOT, Case, guests_of
from support.guest_runs import Shared
from support.layers import GOOD_LAYER, TIMED_CONFIG, genuine_runs, replay

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
