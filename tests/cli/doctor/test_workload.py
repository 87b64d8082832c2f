"""``regbot doctor --workload``: the needs of a workload's framework, compared with its interpreter and this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from regbot.cli.doctor.diagnosis import Capability, Diagnosis
from regbot.cli.doctor.workload import examine_workload
from regbot.cli.terminal import diagnosis_page
from regbot.engines.guest import guest_folder
from regbot.records.config import PLACEHOLDER_ENTRY, ConfigError
from regbot.workloads.framework_needs import FRAMEWORK_NEEDS, package_names

MEGATRON = """
version = 1
[workloads.pretrain]
adapter = "megatron"
program = "pretrain_gpt.py"
python = "env/bin/python"
shapes = ["mixtral-8x7b"]
timed = []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of Megatron-LM on a machine with a compiler and without make."""
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "regbot.toml").write_text(MEGATRON)
    answer(tmp_path, "3.12.1", {})
    tools = tmp_path / "tools"
    tools.mkdir()
    add_program(tools / "c++", "")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def add_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def answer(folder: Path, python: str, versions: dict[str, str]) -> None:
    """Make the workload's interpreter one that reports these versions."""
    path = folder / "env" / "bin" / "python"
    path.parent.mkdir(parents=True, exist_ok=True)
    add_program(path, f"echo '{json.dumps({'python': python, 'versions': versions})}'")


def checks(diagnosis: Diagnosis) -> dict[str, Capability]:
    return {check.name: check for check in diagnosis.checks}


def test_an_environment_with_everything_lacks_only_the_command(folder: Path) -> None:
    names = package_names([*FRAMEWORK_NEEDS["megatron"].packages, "regex"])
    answer(folder, "3.13.0", dict.fromkeys(names, "1") | {
        "torch": "2.13.0+cpu", "numpy": "2.3", "transformer_engine": "2.20.2",
    })  # fmt: skip
    missing = {
        name: check.detail for name, check in checks(examine_workload("pretrain", folder)).items() if not check.ok
    }
    assert missing == {"command make": "not found"}


def test_what_is_missing_is_named_with_the_version_that_is_known_to_work(folder: Path) -> None:
    answer(folder, "3.12.1", {"torch": "2.12.0", "numpy": "2.3", "pyyaml": ""})
    found = checks(examine_workload("pretrain", folder))
    assert found["Python"].ok
    assert found["torch"].detail == "2.12.0; regbot has been tested with ==2.13.0"
    assert found["package pyyaml"].detail == "installed, version unknown"
    assert found["package transformer_engine"].detail == "missing; needed: transformer_engine==2.20.2"
    assert found["package regex"].detail == "missing; needed: regex"
    assert found["C++ compiler"].detail == str(folder / "tools" / "c++")


def test_the_page_ends_with_the_commands_of_a_fresh_environment(folder: Path) -> None:
    page = diagnosis_page(examine_workload("pretrain", folder))
    needs = FRAMEWORK_NEEDS["megatron"]
    packages = " ".join(needs.packages)
    assert page.endswith(f"""
A fresh environment for this workload:
  python3.12 -m venv env
  env/bin/python -m pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0  # a CPU build is enough
  env/bin/python -m pip install 'numpy>=1.26' {packages}""")
    assert f"yes  Python                       3.12.1 ({folder}/env/bin/python); needed: 3.12 or newer\n" in page
    assert "no   package regex                missing; needed: regex\n" in page
    assert "yes  megatron.core                from the checkout\n" in page


def test_a_checkout_without_the_framework_traces_the_installed_one_and_says_so(folder: Path) -> None:
    (folder / "megatron" / "core").rmdir()
    diagnosis = examine_workload("pretrain", folder)
    assert checks(diagnosis)["megatron.core"].detail == "neither in a source root nor installed"
    assert "pip install --no-deps -e path/to/Megatron-LM" in diagnosis.install[-1]
    answer(folder, "3.12.1", {"megatron-core": "0.19.2"})
    assert "no source root has it; the installed one is traced (0.19.2)" in diagnosis_page(
        examine_workload("pretrain", folder)
    )


def test_the_older_python_and_the_missing_interpreter_are_named(folder: Path) -> None:
    answer(folder, "3.11.7", {})
    python = checks(examine_workload("pretrain", folder))["Python"]
    assert (python.ok, "needed: 3.12 or newer" in python.detail) == (False, True)
    (folder / "env" / "bin" / "python").unlink()
    python = checks(examine_workload("pretrain", folder))["Python"]
    assert not python.ok
    assert "make an environment with Python 3.12" in python.fix


def test_the_placeholder_of_init_is_named_with_its_key(folder: Path) -> None:
    placeholder = MEGATRON.replace(
        'adapter = "megatron"\nprogram = "pretrain_gpt.py"', f'adapter = "module"\nentry = "{PLACEHOLDER_ENTRY}"'
    )
    (folder / "regbot.toml").write_text(placeholder)
    entry = checks(examine_workload("pretrain", folder))["entry"]
    assert not entry.ok
    assert "workloads.pretrain.entry" in entry.fix


def test_a_wheel_for_a_newer_glibc_is_unpacked_by_a_command_of_its_own(folder: Path) -> None:
    (folder / "regbot.toml").write_text(
        MEGATRON.replace("pretrain_gpt.py", "scripts/training/run_recipe.py").replace("timed", 'recipe = "r"\ntimed')
    )
    commands = examine_workload("pretrain", folder).install
    [wheel] = [command for command in commands if "nvidia-resiliency-ext" in command]
    assert "--no-deps" in wheel
    for package in FRAMEWORK_NEEDS["megatron-bridge"].packages:
        assert sum(package in command for command in commands) == 1


def test_maxtext_needs_neither_torch_nor_a_compiler(folder: Path) -> None:
    (folder / "regbot.toml").write_text(
        'version = 1\n[workloads.m]\nadapter = "maxtext"\npython = "env/bin/python"\nsource_roots = ["src"]\n'
    )
    (folder / "src" / "maxtext").mkdir(parents=True)
    diagnosis = examine_workload("m", folder)
    assert checks(diagnosis).keys() == {
        "Python", "maxtext", *(f"package {name}" for name in package_names(FRAMEWORK_NEEDS["maxtext"].packages)),
    }  # fmt: skip
    assert not [command for command in diagnosis.install if "torch" in command]


@pytest.mark.parametrize(
    ("name", "adapter", "message"),
    [
        ("other", 'adapter = "smoke"', "there is no workload 'other'"),
        ("w", 'adapter = "command"\ncommand = ["a", "{steps}"]', "is not traced, because its adapter is 'command'"),
    ],
)
def test_a_workload_without_a_trace_is_refused(name: str, adapter: str, message: str, folder: Path) -> None:
    (folder / "regbot.toml").write_text(f"version = 1\n[workloads.w]\n{adapter}\n")
    with pytest.raises(ConfigError, match=message):
        examine_workload(name, folder)


def test_an_interpreter_reports_distributions_and_modules(tmp_path: Path) -> None:
    pairs = ["pytest=pytest", "no-such-package=json", "no-such-either=no_such.module"]
    command = [sys.executable, str(guest_folder()), "--packages", *pairs]
    document = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert document["versions"] == {"pytest": pytest.__version__, "no-such-package": ""}
    assert document["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
