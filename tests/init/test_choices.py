"""``regbot init``: choices that later runs keep, and workflows that depend on the configuration."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regbot.config import ConfigError
from regbot.init import page, templates
from regbot.init.repository import origin_host
from regbot.init.source import docs_of, path_in_repository
from support.git_repos import Repository
from support.init_cases import (
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
from support.init_cases import (
    _installed_from_nowhere as _installed_from_nowhere,
)
from support.init_cases import (
    _no_cluster as _no_cluster,
)

UPLOADING = {"regbot-static", "regbot-measure", "regbot-bisect", "regbot-refresh"}
NODES = ALL - HOSTED
COMMANDS = """\
version = 1
[workloads.train]
adapter = "command"
command = ["python", "train.py", "{steps}"]
shapes = ["mixtral-8x7b"]
"""


def uploads(repo: Repository) -> set[str]:
    folder = repo.path / ".github" / "workflows"
    lines = [line for file in folder.glob("*.yml") for line in file.read_text().splitlines()]
    return {line.split("uses: ")[1] for line in lines if "/upload-artifact@" in line}


def newest() -> str:
    (action,) = {
        value for name in UPLOADING for value in re.findall(r"uses: (.*upload.*)", templates.read_template(name))
    }
    return action


# ---- a GitHub Enterprise Server


def test_an_enterprise_server_gets_v3_actions_and_an_upgrade_keeps_them(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, enterprise=True, version="0.0.9")
    assert uploads(repo) == {templates.ENTERPRISE}
    assert re.fullmatch(r"actions/upload-artifact@[0-9a-f]{40} # v3\.\d+\.\d+", templates.ENTERPRISE)
    init(repo, upgrade=True)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    assert uploads(repo) == {templates.ENTERPRISE}
    workflow(repo, "regbot-static").unlink()
    init(repo)
    assert uploads(repo) == {templates.ENTERPRISE}
    init(repo, enterprise=False, upgrade=True)
    assert uploads(repo) == {newest()}
    assert set(installed(repo)) == {"regbot.toml", *(f"{name}.yml" for name in ALL)}


def test_workflows_that_read_their_own_artifact_are_left_out_on_an_enterprise_server(tmp_path: Path) -> None:
    reading = {name for name in NODES if _reads_its_own_artifact(name)}
    assert reading == set(templates.OWN_ARTIFACT_WORKFLOWS)
    repo = repository(tmp_path / "r")
    report = init(repo, enterprise=True)
    assert set(actions(report)) == {"regbot", *ALL} - reading
    warning_start = "regbot-bisect and regbot-refresh are left out: the last job reads an artifact of its own run"
    assert [warning.startswith(warning_start) for warning in report.warnings] == [True]
    assert set(installed(repo)) == {"regbot.toml", *(f"{name}.yml" for name in ALL - reading)}
    assert not any("left out" in warning for warning in init(repo, only_static=True).warnings)


def _reads_its_own_artifact(name: str) -> bool:
    """Return whether a job waits for an upload and then reads the artifact itself, in the same workflow."""
    text = templates.read_template(name)
    return "/upload-artifact@" in text and "\n    needs: " in text and "/dispatches" not in text


def test_upgrade_removes_workflows_that_an_enterprise_server_cannot_run_but_edited_ones_need_force(
    tmp_path: Path,
) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    workflow(repo, "regbot-bisect").write_text(workflow(repo, "regbot-bisect").read_text() + "# mine\n")
    actions_by_name = actions(init(repo, enterprise=True, upgrade=True))
    assert (actions_by_name["regbot-bisect"], actions_by_name["regbot-refresh"]) == ("edited", "removed")
    assert actions(init(repo))["regbot-bisect"] == "edited"
    assert workflow(repo, "regbot-bisect").exists()
    assert actions(init(repo, force=True))["regbot-bisect"] == "removed"


def test_a_move_to_an_enterprise_server_changes_nothing_without_upgrade(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    report = init(repo, enterprise=True)
    assert {name for name, action in actions(report).items() if action == "outdated"} == UPLOADING
    assert uploads(repo) == {newest()}
    init(repo, enterprise=True, upgrade=True)
    assert uploads(repo) == {templates.ENTERPRISE}


PINS = {
    "actions/upload-artifact@v3": True,
    f"actions/upload-artifact@{'b' * 40} # v3.9.9": True,
    f"ours/upload-artifact@{'b' * 40} # v4.0.0": True,
    f"actions/upload-artifact@{'b' * 40} # v4.0.0": False,
    "actions/upload-artifact@v4": False,
}


@pytest.mark.parametrize("pin", PINS)
def test_a_user_chosen_upload_action_is_no_edit_and_only_githubs_own_v4_is_upgraded(pin: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    text = workflow(repo, "regbot-measure").read_text()
    assert newest() in text
    workflow(repo, "regbot-measure").write_text(text.replace(newest(), pin))
    assert actions(init(repo))["regbot-measure"] == ("unchanged" if PINS[pin] else "outdated")
    init(repo, upgrade=True)
    assert (pin in uploads(repo)) == PINS[pin]


def test_linters_accept_the_workflows_for_an_enterprise_server(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, enterprise=True)
    (repo.path / ".github" / "actionlint.yaml").write_text("self-hosted-runner:\n  labels: [regbot]\n")
    program = Path(sys.executable).parent / "actionlint"
    if not program.exists():
        pytest.skip("there is no actionlint beside python; it comes with regbot's extra dev")
    files = [str(workflow(repo, name)) for name in sorted(ALL - {*templates.OWN_ARTIFACT_WORKFLOWS})]
    words = [str(program), "-shellcheck=", "-pyflakes=", *files]
    process = subprocess.run(words, cwd=repo.path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout


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
    repo = repository(tmp_path / "r")
    repo.git("remote", "add", "origin", address)
    assert origin_host(repo.path) == ADDRESSES[address]


@pytest.mark.parametrize("host", ["github.com", "acme.ghe.com", "ghe.example.org"])
def test_the_step_about_an_enterprise_server_appears_once(host: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    repo.git("remote", "add", "origin", f"git@{host}:us/moe.git")
    steps = [step for step in init(repo).next_steps if "Enterprise" in step.text]
    assert [host in step.text for step in steps] == ([True] if host == "ghe.example.org" else [])
    assert not any("Enterprise" in step.text for step in init(repo).next_steps)
    for step in steps:
        assert command(repo.path, *shlex.split(step.command)[2:]).returncode == 0
        assert uploads(repo) == {templates.ENTERPRISE}


# ---- workloads that nothing can trace


def test_with_only_command_workloads_regbot_static_is_left_out(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "regbot.toml": COMMANDS})
    report = init(repo)
    assert set(actions(report)) == {"regbot", *ALL} - {"regbot-static"}
    (warning,) = report.warnings
    assert warning.startswith("regbot-static is left out: every workload of regbot.toml is a command")
    (repo.path / "regbot.toml").write_text(f'{COMMANDS}[workloads.smoke]\nadapter = "smoke"\n')
    assert actions(init(repo))["regbot-static"] == "created"


def test_an_upgrade_removes_regbot_static_without_traceable_workloads(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    (repo.path / "regbot.toml").write_text(COMMANDS)
    report = init(repo)
    static = next(file for file in report.files if "static" in file.path)
    assert (static.action, "--upgrade removes it" in static.why) == ("outdated", True)
    assert workflow(repo, "regbot-static").exists()
    assert actions(init(repo, upgrade=True))["regbot-static"] == "removed"
    assert not workflow(repo, "regbot-static").exists()
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_an_edited_regbot_static_is_removed_only_by_force(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    (repo.path / "regbot.toml").write_text(COMMANDS)
    workflow(repo, "regbot-static").write_text(workflow(repo, "regbot-static").read_text() + "# mine\n")
    assert actions(init(repo, upgrade=True))["regbot-static"] == "edited"
    assert actions(init(repo, force=True))["regbot-static"] == "removed"


def test_only_static_is_refused_with_only_command_workloads(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "regbot.toml": COMMANDS})
    with pytest.raises(ConfigError, match=r"every workload of regbot\.toml is a command"):
        init(repo, only_static=True)
    assert set(installed(repo)) == {"regbot.toml"}
    other = repository(tmp_path / "s")
    init(other, only_static=True)
    (other.path / "regbot.toml").write_text(COMMANDS)
    assert "'regbot init --with-nodes'" in init(other).warnings[-1]


# ---- edited workflows after --only-static


def test_a_remaining_edited_workflow_does_not_reinstall_the_others(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    mine = workflow(repo, "regbot-refresh").read_text() + "# mine\n"
    workflow(repo, "regbot-refresh").write_text(mine)
    init(repo, only_static=True)
    report = init(repo, upgrade=True, source=SOURCE)
    assert set(actions(report)) == {"regbot", *HOSTED, "regbot-refresh"}
    assert actions(report)["regbot-refresh"] == "edited"
    assert any("not written: regbot-measure, regbot-bisect" in warning for warning in report.warnings)
    assert workflow(repo, "regbot-refresh").read_text() == mine
    assert {name for name, action in actions(init(repo, only_static=False)).items() if action == "created"} == NODES - {
        "regbot-refresh"
    }


# ---- a regbot in the repository itself


PATHS = {
    "./vendor/regbot": "vendor/regbot",
    '"./vendor/regbot" # ours': "vendor/regbot",
    "./wheels/regbot_moe-1-py3-none-any.whl": "wheels/regbot_moe-1-py3-none-any.whl",
    ".": "",
    "./": "",
    "./../other": "",
    SOURCE: "",
    "/set/by/regbot-init": "",
    "regbot": "",
}


@pytest.mark.parametrize("source", PATHS)
def test_path_in_repository_is_empty_for_other_sources(source: str) -> None:
    assert path_in_repository(source) == PATHS[source]


def test_a_path_in_the_repository_needs_an_owner(tmp_path: Path) -> None:
    files = {**MODULE, "vendor/regbot_moe-1-py3-none-any.whl": ""}
    repo = repository(tmp_path / "r", files)
    wheel = "vendor/regbot_moe-1-py3-none-any.whl"
    report = init(repo, source=wheel)
    assert any(f"Give {wheel} an owner" in step.text for step in report.next_steps)
    owned = repository(tmp_path / "s", {**files, ".github/CODEOWNERS": "# all\n/vendor/ @us/core\n"})
    assert not any("an owner" in step.text for step in init(owned, source=wheel).next_steps)
    elsewhere = init(repository(tmp_path / "t"), source=SOURCE)
    assert not any("an owner" in step.text for step in elsewhere.next_steps)


# ---- address of the documentation


def test_texts_name_the_address_of_the_documentation(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    address = f"https://host.example/us/regbot/blob/{'a' * 40}/docs"
    report = init(repo, source=SOURCE)
    assert any("docs/" in step.text for step in report.next_steps)
    assert page(report).endswith(f"\n\ndocs/... are pages of regbot: {address}\n")
    assert json.loads(report.to_json())["docs"] == address
    assert f"# docs/... is at {address}\n" in installed(repo)["regbot.toml"]


def test_an_unknown_address_of_the_documentation_is_described(tmp_path: Path) -> None:
    report = init(repository(tmp_path / "r"))
    assert page(report).endswith("docs/... are pages of regbot: in the repository from which regbot was installed\n")
    assert docs_of([f"{SOURCE}#subdirectory=bot"]).endswith(f"/blob/{'a' * 40}/bot/docs")


# ---- an upgrade that adds a job


def test_settings_stay_with_their_job_when_an_upgrade_adds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "r")
    shipped = templates.read_template("regbot-measure")
    before = shipped[: shipped.index("\n  hand-over:\n")] + "\n"
    with monkeypatch.context() as older:
        older.setattr(templates, "read_template", lambda name: before)
        text = templates.render("regbot-measure", templates.WorkflowSettings("0.0.9", templates.Runner(("ours",))))
    workflow(repo, "x").parent.mkdir(parents=True)
    workflow(repo, "regbot-measure").write_text(text.replace("timeout-minutes: 240", "timeout-minutes: 999"))
    assert actions(init(repo, upgrade=True))["regbot-measure"] == "upgraded"
    upgraded = workflow(repo, "regbot-measure").read_text()
    assert re.findall(r"timeout-minutes: (\d+)", upgraded) == ["999", "30"]
    assert re.findall(r"runs-on: (.*?)(?: #|\n)", upgraded) == ["[ours]", "ubuntu-latest"]
