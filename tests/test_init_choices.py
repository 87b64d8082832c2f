"""``regbot init``: what a repository chooses once, and what follows from its configuration."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from git_repos import Repository
from init_cases import (
    ALL,
    HOSTED,
    MODULE,
    SOURCE,
    actions,
    command,
    init,
    installed,
    repository,
    workflow,
)
from init_cases import (
    _installed_from_nowhere as _installed_from_nowhere,
)
from init_cases import (
    _no_cluster as _no_cluster,
)
from regbot.config import ConfigError
from regbot.init import page, templates
from regbot.init.repository import origin_host
from regbot.init.source import docs_of, inside

UPLOADING = {"regbot-static", "regbot-measure", "regbot-bisect", "regbot-refresh"}
NODES = ALL - HOSTED
COMMANDS = """\
version = 1
[workloads.train]
adapter = "command"
command = ["python", "train.py", "{steps}"]
shapes = ["mixtral-8x7b"]
"""


def uploads(at: Repository) -> set[str]:
    folder = at.path / ".github" / "workflows"
    lines = [line for file in folder.glob("*.yml") for line in file.read_text().splitlines()]
    return {line.split("uses: ")[1] for line in lines if "/upload-artifact@" in line}


def newest() -> str:
    (found,) = {value for name in UPLOADING for value in re.findall(r"uses: (.*upload.*)", templates.template(name))}
    return found


# ---- a GitHub Enterprise Server


def test_an_enterprise_server_gets_actions_that_it_takes_and_an_upgrade_keeps_them(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, enterprise=True, version="0.0.9")
    assert uploads(at) == {templates.ENTERPRISE}
    assert re.fullmatch(r"actions/upload-artifact@[0-9a-f]{40} # v3\.\d+\.\d+", templates.ENTERPRISE)
    init(at, upgrade=True)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    assert uploads(at) == {templates.ENTERPRISE}
    workflow(at, "regbot-static").unlink()
    init(at)
    assert uploads(at) == {templates.ENTERPRISE}
    init(at, enterprise=False, upgrade=True)
    assert uploads(at) == {newest()}
    assert set(installed(at)) == {"regbot.toml", *(f"{name}.yml" for name in ALL)}


def test_what_would_read_an_artifact_of_its_own_run_is_not_for_an_enterprise_server(tmp_path: Path) -> None:
    reading = {name for name in NODES if _reads_its_own_artifact(name)}
    assert reading == set(templates.OWN_ARTIFACT)
    at = repository(tmp_path / "r")
    found = init(at, enterprise=True)
    assert set(actions(found)) == {"regbot", *ALL} - reading
    told = "regbot-bisect and regbot-refresh are left out: the last job reads an artifact of its own run"
    assert [warning.startswith(told) for warning in found.warnings] == [True]
    assert set(installed(at)) == {"regbot.toml", *(f"{name}.yml" for name in ALL - reading)}
    assert not any("left out" in warning for warning in init(at, only_static=True).warnings)


def _reads_its_own_artifact(name: str) -> bool:
    """Does a job wait for one that uploads, and then read an artifact itself, not by starting another workflow?"""
    text = templates.template(name)
    return "/upload-artifact@" in text and "\n    needs: " in text and "/dispatches" not in text


def test_what_is_there_and_not_for_an_enterprise_server_goes_with_an_upgrade_and_an_edited_one_by_force(
    tmp_path: Path,
) -> None:
    at = repository(tmp_path / "r")
    init(at)
    workflow(at, "regbot-bisect").write_text(workflow(at, "regbot-bisect").read_text() + "# mine\n")
    found = actions(init(at, enterprise=True, upgrade=True))
    assert (found["regbot-bisect"], found["regbot-refresh"]) == ("edited", "removed")
    assert actions(init(at))["regbot-bisect"] == "edited"
    assert workflow(at, "regbot-bisect").exists()
    assert actions(init(at, force=True))["regbot-bisect"] == "removed"


def test_who_is_moved_to_an_enterprise_server_is_told_what_is_newer_first(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    found = init(at, enterprise=True)
    assert {name for name, action in actions(found).items() if action == "outdated"} == UPLOADING
    assert uploads(at) == {newest()}
    init(at, enterprise=True, upgrade=True)
    assert uploads(at) == {templates.ENTERPRISE}


PINS = {
    "actions/upload-artifact@v3": True,
    f"actions/upload-artifact@{'b' * 40} # v3.9.9": True,
    f"ours/upload-artifact@{'b' * 40} # v4.0.0": True,
    f"actions/upload-artifact@{'b' * 40} # v4.0.0": False,
    "actions/upload-artifact@v4": False,
}


@pytest.mark.parametrize("pin", PINS)
def test_a_pin_that_somebody_chose_is_no_edit_and_only_a_newer_one_of_githubs_is_brought_up_to_date(
    pin: str, tmp_path: Path
) -> None:
    at = repository(tmp_path / "r")
    init(at)
    text = workflow(at, "regbot-measure").read_text()
    assert newest() in text
    workflow(at, "regbot-measure").write_text(text.replace(newest(), pin))
    assert actions(init(at))["regbot-measure"] == ("unchanged" if PINS[pin] else "outdated")
    init(at, upgrade=True)
    assert (pin in uploads(at)) == PINS[pin]


def test_what_is_written_for_an_enterprise_server_is_what_linters_take(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, enterprise=True)
    (at.path / ".github" / "actionlint.yaml").write_text("self-hosted-runner:\n  labels: [regbot]\n")
    program = Path(sys.executable).parent / "actionlint"
    if not program.exists():
        pytest.skip("there is no actionlint beside python; it comes with regbot's extra dev")
    files = [str(workflow(at, name)) for name in sorted(ALL - {*templates.OWN_ARTIFACT})]
    words = [str(program), "-shellcheck=", "-pyflakes=", *files]
    found = subprocess.run(words, cwd=at.path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


ADDRESSES = {
    "https://ghe.example.org/us/moe.git": "ghe.example.org",
    "https://ann:key@GHE.example.org:8443/us/moe": "ghe.example.org",
    "ssh://git@ghe.example.org:22/us/moe.git": "ghe.example.org",
    "git@ghe.example.org:us/moe.git": "ghe.example.org",
    "git@github-at-work:us/moe.git": "",
    "/srv/git/moe.git": "",
    "../moe": "",
    "file:///srv/moe": "",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_host_of_origin_is_read(address: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    at.git("remote", "add", "origin", address)
    assert origin_host(at.path) == ADDRESSES[address]


@pytest.mark.parametrize("host", ["github.com", "acme.ghe.com", "ghe.example.org"])
def test_a_host_that_may_be_an_enterprise_server_is_asked_about_once(host: str, tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    at.git("remote", "add", "origin", f"git@{host}:us/moe.git")
    asked = [step for step in init(at).next_steps if "Enterprise" in step.text]
    assert [host in step.text for step in asked] == ([True] if host == "ghe.example.org" else [])
    assert not any("Enterprise" in step.text for step in init(at).next_steps)
    for step in asked:
        assert command(at.path, *shlex.split(step.command)[2:]).returncode == 0
        assert uploads(at) == {templates.ENTERPRISE}


# ---- workloads that nothing can trace


def test_where_all_workloads_are_commands_nothing_is_installed_that_traces(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": COMMANDS})
    found = init(at)
    assert set(actions(found)) == {"regbot", *ALL} - {"regbot-static"}
    (warning,) = found.warnings
    assert warning.startswith("regbot-static is left out: every workload of regbot.toml is a command")
    (at.path / "regbot.toml").write_text(f'{COMMANDS}[workloads.smoke]\nadapter = "smoke"\n')
    assert actions(init(at))["regbot-static"] == "created"


def test_a_trace_that_has_nothing_to_trace_any_more_goes_with_an_upgrade(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    (at.path / "regbot.toml").write_text(COMMANDS)
    found = init(at)
    static = next(file for file in found.files if "static" in file.path)
    assert (static.action, "--upgrade removes it" in static.why) == ("outdated", True)
    assert workflow(at, "regbot-static").exists()
    assert actions(init(at, upgrade=True))["regbot-static"] == "removed"
    assert not workflow(at, "regbot-static").exists()
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_an_edited_trace_that_has_nothing_to_trace_goes_only_by_force(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    (at.path / "regbot.toml").write_text(COMMANDS)
    workflow(at, "regbot-static").write_text(workflow(at, "regbot-static").read_text() + "# mine\n")
    assert actions(init(at, upgrade=True))["regbot-static"] == "edited"
    assert actions(init(at, force=True))["regbot-static"] == "removed"


def test_nothing_on_hosted_runners_can_measure_a_command(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": COMMANDS})
    with pytest.raises(ConfigError, match=r"every workload of regbot\.toml is a command"):
        init(at, only_static=True)
    assert set(installed(at)) == {"regbot.toml"}
    other = repository(tmp_path / "s")
    init(other, only_static=True)
    (other.path / "regbot.toml").write_text(COMMANDS)
    assert "'regbot init --with-nodes'" in init(other).warnings[-1]


# ---- what --only-static left


def test_an_edited_workflow_that_was_left_brings_no_other_back(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    mine = workflow(at, "regbot-refresh").read_text() + "# mine\n"
    workflow(at, "regbot-refresh").write_text(mine)
    init(at, only_static=True)
    found = init(at, upgrade=True, source=SOURCE)
    assert set(actions(found)) == {"regbot", *HOSTED, "regbot-refresh"}
    assert actions(found)["regbot-refresh"] == "edited"
    assert any("not written: regbot-measure, regbot-bisect" in warning for warning in found.warnings)
    assert workflow(at, "regbot-refresh").read_text() == mine
    assert {name for name, did in actions(init(at, only_static=False)).items() if did == "created"} == NODES - {
        "regbot-refresh"
    }


# ---- a regbot in the repository itself


PATHS = {
    "./vendor/regbot": "vendor/regbot",
    '"./vendor/regbot" # ours': "vendor/regbot",
    "./wheels/regbot-1-py3-none-any.whl": "wheels/regbot-1-py3-none-any.whl",
    ".": "",
    "./": "",
    "./../other": "",
    SOURCE: "",
    "/set/by/regbot-init": "",
    "regbot": "",
}


@pytest.mark.parametrize("source", PATHS)
def test_a_path_in_the_repository_is_told_from_what_is_elsewhere(source: str) -> None:
    assert inside(source) == PATHS[source]


def test_a_path_in_the_repository_needs_an_owner(tmp_path: Path) -> None:
    files = {**MODULE, "vendor/regbot-1-py3-none-any.whl": ""}
    at = repository(tmp_path / "r", files)
    wheel = "vendor/regbot-1-py3-none-any.whl"
    found = init(at, source=wheel)
    assert any(f"Give {wheel} an owner" in step.text for step in found.next_steps)
    owned = repository(tmp_path / "s", {**files, ".github/CODEOWNERS": "# all\n/vendor/ @us/core\n"})
    assert not any("an owner" in step.text for step in init(owned, source=wheel).next_steps)
    elsewhere = init(repository(tmp_path / "t"), source=SOURCE)
    assert not any("an owner" in step.text for step in elsewhere.next_steps)


# ---- where the pages are


def test_pages_are_named_where_the_user_can_read_them(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    address = f"https://host.example/us/regbot/blob/{'a' * 40}/docs"
    found = init(at, source=SOURCE)
    assert any("docs/" in step.text for step in found.next_steps)
    assert page(found).endswith(f"\n\ndocs/... are pages of regbot: {address}\n")
    assert json.loads(found.to_json())["docs"] == address
    assert f"# docs/... is at {address}\n" in installed(at)["regbot.toml"]


def test_pages_that_nobody_knows_the_address_of_are_not_said_to_be_here(tmp_path: Path) -> None:
    found = init(repository(tmp_path / "r"))
    assert page(found).endswith("docs/... are pages of regbot: in the repository that it was installed from\n")
    assert docs_of([f"{SOURCE}#subdirectory=bot"]).endswith(f"/blob/{'a' * 40}/bot/docs")


# ---- an upgrade that brings another job


def test_settings_stay_with_their_job_where_an_upgrade_brings_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = repository(tmp_path / "r")
    shipped = templates.template("regbot-measure")
    before = shipped[: shipped.index("\n  hand-over:\n")] + "\n"
    with monkeypatch.context() as older:
        older.setattr(templates, "template", lambda name: before)
        text = templates.render("regbot-measure", templates.Settings("0.0.9", templates.Runner(("ours",))))
    workflow(at, "x").parent.mkdir(parents=True)
    workflow(at, "regbot-measure").write_text(text.replace("timeout-minutes: 240", "timeout-minutes: 999"))
    assert actions(init(at, upgrade=True))["regbot-measure"] == "upgraded"
    upgraded = workflow(at, "regbot-measure").read_text()
    assert re.findall(r"timeout-minutes: (\d+)", upgraded) == ["999", "30"]
    assert re.findall(r"runs-on: (.*?)(?: #|\n)", upgraded) == ["[ours]", "ubuntu-latest"]
