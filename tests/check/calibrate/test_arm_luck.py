"""A program that draws its speed with its compiler cache: calibration sees it, and no comment-only commit fails."""

from pathlib import Path

import pytest

from regbot.records.session import read_session
from support.check_cases import Case, only

CONFIG = """
version = 1
[workloads.train]
adapter = "command"
command = ["{python}", "train.py", "{steps}", "DRAWN"]
shapes = ["mixtral-8x7b"]
[session]
steps = 30
warmup = 10
"""
TUNED = """
import os, pathlib, random, sys
steps, drawn = int(sys.argv[1]), pathlib.Path(sys.argv[2])
kernel = pathlib.Path(os.environ["TRITON_CACHE_DIR"], "fastest-kernel")
if not kernel.exists():
    drawn.mkdir(exist_ok=True)
    number = len(list(drawn.iterdir()))
    (drawn / str(number)).touch()
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_text(random.Random(number).choice(["1.00", "1.03"]))
noise = random.Random()
level = float(kernel.read_text()) * (1 + noise.gauss(0, 0.002))
for step in range(steps):
    print(f"completed step: {step}, seconds: {0.004 * level * (1 + noise.gauss(0, 0.001)):.6f}, "
          "TFLOP/s/device: 1.000, Tokens/s/device: 8.000, total_weights: 8, loss: 9.000")
"""


@pytest.mark.slow
def test_a_program_that_draws_its_speed_per_cache_loses_the_vote_and_its_comment_does_not_fail(tmp_path: Path) -> None:
    case = Case(tmp_path)
    drawn = str(tmp_path / "drawn")
    case.repository.commit("base", {"regbot.toml": CONFIG.replace("DRAWN", drawn), "train.py": TUNED})
    calibrated = case.regbot("calibrate", "train", "--who", "ada", "--pairs", "24", "--out", str(tmp_path / "placebos"))
    assert calibrated.returncode == 0, calibrated.stderr
    assert "the gate has no vote here: part of the speed of one commit is drawn by chance" in calibrated.stdout
    store = case.repository.path / "baselines"
    assert not list((tmp_path / "placebos").rglob("fastest-kernel")), "the caches of ended sessions are removed"
    case.repository.git("checkout", "-q", "-b", "pr")
    case.repository.commit("comment", {"train.py": f"# a comment\n{TUNED}"})
    code, verdict = case.check("--baselines", str(store), "--budget", "5")
    assert (code, verdict["verdict"]) == (3, "INCONCLUSIVE")
    assert "the luck of an arm" in only(verdict)["throughput"]["reasons"][0]
    runs = read_session(tmp_path / "out" / "session.jsonl").runs
    assert {run.position.draw for run in runs if run.position} >= {1, 2}, "a check draws the caches anew"
