"""The library of the paper GPU, compiled once per test run."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Shared
from guest_runs import GUEST

SOURCES = GUEST / "regbot_guest" / "paper" / "cpp"


@pytest.fixture(scope="session")
def paper_library(shared: Shared) -> Path:
    """The compiled device. Skips where nothing can compile it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler (g++) to build the paper GPU with")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return shared("paper", compile_library) / "libpaper.so"


def compile_library(folder: Path, *options: str) -> None:
    """Compile ``cpp/all.cpp`` to ``folder/libpaper.so`` against the torch that is installed."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    include = torch / "include"
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", *options]
    command += ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    command += ["all.cpp", f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(folder / "libpaper.so")]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
