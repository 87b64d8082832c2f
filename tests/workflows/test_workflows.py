"""The workflows that ``regbot init`` installs: what linters say, rules that no linter has, and their shell scripts."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from regbot import __version__
from regbot.github.source import UNSET
from regbot.github.templates import WorkflowSettings, render
from support.linters import actionlint, schema, zizmor
from support.workflow_rules import ROOT, RULES, SHIPPED, Workflow, python_imports_nothing_of_a_checkout, read

INSTALLED = ROOT / ".github" / "workflows"
NAMES = ["regbot-bisect", "regbot-gate", "regbot-measure", "regbot-post", "regbot-refresh", "regbot-static"]
SHA, OTHER, NONCE = "a" * 40, "b" * 40, "0123456789abcdef"
VERDICTS = [0, 1, 3, 4, 5]


def shipped(name: str) -> Workflow:
    return read(ROOT / "workflows" / f"{name}.yml")


LINTERS = [zizmor, actionlint, schema]
ALL = [*SHIPPED, *sorted(INSTALLED.glob("*.yml"))]


@pytest.mark.parametrize("name", NAMES)
def test_this_repository_uses_what_it_ships(name: str) -> None:
    installed = (INSTALLED / f"{name}.yml").read_text()
    assert installed == render(name, WorkflowSettings(__version__), installed)


@pytest.mark.parametrize("name", NAMES)
def test_this_repository_installs_regbot_from_itself(name: str) -> None:
    """What judges from the commit that the workflow is of; what traces a pull request from that pull request."""
    sources = set(re.findall(r"REGBOT_SOURCE: (.*)\n +run: ", (INSTALLED / f"{name}.yml").read_text()))
    assert sources == {"regbot-static": {"./code"}, "regbot-measure": set()}.get(name, {"."})


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_is_shipped_installs_regbot_by_its_name(name: str) -> None:
    """On the public package index it is another's."""
    text = shipped(name).text
    assert set(re.findall(r"REGBOT_SOURCE: (.*)", text)) <= {UNSET}
    scripts = [step.get("run", "") for job in shipped(name).jobs.values() for step in job["steps"]]
    installs = [line for script in scripts for line in script.splitlines() if "pip install" in line]
    assert [line for line in installs if "regbot" in line] == []


@pytest.mark.parametrize("lint", LINTERS, ids=lambda lint: lint.__name__)
def test_linters_find_nothing(lint) -> None:
    found = lint(*ALL)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_workflow_keeps_the_rule(name: str, rule) -> None:
    assert list(rule(shipped(name))) == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_workflow_imports_anything_of_a_checkout(path: Path) -> None:
    assert list(python_imports_nothing_of_a_checkout(read(path))) == []


def step(name: str, job: str, contains: str) -> str:
    (script,) = [each["run"] for each in shipped(name).jobs[job]["steps"] if contains in each.get("run", "")]
    return script


