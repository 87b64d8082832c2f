"""Step logs: one file, one run, in the formats that frameworks print and store.

The samples follow the frameworks' format strings.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.logs import LogError, StepLog, read_log


def megatron_line(
    step: int, ms: float = 5444.9, loss: float = 1.825991, skipped: int = 0, nan: int = 0, bridge: bool = False
) -> str:
    time = "2026-08-22 07:30:30" if bridge else "2026-08-22 07:30:30.123456"
    return (
        f" [{time}] iteration {step:8d}/{100:8d} | consumed samples: {128 * step:12d} | elapsed time per iteration "
        f"(ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {239.8:.1f} | learning rate: {8.6e-06:.6E} | global batch "
        f"size: {128:5d} | lm loss: {loss:.6E} | load_balancing_loss: {1.019746:.6E} | loss scale: {1.0:.1f} | "
        f"grad norm: {1.426:.3f} | number of skipped iterations: {skipped:3d} | number of nan iterations: {nan:3d} |"
    )


def maxtext_line(step: int, seconds: float = 5.667, loss: float = 10.374, prefix: str = "") -> str:
    return (
        f"I1121 02:29:49.487050 140633946614656 metric_logger.py:207] {prefix}completed step: {step}, seconds: "
        f"{seconds:.3f}, TFLOP/s/device: {134.924:.3f}, Tokens/s/device: {8672.758:.3f}, total_weights: 196608, "
        f"loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: {math.exp(5):.3f}, moe_lb_loss: 0.000"
    )


def titan_line(step: int, tps: int = 350777, loss: str = f"{6.13972:8.5f}", mfu: str = "2.54%", rank: str = "") -> str:
    return (
        f"{rank}[titan] 2026-03-03 15:24:02,506 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss}  "
        f"\x1b[38;5;208mgrad_norm: {2.4066:7.4f}  \x1b[36mmemory: {1.07:5.2f}GiB(1.13%)  \x1b[34mtps: {tps:,}  "
        f"\x1b[36mtflops: {25.11:,.2f}  \x1b[35mmfu: {mfu}\x1b[0m"
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


def read(path: Path, lines: Iterable[str] | str, **options: Any) -> StepLog:
    path.write_text(lines if isinstance(lines, str) else "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_log(path, **options)


def refusal(path: Path, lines: Iterable[str] | str, **options: Any) -> str:
    with pytest.raises(LogError) as error:
        read(path, lines, **options)
    return str(error.value)


def numbers(run: StepLog) -> list[int]:
    return [step.number for step in run.steps]


def says(run: StepLog, *words: str) -> bool:
    return any(all(word in warning for word in words) for warning in run.warnings)


# golden values


TIME, BRIDGE_TIME, BRIDGE_LOSS = "iteration-time", "elapsed time per iteration (ms)", "lm loss"
BY_STEP = {
    TIME: {"values": {"1": "nan", "2": 0.5, "3": 0.25}},
    "lm loss": {"values": {"1": "nan", "2": 9.5, "3": "nan"}},
}


@pytest.mark.parametrize(
    ("document", "numbers_and_seconds", "nan", "steps_per_value"),
    [
        (BY_STEP, [(1, None), (2, 0.5), (3, 0.25)], 1, 1),
        ({TIME: {"start_step": 5, "step_interval": 1, "values": [0.5, 0.25]}}, [(5, 0.5), (6, 0.25)], 0, 1),
        (
            {TIME: {"values": {"1": 1.0, "5": 0.5, "10": 0.25, "15": 0.2}}},
            [(1, 1.0), (5, 0.5), (10, 0.25), (15, 0.2)],
            0,
            None,
        ),
        ({"0": {BRIDGE_TIME: 500, BRIDGE_LOSS: 9}, "1": {BRIDGE_TIME: 250}, "alloc": 7}, [(0, 0.5), (1, 0.25)], 0, 1),
        ({"current": {TIME: {"values": {"7": 0.5}}}, "baseline": {"1": {BRIDGE_TIME: 9}}}, [(7, 0.5)], 0, None),
    ],
    ids=["by step", "older", "every fifth step", "bridge", "wrapped"],
)
def test_golden_values_are_read(
    log: Path,
    document: dict[str, Any],
    numbers_and_seconds: list[tuple[int, float | None]],
    nan: int,
    steps_per_value: int | None,
) -> None:
    run = read(log, json.dumps(document))
    assert run.format == "golden"
    assert [(step.number, step.seconds) for step in run.steps] == numbers_and_seconds
    assert (run.nan, run.steps_per_value) == (nan, steps_per_value)
    assert says(run, "has only every 5th step") == ("10" in document.get(TIME, {}).get("values", {}))
    assert says(run, "'current' are used; the file also has 'baseline', another run") == ("current" in document)


# Megatron


def test_megatron_and_bridge_lines_are_read_among_anything_else(log: Path) -> None:
    noise = ["> building dataset index ...", "[after dataloaders are built] datetime: 2026-08-22", "x" * 40_000, ""]
    for bridge in (False, True):
        lines = [*noise, *(megatron_line(step, 1000 + step, bridge=bridge) for step in range(1, 5)), "done"]
        run = read(log, lines)
        assert run.step_s == (1.001, 1.002, 1.003, 1.004)
        assert run.warnings == ()


def test_a_log_interval_gets_a_warning(log: Path) -> None:
    run = read(log, [megatron_line(step) for step in (10, 20, 30, 40)])
    assert run.steps_per_value == 10
    assert says(run, "mean of 10 steps", "log every step")


@pytest.mark.parametrize(
    ("line", "work"),
    [
        ("eval metrics after step: 5, loss=9.1", "an evaluation"),
        (" validation loss at iteration 5 | lm loss value: 1.8E+00 |", "an evaluation"),
        ("successfully saved checkpoint from iteration 5 to /ckpt", "a checkpoint"),
        ("Profiler: trace written", "the profiler"),
        ("evaluator pool", "an evaluation"),
        ("the medieval era", None),
    ],
)
@pytest.mark.parametrize("slow", [5, 6])
def test_a_slow_step_beside_a_line_of_other_work_is_explained(
    log: Path, line: str, work: str | None, slow: int
) -> None:
    steps = [megatron_line(step, 3000 if step == slow else 1000) for step in range(1, 11)]
    run = read(log, [*steps[:5], line, *steps[5:]])
    assert run.explained == ({slow: work} if work else {})


def test_skipped_and_nan_iterations_are_counted(log: Path) -> None:
    lines = [megatron_line(1), megatron_line(2, skipped=1), megatron_line(3, nan=1), megatron_line(4, loss=math.nan)]
    run = read(log, lines)
    assert (run.skipped, run.nan) == (1, 2)
    assert says(run, "the optimizer skipped 1 steps, at step 2")
    assert says(run, "not finite", "steps 3, 4")
    assert run.steps[3].loss is not None
    assert math.isnan(run.steps[3].loss)


def test_lines_of_bridges_rank_0_are_coarse(log: Path) -> None:
    run = read(log, ["Step Time : 1,025.10s GPU utilization: 240.0MODEL_TFLOP/s/GPU"])
    assert run.step_s == (1025.1,)
    run = read(log, [f"Step Time : {value:.2f}s GPU utilization: 240.0MODEL_TFLOP/s/GPU" for value in (25.1, 2.02)])
    assert (run.step_s, numbers(run)) == ((25.1, 2.02), [1, 2])
    assert says(run, "have no step number")
    assert says(run, "printed to 0.01 s, 0.5% of a step")
    both = read(log, ["Step Time : 9.00s GPU utilization: 240.0MODEL_TFLOP/s/GPU", megatron_line(1)])
    assert both.step_s == (5.4449,)


# which run, which rank


def test_the_last_of_two_jobs_in_a_file_is_used(log: Path) -> None:
    run = read(log, [megatron_line(step, 1000) for step in range(1, 9)] + [megatron_line(s, 2000) for s in range(1, 6)])
    assert run.step_s == (2.0,) * 5
    assert run.jobs == 2
    assert says(run, "2 jobs", "step 1 in line 9 comes after step 8")


def test_the_first_of_several_labelled_ranks_is_used(log: Path) -> None:
    for label in ("[rank{}]: ", "[default{}]:", "[1,{}]<stdout>:", "{}: ", "rank {}: "):
        lines = [label.format(rank) + megatron_line(step, 1000 + rank) for step in (1, 2, 3) for rank in (10, 2, 3)]
        run = read(log, lines)
        assert run.step_s == (1.002,) * 3
        assert says(run, "lines of 3 ranks", "rank 2 are used")


def test_interleaved_ranks_without_labels_are_an_error(log: Path) -> None:
    message = refusal(log, [maxtext_line(step) for step in (0, 1, 0, 2, 1, 3, 2, 4, 3, 4)])
    assert "run.log:3: step numbers go back in 4 of 10 lines (step 0 in line 3 comes after step 1)" in message
    assert "srun --label" in message


# MaxText


def test_maxtext_lines_with_and_without_their_optional_fields(log: Path) -> None:
    short = "completed step: 0, seconds: 1.353, TFLOP/s/device: 1674.038, Tokens/s/device: 36325.072, loss: 9"
    run = read(log, [short, maxtext_line(1, 1.4, 8.5), "Completed eval step: 1, seconds: 3.0", maxtext_line(2, 1.5)])
    assert run.step_s == (1.353, 1.4, 1.5)
    assert [step.loss for step in run.steps] == [9.0, 8.5, 10.374]
    assert run.warnings == ()


def test_a_dispatch_among_maxtext_steps_is_suspect(log: Path) -> None:
    run = read(log, [maxtext_line(step, seconds) for step, seconds in enumerate((44.9, 1.4, 5.6, 5.658, 5.658, 1.5))])
    assert run.suspect == (1,)  # less than a quarter of the median, 5.629 s
    assert says(run, "step 1 took less than a quarter", "only the launch")
    assert run.resolution_s == pytest.approx(0.001)


def metrics(step: float, seconds: float, **more: float) -> str:
    entry = {"learning/loss": 10.5, "perf/step_time_seconds": seconds, "perf/per_device_tflops_per_sec": 134.9}
    return json.dumps({**entry, "step": step, "run_name": "moe", **more})


def test_a_metrics_file_is_read_unrounded(log: Path) -> None:
    lines = [metrics(0.0, 44.9231), metrics(1.0, 5.66712345), metrics(2.0, 5.668, **{"learning/loss": math.nan})]
    run = read(log, "\n".join([*lines, '{"perf/step_time_seconds": 5.6']))
    assert run.step_s == (44.9231, 5.66712345, 5.668)
    assert (run.nan, run.format) == (1, "maxtext")
    assert says(run, "line 4", "incomplete")


# torchtitan


def test_torchtitan_lines_with_colours_and_no_mfu(log: Path) -> None:
    run = read(log, [titan_line(step, 8192 * step, mfu="N/A") for step in (1, 2, 4)], tokens_per_step=8192)
    assert run.step_s == (1.0, 0.5, 0.25)
    assert says(run, "derived: 8192 tokens per step")


@pytest.mark.parametrize(
    "validation", ["validate step: 10  loss:  5.12  memory: 65.53GiB(68.98%)  tps: 32,768", "step 3"]
)
def test_a_validation_between_torchtitans_steps_is_no_incomplete_step(log: Path, validation: str) -> None:
    lines = [titan_line(step, 8192) for step in (1, 2, 3, 4)]
    head = "[rank0]:[titan] 2026-07-10 10:10:30,123 - root - INFO - "
    run = read(
        log, [*lines[:3], head + validation, f"{head}\x1b[32m{validation}\x1b[0m", lines[3]], tokens_per_step=8192
    )
    assert run.step_s == (1.0,) * 4
    assert not says(run, "incomplete")


def nemo_line(step: int, seconds: float, epoch: int = 0, end: str = " | consumed_samples: 512") -> str:
    return (
        f"Training epoch {epoch}, iteration {step % 3}/2 | lr: 1e-06 | global_batch_size: 512 | global_step: {step} | "
        f"reduced_train_loss: 11.03 | train_step_timing in s: {seconds:.4}{end}"
    )


def test_nemo_2_is_not_taken_for_megatron(log: Path) -> None:
    """Both print an iteration. That of NeMo 2 begins again with each epoch."""
    steps = [
        nemo_line(step, 2.01 + step, epoch=step // 3, end="" if step == 0 else " | TFLOPS_per_GPU: 7")
        for step in range(5)
    ]
    run = read(log, ["[NeMo I 2026-07-10] setting up", *steps, "Validation: iteration 1/32"])
    assert (run.format, run.step_s) == ("nemo", (2.01, 3.01, 4.01, 5.01, 6.01))
    assert (numbers(run), run.warnings, run.steps[0].loss) == ([0, 1, 2, 3, 4], (), 11.03)
    assert "known formats" in refusal(log, ["Epoch 0, iteration 7/29 | lr: 1e-06 | step_time: 2.0"])


def test_tensorboards_export_gives_torchtitans_step_times(log: Path) -> None:
    walls = [1.7e9 + 0.25 * step + 0.001 * (step % 3) for step in range(1, 8)]
    scalar = [[wall, step, 0.25] for step, wall in enumerate(walls, start=1)]
    run = read(log, json.dumps(scalar))
    assert (run.format, run.step_s) == ("tensorboard", (0.25,) * 7)
    loss = [[wall, step, 10.5] for step, wall in enumerate(walls, start=1)]
    assert "has another scalar" in refusal(log, json.dumps(loss))


# any file


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999", "-Infinity", "NaN"])
@pytest.mark.parametrize(
    "content",
    [
        "[[1.0, 1, 1.0], [2.0, NUMBER, 1.0]]",
        '{"iteration-time": {"values": {"1": NUMBER, "2": 5}}}',
        '{"perf/step_time_seconds": 1, "step": 1, "learning/loss": NUMBER}\n{"perf/step_time_seconds": 1, "step": 2}',
        '{"perf/step_time_seconds": NUMBER, "step": NUMBER}\n{"perf/step_time_seconds": 1, "step": 2}\n',
    ],
)
def test_numbers_that_nobody_can_calculate_with_are_left_out_or_refused(log: Path, content: str, number: str) -> None:
    with contextlib.suppress(LogError):
        assert all(0 < seconds < 10 for seconds in read(log, content.replace("NUMBER", number)).step_s)


def test_a_path_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(LogError, match="one file is one run"):
            read_log(path)


def test_a_truncated_file_is_never_misread(log: Path) -> None:
    """A file may end anywhere: the result is a prefix of the full result, or an error."""
    for lines in (
        [megatron_line(step, 1000 + step) for step in (1, 2, 3)],
        [maxtext_line(step, 5 + step / 10) for step in (1, 2, 3)],
        [titan_line(step, 1000 + step) for step in (1, 2, 3)],
        [metrics(step, 1 + step / 10) for step in (1, 2, 3)],
    ):
        whole = read(log, lines, tokens_per_step=8192)
        _check_beginnings(log, "\n".join(lines), whole.steps)


def _check_beginnings(log: Path, text: str, whole: Sequence[object]) -> None:
    for end in range(0, len(text), 3):
        try:
            run = read(log, text[:end], tokens_per_step=8192)
        except LogError:
            continue
        assert list(run.steps) == list(whole[: len(run.steps)])
