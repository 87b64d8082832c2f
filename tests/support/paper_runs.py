"""Running programs on the paper GPU, one process each, because the device is loaded before torch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regbot.workloads.paper import NoPaperGpuError, library_for
from support.guest_runs import GUEST

PROGRAMS = Path(__file__).parents[1] / "guest" / "paper" / "programs"
TIMEOUT_S = 600


def find_library(python: str, spare: Path) -> Path:
    """The paper GPU for the torch of the interpreter ``python``. Skips the test where it cannot be built."""
    try:
        return library_for(python, Path(os.environ["REGBOT_PAPER_CACHE"]), spare).path
    except NoPaperGpuError as error:
        pytest.skip(f"no paper GPU can be built: {error}")


def run_program(
    library: Path, program: "str | Path", *arguments: object, python: str = sys.executable, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program of ``programs/``, or another file, with a paper GPU as ``cuda``. Does not raise if it fails.

    ``python`` is the interpreter, and ``environment`` are additional variables.
    """
    command = [python, str(PROGRAMS / "start.py"), str(library), str(PROGRAMS / program)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(GUEST), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def read_answer(
    library: Path, program: "str | Path", *arguments: object, python: str = sys.executable, **environment: str
) -> Any:
    """Run a program and return the JSON on the last line of its output. Fail with its errors."""
    done = run_program(library, program, *arguments, python=python, **environment)
    assert done.returncode == 0, f"{program}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


SOURCES = GUEST / "regbot_guest" / "paper" / "cpp"


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