def bash(script: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """As the runner starts it."""
    file = folder / "script.sh"
    file.write_text(script)
    given = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(folder / "temp"), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", file]
    return subprocess.run(command, capture_output=True, text=True, env=given, cwd=folder)


MEASURE = {"PR": "7", "SHA": SHA, "BASE": OTHER, "NONCE": NONCE, "MORE": "0"}
BISECT = {"PR": "7", "GOOD": SHA, "BAD": OTHER, "NONCE": NONCE, "WORKLOAD": ""}
REFUSED = [
    ("PR", "07"),
    ("PR", "7 8"),
    ("PR", "7\n8"),
    ("PR", "-1"),
    ("PR", "٧"),
    ("PR", "9" * 11),
    ("SHA", "main"),
    ("SHA", SHA[:-1]),
    ("SHA", f"{SHA}\n"),
    ("SHA", f"--upload-pack={SHA}"),
    ("SHA", SHA.upper()),
    ("BASE", f"{OTHER}$(touch CANARY)"),
    ("NONCE", NONCE[1:]),
    ("NONCE", "g" * 16),
    ("MORE", "4; touch CANARY"),
    ("MORE", "1000"),
    ("GOOD", "v1.0"),
    ("BAD", f"{SHA}..{OTHER}"),
    ("WORKLOAD", "--config=/etc/passwd"),
    ("WORKLOAD", "smoke; touch CANARY"),
    ("WORKLOAD", "smoke\n--no-sandbox"),
    ("WORKLOAD", "`touch CANARY`"),
    ("WORKLOAD", "a" * 129),
]


@pytest.mark.parametrize(("variable", "value"), REFUSED)
def test_inputs_that_are_not_what_they_are_called_are_refused(variable: str, value: str, tmp_path: Path) -> None:
    cases = [("regbot-measure", "measure", MEASURE), ("regbot-bisect", "bisect", BISECT)]
    for name, job, inputs in cases:
        if variable in inputs:
            found = bash(step(name, job, "is not a number"), tmp_path, **{**inputs, variable: value})
            assert found.returncode == 2, (name, found)
            assert variable.lower() in found.stderr
    assert not (tmp_path / "CANARY").exists()


RUNS = [
    ("regbot-static", "trace", "regbot check", {"BASE": OTHER, "HEAD": SHA}, VERDICTS),
    ("regbot-measure", "measure", "regbot check", {**MEASURE, "ENGINE": "local"}, VERDICTS),
    ("regbot-refresh", "measure", "regbot baseline", {"ENGINE": "local"}, VERDICTS),
    ("regbot-bisect", "bisect", "regbot bisect", {**BISECT, "ENGINE": "local"}, [0, 3, 4]),
]


@pytest.mark.parametrize(("name", "job", "contains", "variables", "fine"), RUNS, ids=[each[0] for each in RUNS])
def test_a_verdict_does_not_fail_the_job_and_everything_else_does(
    name: str, job: str, contains: str, variables: dict[str, str], fine: list[int], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "temp").mkdir()
    program = tmp_path / "bin" / "regbot"
    subprocess.run(["git", "init", "-q", tmp_path / "code"], check=True)
    for code in (*range(6), 70, 130, 137):
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
        found = bash(step(name, job, contains), tmp_path, **variables)
        assert found.returncode == (0 if code in fine else code), (code, found)


@pytest.mark.parametrize("branch", ["main", 'a"b', "$(touch CANARY)"])
def test_a_measurement_has_its_own_run_posted_by_the_default_branch(branch: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "curl"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@" > words\ncat > headers\n')
    program.chmod(0o755)
    given = {"GITHUB_TOKEN": "ghs_canary", "BRANCH": branch, "CHANGE": "12", "GITHUB_RUN_ID": "17"}
    where = {"GITHUB_API_URL": "https://ghe.example/api/v3", "GITHUB_REPOSITORY": "acme/moe"}
    assert bash(step("regbot-measure", "hand-over", "dispatches"), tmp_path, **given, **where).returncode == 0
    *words, url = (tmp_path / "words").read_text().rstrip("\0").split("\0")
    assert url == "https://ghe.example/api/v3/repos/acme/moe/actions/workflows/regbot-post.yml/dispatches"
    assert json.loads(words[words.index("--data") + 1]) == {"ref": branch, "inputs": {"change": "12", "run": "17"}}
    assert (tmp_path / "headers").read_text() == "Authorization: Bearer ghs_canary\n"
    forged = {**given, "CHANGE": '12", "ref": "evil'}
    assert bash(step("regbot-measure", "hand-over", "dispatches"), tmp_path, **forged, **where).returncode == 2
    assert not any("ghs_canary" in word for word in words)  # others on the machine see them
    assert not (tmp_path / "CANARY").exists()


def test_the_gate_is_started_by_merge_groups_only_on_the_default_branch() -> None:
    gate = shipped("regbot-gate").data
    started = {"workflows": ["regbot-static"], "types": ["requested"], "branches": ["gh-readonly-queue/**"]}
    assert gate["on"]["workflow_run"] == started
    assert "merge_group" not in gate["on"]
    assert "github.event.workflow_run.event == 'merge_group'" in gate["jobs"]["gate"]["if"]


@pytest.mark.parametrize(
    ("action", "rebased", "group"),
    [
        ("opened", False, "refs/pull/1/merge"),
        ("synchronize", False, "refs/pull/1/merge"),
        ("edited", True, "refs/pull/1/merge"),
        ("edited", False, "17"),
        ("checks_requested", False, "refs/pull/1/merge"),
    ],
)
def test_another_title_ends_no_trace_and_another_base_does(action: str, rebased: bool, group: str) -> None:
    """``&&`` gives its last operand where all are true, ``||`` the first that is."""
    known = {
        "github.event.action == 'edited'": action == "edited",
        "!github.event.changes.base": not rebased,
        "github.run_id": "17",
        "github.ref": "refs/pull/1/merge",
    }
    given = re.fullmatch(r"regbot-static-\$\{\{ (.*) \}\}", shipped("regbot-static").data["concurrency"]["group"])
    assert given is not None
    options = [[known[part] for part in option.split(" && ")] for option in given[1].split(" || ")]
    assert next(option[-1] for option in options if all(option)) == group
