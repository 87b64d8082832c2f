"""What ``regbot init`` writes in a clone of each framework: a workload, and a hosted job that installs what it needs.

The fixtures have the files of the four repositories that ``init`` reads, as they were in August 2026.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from regbot.workloads.framework_needs import FRAMEWORK_NEEDS, package_names
from support.git_repos import Repository
from support.init_cases import ROOT, TRAP, config, init, repository, workflow
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere
from support.init_cases import _no_cluster as _no_cluster

CLONES = {
    "torchtitan": {
        "pyproject.toml": '[project]\nname = "torchtitan"\nrequires-python = ">=3.11"\ndependencies = ["tyro"]\n',
        ".ci/docker/requirements.txt": "grain == 0.2.19\ntyro >= 1.0.5\nspmd_types==0.2.4\n",
        "torchtitan/__init__.py": TRAP,
        "torchtitan/train.py": TRAP,
        "torchtitan/trainer.py": TRAP,
        "torchtitan/models/flux/requirements-flux.txt": "transformers\n",
    },
    "megatron": {
        "pyproject.toml": '[project]\nname = "megatron-core"\nrequires-python = ">=3.12"\ndependencies = ["torch"]\n',
        "megatron/core/__init__.py": TRAP,
        "megatron/core/requirements.txt": "torch\npackaging\n",
        "megatron/training/training.py": TRAP,
        "pretrain_gpt.py": TRAP,
    },
    "megatron-bridge": {
        "pyproject.toml": '[project]\nname = "megatron-bridge"\nrequires-python = ">=3.12,<3.13"\n',
        "src/megatron/bridge/__init__.py": TRAP,
        "src/megatron/bridge/recipes/qwen/qwen3_moe.py": "def qwen3_30b_a3b_pretrain_8gpu_config(): ...\n"
        "def qwen3_30b_a3b_pretrain_16gpu_b200_config(): ...\n"
        "def qwen3_30b_a3b_pretrain_16gpu_h100_config(): ...\n",
        "scripts/training/run_recipe.py": TRAP,
    },
    "maxtext": {
        "pyproject.toml": '[project]\nname = "maxtext"\nrequires-python = ">=3.12"\ndependencies = []\n',
        "src/maxtext/__init__.py": TRAP,
        "src/maxtext/configs/base.yml": "base_emb_dim: 1\n",
        "src/dependencies/requirements/requirements.txt": "jax\n",
    },
}


def clone(path: Path, framework: str) -> Repository:
    repo = Repository.create(path)
    if framework == "torchtitan":
        (path / "requirements.txt").symlink_to(".ci/docker/requirements.txt")
    repo.commit("start", CLONES[framework])
    return repo


def static_job(repo: Repository) -> dict[str, Any]:
    """The steps of the job that traces pull requests: version of Python, and environment and script of the install."""
    document = YAML(typ="safe").load(workflow(repo, "regbot-static"))
    steps = document["jobs"]["trace"]["steps"]
    (python,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    (install,) = [step for step in steps if step.get("name") == "Install regbot"]
    return {"python": python, "env": install["env"], "script": install["run"]}


def pip_calls(repo: Repository, folder: Path) -> list[list[str]]:
    """Run the installation of the hosted job with a program in place of Python, and return the arguments of pip."""
    job = static_job(repo)
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" END >>"$CALLS"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CALLS": str(folder / "calls"), **job["env"]}
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", job["script"]],
        env=environment,
        cwd=folder,
        check=True,
        timeout=30,
    )
    calls = (folder / "calls").read_text().split("END\n")[:-1]
    assert {path.name for path in folder.iterdir()} == {"bin", "calls"}, "a version was taken for a redirection"
    return [call.splitlines() for call in calls]


@pytest.mark.parametrize("framework", FRAMEWORK_NEEDS)
def test_the_hosted_job_of_a_clone_installs_what_the_framework_needs(framework: str, tmp_path: Path) -> None:
    repo = clone(tmp_path / "r", framework)
    init(repo)
    needs = FRAMEWORK_NEEDS[framework]
    assert static_job(repo)["python"] == needs.python
    *torch_calls, last = pip_calls(repo, tmp_path / "job")
    assert [call[-1] for call in torch_calls] == ([needs.torch] if needs.torch else [])
    packages = list(needs.packages)
    if framework == "torchtitan":  # it has a requirements.txt, whose versions apply
        packages = ["-r", "code/requirements.txt", *package_names(packages)]
    assert last[last.index("numpy>=1.26") + 1 :] == packages


def test_versions_reach_pip_and_not_the_shell(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", CLONES["torchtitan"])
    init(repo)
    _, last = pip_calls(repo, tmp_path / "job")
    assert "datasets<4.8.0,>=3.6.0" in last
    assert "-r" not in last


def test_a_clone_of_megatron_lm_runs_its_own_script(tmp_path: Path) -> None:
    repo = clone(tmp_path / "r", "megatron")
    init(repo)
    assert config(repo).workloads["megatron"].program == "pretrain_gpt.py"


OWN_SCRIPT = """
if True:
    from megatron.training import (
        get_args,  # (all)
        pretrain,
    )
