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
