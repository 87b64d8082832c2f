"""Files of step times as training code, or somebody's script, leaves them; and ``regbot compare`` on them."""

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from regbot.cli.app import app
from regbot.records.run import Arm, Node, RankSteps, Run, Timing
from regbot.records.verdict import EXIT_CODES, Verdict

STEP_S = 0.25
GOLDEN = Path(__file__).parents[1] / "golden" / "compare"


def step_times(
    seed: str,
    seconds: float = STEP_S,
    run_sd: float = 0.003,
    step_sd: float = 0.01,
    stall: float = 0.0,
    steps: int = 50,
) -> list[float]:
    """A run with a slow start, a level of its own, neighbouring steps that are alike, and a stall every fifth step."""
    chance = random.Random(seed)
    level, noise, found = chance.gauss(0, run_sd), 0.0, []
    for step in range(steps):
        noise = 0.4 * noise + chance.gauss(0, step_sd)
        warm_up = 2 * math.exp(-step / 2)
        found.append(seconds * math.exp(level + noise) * (1 + warm_up) * (1 + stall * (step % 5 == 4)))
    return found


def csv(times: Sequence[float]) -> str:
    return "step,step_s\n" + "".join(f"{step},{value:.6f}\n" for step, value in enumerate(times))


def write_runs(name: str, count: int, **noise: Any) -> list[str]:
    """That many runs as CSV files in the working folder, by ``step_times``."""
    names = [f"{name}{number:02}.csv" for number in range(count)]
    for each in names:
        Path(each).write_text(csv(step_times(each, **noise)))
    return names


def regbot(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def assert_golden(name: str, found: Result) -> None:
    path, text = GOLDEN / f"{name}.txt", f"{found.stdout}exit code {found.exit_code}\n"
    if os.environ.get("REGBOT_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def verdict_of(base: Sequence[str], head: Sequence[str], *options: str) -> Verdict:
    """The verdict by ``--json``, and the exit code that belongs to it."""
    found = regbot("--base", *base, "--head", *head, *options, "--json")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    verdict = Verdict.model_validate_json(found.stdout)
    assert found.exit_code == EXIT_CODES[verdict.verdict]
    assert found.stderr == ""
    return verdict


def section(verdict: Verdict) -> Any:
    (entry,) = verdict.workloads
    assert (entry.name, entry.sharding) == ("files", None)
    return entry.throughput


FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"


def write_logs(arm: str, count: int, write: Callable[..., str], seconds: float = STEP_S, **options: Any) -> list[str]:
    """That many runs in a framework's format in the working folder."""
    names = [f"{arm}{number:02}.log" for number in range(count)]
    for name in names:
        Path(name).write_text(write(step_times(name, seconds), **options))
    return names


def real(name: str) -> str:
    path = FIXTURES / name
    if not path.exists():
        pytest.skip(f"the real samples are not beside this repository ({name})")
    return str(path)


def megatron(times: Sequence[float], interval: int = 1) -> str:
    return "".join(
        f" [2026-08-22 07:30:30.123456] iteration {interval * step:8d}/ 100 | elapsed time per iteration (ms): "
        f"{1000 * seconds:.1f} | lm loss: 1.8E+00 | number of skipped iterations:   0 | number "
        "of nan iterations:   0 |\n"
        for step, seconds in enumerate(times, start=1)
    )


def maxtext(times: Sequence[float]) -> str:
    return "".join(
        f"completed step: {step}, seconds: {seconds:.6f}, TFLOP/s/device: 1.000, loss: 9.000\n"
        for step, seconds in enumerate(times)
    )


def golden(times: Sequence[float]) -> str:
    values = {str(step): "nan" if step == 1 else seconds for step, seconds in enumerate(times, start=1)}
    return json.dumps({"iteration-time": {"start_step": 1, "end_step": 50, "step_interval": 1, "values": values}})


def titan(times: Sequence[float]) -> str:
    return "".join(
        f"[titan] 2026-03-03 15:24:02,506 - root - INFO - step: {step:2}  loss:  6.1  grad_norm:  2.4  memory:  1.0GiB"
        f"(1.13%)  tps: {round(400_000 / seconds):,}  tflops: 25.1  mfu: 2.54%\n"
        for step, seconds in enumerate(times, start=1)
    )


def says(verdict: Verdict, *words: str) -> bool:
    return any(all(word in warning for word in words) for warning in verdict.warnings)


def run_record(seed: str, arm: str = "base", **changes: Any) -> Run:
    """A timed run as an engine would have recorded it."""
    times = step_times(seed, **changes.pop("noise", {}))
    ranks = RankSteps(step_s=times, cpu_s=times, wait_s=times, memory_bytes=[1] * len(times), peak_bytes=1)
    timing = Timing(
        requested_steps=len(times),
        cut=changes.pop("cut", 10),
        method="first 10",
        clock=changes.pop("clock", "perf_counter"),
        step_s=times,
        ranks={"0": ranks},
        memory_peak_bytes=1,
        memory_slope_bytes=0.0,
    )
    fields: dict[str, Any] = {
        "arm": Arm(name=arm, revision=arm, commit="a" * 40, tree="b" * 40),  # type: ignore[arg-type]
        "workload": "moe",
        "adapter": "smoke",
        "shape": "mixtral-8x7b@1",
        "variant": "cpu",
        "tier": "timed",
        "outcome": "ok",
        "wall_s": 20.0,
        "timing": timing,
        "node": Node(name="n1", node_class="2 cores", cores=2),
    }
    return Run(**{**fields, **changes})


def write_records(name: str, count: int, **changes: Any) -> list[str]:
    names = [f"{name}{number}.json" for number in range(count)]
    for each in names:
        Path(each).write_text(run_record(each, **changes).to_json())
    return names


def write_session(base_count: int, head_count: int, **changes: Any) -> tuple[list[str], list[str]]:
    """Run records of one session on one node: base and head in turn, a launch every minute. ``changes`` may have
    ``head_noise`` for ``step_times``, and fields of all records.
    """
    noises: dict[str, Any] = {"b": {}, "h": changes.pop("head_noise", {})}
    counts = {"b": base_count, "h": head_count}
    order = sorted((number, arm) for arm in "bh" for number in range(counts[arm]))
    names: dict[str, list[str]] = {"b": [], "h": []}
    for minute, (number, arm) in enumerate(order):
        name = f"{arm}{number:02}.json"
        record = run_record(name, noise=noises[arm], **{"started_unix_s": 1.79e9 + 60.0 * minute, **changes})
        Path(name).write_text(record.to_json())
        names[arm].append(name)
    return names["b"], names["h"]
