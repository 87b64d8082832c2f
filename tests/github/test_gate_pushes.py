"""Labels and pushes: a label may approve a head, a push ends the approval."""

import pytest

from github_fake.fixtures import hub
from support.gate_scene import (
    LABEL,
    Scene,
    posted,
    scene,
)

__all__ = ["hub", "scene"]


def test_a_push_ends_the_label_and_has_the_comment_marked(scene: Scene) -> None:
    posted(scene)
    scene.repo.label(scene.number, "walt", LABEL)
    scene.repo.label(scene.number, "walt", "other")
    before = scene.sha
    scene.push({"moe.py": "3\n"})
    assert scene.pulled(scene.happened("synchronize", before=before)).effect == "stale"
    assert scene.repo.labels(scene.number) == ["other"]
    assert [dispatch.inputs for dispatch in scene.started] == [{"change": str(scene.number)}]


def test_a_label_that_was_set_after_the_push_survives_the_event_of_the_push(scene: Scene) -> None:
    before, scene.sha = scene.sha, scene.push({"moe.py": "3\n"})
    push, label = scene.happened("synchronize", before=before), scene.labelled()
    scene.pulled(push)
    assert scene.pulled(label).effect == "started"
    assert scene.started[-1].inputs["sha"] == scene.sha


def test_a_label_of_an_older_head_starts_nothing_and_is_taken_off(scene: Scene) -> None:
    event, old = scene.labelled(), scene.sha
    new = scene.push({"moe.py": "evil\n"})
    assert scene.pulled(event).effect == "refused"
    assert not scene.started
    assert not scene.repo.check_runs(old)
    assert scene.repo.labels(scene.number) == []
    assert f"\n/regbot run {new}\n" in scene.replies[0]


def test_a_removed_label_approves_nothing(scene: Scene) -> None:
    event = scene.labelled()
    scene.forge.remove_label(scene.number, LABEL)
    assert scene.pulled(event).effect == "nothing"
    assert not scene.started


@pytest.mark.parametrize("action", ["opened", "labeled", "closed", "edited", "unlabeled"])
def test_an_unrelated_event_causes_no_request(scene: Scene, action: str) -> None:
    about = {"label": "other", "sender": "rita"} if action.endswith("labeled") else {}
    event = scene.happened(action, **about)
    scene.hub.requests.clear()
    assert scene.pulled(event).effect == "nothing"
    assert not scene.hub.requests
