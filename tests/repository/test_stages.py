"""Continuous integration runs every test somewhere, and accepts no skip without a reason."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
SKIPPED = """
import pytest

@pytest.mark.skipif(True, reason="no such tool")
def test_one():
    pass

def test_two():
    {body}
"""


def test_every_variable_of_a_marker_is_set_by_a_stage() -> None:
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    variables = [variable for marker in markers for variable in re.findall(r"run where (\w+) is set", marker)]
    assert set(variables) == {"REGBOT_SLOW", "REGBOT_LONG", "REGBOT_CLUSTER"}
    for variable in variables:
        assert f"{variable}=1 " in RUN


def test_the_stage_of_slow_tests_is_one_of_the_default_stages() -> None:
    """REGBOT_SLOW adds tests to the README's command, so the stage selects no marker."""
    (tests,) = re.findall(r"^tests\(\) \{\n(.*?)^\}", RUN, re.MULTILINE | re.DOTALL)
    assert 'REGBOT_SLOW=1 PYTEST_ADDOPTS=-rfEs bash -euo pipefail -c "$(readme tests)"' in tests
    assert "-m " not in tests
    default = re.search(r"stages=\((bare [\w ]+)\)", RUN)
    assert default
    assert "main" in default.group(1).split()
    assert re.search(r'stage "main: tests" \d+ tests', RUN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "printed"),
    [
        ("true", 0, r"== name\n== name took \d+ s\nnext\n"),
        ("false", 1, r"== name\n== name FAILED after \d+ s\n"),
        ("fails_before_its_end", 1, r"== name\n== name FAILED after \d+ s\n"),
        ("hangs", 1, r"== name\n== name has reached its limit of 1 s\n== name FAILED after \d+ s\n"),
        ("ignores_signals", 1, r"== name\n== name has reached its limit of 1 s\n== name FAILED after \d+ s\n"),
    ],
)
def test_a_stage_ends_the_script_if_it_fails_or_hangs(command: str, code: int, printed: str) -> None:
    functions = """hangs() { sleep 100; true; }; fails_before_its_end() { false && true; }
    ignores_signals() { bash -c 'trap "" TERM; sleep 100 & wait; sleep 100'; }"""
    script = f"set -euo pipefail; . .ci/stage.sh; {functions}\nstage name 1 {command}; echo next"
    result = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (code, "")
    assert re.fullmatch(printed, result.stdout)


def test_no_function_has_the_name_of_a_program_that_the_script_looks_for() -> None:
    """`command -v` finds functions too, so the program would never be installed."""
    functions = set(re.findall(r"^(\w+)\(\) \{", RUN, re.MULTILINE))
    programs = set(re.findall(r"command -v (\w[\w-]*)", RUN))
    assert {"chromium", "bwrap"} <= programs
    assert not functions & programs


def test_each_job_of_the_trusted_half_names_its_version_of_python() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "ci.yml")
    job = workflow["jobs"]["trusted"]
    versions = job["strategy"]["matrix"]["python"]
    (step,) = (step for step in job["steps"] if "run" in step)
    assert step["run"].partition(" #")[0] == '.ci/run "trusted:$PYTHON"'
    assert step["env"] == {"PYTHON": "${{ matrix.python }}"}
    assert f"for version in {' '.join(versions)}; do" in RUN
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert versions == [name.split()[-1] for name in classifiers if re.search(r":: 3\.\d+$", name)]


def test_a_named_version_of_python_that_is_missing_fails() -> None:
    stage = subprocess.run([ROOT / ".ci" / "run", "trusted:3.999"], capture_output=True, text=True, check=False)
    assert stage.returncode == 1
    assert "there is no Python 3.999" in stage.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("pytest.skip('no such disk')", 0),
        ("pytest.skip()", 1),
        ("pytest.skip(' ')", 1),
    ],
)
def test_a_skip_without_a_reason_is_refused_and_the_others_are_listed(body: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_made_up.py").write_text(SKIPPED.format(body=body))
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    run = [*pytest_command, "--junitxml=results.xml", "test_made_up.py"]
    subprocess.run(run, cwd=tmp_path, capture_output=True, check=True)
    listing = subprocess.run(
        [sys.executable, ROOT / ".ci" / "skips.py", tmp_path / "results.xml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listing.returncode == code, listing.stderr
    assert "1 no such tool" in listing.stdout
    assert ("no such disk" in listing.stdout) == ("disk" in body)
    assert ("test_made_up::test_two" in listing.stderr) == bool(code)


def test_a_bare_decorator_is_a_skip_without_a_reason(tmp_path: Path) -> None:
    (tmp_path / "results.xml").write_text(
        '<testsuites><testsuite tests="1" time="0.1"><testcase classname="a" name="b">'
        '<skipped type="pytest.skip" message="unconditional skip"/></testcase></testsuite></testsuites>'
    )
    listing = subprocess.run([sys.executable, ROOT / ".ci" / "skips.py", tmp_path / "results.xml"], check=False)
    assert listing.returncode == 1
