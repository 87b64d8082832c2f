"""The library of the paper GPU, built once for all test runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from guest_runs import GUEST
from regbot.paper import NoPaperGpuError, library_for

SOURCES = GUEST / "regbot_guest" / "paper" / "cpp"


@pytest.fixture(scope="session")
def paper_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that a check would use. Skips where it cannot be built."""
    folder = tmp_path_factory.getbasetemp().parent
    try:
        return library_for(sys.executable, folder, folder).path
    except NoPaperGpuError as error:
        pytest.skip(f"there is no paper GPU here: {error}")


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
