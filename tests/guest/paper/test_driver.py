"""The device calls no library of a driver, although this process can load them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.driver_stand_in import LIBRARIES, install_driver_stand_in
from support.guest_runs import TINY, ask
from support.paper_runs import PROGRAMS, read_answer

QUERIES = f"""\
import runpy, sys, torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 8 and torch.cuda.get_device_name()
torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(), torch.cuda.memory_allocated(), torch.cuda.synchronize()
torch.zeros(2).pin_memory()
runpy.run_path({str(PROGRAMS / "smoke_step.py")!r}, run_name="__main__")
"""
"""Queries of the platform, and then a step of the smoke model."""


@pytest.mark.slow
def test_neither_libcuda_nor_nvml_is_called(tmp_path: Path, paper_library: Path) -> None:
    variables, calls = install_driver_stand_in(tmp_path / "driver")
    request = ask(tmp_path, "step", variant="smoke", geometry=TINY, dispatcher="alltoall")
    program = tmp_path / "queries.py"
    program.write_text(QUERIES)
    (step,) = read_answer(paper_library, program, request, **variables)
    assert step["launches"]["forward aten::_grouped_mm"]
    assert not calls.exists(), calls.read_text()
    for name, function in zip(LIBRARIES, ("cuInit", "cuInit", "nvmlInit_v2", "nvmlInit_v2"), strict=True):
        script = f"import ctypes; ctypes.CDLL({name!r}).{function}(0)"
        subprocess.run([sys.executable, "-c", script], env={**os.environ, **variables}, check=True)
    assert calls.read_text().split() == ["cuInit", "cuInit", "nvmlInit_v2", "nvmlInit_v2"], "the stand-ins work"
