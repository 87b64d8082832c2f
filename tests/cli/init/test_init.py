"""``regbot init``: the files that it writes, a second run, its refusals, and its command."""

import json
from pathlib import Path

import pytest

from regbot.cli.init.flow import page
from regbot.github import source, templates
from regbot.records.config import ConfigError
from support.init_cases import (
    ALL,
    HOSTED,
    MODULE,
    ROOT,
    SOURCE,
    actions,
    command,
    config,
    init,
    installed,
    repository,
    workflow,
)
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere
from support.linters import actionlint, schema, zizmor


def test_a_dry_run_writes_nothing_and_lists_the_files(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    before = repo.fingerprint()
    result = init(repo, dry_run=True)
    assert repo.fingerprint() == before
    assert set(actions(result).values()) == {"created"}
    assert "would be created  regbot.toml" in page(result)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_written_workflow_differs_from_the_shipped_one_only_in_its_fields(name: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, labels=["gpu"], source=SOURCE)
    shipped = (ROOT / "workflows" / f"{name}.yml").read_text()
    _, _, written = workflow(repo, name).read_text().partition("\n")
    assert written == shipped.replace("[self-hosted, regbot]", "[gpu]").replace(source.UNSET, SOURCE)
    assert ("[gpu]" in written) == (name not in HOSTED)
    assert (SOURCE in written) == (name != "regbot-measure")


def test_every_shipped_workflow_is_installed() -> None:
    assert {path.stem for path in (ROOT / "workflows").glob("*.yml")} == ALL
    assert {*templates.HOSTED_WORKFLOWS, *templates.NODE_WORKFLOWS} == ALL


@pytest.mark.slow
def test_linters_accept_the_written_workflows(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"torchtitan/trainer.py": "", "requirements.txt": "tyro\n"})
    init(repo, labels=["self-hosted", "gpu-h100"])
    (repo.path / ".github" / "actionlint.yaml").write_text("self-hosted-runner:\n  labels: [gpu-h100]\n")
    files = [workflow(repo, name) for name in sorted(ALL)]
    for lint in (actionlint, schema, zizmor):
        result = lint(*files, at=repo.path)
        assert result.returncode == 0, result.stdout + result.stderr


# ---- a second run


def test_a_second_run_changes_nothing_and_keeps_settings(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, source=SOURCE)
    changed = (
        workflow(repo, "regbot-static")
        .read_text()
        .replace('"numpy>=1.26"', '"numpy>=1.26" einops')
        .replace('python-version: "3.11"', 'python-version: "3.12"')
    )
    workflow(repo, "regbot-static").write_text(changed.replace("\n", "\r\n"))
    measure = workflow(repo, "regbot-measure").read_text()
    workflow(repo, "regbot-measure").write_text(measure.replace("[self-hosted, regbot]", "{ group: gpus }"))
    before = installed(repo)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    assert installed(repo) == before


def test_a_newer_template_replaces_what_nobody_edited_and_keeps_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    text = workflow(repo, "regbot-measure").read_text()
    workflow(repo, "regbot-measure").write_text(text.replace("[self-hosted, regbot]", "[mine]"))
    workflow(repo, "regbot-post").write_text(workflow(repo, "regbot-post").read_text() + "# mine\n")
    newer = tmp_path / "newer"
    newer.mkdir()
    for file in (ROOT / "workflows").glob("*.yml"):
        (newer / file.name).write_text(f"{file.read_text()}# newer\n")
    monkeypatch.setattr(templates, "_TEMPLATE_FOLDER", newer)
    report = init(repo)
    assert actions(report) == {
        "regbot": "kept", "regbot-post": "edited", **dict.fromkeys(ALL - {"regbot-post"}, "upgraded"),
    }  # fmt: skip
    (diff,) = [file.diff for file in report.files if file.diff]
    assert "-# mine\n+# newer\n" in diff
    assert report.next_steps[0].command == "regbot init --force"
    upgraded = workflow(repo, "regbot-measure").read_text()
    assert "[mine]" in upgraded
    assert upgraded.endswith("# newer\n")
    assert actions(init(repo, force=True))["regbot-post"] == "overwritten"
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_a_foreign_workflow_is_kept_and_shown_without_control_characters(tmp_path: Path) -> None:
    name = ".github/workflows/regbot-static.yml"
    repo = repository(tmp_path / "r", {**MODULE, name: "on: push\n# \x1b[31m\n"})
    report = init(repo)
    assert actions(report)["regbot-static"] == "edited"
    assert "\x1b" not in page(report)
    assert (repo.path / name).read_text().startswith("on: push")
    assert actions(report)["regbot-gate"] == "created"


def test_without_a_node_three_workflows_are_left_out_and_come_back(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    assert {*actions(init(repo, only_static=True))} == {"regbot", *HOSTED}
    assert {*actions(init(repo))} == {"regbot", *HOSTED}
    assert {*actions(init(repo, only_static=False))} == {"regbot", *ALL}
    workflow(repo, "regbot-measure").write_text(workflow(repo, "regbot-measure").read_text() + "# mine\n")
    removal = actions(init(repo, only_static=True))
    assert {name for name, action in removal.items() if action == "removed"} == {"regbot-bisect", "regbot-refresh"}
    assert removal["regbot-measure"] == "edited"
    assert actions(init(repo, only_static=True, force=True))["regbot-measure"] == "removed"
    assert not workflow(repo, "regbot-measure").exists()


def test_the_configuration_belongs_to_the_user(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    assert not config(repo).github.shadow
    (repo.path / "regbot.toml").write_text("ours\n")
    assert actions(init(repo, force=True))["regbot"] == "kept"
    assert (repo.path / "regbot.toml").read_text() == "ours\n"


# ---- refusals


def test_from_a_folder_inside_it_installs_at_the_top(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    assert init(repo.path / "src" / "mypkg").root == str(repo.path)
    assert workflow(repo, "regbot-static").exists()


@pytest.mark.parametrize("name", ["regbot.toml", ".github", ".github/workflows", ".github/workflows/regbot-post.yml"])
@pytest.mark.parametrize("kind", ["link", "dangling"])
def test_nothing_is_written_through_a_link(name: str, kind: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    outside = tmp_path / "outside"
    outside.mkdir()
    (repo.path / name).parent.mkdir(parents=True, exist_ok=True)
    (repo.path / name).symlink_to(outside if kind == "link" else tmp_path / "gone")
    with pytest.raises(ConfigError, match="nothing was written") as caught:
        init(repo, force=True)
    assert str(caught.value).startswith(name)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "gone").exists()
    assert not (repo.path / "regbot.toml").is_file()


@pytest.mark.parametrize("name", ["regbot.toml", ".github/workflows/regbot-post.yml"])
def test_a_folder_in_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    (repo.path / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="nothing was written"):
        init(repo, force=True)
    assert not (repo.path / "regbot.toml").is_file()


@pytest.mark.slow
def test_json_is_one_document_and_exit_code_1_means_an_edited_workflow(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    result = command(repo.path, "--json", "--label", "gpu")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["schema"] == "regbot/init@1"
    assert "regbot ledger trace moe:mixtral-8x7b" in [step["command"] for step in document["next_steps"]]
    assert command(repo.path).returncode == 0
    workflow(repo, "regbot-post").write_text("on: push\n")
    assert command(repo.path, "--json").returncode == 1
    assert command(repo.path, "--dry-run", "--force").returncode == 0
