"""What a machine lacks is a skip with its reason, and a failure where CI says that it has it."""

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

HERE = Path(__file__).parents[1]
MODULE = """
from support.required import lacking, needed

@needed("ACT", {missing!r})
def test_it():
    pass
"""
WITHIN = """
from support.required import lacking

def test_it():
    lacking("SANDBOX", "no bubblewrap")
"""


def run(folder: Path, text: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    file = folder / "test_made_up.py"
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE), **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["", "no act"])
@pytest.mark.parametrize("variable", ["", "REGBOT_REQUIRE_ACT", "REGBOT_REQUIRE_SANDBOX"])
def test_what_is_missing_is_skipped_and_where_it_is_required_fails(missing: str, variable: str, tmp_path: Path) -> None:
    found = run(tmp_path, MODULE.format(missing=missing), **({variable: "1"} if variable else {}))
    fails = bool(missing) and variable == "REGBOT_REQUIRE_ACT"
    assert (found.returncode != 0) == fails, found.stdout
    assert ("skipped" in found.stdout) == (bool(missing) and not fails)
    assert ("no act" in found.stdout) == bool(missing)
    assert (f"{variable} is set" in found.stdout) == fails or not variable


@pytest.mark.slow
@pytest.mark.parametrize("required", [False, True])
def test_what_turns_out_within_a_test_is_treated_alike(required: bool, tmp_path: Path) -> None:
    found = run(tmp_path, WITHIN, **({"REGBOT_REQUIRE_SANDBOX": "1"} if required else {}))
    assert (found.returncode != 0) == required
    assert ("1 skipped" in found.stdout) != required


def test_ci_requires_what_its_machines_have() -> None:
    """Chromium is installed by .ci/run itself, which then requires it."""
    workflow = YAML(typ="safe").load((HERE.parent / ".github" / "workflows" / "ci.yml").read_text())
    *_, last = workflow["jobs"]["run"]["steps"]
    assert {name for name in last["env"] if "REQUIRE" in name} == {"REGBOT_REQUIRE_ACT", "REGBOT_REQUIRE_SANDBOX"}
    assert "REGBOT_REQUIRE_BROWSER=1" in (HERE.parent / ".ci" / "run").read_text()
