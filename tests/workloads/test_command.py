"""Workloads that are a command: real processes that print what training code prints, read from outside."""

from pathlib import Path
from typing import Any

import pytest

from regbot.engines import LocalEngine
from regbot.records.files import read_record, write_record
from regbot.records.run import Arm, Position, Run, Timing
from regbot.workloads.command import LOG_RANK, time_command
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.timed import RunSpec
from support.command_tasks import command_task

ARM = Arm(name="head", revision="HEAD", commit="a" * 40, tree="b" * 40)
STEPS, CUT = 6, 2

TRAIN = '''\
"""Prints what a framework prints. Sleeps a little, so that the times can be true."""
import os, sys, time

steps = int(sys.argv[1])
for step in range(1, steps + 1):
    begun = time.perf_counter()
    time.sleep(0.01)
    took = time.perf_counter() - begun
    print(LINE, flush=True)
END
'''
MEGATRON = (
    'f" [2026-08-22 07:30:30.123456] iteration {step:8d}/{steps:8d} | consumed samples: {step:12d} | elapsed time per '
    "iteration (ms): {took * 1000:.1f} | learning rate: 8.6E-06 | global batch size:   128 "
    '| lm loss: {9 - step / 10:.6E} | number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"'
)
MAXTEXT = (
    'f"completed step: {step - 1}, seconds: {took:.6f}, TFLOP/s/device: 1.000, Tokens/s/device: 8.000, '
    'total_weights: 8, loss: {9 - step / 10:.3f}"'
)
TITAN = (
    'f"[rank0]:[titan] 2026-03-03 15:24:02,281 - root - INFO - step: {step:2}  loss: {8.0:8.5f}  grad_norm:  1.4637  '
    'memory:  1.02GiB(1.08%)  tps: {round(4096 / took):,}  tflops: 0.09  mfu: N/A"'
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


def script(line: str = MEGATRON, end: str = "") -> str:
    return TRAIN.replace("LINE", line).replace("END", end)


def launch(
    root: Path,
    text: str,
    command: tuple[str, ...] = ("{python}", "train.py", "{steps}"),
    limits: Limits | None = None,
    timeout_s: float = 60.0,
    **workload: Any,
) -> Run:
    (root / "train.py").write_text(text)
    task = command_task(command, timeout_s, **workload)
    place = RunSpec(Position(block=1, slot=0, order="ABBA"), 1, STEPS, CUT)
    scratch = root.parent / "scratch"
    seat, checkout = LocalEngine().unlocked_seat, Checkout(ARM, root, {"FROM_TREE": "1"})
    run = time_command(task, place, checkout, seat, Scratch(scratch, limits or Limits()))
    write_record(root.parent / "run.json", run)
    assert read_record(root.parent / "run.json", Run) == run
    return run


def timing_of(run: Run) -> Timing:
    assert (run.outcome, run.reason) == ("ok", "")
    assert run.timing is not None
    return run.timing


@pytest.mark.parametrize("line", [MEGATRON, MAXTEXT])
def test_a_command_is_timed_by_what_it_prints(root: Path, line: str) -> None:
    run = launch(root, script(line))
    timing = timing_of(run)
    assert (run.tier, run.adapter, run.exit_code) == ("timed", "command", 0)
    assert (timing.clock, timing.requested_steps, timing.cut, list(timing.ranks)) == ("log", STEPS, CUT, [LOG_RANK])
    assert len(timing.step_s) == STEPS
    assert all(0.009 < seconds < 1 for seconds in timing.step_s)
    assert sum(timing.step_s) < run.wall_s
    assert run.loss == pytest.approx([8.9, 8.8, 8.7, 8.6, 8.5, 8.4])
    assert (run.code, run.ledger, run.backends) == (None, None, {})
    steps = timing.ranks[LOG_RANK]
    assert (steps.cpu_s, steps.wait_s, steps.memory_bytes, steps.peak_bytes) == ([], [], [], 0)


def test_a_log_may_be_a_file_that_regbot_names(root: Path) -> None:
    command = ("{python}", "train.py", "{steps}", "{log}")
    text = "import sys; sys.stdout = open(sys.argv[2], 'w')\n" + script()
    assert len(timing_of(launch(root, text, command=command)).step_s) == STEPS


def test_torchtitan_needs_the_tokens_of_a_step(root: Path) -> None:
    assert "tokens_per_step" in launch(root, script(TITAN)).reason
    timing = timing_of(launch(root, script(TITAN), tokens_per_step=4096))
    assert all(0.009 < seconds < 1 for seconds in timing.step_s)


@pytest.mark.parametrize("end", ["", "os.symlink('/etc/hostname', sys.argv[2])", "os.mkfifo(sys.argv[2])"])
def test_a_command_that_leaves_no_step_log_has_no_record(root: Path, end: str) -> None:
    run = launch(root, script(end=end), command=("{python}", "train.py", "{steps}", "{log}"))
    assert (run.outcome, run.exit_code) == ("no_record", 0)
    assert "left no step log 'steps.log'" in run.reason


def test_a_command_that_fails_has_crashed_whatever_it_printed(root: Path) -> None:
    run = launch(root, script(end="sys.exit('out of memory')"))
    assert (run.outcome, run.exit_code, run.timing) == ("crashed", 1, None)
    assert "exited with code 1" in run.reason
    assert "out of memory" in run.log_tail


def test_more_steps_than_requested_do_not_count(root: Path) -> None:
    run = launch(root, script().replace("range(1, steps + 1)", "range(1, steps + 4)"))
    assert len(timing_of(run).step_s) == STEPS
    assert len(run.loss) == STEPS
    assert any("the log has 9 steps; only the 6 requested ones count" in warning for warning in run.warnings)


ALL_STEPS = "range(1, steps + 1)"
TIME = "{took:.6f}"
OUTCOMES = {
    "fewer steps": (script().replace(ALL_STEPS, "range(1, steps - 1)"), "short", "after 4 of 6 steps"),
    "means": (script().replace(ALL_STEPS, "range(10, 10 * steps + 1, 10)"), "bad_record", "log every step"),
    "few digits": (script(MAXTEXT.replace(TIME, "{took:.3f}")), "bad_record", "too coarse to detect a slowdown of 2%"),
    "long steps": (script(MAXTEXT.replace(TIME, "{took + 60:.6f}")), "bad_record", "the process lived"),
    "no time": (script(MAXTEXT.replace(TIME, "{took * (step != 5):.4f}0")), "bad_record", "no time of step 4"),
    "dispatch": (
        script(MAXTEXT.replace(TIME, "{took * (0.1 if step == 5 else 1):.5f}")),
        "bad_record",
        "step 4 is not a step time",
    ),
    "skipped": (
        script(MEGATRON.replace("skipped iterations: {0:3d}", "skipped iterations: {step // 5:3d}")),
        "diverged",
        "optimizer skipped 2 of 6",
    ),
    "nan": (
        script(MEGATRON.replace("nan iterations: {0:3d}", "nan iterations: {step // 6:3d}")),
        "diverged",
        "not finite in 1 of 6",
    ),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_a_log_without_the_times_of_training_steps_is_not_used(root: Path, case: str) -> None:
    text, outcome, reason = OUTCOMES[case]
    run = launch(root, text)
    assert (run.outcome, reason in run.reason) == (outcome, True), run.reason
    assert (run.timing is None) == (outcome == "bad_record")


def test_output_that_was_dropped_is_not_read(root: Path) -> None:
    text = script(end="print('x' * 200_000)")
    run = launch(root, text, limits=Limits(max_output_bytes=100_000))
    assert run.outcome == "bad_record"
    assert "{log}" in run.reason


def test_the_environment_is_clean_but_for_what_was_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_RUNNER", "1")
    end = "print('A_SECRET_OF_THE_RUNNER' in os.environ, os.environ['FROM_TREE'], os.environ['NCCL_NVLS_ENABLE'])"
    run = launch(root, script(end=end + "; sys.exit(3)"), environment={"NCCL_NVLS_ENABLE": "0"})
    assert "False 1 0" in run.log_tail


def test_overrides_are_filled_into_the_command(root: Path) -> None:
    end = "print('given', *sys.argv[2:]); sys.exit(3)"
    command = ("{python}", "train.py", "{steps}", "--dispatcher={dispatcher}", "{fusion}", '{"a": 1}', "{unknown}")
    run = launch(root, script(end=end), command=command, dispatcher="hybridep", config={"fusion": True})
    assert 'given --dispatcher=hybridep true {"a": 1} {unknown}' in run.log_tail


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ({"dispatcher": "deepep"}, "has no place for 'dispatcher'"),
        ({"config": {"steps": 3}}, "workloads.train.config.steps: regbot fills {steps} itself"),
        ({"routing": "skewed"}, "routing = 'skewed' has no effect on a command"),
    ],
)
def test_an_override_without_a_place_is_refused(root: Path, workload: dict[str, Any], why: str) -> None:
    run = launch(root, script(), **workload)
    assert run.outcome == "refused"
    assert why in run.reason


# what a command has none of


def test_a_command_has_no_static_ledger_and_no_other_models_stands_for_it(root: Path) -> None:
    (root / "train.py").write_text(script(end="open('ran', 'w')"))
    run = trace(
        command_task(("{python}", "train.py", "{steps}")),
        Checkout(ARM, root),
        LocalEngine(),
        Scratch(root.parent / "s", Limits()),
    )
    assert (run.outcome, run.reason) == (
        "refused",
        "a command has no static ledger; give a profile or a dump to 'regbot ledger read'",
    )
    assert run.ledger is None
    assert not (root / "ran").exists()