"""


@pytest.mark.parametrize(
    ("files", "program"),
    [
        ({"vendor/megatron/core/__init__.py": TRAP, "pretrain_gpt.py": TRAP}, "pretrain_gpt.py"),
        (
            {
                "requirements.txt": "megatron-core\n",
                "train/ours.py": OWN_SCRIPT,
                "train/args.py": "from megatron.training import get_args, pretrain_config\n",
            },
            "train/ours.py",
        ),
        (
            {
                "3rdparty/Megatron-LM/pretrain_gpt.py": TRAP,
                "a.py": "from megatron.training.training import pretrain\n",
                "requirements.txt": "megatron-core\n",
            },
            "a.py",
        ),
        (
            {
                "3rdparty/Megatron-LM/pretrain_gpt.py": TRAP,
                "a.py": "from megatron.training import get_args  # pretrain is ours\n",
                "tests/test_a.py": "from megatron.training import pretrain\n",
                "requirements.txt": "megatron-core\n",
            },
            "3rdparty/Megatron-LM/pretrain_gpt.py",
        ),
    ],
    ids=["vendored", "own-script", "own-beside-a-copy", "copy-alone"],
)
def test_a_script_that_trains_with_megatron_is_found(tmp_path: Path, files: dict[str, str], program: str) -> None:
    repo = repository(tmp_path / "r", files)
    init(repo)
    assert config(repo).workloads["megatron"].program == program
    assert "No script" not in (repo.path / "regbot.toml").read_text()


def test_a_clone_of_megatron_bridge_runs_its_own_script_with_a_recipe(tmp_path: Path) -> None:
    repo = clone(tmp_path / "r", "megatron-bridge")
    report = init(repo)
    workload = config(repo).workloads["bridge"]
    assert (workload.program, workload.recipe) == (
        "scripts/training/run_recipe.py",
        "qwen3_30b_a3b_pretrain_16gpu_h100_config",
    )
    assert workload.source_roots == ["src", "3rdparty/Megatron-LM"]
    assert any(step.command == "regbot ledger trace bridge:qwen3-30b-a3b" for step in report.next_steps)


def test_a_megatron_bridge_without_its_script_needs_the_name_of_another(tmp_path: Path) -> None:
    files = {name: text for name, text in CLONES["megatron-bridge"].items() if "run_recipe" not in name}
    repo = repository(tmp_path / "r", files)
    report = init(repo)
    assert config(repo).workloads["megatron"].program == "pretrain_gpt.py"
    assert "# No script that calls megatron.training.pretrain was found" in (repo.path / "regbot.toml").read_text()
    assert any(step.command == "regbot ledger trace megatron:mixtral-8x7b" for step in report.next_steps)


def test_a_user_of_a_framework_gets_its_python_and_installs_requirements_of_the_repository(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"requirements.txt": "megatron-core\n"})
    init(repo)
    assert static_job(repo)["python"] == "3.12"
    _, last = pip_calls(repo, tmp_path / "job")
    assert last[-2:] == ["-r", "code/requirements.txt"]


def test_a_second_run_keeps_what_was_written(tmp_path: Path) -> None:
    repo = clone(tmp_path / "r", "maxtext")
    init(repo)
    text = workflow(repo, "regbot-static").read_text()
    assert 'TORCH: ""\n' in text
    init(repo, upgrade=True, version="9.9")
    assert workflow(repo, "regbot-static").read_text().partition("\n")[2] == text.partition("\n")[2]


# ---- the lists


def test_maxtext_needs_what_its_tests_install() -> None:
    lines = (ROOT / "requirements" / "maxtext.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith(("#", "maxtext=="))]
    assert list(FRAMEWORK_NEEDS["maxtext"].packages) == pins


def test_torch_is_the_one_that_is_tested_here() -> None:
    tested = (ROOT / "constraints.txt").read_text().strip()
    assert {needs.torch for needs in FRAMEWORK_NEEDS.values()} == {tested, ""}


@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
def test_the_page_of_a_framework_prints_the_list(framework: str) -> None:
    page = (ROOT / "docs" / "frameworks" / f"{framework}.md").read_text()
    needs = FRAMEWORK_NEEDS[framework]
    (line,) = re.findall(rf"pip install ({re.escape(needs.torch)} .*)", page)
    assert line.replace('"', "").split() == [needs.torch, "numpy", *needs.packages]
