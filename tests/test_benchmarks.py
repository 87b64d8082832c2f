"""Every benchmark can at least be begun: what it imports is there. None of them is run here."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
LOAD = """
import importlib.util, sys
sys.path[:0] = sys.argv[3:]
spec = importlib.util.spec_from_file_location("benchmark", sys.argv[2])
module = sys.modules["benchmark"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@pytest.mark.parametrize("name", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_what_a_benchmark_imports_is_there(name: str) -> None:
    folders = [str(BENCHMARKS), str(BENCHMARKS.with_name("tests"))]
    command = [sys.executable, "-c", LOAD, "-", str(BENCHMARKS / name), *folders]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
