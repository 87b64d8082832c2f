"""Random chains of operators agree on the CPU and on the paper GPU: metadata, aliases, values and memory."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.paper_runs import compile_library, read_answer

QUICK, LONG = 300, 10_000
CHAINS_PER_PROCESS = 2_500
"""Chains per process, so that no process exceeds the time limit of ``read_answer``."""


def failures(library: Path, first: int, count: int, **environment: str) -> list[Any]:
    answer = read_answer(library, "chains.py", first, count, **environment)
    assert answer["chains"] == count
    assert answer["leaked"] == 0
    failed_chains: list[Any] = answer["failures"]
    return failed_chains


def test_random_chains_agree_on_both_devices(paper_library: Path) -> None:
    assert failures(paper_library, 0, QUICK) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, CHAINS_PER_PROCESS))
def test_ten_thousand_random_chains_agree_on_both_devices(paper_library: Path, first: int) -> None:
    assert failures(paper_library, first, CHAINS_PER_PROCESS) == []


@pytest.mark.long
def test_chains_and_steps_have_no_memory_errors(paper_library: Path, tmp_path: Path) -> None:
    """Under AddressSanitizer, which ends the process at the first bad access."""
    compiler = shutil.which("g++")
    assert compiler is not None
    preload = [_path_of(compiler, name) for name in ("libasan.so", "libstdc++.so")]
    if not all(Path(path).is_absolute() for path in preload):
        pytest.skip("the compiler has no AddressSanitizer")
    compile_library(tmp_path, "-fsanitize=address", "-g1")
    options = (
        "detect_leaks=0:handle_segv=0:allow_user_segv_handler=1"  # Python leaks, the device handles its own faults
    )
    environment = {"LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": options}
    library = tmp_path / "libpaper.so"
    assert failures(library, 20_000, 500, **environment) == []
    for program in ("bad_input.py", "liveness.py", "libraries.py"):
        read_answer(library, program, **environment)


def _path_of(compiler: str, name: str) -> str:
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
