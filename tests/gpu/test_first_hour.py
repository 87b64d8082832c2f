"""``benchmarks/first_hour.py`` without a GPU: its stages on stand-ins, and its tables on records."""

import gzip
import json
from pathlib import Path
from typing import Any

import first_hour
import pytest
from gpu_hour import comparison, launcher
from gpu_hour.launcher import Launcher, Settings, read_geometry
from gpu_hour.records import StageRecords
from gpu_hour.rows import Row
from gpu_hour.stages import BLOCKS, ONE_GPU, STAGES
from gpu_hour.tables import TABLES, read_table, write_fixture

from regbot.workloads.shapes import load_shape, shape_names
from support.gpu_stand_in import write_stand_ins
from support.hour_records import SHAPE, change_json, write_stage, write_timed_launch


def marks(stage: StageRecords, name: str) -> dict[str, str]:
    """The mark of every row, by its name."""
    return {row.what: row.mark for row in read_table(stage, name)}


@pytest.mark.slow
def test_on_a_stand_in_the_stages_of_one_gpu_see_what_the_paper_gpu_expects(
    tmp_path: Path, paper_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_stand_ins(tmp_path / "bin", paper_library)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    out, fixtures = tmp_path / "hour", tmp_path / "fixtures"
    stages = ["capabilities", "smoke", "paper", "overhead"]
    options = ["--size", "cpu", "--out", str(out), "--python", str(folder / "python")]
    assert first_hour.main([*stages, *options]) == 0
    first_hour.main(["report", "--out", str(out), "--fixtures", str(fixtures)])
    differing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]
    # This torch may lack NCCL, and steps of a few milliseconds on a busy processor do not show the cost of the probe.
    assert {line.split()[1] for line in differing} <= {"backend", "cost"}
    rows = {row.what: row for name in stages for row in read_table(StageRecords(out / name), name)}
    assert rows["mixtral-8x7b: peak memory"].seen.endswith("(+0.0%)")
    assert rows["mixtral-8x7b: operators"].mark == "ok"
    assert StageRecords(out / "smoke").run("mixtral-8x7b").node.node_class == "1 x NVIDIA H200"
    assert {path.name for path in fixtures.iterdir()} == {f"{name}.json.gz" for name in stages}

    step = out / "paper" / "mixtral-8x7b" / "record" / "step.0.json"
    operators = json.loads(step.read_text())["operators"]
    change_json(step, operators={**operators, "aten::mm": operators["aten::mm"] + 1}, peak_bytes=10**9)
    planted = marks(StageRecords(out / "paper"), "paper")
    assert planted["mixtral-8x7b: operators"] == planted["mixtral-8x7b: peak memory"] == "DIFFERS"
    assert planted["qwen3-30b-a3b: operators"] == "ok"


@pytest.mark.long
def test_two_ranks_have_the_collectives_of_the_paper_gpu_and_report_faults(
    tmp_path: Path, paper_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "paper_library", lambda: paper_library)
    out = tmp_path / "hour"
    first_hour.main(["gloo", "faults", "--size", "cpu", "--device", "cpu", "--out", str(out)])
    assert set(marks(StageRecords(out / "gloo"), "gloo").values()) == {"ok"}
    assert set(marks(StageRecords(out / "faults"), "faults").values()) == {"ok"}
    request = StageRecords(out / "gloo").json(SHAPE, "request.json")
    real = json.loads(StageRecords(out / "gloo").record(SHAPE, "step.0.json").read_text())
    real["entries"][0]["count"] += 1
    (row,) = comparison.compare_with_paper("step", request, real)
    assert row.agrees is False
    assert row.seen.startswith("19 in 14 rows; all_gather dp 2 float32 forward payload : (1, ")


def write_noise(folder: Path, placebo_pct: float, planted_pct: float) -> StageRecords:
    """A stage of which the second arm was slower by these percentages, with a little noise."""
    launches = []
    for session, slower_pct in (("placebo", placebo_pct), ("planted", planted_pct)):
        for block, order in enumerate(BLOCKS, 1):
            for slot, arm in enumerate(order):
                step_s = 0.3 * (1 + 0.0005 * ((block + slot) % 3)) * (1 + slower_pct / 100 if arm == "B" else 1)
                launches.append(write_timed_launch(folder, f"{session}-{block}-{slot}-{arm}", step_s))
    return write_stage(folder, launches)


def test_the_noise_table_sees_the_planted_slowdown(tmp_path: Path) -> None:
    rows = {row.what: row for row in read_table(write_noise(tmp_path / "noise", 0.0, 5.0), "noise")}
    assert rows["planted: decision"] == Row("planted: decision", "regressed", "regressed", True)
    assert rows["placebo: decision"].agrees
    assert rows["planted: pairs"].seen == "4"
    assert rows["planted: difference"].expected == "+5%"
    assert rows["planted: difference"].seen.startswith(("+4.9", "+5.0"))


