"""A second ``regbot init``: which files it keeps, upgrades and removes."""

import shlex
from pathlib import Path

import pytest

from regbot import __version__
from regbot.config import ConfigError
from regbot.init import page, source, templates
from support.init_cases import (
    ALL,
    HOSTED,
    MODULE,
    SOURCE,
    SOURCE_COMMAND,
    actions,
    command,
    init,
    installed,
    repository,
    workflow,
)
from support.init_cases import _installed_from_nowhere as _installed_from_nowhere
from support.init_cases import _no_cluster as _no_cluster

# ---- running again


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    first = init(repo)
    assert set(actions(first)) == {"regbot", *ALL}
    assert set(actions(first).values()) == {"created"}
    before = repo.fingerprint()
    second = init(repo)
    assert actions(second) == {"regbot": "kept", **dict.fromkeys(ALL, "unchanged")}
    assert repo.fingerprint() == before
    assert [step.command for step in second.next_steps] == [SOURCE_COMMAND]
    init(repo, source=SOURCE, upgrade=True)
    before, second = repo.fingerprint(), init(repo)
    assert second.next_steps == []
    assert "nothing to do: everything is in place" in page(second)
    for force in (False, True):
        init(repo, upgrade=True, force=force)
        assert repo.fingerprint() == before


def test_a_second_run_keeps_the_choices_of_the_first(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    report = init(repo, only_static=True)
    assert set(actions(report)) == {"regbot", *HOSTED}
    assert "runner" not in {fact.what for fact in report.facts}
    assert not any("runner" in step.text for step in report.next_steps)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    later = init(repo, only_static=False, labels=["gpu"])
    assert {name for name, action in actions(later).items() if action == "created"} == ALL - HOSTED
    assert set(actions(init(repo))) == {"regbot", *ALL}


def test_without_a_node_a_step_removes_the_workflows_for_nodes(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    (step,) = [step for step in init(repo).next_steps if step.text.startswith("No node yet?")]
    assert command(repo.path, *shlex.split(step.command)[2:]).returncode == 0
    assert set(actions(init(repo))) == {"regbot", *HOSTED}
    labelled = init(repository(tmp_path / "s"), labels=["gpu"])
    assert not any("No node yet?" in step.text for step in labelled.next_steps)


def test_only_static_removes_unedited_workflows_for_nodes(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, labels=["ours"], version="0.0.9")
    before = repo.fingerprint()
    report = init(repo, only_static=True, dry_run=True)
    assert repo.fingerprint() == before
    assert "would be removed  .github/workflows/regbot-measure.yml" in page(report)
    workflow(repo, "regbot-refresh").write_text(workflow(repo, "regbot-refresh").read_text() + "# mine\n")
    report = init(repo, only_static=True)
    assert {name for name, action in actions(report).items() if action == "removed"} == {
        "regbot-measure",
        "regbot-bisect",
    }
    assert "removed: 2" in page(report)
    assert actions(report)["regbot-refresh"] == "edited"
    assert report.waiting
    assert {path.stem for path in workflow(repo, "x").parent.iterdir()} == {*HOSTED, "regbot-refresh"}
    init(repo, only_static=True, force=True)
    assert set(actions(init(repo))) == {"regbot", *HOSTED}


def test_the_removal_of_a_workflow_names_its_lost_settings(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, source=SOURCE)
    text = workflow(repo, "regbot-measure").read_text()
    workflow(repo, "regbot-measure").write_text(text.replace("timeout-minutes: 240", "timeout-minutes: 999"))
    text = workflow(repo, "regbot-refresh").read_text()
    workflow(repo, "regbot-refresh").write_text(text.replace('"17 2 * * *"', "'1 1 * * 1\u202e'"))
    report = init(repo, only_static=True)
    assert {Path(file.path).stem: file.why for file in report.files if file.action == "removed"} == {
        "regbot-measure": "--only-static; its own settings are lost: timeout-minutes: 999",
        "regbot-bisect": "--only-static",
        "regbot-refresh": "--only-static; its own settings are lost: cron: '1 1 * * 1'",
    }


def test_an_added_workflow_gets_the_labels_of_the_installed_ones(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, labels=["ours"])
    workflow(repo, "regbot-refresh").unlink()
    init(repo)
    assert "runs-on: [ours] # zizmor" in workflow(repo, "regbot-refresh").read_text()


def test_only_static_refuses_labels(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="--only-static"):
        init(repo, only_static=True, labels=["gpu"])
    assert installed(repo) == {}


def test_a_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    workflow(repo, "regbot-bisect").unlink()
    report = init(repo)
    assert {name for name, action in actions(report).items() if action == "created"} == {"regbot-bisect"}


SETTINGS = {
    "labels": ("regbot-measure", "[self-hosted, regbot]", "[self-hosted, ours]"),
    "group": ("regbot-measure", "[self-hosted, regbot]", "{ group: ours }"),
    "hosted": ("regbot-post", "runs-on: ubuntu-latest", "runs-on: ubuntu-24.04-large"),
    "time": ("regbot-refresh", '"17 2 * * *"', '"3 5 * * 1"'),
    "limit": ("regbot-measure", "timeout-minutes: 240", "timeout-minutes: 480"),
    "python": ("regbot-static", 'python-version: "3.11"', 'python-version: "3.13"'),
    "torch": ("regbot-static", "TORCH: torch>=2.11", "TORCH: torch==2.13.0"),
    "index": ("regbot-static", "TORCH_INDEX: https://", "TORCH_INDEX: https://mirror.example/"),
    "packages": ("regbot-static", '"numpy>=1.26"', '"numpy>=1.26" einops -r code/requirements.txt'),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_an_upgrade_keeps_settings_that_a_user_changed(case: str, tmp_path: Path) -> None:
    name, old, new = SETTINGS[case]
    repo = repository(tmp_path / "r")
    init(repo)
    text = workflow(repo, name).read_text()
    assert old in text
    workflow(repo, name).write_text(text.replace(old, new, 1))
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    report = init(repo, version="9.9", upgrade=True)
    assert "edited" not in actions(report).values()
    assert new in workflow(repo, name).read_text()


def test_line_ends_that_git_changed_are_no_edit(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    for name in ALL:
        workflow(repo, name).write_bytes(workflow(repo, name).read_bytes().replace(b"\n", b"\r\n"))
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}
    assert set(actions(init(repo, version="9.9")).values()) <= {"kept", "outdated", "unchanged"}


def test_an_existing_configuration_is_never_changed(tmp_path: Path) -> None:
    mine = "# mine\nversion = 1\n[workloads.smoke]\nadapter = 'smoke'\n"
    repo = repository(tmp_path / "r", {**MODULE, "regbot.toml": mine})
    report = init(repo, force=True, upgrade=True, shadow=True)
    assert installed(repo)["regbot.toml"] == mine
    assert "'shadow = true' below [github]" in report.files[0].why


def test_an_invalid_configuration_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {**MODULE, "regbot.toml": "version = 2\n"})
    with pytest.raises(ConfigError, match=r"regbot\.toml: version"):
        init(repo)
    assert set(installed(repo)) == {"regbot.toml"}


# ---- upgrades and edits


def test_a_newer_version_gives_a_diff_and_is_written_with_upgrade(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, version="0.0.9")
    for name in ALL - {"regbot-measure"}:
        workflow(repo, name).write_text(workflow(repo, name).read_text().replace(source.UNSET, "regbot==0.0.9"))
    before = repo.fingerprint()
    report = init(repo)
    assert repo.fingerprint() == before
    static = next(file for file in report.files if "static" in file.path)
    assert (static.action, static.why) == ("outdated", "written by regbot 0.0.9")
    assert "-          REGBOT_SOURCE: regbot==0.0.9\n" in static.diff
    assert f"+          REGBOT_SOURCE: {source.UNSET}\n" in static.diff
    assert any("regbot-gate.yml installs 'regbot==0.0.9' by its bare name" in warning for warning in report.warnings)
    assert static.diff.startswith("--- a/.github/workflows/regbot-static.yml\n+++ b/")
    assert static.diff.rstrip("\n") in page(report)
    assert [step.command for step in report.next_steps] == [SOURCE_COMMAND, "regbot init --upgrade"]
    assert set(actions(init(repo, upgrade=True)).values()) <= {"kept", "unchanged", "upgraded"}
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_a_newer_template_is_an_upgrade_and_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    shipped = templates.read_template
    monkeypatch.setattr(
        templates, "read_template", lambda name: shipped(name).replace("permissions: {}", "permissions: {} # none")
    )
    report = init(repo)
    assert {action for name, action in actions(report).items() if name in ALL} == {"outdated"}
    assert "+permissions: {} # none" in report.files[1].diff
    init(repo, upgrade=True)
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_an_edited_workflow_is_replaced_only_by_force(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    mine = workflow(repo, "regbot-gate").read_text().replace("name: regbot-gate\n", "name: regbot-gate\n# mine\n")
    workflow(repo, "regbot-gate").write_text(mine)
    for upgrade in (False, True):
        report = init(repo, upgrade=upgrade)
        gate = next(file for file in report.files if "gate" in file.path)
        assert (gate.action, gate.why) == ("edited", f"edited since regbot {__version__} wrote it")
        assert "-# mine\n" in gate.diff
        assert report.waiting
        assert workflow(repo, "regbot-gate").read_text() == mine
    assert [step.command for step in report.next_steps] == [SOURCE_COMMAND, "regbot init --force"]
    assert actions(init(repo, force=True))["regbot-gate"] == "overwritten"
    assert "# mine" not in workflow(repo, "regbot-gate").read_text()
    assert set(actions(init(repo)).values()) == {"kept", "unchanged"}


def test_the_removal_of_an_edited_workflow_shows_the_edits_that_are_lost(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    edited = workflow(repo, "regbot-measure")
    edited.write_text(edited.read_text().replace("name: regbot-measure\n", "name: regbot-measure\n# mine\n"))
    for force, action in ((False, "edited"), (True, "removed")):
        report = init(repo, only_static=True, force=force)
        (measure,) = [file for file in report.files if "measure" in file.path]
        assert (measure.action, "-# mine\n" in measure.diff) == (action, True)
    assert not edited.exists()


def test_an_edited_workflow_survives_an_upgrade_of_the_others(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo, version="0.0.9")
    mine = workflow(repo, "regbot-post").read_text() + "# mine\n"
    workflow(repo, "regbot-post").write_text(mine)
    report = init(repo, upgrade=True, source=SOURCE)
    assert actions(report)["regbot-post"] == "edited"
    assert actions(report)["regbot-static"] == "upgraded"
    assert workflow(repo, "regbot-post").read_text() == mine


def test_a_foreign_workflow_with_regbots_file_name_is_kept(tmp_path: Path) -> None:
    name = ".github/workflows/regbot-static.yml"
    repo = repository(tmp_path / "r", {**MODULE, name: "on: push\n# \x1b[31m\n"})
    report = init(repo, upgrade=True)
    static = next(file for file in report.files if file.path == name)
    assert (static.action, static.why) == ("edited", "not written by regbot init")
    assert "\x1b" not in static.diff
    assert (repo.path / name).read_text().startswith("on: push")
    assert actions(report)["regbot-gate"] == "created"


def test_an_unchanged_workflow_without_its_stamp_counts_as_unchanged(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    init(repo)
    first, _, rest = workflow(repo, "regbot-post").read_text().partition("\n")
    assert first.startswith("# Written by 'regbot init' (")
    workflow(repo, "regbot-post").write_text(rest)
    assert actions(init(repo))["regbot-post"] == "unchanged"
    assert actions(init(repo, source=SOURCE))["regbot-post"] == "edited"
