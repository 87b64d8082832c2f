"""Calibration: a commit against itself through the whole pipeline, with a program whose noise is known."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regbot.baselines import Store
from regbot.baselines.reference import summarise_calibrations
from regbot.cli.app import app

TRAINER = """
import random, sys, time
steps, slowdown = int(sys.argv[1]), float(sys.argv[2])
draw = random.Random()
level = NOISE and draw.gauss(0, NOISE)
for step in range(steps):
    took = 0.004 * (1 + level + draw.gauss(0, 0.001)) * (1 + slowdown / 100)
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: 1.000, Tokens/s/device: 8.000, "
          "total_weights: 8, loss: 9.000")
"""
CONFIG = """
version = 1
[workloads.train]
adapter = "command"
command = ["{python}", "train.py", "{steps}", "{slowdown_pct}"]
shapes = ["mixtral-8x7b"]
[session]
steps = 30
warmup = 10
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAINER.replace("NOISE", "0.004"))
    (tmp_path / "regbot.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGBOT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def calibrate(*options: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["calibrate", "train", "--who", "ada", *options])
    return answer.exit_code, answer.output


@pytest.mark.slow
def test_twenty_placebo_pairs_and_five_with_a_slowdown_are_stored_with_what_the_gate_said(folder: Path) -> None:
    code, text = calibrate("--pairs", "20", "--inject", "20", "--injected-pairs", "5")
    assert code == 0, text
    store = Store(folder / "baselines")
    (group,) = store.class_folders()
    (path,) = store.calibrations(group)
    found = store.calibration(path)
    placebos = [session for session in found.sessions if not session.injected_pct]
    slowed = [session for session in found.sessions if session.injected_pct]
    assert sum(len(session.log_ratios["median"]) for session in placebos) in (20, 21)
    assert sum(len(session.log_ratios["median"]) for session in slowed) == 6, "whole blocks of two"
    assert {session.decision for session in slowed} <= {"regressed", "undecided"}
    assert "regressed" in {session.decision for session in slowed}
    shows = summarise_calibrations([found])
    assert shows is not None
    assert 0.2 < shows.sd_pct < 1.5
    assert (shows.injected_pct, shows.contradicted) == (20.0, "")
    assert "placebo sessions" in text
    assert "+20% found" in text


@pytest.mark.slow
def test_what_was_ended_goes_on_and_another_calibration_is_not_overwritten(folder: Path) -> None:
    assert calibrate("--pairs", "4")[0] == 0
    before = (folder / "regbot-calibration" / "session-01.jsonl").read_bytes()
    code, text = calibrate("--pairs", "4")
    assert (code, "--resume" in text) == (2, True)
    first = folder / "regbot-calibration" / "session-01.jsonl"
    first.write_bytes(b"".join(before.splitlines(keepends=True)[:5]))
    assert calibrate("--pairs", "4", "--resume")[0] == 0
    assert first.read_bytes().startswith(b"".join(before.splitlines(keepends=True)[:5]))
    assert len(first.read_text().splitlines()) >= 1 + 2 + 8


def test_a_program_that_breaks_calibrates_nothing(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(3)")
    code, text = calibrate("--pairs", "4")
    assert code == 2
    assert "session-01.jsonl" in text
    assert not (folder / "baselines").exists()
