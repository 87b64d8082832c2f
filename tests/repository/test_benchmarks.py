"""Every benchmark can at least be begun: what it imports is there."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LOAD = """
import importlib.util, json, sys, traceback
from pathlib import Path

sys.path[:0] = sys.argv[1:]
errors = {}
for path in Path(sys.argv[1]).glob("*.py"):
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        errors[path.name] = ""
    except BaseException:
        errors[path.name] = traceback.format_exc()
Path("errors.json").write_text(json.dumps(errors))
"""


@pytest.fixture
def errors(shared: Callable[[str, Callable[[Path], None]], Path]) -> dict[str, str]:
    """What importing each benchmark raised, by file; '' for nothing. One process imports all, for speed."""

    def load(folder: Path) -> None:
        command = [sys.executable, "-c", LOAD, str(BENCHMARKS), str(BENCHMARKS.with_name("tests"))]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    raised: dict[str, str] = json.loads((shared("benchmarks", load) / "errors.json").read_text())
    return raised


@pytest.mark.torch  # some import it
@pytest.mark.parametrize("name", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_what_a_benchmark_imports_is_there(errors: dict[str, str], name: str) -> None:
    assert errors[name] == ""
