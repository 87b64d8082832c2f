"""``regbot init`` run again: what it leaves, what it brings up to date, and what it takes away."""

import shlex
from pathlib import Path

import pytest

from init_cases import ALL, HOSTED, MODULE, SOURCE, UNSAID, actions, command, init, installed, repository, workflow
from init_cases import _installed_from_nowhere as _installed_from_nowhere
from init_cases import _no_cluster as _no_cluster
from regbot import __version__
from regbot.config import ConfigError
from regbot.init import page, source, templates

# ---- running again


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    first = init(at)
    assert set(actions(first)) == {"regbot", *ALL}
    assert set(actions(first).values()) == {"created"}
    before = at.fingerprint()
    second = init(at)
    assert actions(second) == {"regbot": "kept", **dict.fromkeys(ALL, "unchanged")}
    assert at.fingerprint() == before
    assert [step.command for step in second.next_steps] == [UNSAID]
    init(at, source=SOURCE, upgrade=True)
    before, second = at.fingerprint(), init(at)
    assert second.next_steps == []
    assert "nothing to do: everything is in place" in page(second)
    for force in (False, True):
        init(at, upgrade=True, force=force)
        assert at.fingerprint() == before


def test_what_was_chosen_once_stays_without_saying_it_again(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    found = init(at, only_static=True)
    assert set(actions(found)) == {"regbot", *HOSTED}
    assert "runner" not in {each.what for each in found.found}
    assert not any("runner" in step.text for step in found.next_steps)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    later = init(at, only_static=False, labels=["gpu"])
    assert {name for name, action in actions(later).items() if action == "created"} == ALL - HOSTED
    assert set(actions(init(at))) == {"regbot", *ALL}


def test_who_has_no_node_is_told_what_to_leave_out_and_it_stays_out(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    (step,) = [step for step in init(at).next_steps if step.text.startswith("No node yet?")]
    assert command(at.path, *shlex.split(step.command)[2:]).returncode == 0
    assert set(actions(init(at))) == {"regbot", *HOSTED}
    labelled = init(repository(tmp_path / "s"), labels=["gpu"])
    assert not any("No node yet?" in step.text for step in labelled.next_steps)


def test_workflows_for_nodes_that_nobody_edited_are_removed_when_they_are_not_wanted(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["ours"], version="0.0.9")
    before = at.fingerprint()
    found = init(at, only_static=True, dry_run=True)
    assert at.fingerprint() == before
    assert "would be removed  .github/workflows/regbot-measure.yml" in page(found)
    workflow(at, "regbot-refresh").write_text(workflow(at, "regbot-refresh").read_text() + "# mine\n")
    found = init(at, only_static=True)
    assert {name for name, action in actions(found).items() if action == "removed"} == {
        "regbot-measure",
        "regbot-bisect",
    }
    assert "removed: 2" in page(found)
    assert actions(found)["regbot-refresh"] == "edited"
    assert found.waiting
    assert {path.stem for path in workflow(at, "x").parent.iterdir()} == {*HOSTED, "regbot-refresh"}
    init(at, only_static=True, force=True)
    assert set(actions(init(at))) == {"regbot", *HOSTED}


def test_what_was_set_in_a_workflow_is_told_when_it_is_removed(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, source=SOURCE)
    text = workflow(at, "regbot-measure").read_text()
    workflow(at, "regbot-measure").write_text(text.replace("timeout-minutes: 240", "timeout-minutes: 999"))
    text = workflow(at, "regbot-refresh").read_text()
    workflow(at, "regbot-refresh").write_text(text.replace('"17 2 * * *"', "'1 1 * * 1\u202e'"))
    found = init(at, only_static=True)
    assert {Path(file.path).stem: file.why for file in found.files if file.action == "removed"} == {
        "regbot-measure": "--only-static; what was set in it goes too: timeout-minutes: 999",
        "regbot-bisect": "--only-static",
        "regbot-refresh": "--only-static; what was set in it goes too: cron: '1 1 * * 1'",
    }


def test_what_is_added_has_the_labels_of_what_is_installed(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, labels=["ours"])
    workflow(at, "regbot-refresh").unlink()
    init(at)
    assert "runs-on: [ours] # zizmor" in workflow(at, "regbot-refresh").read_text()


def test_hosted_alone_has_no_labels(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    with pytest.raises(ConfigError, match="--only-static"):
        init(at, only_static=True, labels=["gpu"])
    assert installed(at) == {}


def test_a_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    workflow(at, "regbot-bisect").unlink()
    found = init(at)
    assert {name for name, action in actions(found).items() if action == "created"} == {"regbot-bisect"}


SETTINGS = {
    "labels": ("regbot-measure", "[self-hosted, regbot]", "[self-hosted, ours]"),
    "group": ("regbot-measure", "[self-hosted, regbot]", "{ group: ours }"),
    "hosted": ("regbot-post", "runs-on: ubuntu-latest", "runs-on: ubuntu-24.04-large"),
    "time": ("regbot-refresh", '"17 2 * * *"', '"3 5 * * 1"'),
    "limit": ("regbot-measure", "timeout-minutes: 240", "timeout-minutes: 480"),
    "packages": ("regbot-static", '"numpy>=1.26"', '"numpy>=1.26" einops -r code/requirements.txt'),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_were_changed_in_place_are_kept_by_an_upgrade(case: str, tmp_path: Path) -> None:
    name, old, new = SETTINGS[case]
    at = repository(tmp_path / "r")
    init(at)
    text = workflow(at, name).read_text()
    assert old in text
    workflow(at, name).write_text(text.replace(old, new, 1))
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    found = init(at, version="9.9", upgrade=True)
    assert "edited" not in actions(found).values()
    assert new in workflow(at, name).read_text()


def test_line_ends_that_git_changed_are_no_edit(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    for name in ALL:
        workflow(at, name).write_bytes(workflow(at, name).read_bytes().replace(b"\n", b"\r\n"))
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}
    assert set(actions(init(at, version="9.9")).values()) <= {"kept", "outdated", "unchanged"}


def test_a_configuration_that_is_there_is_never_changed(tmp_path: Path) -> None:
    mine = "# mine\nversion = 1\n[workloads.smoke]\nadapter = 'smoke'\n"
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": mine})
    found = init(at, force=True, upgrade=True, shadow=True)
    assert installed(at)["regbot.toml"] == mine
    assert "'shadow = true' below [github]" in found.files[0].why


def test_a_configuration_that_is_wrong_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    at = repository(tmp_path / "r", {**MODULE, "regbot.toml": "version = 2\n"})
    with pytest.raises(ConfigError, match=r"regbot\.toml: version"):
        init(at)
    assert set(installed(at)) == {"regbot.toml"}


# ---- upgrades and edits


def test_an_upgrade_shows_a_diff_and_writes_it_when_told(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, version="0.0.9")
    for name in ALL - {"regbot-measure"}:
        workflow(at, name).write_text(workflow(at, name).read_text().replace(source.UNSET, "regbot==0.0.9"))
    before = at.fingerprint()
    found = init(at)
    assert at.fingerprint() == before
    static = next(file for file in found.files if "static" in file.path)
    assert (static.action, static.why) == ("outdated", "written by regbot 0.0.9")
    assert "-          REGBOT_SOURCE: regbot==0.0.9\n" in static.diff
    assert f"+          REGBOT_SOURCE: {source.UNSET}\n" in static.diff
    assert any("regbot-gate.yml installs 'regbot==0.0.9' by its name" in warning for warning in found.warnings)
    assert static.diff.startswith("--- a/.github/workflows/regbot-static.yml\n+++ b/")
    assert static.diff.rstrip("\n") in page(found)
    assert [step.command for step in found.next_steps] == [UNSAID, "regbot init --upgrade"]
    assert set(actions(init(at, upgrade=True)).values()) <= {"kept", "unchanged", "upgraded"}
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_a_newer_template_is_an_upgrade_and_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = repository(tmp_path / "r")
    init(at)
    shipped = templates.template
    monkeypatch.setattr(
        templates, "template", lambda name: shipped(name).replace("permissions: {}", "permissions: {} # none")
    )
    found = init(at)
    assert {action for name, action in actions(found).items() if name in ALL} == {"outdated"}
    assert "+permissions: {} # none" in found.files[1].diff
    init(at, upgrade=True)
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_an_edit_is_shown_and_lost_only_by_force(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    mine = workflow(at, "regbot-gate").read_text().replace("name: regbot-gate\n", "name: regbot-gate\n# mine\n")
    workflow(at, "regbot-gate").write_text(mine)
    for upgrade in (False, True):
        found = init(at, upgrade=upgrade)
        gate = next(file for file in found.files if "gate" in file.path)
        assert (gate.action, gate.why) == ("edited", f"edited since regbot {__version__} wrote it")
        assert "-# mine\n" in gate.diff
        assert found.waiting
        assert workflow(at, "regbot-gate").read_text() == mine
    assert [step.command for step in found.next_steps] == [UNSAID, "regbot init --force"]
    assert actions(init(at, force=True))["regbot-gate"] == "overwritten"
    assert "# mine" not in workflow(at, "regbot-gate").read_text()
    assert set(actions(init(at)).values()) == {"kept", "unchanged"}


def test_an_edited_workflow_survives_an_upgrade_of_the_others(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at, version="0.0.9")
    mine = workflow(at, "regbot-post").read_text() + "# mine\n"
    workflow(at, "regbot-post").write_text(mine)
    found = init(at, upgrade=True, source=SOURCE)
    assert actions(found)["regbot-post"] == "edited"
    assert actions(found)["regbot-static"] == "upgraded"
    assert workflow(at, "regbot-post").read_text() == mine


def test_a_workflow_of_somebody_else_under_our_name_is_left_alone(tmp_path: Path) -> None:
    name = ".github/workflows/regbot-static.yml"
    at = repository(tmp_path / "r", {**MODULE, name: "on: push\n# \x1b[31m\n"})
    found = init(at, upgrade=True)
    static = next(file for file in found.files if file.path == name)
    assert (static.action, static.why) == ("edited", "not written by regbot init")
    assert "\x1b" not in static.diff
    assert (at.path / name).read_text().startswith("on: push")
    assert actions(found)["regbot-gate"] == "created"


def test_a_workflow_without_its_stamp_is_in_place_while_it_is_the_same(tmp_path: Path) -> None:
    at = repository(tmp_path / "r")
    init(at)
    first, _, rest = workflow(at, "regbot-post").read_text().partition("\n")
    assert first.startswith("# Written by 'regbot init' (")
    workflow(at, "regbot-post").write_text(rest)
    assert actions(init(at))["regbot-post"] == "unchanged"
    assert actions(init(at, source=SOURCE))["regbot-post"] == "edited"
