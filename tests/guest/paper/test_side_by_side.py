"""The same programs have equal shapes, aliases, known values and live bytes on the CPU and on the paper GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.guest_runs import Shared
from support.paper_runs import read_answer

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
    ("optimizers", "foreach adamw: step", "version"): VERSIONS,
} | {
    ("optimizers", f"foreach adamw: {line}", "live"): COUNTERS
    for line in ("step", "zero_grad", "forward", "backward", "clip")
}
"""Reasons by program, line and field. A row that no longer differs is an error too."""


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
