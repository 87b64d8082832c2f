"""Protected files: a commit that changes some needs the confirmation of a maintainer."""

import pytest

from github_fake.fixtures import hub
from regbot.github.approval import find_protected
from regbot.github.types import CommitComparison
from regbot.records.config import GitHub
from support.gate_scene import (
    COMMANDS,
    Scene,
    scene,
    workflow,
)

__all__ = ["hub", "scene"]


PROTECTED_CHANGES: dict[str, dict[str, str | None]] = {
    "a workflow": {".github/workflows/ci.yml": "on: push\n"},
    "an action": {".github/actions/x/action.yml": "x\n"},
    "the configuration": {"regbot.toml": "version = 1 # softer\n"},
    "a removed configuration": {"regbot.toml": None},
    "a runner's file": {"runners/setup.sh": "x\n"},
    "a reference": {"baselines/a/b.json": "{}\n"},
    "a workflow in another case": {".GitHub/workflows/ci.yml": "x\n"},
    "the folder made a file": {"runners": "x\n"},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", PROTECTED_CHANGES)
def test_protected_files_need_a_maintainer_who_says_so(scene: Scene, change: str) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES[change])
    for login in ("walt", "mia"):
        assert scene.comment(f"/regbot run {scene.sha}", login).effect == "refused"
    assert scene.comment(f"/regbot run {scene.sha} with-protected-files", "walt").effect == "refused"
    assert not scene.started
    assert next(iter(PROTECTED_CHANGES[change])) in scene.replies[0]
    assert f"\n/regbot run {scene.sha} with-protected-files\n" in scene.replies[0]
    assert scene.comment(f"/regbot run {scene.sha} with-protected-files", "mia").effect == "started"


@pytest.mark.parametrize("command", ["more", "bisect"])
def test_more_and_bisect_of_protected_files_need_a_maintainer(scene: Scene, command: str) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES["a workflow"])
    text = COMMANDS[command][1](scene)
    assert scene.comment(text, "walt").effect == "refused"
    assert scene.comment(text, "mia").effect == "started"


def test_a_label_never_approves_protected_files(scene: Scene) -> None:
    scene.sha = scene.push(PROTECTED_CHANGES["a workflow"])
    assert scene.pulled(scene.labelled("ada")).effect == "refused"
    assert scene.repo.labels(scene.number) == []
    assert f"\n/regbot run {scene.sha} with-protected-files\n" in scene.replies[0]


@pytest.mark.parametrize("command", ["run", "bisect"])
def test_a_protected_file_that_github_does_not_list_is_found(
    scene: Scene, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbot.github.types.MAX_COMPARED", 1)
    scene.sha = scene.push({"zz/runner.sh": "1", "runners/setup.sh": "x\n"})
    assert scene.comment(COMMANDS[command][1](scene), "walt").effect == "refused"
    assert "protected files: `runners/setup.sh`" in scene.replies[0]


def test_both_names_of_a_renamed_file_count_where_github_does_not_list_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbot.github.types.MAX_COMPARED", 1)
    scene.sha = scene.push({".github/workflows/regbot-post.yml": None, "kept.yml": workflow("post")})
    assert scene.comment(f"/regbot run {scene.sha}").effect == "refused"


def test_protected_files_are_configurable(scene: Scene) -> None:
    scene.settings = GitHub(protected=["moe.py"])
    assert scene.comment(f"/regbot run {scene.sha}").effect == "refused"
    scene.settings = GitHub(protected=[])
    assert scene.comment(f"/regbot run {scene.sha}").effect == "started"


@pytest.mark.parametrize(("path", "covered"), [("REGBOT.toml", True), ("sub/regbot.toml", False)])
def test_the_case_of_a_path_does_not_matter(path: str, covered: bool) -> None:
    change = CommitComparison(merge_base="", files=[{"filename": path}])  # type: ignore[arg-type]
    assert bool(find_protected(None, change, "", ["regbot.toml"])) is covered  # type: ignore[arg-type]
