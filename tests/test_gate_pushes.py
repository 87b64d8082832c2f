"""What a label and a push do: the one may approve a head, the other ends that."""

import pytest

from gate_scene import (
    LABEL,
    Scene,
    end_runs,
    posted,
    scene,
)
from github_fake.fixtures import hub

__all__ = ["hub", "scene"]


def test_a_push_ends_the_label_and_marks_the_comment_stale(scene: Scene) -> None:
    posted(scene)
    scene.repo.label(scene.number, "walt", LABEL)
    scene.repo.label(scene.number, "walt", "other")
    before, new = scene.sha, scene.push({"moe.py": "3\n"})
    assert scene.pulled(scene.happened("synchronize", before=before)).did == "stale"
    assert scene.repo.labels(scene.number) == ["other"]
    (reply,) = scene.replies
    assert "Stale" in reply
    assert new[:12] in reply


def test_a_label_that_was_set_after_the_push_survives_the_event_of_the_push(scene: Scene) -> None:
    before, scene.sha = scene.sha, scene.push({"moe.py": "3\n"})
    push, label = scene.happened("synchronize", before=before), scene.labelled()
    scene.pulled(push)
    assert scene.pulled(label).did == "started"
    assert scene.started[0].inputs["sha"] == scene.sha


def test_a_label_of_an_older_head_starts_nothing_and_is_taken_off(scene: Scene) -> None:
    event, old = scene.labelled(), scene.sha
    new = scene.push({"moe.py": "evil\n"})
    assert scene.pulled(event).did == "refused"
    assert not scene.started
    assert not scene.repo.check_runs(old)
    assert scene.repo.labels(scene.number) == []
    assert f"\n/regbot run {new}\n" in scene.replies[0]


def test_a_label_that_is_gone_approves_nothing(scene: Scene) -> None:
    event = scene.labelled()
    scene.forge.remove_label(scene.number, LABEL)
    assert scene.pulled(event).did == "refused"
    assert not scene.started


def test_a_label_that_is_set_again_asks_again(scene: Scene) -> None:
    scene.pulled(scene.labelled())
    end_runs(scene)
    scene.forge.remove_label(scene.number, LABEL)
    assert scene.pulled(scene.labelled()).did == "started"
    assert len(scene.started) == 2


@pytest.mark.parametrize("action", ["opened", "labeled", "closed", "edited", "unlabeled"])
def test_what_does_not_concern_the_gate_asks_nothing_of_github(scene: Scene, action: str) -> None:
    about = {"label": "other", "sender": "rita"} if action.endswith("labeled") else {}
    event = scene.happened(action, **about)
    scene.hub.requests.clear()
    assert scene.pulled(event).did == "nothing"
    assert not scene.hub.requests


def test_a_reopened_pull_request_has_its_comment_marked(scene: Scene) -> None:
    posted(scene)
    scene.push({"moe.py": "3\n"})
    assert scene.pulled(scene.happened("reopened")).did == "stale"
    assert "Stale" in scene.replies[0]
