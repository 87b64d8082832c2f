"""The same programs have equal shapes, aliases, known values and live bytes on the CPU and on the paper GPU."""

from pathlib import Path
from typing import Any

import pytest

from support.paper_runs import read_answer


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
def test_programs_give_the_same_tensors_on_both_devices(paper_library: Path) -> None:
    assert differences(read_answer(paper_library, "side_by_side.py")) == {}
