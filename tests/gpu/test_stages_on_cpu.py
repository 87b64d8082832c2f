"""The stages of ``benchmarks/first_hour.py`` on processors: every program that a stage launches runs, at a small size.

``test_first_hour.py`` has the stages that need the stand-in for a GPU, and the tables.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import first_hour
import pytest
from gpu_hour import comparison, stages, tables
from gpu_hour.launcher import Launcher, Settings
from gpu_hour.records import StageRecords
from gpu_hour.tables import read_table

from support.guest_runs import MIXTRAL
from support.layers import replay

FAULTS = {"crash", "hang"}
NEEDS_TRITON = "torchtitan's layer cannot be imported: No module named 'triton'"


def run_stages(out: Path, names: Sequence[str], *options: str) -> dict[str, dict[str, str]]:
    """Run stages on processors. Return seen values by stage and row. No launch may fail, except planted faults."""
    first_hour.main([*names, "--size", "cpu", "--device", "cpu", "--out", str(out), *options])
    seen: dict[str, dict[str, str]] = {}
    for name in names:
        stage = StageRecords(out / name)
        assert [stage.missing(launch) for launch in stage.launches.keys() - FAULTS if stage.missing(launch)] == []
        rows = read_table(stage, name)
        assert [row for row in rows if row.what == "records"] == [], "a table lacks a record"
        differing = [row for row in rows if row.agrees is False and NEEDS_TRITON not in row.seen]
        assert [row.what for row in differing if row.what.partition(": ")[2] not in TIMES] == []
        seen[name] = {row.what: row.seen for row in rows}
    return seen


TIMES = {"decision", "difference", "growth of memory"}
"""Rows that depend on the speed or the memory of a machine that other work shares."""


@pytest.fixture
def one_shape(monkeypatch: pytest.MonkeyPatch, paper_library: Path) -> None:
    """One shape instead of two, as few steps as the tables allow, and the paper GPU of all tests."""
    monkeypatch.setattr(comparison, "paper_library", lambda: paper_library)
    for module in (stages, tables):
        monkeypatch.setattr(module, "SHAPES", (MIXTRAL,))
    monkeypatch.setattr(stages, "STEPS", 6)
    monkeypatch.setattr(stages, "WARMUP", 2)


@pytest.mark.slow
def test_the_stages_of_one_rank_run(tmp_path: Path, one_shape: None) -> None:
    names = ["capabilities", "smoke", "paper"]
    seen = run_stages(tmp_path, names)
    assert seen["smoke"][f"{MIXTRAL}: outcome"] == "ok"
    assert seen["smoke"][f"{MIXTRAL}: counter proven alive"] == "1 of 1"
    assert seen["paper"][f"{MIXTRAL}: collectives"] == "0 in 0 rows"


@pytest.mark.slow
def test_the_stage_overhead_runs(tmp_path: Path, one_shape: None) -> None:
    overhead = run_stages(tmp_path, ["overhead"])["overhead"]
    assert "%" in overhead["cost of the probe"]


@pytest.mark.slow
def test_the_stage_multi_runs_the_programs_of_gloo_profiles_and_faults(
    tmp_path: Path, one_shape: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # compiling takes most of a minute
    seen = run_stages(tmp_path, ["multi"], "--gpus", "2")["multi"]
    assert seen[f"{MIXTRAL}: outcome"] == "ok"
    assert seen[f"{MIXTRAL}: collectives"].startswith("18 in ")
    assert (seen["crash: outcome"], seen["hang: outcome"]) == ("crashed", "hung")
    for mode in ("eager", "compiled"):
        assert seen[f"{mode}: collectives"].endswith(" a step")
        assert StageRecords(tmp_path / "multi").record(mode, "backends.1.json").is_file()


@pytest.mark.slow
def test_the_stage_noise_times_pairs_of_equal_and_of_slower_launches(tmp_path: Path, one_shape: None) -> None:
    """One launch is real. The launches of the stage replay its record, as much slower as they are requested to be."""
    launcher = Launcher("smoke", Settings(tmp_path / "real", sys.executable, "cpu", "cpu"))
    assert launcher.run(launcher.request("once", MIXTRAL, 1, steps=20, warmup=5, limit_s=90.0)) == 0
    recorded = launcher.folder / "once" / "record" / "raw.0.json"
    for name in ("trace/record/raw.json", "scratch/record/raw.0.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(recorded.read_bytes())
    slower = "[scale(record, 1 + request['slowdown_pct'] / 100) for record in records]; seconds = total()"
    python = replay(tmp_path / "python", tmp_path, slower)
    noise = run_stages(tmp_path / "hour", ["noise"], "--python", str(python))["noise"]
    assert (noise["placebo: difference"], noise["planted: difference"]) == ("+0.00%", "+5.00%")
    assert (noise["placebo: decision"], noise["planted: decision"]) == ("no_change", "regressed")
    assert (noise["placebo: pairs"], noise["planted: pairs"]) == ("4", "4")


@pytest.mark.long
def test_a_compiled_step_has_a_profile_too(tmp_path: Path) -> None:
    seen = run_stages(tmp_path, ["profiles"])["profiles"]
    for mode in ("eager", "compiled"):
        assert seen[f"{mode}: collectives"], "one rank has none, and the reader says why"
    launches = StageRecords(tmp_path / "profiles").launches
    assert launches["compiled"]["wall_s"] > launches["eager"]["wall_s"]


@pytest.mark.long
def test_the_stage_noise_runs_its_own_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stages, tables):
        monkeypatch.setattr(module, "BLOCKS", ("ABBA",))
    noise = run_stages(tmp_path, ["noise"])["noise"]
    assert (noise["placebo: pairs"], noise["planted: pairs"]) == ("2", "2")
    assert "noise of a pair" in " ".join(noise)
