"""The paper GPU under the CUDA build of torch, on a machine without a driver.

Set REGBOT_CUDA_TORCH to a Python with such a torch; ``.ci/run heads`` makes one. Its download has gigabytes.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper import library_for
from support.guest_runs import GUEST, QWEN, answer, ask

PYTHON = os.environ.get("REGBOT_CUDA_TORCH", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON, reason="REGBOT_CUDA_TORCH names no Python with a CUDA build of torch"),
]

STAND_IN = """
#include <cstdio>
#include <cstdlib>
static int called(const char* name) {
  if (FILE* log = fopen(getenv("DRIVER_LOG"), "a")) { fprintf(log, "%s\\n", name); fclose(log); }
  return 100;  // CUDA_ERROR_NO_DEVICE
}
extern "C" {
int cuInit(unsigned) { return called("cuInit"); }
int cuDriverGetVersion(int* version) { *version = 13000; return called("cuDriverGetVersion"); }
int cuDeviceGetCount(int* count) { *count = 1; return called("cuDeviceGetCount"); }
int cuGetProcAddress_v2(const char* name, void** address, int, unsigned long, int*) {
  *address = nullptr;
  return called(name);
}
int cuGetProcAddress(const char* name, void** address, int, unsigned long) { *address = nullptr; return called(name); }
}
"""


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
    # A CPU build runs most operators as an allocation and their out= variant, so names and fingerprint differ.
    assert {**cpu["ledger"], "program": ""} == {**cuda["ledger"], "program": ""}
    assert cpu["backends"] == cuda["backends"]
    assert cpu["peak_device_bytes"] == cuda["peak_device_bytes"] > 50e9


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """Environment variables that load a stand-in for the driver's library, which logs its calls."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "driver.cpp").write_text(STAND_IN)
    command = [compiler, "-shared", "-fPIC", str(folder / "driver.cpp"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder), "DRIVER_LOG": str(folder / "calls")}


def test_the_driver_is_never_called(tmp_path: Path, driver: dict[str, str]) -> None:
    calls = Path(driver["DRIVER_LOG"])
    trace(tmp_path, PYTHON, **driver)
    assert not calls.exists(), calls.read_text()
    # The stand-in works: torch calls it without a paper GPU.
    command = [PYTHON, "-c", "import json, torch; print(json.dumps(torch.cuda.is_available()))"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **driver}, check=True)
    assert json.loads(done.stdout) is False
    assert calls.read_text()
