"""Repositories of several kinds, and helpers that run ``regbot init`` in them."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from regbot.cli.init import flow
from regbot.cli.init.flow import InitOptions, InitReport, initialise
from regbot.github import source
from regbot.records.config import PLACEHOLDER_ENTRY, Config, load_config
from support.git_repos import Repository

ROOT = Path(__file__).resolve().parents[2]
ALL = {"regbot-static", "regbot-post", "regbot-gate", "regbot-measure", "regbot-bisect", "regbot-refresh"}
HOSTED = {"regbot-static", "regbot-post", "regbot-gate"}
LAYER = "def build_layer(config, mesh, device, dtype):\n    raise RuntimeError('imported or executed')\n"
MODULE = {"src/mypkg/__init__.py": "", "src/mypkg/moe.py": LAYER, "pyproject.toml": '[project]\nname = "mypkg"\n'}
SOURCE = f"regbot-moe @ git+https://host.example/us/regbot.git@{'a' * 40}"
SOURCE_COMMAND = f"regbot init --source '{source.EXAMPLE}'"
TRAP = "raise SystemExit('this file was executed')\n"


@pytest.fixture(autouse=True)
def _installed_from_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "own_source", lambda: None)


def repository(path: Path, files: Mapping[str, str] = MODULE) -> Repository:
    repo = Repository.create(path)
    repo.commit("start", files)
    return repo


def init(repo: Repository | Path, **options: object) -> InitReport:
    folder = repo.path if isinstance(repo, Repository) else repo
    return initialise(InitOptions(folder=folder, **options))  # type: ignore[arg-type]


def actions(report: InitReport) -> dict[str, str]:
    return {Path(file.path).stem: file.action for file in report.files}


def installed(repo: Repository) -> dict[str, str]:
    """Text of every file that regbot init may write."""
    files = [repo.path / "regbot.toml", *(repo.path / ".github" / "workflows").glob("*.yml")]
    return {file.name: file.read_text() for file in files if file.exists()}


def config(repo: Repository) -> Config:
    return load_config(repo.path / "regbot.toml")


def workflow(repo: Repository, name: str) -> Path:
    return repo.path / ".github" / "workflows" / f"{name}.yml"


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [str(Path(sys.executable).with_name("regbot")), "init", *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


FRAMEWORKS: dict[str, tuple[dict[str, str], str, dict[str, object]]] = {
    "torchtitan": (
        {"torchtitan/__init__.py": "", "torchtitan/trainer.py": TRAP, "requirements.txt": "torchdata\ntyro\n"},
        "titan",
        {"adapter": "torchtitan", "source_roots": ["."], "shapes": ["qwen3-30b-a3b"]},
    ),
    "torchtitan-in-a-folder": (
        {"vendor/titan/torchtitan/train.py": TRAP, "train.py": TRAP},
        "titan",
        {"adapter": "torchtitan", "source_roots": ["vendor/titan"]},
    ),
    "megatron": (
        {"megatron/core/__init__.py": TRAP, "pretrain_gpt.py": TRAP},
        "megatron",
        {"adapter": "megatron", "watch": ["megatron"], "dispatcher": "alltoall", "timed": []},
    ),
    "megatron-bridge": (
        {
            "src/megatron/bridge/__init__.py": TRAP,
            "src/megatron/bridge/recipes/qwen/qwen3_moe.py": (
                "def qwen3_30b_a3b_finetune_config(): ...\ndef qwen3_30b_a3b_pretrain_config(): ...\n"
            ),
            "3rdparty/Megatron-LM/megatron/core/__init__.py": TRAP,
            "scripts/training/run_recipe.py": TRAP,
        },
        "bridge",
        {
            "adapter": "megatron",
            "source_roots": ["src", "3rdparty/Megatron-LM"],
            "program": "scripts/training/run_recipe.py",
            "recipe": "qwen3_30b_a3b_pretrain_config",
            "shapes": ["qwen3-30b-a3b"],
        },
    ),
    "maxtext": (
        {"src/maxtext/configs/base.yml": "base_emb_dim: 1\n", "src/maxtext/__init__.py": TRAP},
        "maxtext",
        {"adapter": "maxtext", "source_roots": ["src"], "shapes": ["mixtral-8x7b"], "timed": []},
    ),
    "a-script-for-megatron": (
        {"train/ours.py": "from megatron.training import (\n    get_args,  # (all)\n    pretrain,\n)\n"},
        "megatron",
        {"adapter": "megatron", "watch": [], "program": "train/ours.py"},
    ),
    "a-script-beside-a-copy-of-megatron": (
        {
            "a/megatron/core/__init__.py": TRAP,
            "a/pretrain_gpt.py": TRAP,
            "deep/er/ours.py": "from megatron.training.training import pretrain\n",
            "tests/test_a.py": "from megatron.training import pretrain\n",
        },
        "megatron",
        {"adapter": "megatron", "program": "deep/er/ours.py"},
    ),
    "a-layer-of-your-own": (
        MODULE,
        "moe",
        {"adapter": "module", "entry": "mypkg.moe:build_layer", "source_roots": ["src"]},
    ),
    "a-layer-beside-torchtitan": (
        {"torchtitan/trainer.py": TRAP, "ours/__init__.py": "", "ours/layer.py": LAYER},
        "moe",
        {"adapter": "module", "entry": "ours.layer:build_layer", "source_roots": ["."]},
    ),
    "nothing-known": ({"README.md": "A repository.\n"}, "moe", {"adapter": "module", "entry": PLACEHOLDER_ENTRY}),
}
