"""The paper GPU under the CUDA build of torch, on a machine without a driver.

Set REGBOT_CUDA_TORCH to a Python with such a torch; ``.ci/run heads`` makes one. Its download has gigabytes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper import library_for
from support.driver_stand_in import install_driver_stand_in
from support.guest_runs import GUEST, QWEN, answer, ask
from support.paper_runs import read_answer

PYTHON = os.environ.get("REGBOT_CUDA_TORCH", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_CUDA_TORCH names no Python with a CUDA build of torch"),
]


def trace(folder: Path, python: str, **environment: str) -> dict[str, Any]:
    """Return the record of a full step of Qwen3 with the torch of ``python``."""
    library = library_for(python, folder / "cache", folder / "spare").path
    request = ask(folder, "step", QWEN, "full", world=16, ep=16, dispatcher="alltoall", paper=str(library))
    done = subprocess.run(
        [python, str(GUEST), str(request)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return answer(folder, "step")


def test_both_builds_of_torch_count_the_same(tmp_path: Path) -> None:
    for name in ("cpu", "cuda"):
        (tmp_path / name).mkdir()
    cpu, cuda = trace(tmp_path / "cpu", sys.executable), trace(tmp_path / "cuda", PYTHON)
    assert (cpu["environment"]["toolkit"], cuda["environment"]["toolkit"][:4]) == ("none", "cuda")
    # A CPU build runs most operators as an allocation and their out= variant, so overloads and fingerprint differ.
    assert {**cpu["ledger"], "fingerprint": ""} == {**cuda["ledger"], "fingerprint": ""}
    assert cpu["backends"] == cuda["backends"]
    assert cpu["ledger"]["program"]["peak_bytes"] == cuda["ledger"]["program"]["peak_bytes"] > 50e9


def count_launches(folder: Path, python: str) -> dict[str, int]:
    """Return the kernel launches of a full step of Qwen3, by phase, operator and module."""
    library = library_for(python, folder / "cache", folder / "spare").path
    request = ask(folder, "step", QWEN, "full", world=16, ep=16, dispatcher="alltoall")
    launches: dict[str, int] = read_answer(library, "smoke_step.py", request, python=python)
    return launches


def test_both_builds_of_torch_launch_the_same_kernels(tmp_path: Path) -> None:
    """They run other overloads of the same operators, which count once."""
    for name in ("cpu", "cuda"):
        (tmp_path / name).mkdir()
    cpu = count_launches(tmp_path / "cpu", sys.executable)
    assert cpu["forward aten::_grouped_mm layers.47.moe.experts"] == 3
    assert cpu == count_launches(tmp_path / "cuda", PYTHON)


def test_the_driver_is_never_called(tmp_path: Path) -> None:
    driver, calls = install_driver_stand_in(tmp_path / "driver")
    trace(tmp_path, PYTHON, **driver)
    assert not calls.exists(), calls.read_text()
    # The stand-in works: torch calls it without a paper GPU.
    command = [PYTHON, "-c", "import json, torch; print(json.dumps(torch.cuda.is_available()))"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **driver}, check=True)
    assert json.loads(done.stdout) is False
    assert calls.read_text()
