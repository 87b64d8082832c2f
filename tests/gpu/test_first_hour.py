"""``benchmarks/first_hour.py`` without a GPU: its stages on stand-ins, and planted differences in its tables."""

import json
from pathlib import Path

import first_hour
import pytest
from gpu_hour.records import StageRecords
from gpu_hour.tables import read_table

from support.gpu_stand_in import write_stand_ins


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
    counted = json.loads(step.read_text())
    counted["operators"]["aten::mm"] += 1
    step.write_text(json.dumps(counted | {"peak_bytes": 10**9}))
    planted = marks(StageRecords(out / "paper"), "paper")
    assert planted["mixtral-8x7b: operators"] == planted["mixtral-8x7b: peak memory"] == "DIFFERS"
    assert planted["qwen3-30b-a3b: operators"] == "ok"