@pytest.mark.parametrize(("placebo_pct", "planted_pct", "wrong"), [(0.0, 0.0, "planted"), (5.0, 5.0, "placebo")])
def test_the_noise_table_differs_where_the_gate_is_blind_or_raises_an_alarm(
    tmp_path: Path, placebo_pct: float, planted_pct: float, wrong: str
) -> None:
    stage = write_noise(tmp_path / "noise", placebo_pct, planted_pct)
    assert marks(stage, "noise")[f"{wrong}: decision"] == "DIFFERS"


GROUPED = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>"


@pytest.mark.parametrize(
    ("path", "kernel", "mark"),
    [
        ("sm90_kernel", GROUPED, "ok"),
        ("sm90_kernel", "nvjet_tst_128x128", "DIFFERS"),
        ("loop_in_torch", "nvjet_tst_128x128", "ok"),
        ("loop_in_torch", GROUPED, "DIFFERS"),
    ],
)
def test_the_kernels_of_a_profile_prove_the_name_of_the_grouped_products(
    tmp_path: Path, path: str, kernel: str, mark: str
) -> None:
    launch = {"name": "eager", "code": 0, "wall_s": 9.0, "timed_out": False}
    stage = write_stage(tmp_path / "profiles", [launch])
    stage.record("eager", "").mkdir(parents=True)
    launcher.write_json(stage.record("eager", "kernels.0.json"), {kernel: [9, 120.0]})
    launcher.write_json(stage.record("eager", "backends.0.json"), {"grouped_gemm": path})
    assert marks(stage, "profiles")["eager: grouped products"] == mark


def test_a_launch_that_failed_or_was_left_out_differs(tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    entries: list[dict[str, Any]] = [
        {"name": "qwen3-30b-a3b", "ranks": 1, "code": None, "wall_s": 0.0, "timed_out": False, "skipped": True},
        {"name": SHAPE, "ranks": 1, "code": 1, "wall_s": 5.0, "timed_out": False},
    ]
    (folder / SHAPE).mkdir(parents=True)
    (folder / SHAPE / "output.log").write_text("torch.OutOfMemoryError: CUDA out of memory\nmore\n")
    stage = write_stage(folder, entries)
    assert stage.missing("qwen3-30b-a3b") == "left out: the stage had no time for it"
    assert stage.missing(SHAPE) == "exit code 1: torch.OutOfMemoryError: CUDA out of memory"


def test_missing_records_do_not_hide_the_other_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_stage(tmp_path / "overhead", [{"name": SHAPE, "code": 0, "wall_s": 9.0, "timed_out": False}])
    write_noise(tmp_path / "noise", 0.0, 5.0)
    assert first_hour.main(["report", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "DIFFERS  records" in printed
    assert "planted: decision" in printed


def test_a_fixture_is_small_has_no_paths_and_is_the_same_each_time(tmp_path: Path) -> None:
    stage = write_noise(tmp_path / "noise", 0.0, 5.0)
    rows = read_table(stage, "noise")
    for name in ("first", "second"):
        write_fixture(stage, "noise", rows, tmp_path / name)
    first, second = ((tmp_path / name / "noise.json.gz").read_bytes() for name in ("first", "second"))
    assert first == second
    assert len(first) < 20_000
    assert str(tmp_path) not in gzip.decompress(first).decode()


def test_every_stage_has_a_table_and_only_multi_needs_more_than_one_gpu() -> None:
    assert list(TABLES) == list(STAGES)
    assert set(STAGES) - set(ONE_GPU) == {"multi"}


def test_the_node_reads_the_dimensions_that_regbot_has() -> None:
    for name in shape_names():
        shape = load_shape(name)
        assert {size: read_geometry(name, size) for size in shape.sizes} == {
            size: geometry.model_dump() for size, geometry in shape.sizes.items()
        }


def test_a_launch_is_ended_at_its_limit_and_none_begins_after_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho started\nsleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(launcher, "STAGE_S", 2.0)
    stage = Launcher("smoke", Settings(tmp_path, str(python), "cpu", "cpu"))
    assert stage.run(stage.request("slow", SHAPE, 1), limit_s=1.0) is None
    stage.run(stage.request("late", SHAPE, 1), limit_s=60.0)
    launches = StageRecords(tmp_path / "smoke").launches
    assert launches["slow"]["timed_out"]
    assert StageRecords(tmp_path / "smoke").log("slow") == "started"
    assert launches["late"]["skipped"]
