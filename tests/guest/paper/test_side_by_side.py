"""The same programs have equal shapes, aliases, known values and live bytes on the CPU and on the paper GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import TINY, Shared, ask
from support.paper_runs import read_answer

DEMO = Path(__file__).parents[3] / "regbot" / "cli" / "demo" / "sources"

FUSED = "a GPU normalises in one kernel, which keeps one factor per row; a CPU keeps the intermediate results"
COUNTERS = "the optimizer's step counters are on the host for both; only the CPU run counts them"
ATTENTION = "a GPU's memory-efficient attention uses another layout of heads and keeps other factors than a CPU's"
VERSIONS = "foreach kernels of a GPU increment versions; a CPU runs loops, whose increments the recording prevents"
DIFFERENCES = {
    ("norms", "rms norm", "live"): FUSED,
    ("norms", "attention", "live"): ATTENTION,
    ("norms", "attention", "stride"): ATTENTION,
    ("norms", "flash attention", "live"): ATTENTION,
    ("norms", "flash attention's backward", "version"): ATTENTION,
    ("integers", "foreach in place", "version"): VERSIONS,
    ("integers", "foreach copy", "version"): VERSIONS,
    ("integers", "foreach zero", "version"): VERSIONS,
    ("optimizers", "foreach adamw: step", "version"): VERSIONS,
} | {
    ("optimizers", f"foreach adamw: {line}", "live"): COUNTERS
    for line in ("step", "zero_grad", "forward", "backward", "clip")
}
"""Reasons by program, line and field. A row that no longer differs is an error too."""

OF_OTHER_TESTS = {
    "c10d": "collectives have other tests",
    "profiler": "marks of the profiler, no operators of the device",
    "regbot_paper": "the device's own interface",
}


@pytest.fixture
def answer(shared: Shared, paper_library: Path) -> dict[str, Any]:
    def make(folder: Path) -> None:
        (folder / "answer.json").write_text(json.dumps(read_answer(paper_library, "side_by_side.py")))

    recorded: dict[str, Any] = json.loads((shared("side_by_side", make) / "answer.json").read_text())
    return recorded


def differences(answer: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    """Return the differing (CPU, paper GPU) values by program, line and field."""
    different: dict[tuple[str, str, str], Any] = {}
    for program, runs in answer.items():
        if program == "operators":
            continue
        assert len(runs["cpu"]) == len(runs["cuda"])
        for host, paper in zip(runs["cpu"], runs["cuda"], strict=True):
            assert host["line"] == paper["line"]
            if host["live"] != paper["live"]:
                different[program, host["line"], "live"] = (host["live"], paper["live"])
            assert len(host["tensors"]) == len(paper["tensors"])
            for index, (a, b) in enumerate(zip(host["tensors"], paper["tensors"], strict=True)):
                if a is None or b is None:
                    assert a is b
                    continue
                for field in a:
                    if a[field] != b[field]:
                        different[program, host["line"], field] = (index, a[field], b[field])
    return different


@pytest.mark.slow
def test_programs_give_the_same_tensors_on_both_devices(answer: dict[str, Any]) -> None:
    different = differences(answer)
    assert {key: value for key, value in different.items() if key not in DIFFERENCES} == {}
    assert set(DIFFERENCES) == set(different), "rows that no longer differ"


@pytest.mark.slow
def test_the_programs_use_every_operator_of_a_step(answer: dict[str, Any], paper_library: Path, tmp_path: Path) -> None:
    paper, dense = {"geometry": TINY, "world": 2, "ep": 2}, {"mlp": "dense"}
    demo = {"adapter": "module", "entry": "moetrain.moe:build_layer", "root": str(DEMO), "source_roots": ["src"]}
    requests = [
        ask(tmp_path, "smoke", adapter="smoke", **paper),
        ask(tmp_path, "natural", adapter="smoke", routing="natural", dtype="bfloat16", **paper),
        ask(tmp_path, "dense", adapter="smoke", **paper, **dense),
        ask(tmp_path, "module", **demo, **paper),
    ]
    names = set(read_answer(paper_library, "step_operators.py", *requests))
    names = {name for name in names if name.split("::")[0] not in OF_OTHER_TESTS}
    assert "aten::_grouped_mm" in names
    assert names - set(answer["operators"]) == set()


@pytest.mark.slow
def test_the_programs_use_every_operator_of_a_frameworks_step(answer: dict[str, Any]) -> None:
    """The lists were recorded from steps of Mixtral (alltoall, allgather, DeepEP; TP 2) and of Qwen3."""
    names = json.loads((Path(__file__).parent / "framework_operators.json").read_text())
    assert min(len(framework) for framework in names.values()) > 40
    missing = {framework: sorted({*own} - {*answer["operators"]}) for framework, own in names.items()}
    assert not any(missing.values()), missing
