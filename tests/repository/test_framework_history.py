"""``benchmarks/framework_history.py``: which name of torch a message misses, and whether torch has it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "framework_history.py"


@pytest.fixture(scope="module")
def history() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_framework_history", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("message", "module", "name"),
    [
        ("ImportError: cannot import name 'DTensor' from 'torch.distributed'", "torch.distributed", "DTensor"),
        ("ModuleNotFoundError: No module named 'torch.nn.attention.varlen'", "torch.nn.attention.varlen", ""),
        (
            "AttributeError: module 'torch.distributed' has no attribute 'set_timeout'",
            "torch.distributed",
            "set_timeout",
        ),
    ],
)
def test_a_name_that_torch_lacks_is_read_from_the_message(
    history: ModuleType, message: str, module: str, name: str
) -> None:
    assert history.find_missing_name(message) == history.MissingName(module, name)


@pytest.mark.parametrize("message", ["No module named 'torchdata'", "No module named 'torchtitan.models'", "KeyError"])
def test_names_of_other_packages_are_not_torchs(history: ModuleType, message: str) -> None:
    assert history.find_missing_name(message) is None


@pytest.mark.slow
@pytest.mark.torch
def test_torch_itself_says_whether_it_has_a_name(history: ModuleType) -> None:
    for module, name, expected in (
        ("torch.distributed", "all_reduce", False),
        ("torch.distributed", "no_such_name", True),
        ("torch.no_such_module", "", True),
    ):
        lacks, sentence = history.ask_torch(sys.executable, history.MissingName(module, name))
        assert lacks is expected
        assert f"{'lacks' if expected else 'has'} {module}" in sentence
