"""``regbot init``: what it finds in a repository, and what it writes for it. Nothing of the repository is executed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from regbot.records.config import load_config
from regbot.workloads.framework_needs import FRAMEWORK_NEEDS, TESTED_TORCH, package_names
from support.git_repos import Repository
from support.init_cases import FRAMEWORKS, LAYER, ROOT, config, init, installed, repository, workflow
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere


@pytest.mark.parametrize("case", FRAMEWORKS)
def test_what_a_repository_contains_becomes_its_workload(case: str, tmp_path: Path) -> None:
    files, name, expected = FRAMEWORKS[case]
    repo = repository(tmp_path / "r", files)
    init(repo)
    workload = config(repo).workloads[name].model_dump(mode="json")
    assert {key: workload[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("file", "root", "entry"),
    [
        ("moe.py", ".", "moe"),
        ("src/pkg/moe.py", "src", "pkg.moe"),
        ("python/pkg/sub/moe.py", "python", "pkg.sub.moe"),
        ("pkg/moe.py", ".", "pkg.moe"),
    ],
)
def test_the_source_root_is_above_the_outermost_package(file: str, root: str, entry: str, tmp_path: Path) -> None:
    packages = {f"{folder}/__init__.py": "" for folder in Path(file).parents if folder.name in ("pkg", "sub")}
    repo = repository(tmp_path / "r", {file: LAYER, "tests/moe.py": LAYER, **packages})
    init(repo)
    workload = config(repo).workloads["moe"]
    assert (workload.entry, workload.source_roots) == (f"{entry}:build_layer", [root])


@pytest.mark.parametrize(
    "text",
    [
        "def build_layer(config):\n    pass\n",
        "def build_layer(config, mesh, device, dtype, name):\n    pass\n",
        "def build_layer(config, mesh, device, dtype, *, name):\n    pass\n",
        "class A:\n    def build_layer(self, config, mesh, device):\n        pass\n",
        "def build_layer(config, mesh, device, dtype:\n",
        "build_layer = None\n",
    ],
)
def test_a_function_that_cannot_be_called_by_the_contract_is_not_found(text: str, tmp_path: Path) -> None:
    report = init(repository(tmp_path / "r", {"moe.py": text}))
    assert report.traced == ""
    assert "Write build_layer" in report.next_steps[1].text


def test_nothing_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(LAYER)
    repo = repository(tmp_path / "r", {"README.md": ""})
    (repo.path / "moe.py").symlink_to(tmp_path / "outside.py")
    assert init(repo).traced == ""


def test_questions_in_comments_are_valid_configuration(tmp_path: Path) -> None:
    for case, (files, _, _) in FRAMEWORKS.items():
        repo = repository(tmp_path / case, files)
        init(repo)
        lines = installed(repo)["regbot.toml"].splitlines()
        tables = [number for number, line in enumerate(lines) if line.startswith("# [")]
        assert tables
        for number in tables:
            end = next((i for i in range(number, len(lines)) if not lines[i].startswith("# ")), len(lines))
            lines[number:end] = [line.removeprefix("# ") for line in lines[number:end]]
        (repo.path / "regbot.toml").write_text("\n".join(lines))
        load_config(repo.path / "regbot.toml")


# ---- the job on a hosted runner


def pip_calls(repo: Repository, folder: Path) -> tuple[str, list[list[str]]]:
    """Run the installation of the hosted job with a program in place of Python. Return Python's version and the
    arguments of pip."""
    steps: list[dict[str, Any]] = YAML(typ="safe").load(workflow(repo, "regbot-static"))["jobs"]["trace"]["steps"]
    (version,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    (install,) = [step for step in steps if step.get("name") == "Install regbot"]
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" END >>"$CALLS"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CALLS": str(folder / "calls"), **install["env"]}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", install["run"]]
    subprocess.run(command, env=environment, cwd=folder, check=True, timeout=30)
    assert {path.name for path in folder.iterdir()} == {"bin", "calls"}, "a version was taken for a redirection"
    return version, [call.splitlines() for call in (folder / "calls").read_text().split("END\n")[:-1]]


@pytest.mark.parametrize("framework", ["torchtitan", "megatron", "megatron-bridge", "maxtext"])
@pytest.mark.parametrize("has_requirements", [False, True])
def test_the_hosted_job_installs_what_the_framework_needs(
    framework: str, has_requirements: bool, tmp_path: Path
) -> None:
    files = {name: text for name, text in FRAMEWORKS[framework][0].items() if name != "requirements.txt"}
    repo = repository(tmp_path / "r", {**files, **({"requirements.txt": "tyro\n"} if has_requirements else {})})
    init(repo)
    needs = FRAMEWORK_NEEDS[framework]
    version, (*torch_calls, last) = pip_calls(repo, tmp_path / "job")
    assert version == needs.python
    assert [call[-1] for call in torch_calls] == ([needs.torch] if needs.torch else [])
    packages = [*needs.packages]
    if has_requirements:
        packages = ["-r", "code/requirements.txt", *package_names(needs.packages)]
    assert last[last.index("numpy>=1.26") + 1 :] == packages


def test_maxtext_needs_what_its_tests_install() -> None:
    lines = (ROOT / "requirements" / "maxtext.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith(("#", "maxtext=="))]
    assert list(FRAMEWORK_NEEDS["maxtext"].packages) == pins


def test_torch_is_the_one_that_is_tested_here() -> None:
    tested = (ROOT / "constraints.txt").read_text().strip()
    others = {needs.torch for name, needs in FRAMEWORK_NEEDS.items() if name != "torchtitan"}
    assert others == {tested, ""}
    assert FRAMEWORK_NEEDS["torchtitan"].torch.startswith(f"torch=={TESTED_TORCH[1]}.")


SETUP = """\
import sys
from setuptools import setup

if sys.platform == "win32":
    print("on windows")
setup(name="tiny", version="0.2.3", license="mit", packages=["tiny"], install_requires=["ninja"])
"""
DECLARED = {
    "nothing but a setup.py": ({"setup.py": SETUP}, []),
    "pyproject.toml": (
        {"pyproject.toml": '[project]\nname = "tiny"\ndependencies = ["Einops>=0.7", "torch>=2.6", "numpy"]\n'},
        ["einops"],
    ),
    "of Poetry": (
        {"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.10"\ntriton = "*"\n'},
        ["triton"],
    ),
    "setup.cfg beside a setup.py": (
        {"setup.py": SETUP, "setup.cfg": "[options]\nname = %(tiny)s\ninstall_requires =\n    ninja\n    h5py ; 1\n"},
        ["ninja"],
    ),
    "requirements.txt": (
        {
            "requirements.txt": "--index-url https://x.example\n# why: mit\ndill  # win32\n"
            "fla @ git+https://x.example/fla\n"
        },
        ["dill", "fla"],
    ),
    "no TOML": ({"pyproject.toml": "[project\n", "requirements.txt": "dill\n"}, ["dill"]),
}


@pytest.mark.parametrize("case", DECLARED)
def test_only_declared_requirements_are_named_and_no_text_of_a_setup_py(case: str, tmp_path: Path) -> None:
    files, expected = DECLARED[case]
    report = init(repository(tmp_path / "repo", files), only_static=True, dry_run=True)
    texts = [step.text for step in report.next_steps if "installs torch and numpy" in step.text]
    assert [text.partition("declares ")[2] for text in texts] == ([", ".join(expected)] if expected else [])
