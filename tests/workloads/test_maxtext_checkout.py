"""Which MaxText is compiled, and which revisions are INVALID, with the name of what has moved.

The checkout is a MaxText reduced to what regbot calls, with a module ``jax`` beside it. It compiles nothing. The whole
of MaxText is in ``frameworks/test_maxtext.py``.
"""

import sys
from pathlib import Path

import pytest

from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.run import Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import single_task
from regbot_guest.frameworks.maxtext_config import FORCED_KEYS
from support.judged_heads import judge_head
from support.layers import ARM, replace_text

KEYS = (
    *FORCED_KEYS, "model_name", "base_num_decoder_layers", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads",
    "head_dim", "use_qk_norm", "rope_max_timescale", "num_experts", "num_experts_per_tok", "base_mlp_dim",
    "base_moe_mlp_dim", "vocab_size", "max_target_length", "per_device_batch_size", "dtype", "ici_fsdp_parallelism",
    "ici_expert_parallelism", "base_output_directory",
)  # fmt: skip
"""Keys of the reduced MaxText's configuration."""
ENTRY = "trainers/pre_train/train_compile.py"
FILES = {
    "src/jax.py": "__version__ = '0.12.0.1'\n",
    "src/maxtext/__init__.py": "",
    "src/maxtext/configs/base.yml": "",
    "src/maxtext/configs/pyconfig.py": f"""
import ast
KEYS = {KEYS!r}

class Config:
    def __init__(self, keys):
        self.keys = keys

    def get_keys(self):
        return self.keys

def initialize(argv):
    values = dict(argument.split("=", 1) for argument in argv[2:])
    for key in values:
        if key not in KEYS:
            raise ValueError(f"{{key!r}} not in {{', '.join(map(repr, KEYS))}}.")
    def read(text):
        try:
            return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
        except (SyntaxError, ValueError):
            return text
    return Config({{key.removeprefix("base_"): read(text) for key, text in values.items()}})
""",
    f"src/maxtext/{ENTRY}": """
from maxtext.configs import pyconfig

def get_topology_mesh(config):
    raise RuntimeError("the reduced MaxText compiles nothing")

def main(argv):
    get_topology_mesh(pyconfig.initialize(argv))
""",
    "src/maxtext/utils/accelerator_to_spec_map.py": """
from types import SimpleNamespace
UserFacingNameToSystemCharacteristics = {"a3": SimpleNamespace(devices_per_slice=8)}
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name, text in FILES.items():
        write(root / name, text)
    return root


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def install_maxtext(folder: Path) -> dict[str, str]:
    """Install another MaxText. Return the environment of an interpreter that has it."""
    write(folder / "installed" / "maxtext" / "__init__.py")
    write(folder / "installed" / "maxtext" / ENTRY, "raise RuntimeError('the installed MaxText was imported')\n")
    return {"PYTHONPATH": str(folder / "installed")}


def run(root: Path, **changes: object) -> Run:
    settings: dict[str, object] = {"python": sys.executable, "source_roots": ["src"], "timeout_min": 1.0, **changes}
    workload = Workload.model_validate({"adapter": "maxtext", "shapes": ["mixtral-8x7b"], "variant": "cpu", **settings})
    task = single_task("maxtext", workload, load_shape("mixtral-8x7b"), "ep", world=4, ep=2)
    return trace(task, Checkout(ARM, root), LocalEngine(), Scratch(root.parent / "scratch", Limits()))


def assert_invalid(run: Run, *words: str) -> None:
    """Assert that the trace is refused with ``words``, and that this makes the verdict INVALID."""
    assert run.outcome == "refused", run.log_tail
    validity = judge_head(run)
    assert validity.status == "INVALID"
    for word in words:
        assert word in validity.reasons[0]


def test_the_checkouts_own_maxtext_is_compiled_even_beside_an_installed_one(checkout: Path, tmp_path: Path) -> None:
    found = run(checkout, environment=install_maxtext(tmp_path))
    assert "the reduced MaxText compiles nothing (src/maxtext/trainers" in found.reason
    assert found.code is not None
    assert found.code.watched == {"maxtext": "src/maxtext/__init__.py"}
    assert found.code.foreign == {}


def test_an_installed_maxtext_that_hides_the_checkouts_is_invalid(checkout: Path, tmp_path: Path) -> None:
    (checkout / "src" / "maxtext" / "__init__.py").unlink()
    found = run(checkout, environment=install_maxtext(tmp_path))
    assert_invalid(found, f"Python imports maxtext from {tmp_path}/installed/maxtext, which is not the checkout's code")


@pytest.mark.parametrize(
    ("name", "old", "new", "moved"),
    [
        (ENTRY, "get_topology_mesh", "make_mesh", "no attribute 'get_topology_mesh'"),
        (ENTRY, "get_topology_mesh(pyconfig.initialize(argv))", "pass", "KeyError: 'config'"),
        ("utils/accelerator_to_spec_map.py", '"a3"', '"h100"', "KeyError: 'a3'"),
    ],
)
def test_a_moved_target_is_invalid_by_its_name(checkout: Path, name: str, old: str, new: str, moved: str) -> None:
    replace_text(checkout / "src/maxtext" / name, old, new)
    crashed = run(checkout)
    assert crashed.outcome == "crashed"
    assert moved in crashed.reason
    assert judge_head(crashed).status == "INVALID"
    assert "regbot does not support this revision" in judge_head(crashed).reasons[0]


def test_a_workload_may_set_the_batch_of_a_shape(checkout: Path) -> None:
    assert "the reduced MaxText compiles nothing" in run(checkout, config={"per_device_batch_size": 11}).reason
    forced = 'values["per_device_batch_size"] = "12"\n    for key in values'
    replace_text(checkout / "src/maxtext" / "configs/pyconfig.py", "for key in values", forced)
    found = run(checkout, config={"per_device_batch_size": 11})
    assert_invalid(found, "MaxText did not use the shape's numbers: per_device_batch_size is 12, not 11")
