"""The gate does nothing twice: repeated and late events, lost replies, an unreachable GitHub."""

from datetime import datetime
from typing import Any

import pytest

from github_fake.state import Comment
from regbot.github.client import AwayError, Forge, RefusedError
from regbot.github.replies import build_marker
from regbot.github.types import WorkflowRun
from support.gate_scene import COMMANDS, MEASURE, Scene, client, end_runs, posted, workflow

# Nothing twice


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_repeated_comment_event_starts_nothing_twice(scene: Scene, command: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "mia")
    assert scene.replay(event).effect != "nothing"
    for _ in range(2):
        assert scene.replay(event).effect == "nothing"
        end_runs(scene)
    assert len(scene.started) == 1
    assert len(scene.replies) == 1  # the verdict


def test_a_repeated_refused_comment_is_answered_once(scene: Scene) -> None:
    for text in ("/regbot run", f"/regbot run {'b' * 40}", "/regbot rerun"):
        event = scene.commented(text)
        assert scene.replay(event).effect == "refused"
        assert scene.replay(event).effect == "nothing"
    assert len(scene.replies) == 3


def test_a_forged_reply_does_not_silence_the_bot(scene: Scene) -> None:
    event = scene.commented("/regbot run")
    first = build_marker(f"comment:{event['comment']['id']}")
    scene.repo.comment(scene.number, "mallory", f"{first}\nhm")
    assert scene.replay(event).effect == "refused"
    assert len(scene.replies) == 1


def test_a_repeated_label_event_starts_nothing_twice(scene: Scene) -> None:
    event = scene.labelled()
    assert scene.pulled(event).effect == "started"
    end_runs(scene)
    assert scene.pulled(event).effect == "nothing"
    scene.push({"moe.py": "3\n"})
    assert [scene.pulled(event).effect for _ in range(2)] == ["refused", "nothing"]
    assert len(scene.started) == len(scene.replies) == 1


def answers(scene: Scene, event: dict[str, Any]) -> list[str]:
    """Return the reactions and replies to the comment of an event."""
    comment: Comment = scene.repo.all_comments[event["comment"]["id"]]
    replies = [reply for reply in scene.replies if f'"comment:{comment.id}"' in reply]
    return [what for _, what in comment.reactions] + ["reply"] * len(replies)


def test_a_refusal_whose_reaction_was_lost_is_not_written_again(scene: Scene) -> None:
    event = scene.commented("/regbot run")
    scene.forge.react = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scene.replay(event)
    scene.forge = client(scene.hub, scene.token)
    scene.replay(event)
    assert sorted(answers(scene, event)) == ["confused", "reply"]


def dying(*_: object) -> None:
    raise KeyboardInterrupt


# Faults


def test_a_dispatch_that_is_listed_late_happens_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    scene.forge = Forge(scene.token, "acme/moe", scene.hub.url, sleep=naps.append)
    real = scene.forge.runs

    def late(workflow: str, since: datetime) -> list[WorkflowRun]:
        return real(workflow, since) if sum(naps) >= 30 else []

    monkeypatch.setattr(scene.forge, "runs", late)
    scene.hub.faults.next("502-after", "POST", "*/dispatches")
    assert scene.comment(f"/regbot run {scene.sha}").effect == "started"
    assert len(scene.started) == 1


def test_a_github_that_is_down_starts_nothing_and_the_same_job_goes_on_later(scene: Scene) -> None:
    event = scene.commented(f"/regbot run {scene.sha}")
    real = scene.forge.dispatch

    def down(*arguments: Any) -> None:
        scene.hub.faults.down = True
        real(*arguments)

    scene.forge.dispatch = down  # type: ignore[method-assign]
    with pytest.raises(AwayError, match="Run this job again"):
        scene.replay(event)
    assert not scene.started
    scene.hub.faults.down = False
    scene.forge = client(scene.hub, scene.token)
    assert scene.replay(event).effect == "started"
    assert len(scene.started) == 1
    assert len(scene.repo.check_runs(scene.sha)) == 1


@pytest.mark.parametrize("text", [None, "on:\n  workflow_dispatch:\n"])
def test_a_workflow_that_cannot_start_is_reported_and_leaves_no_waiting_check_run(
    scene: Scene, text: str | None
) -> None:
    scene.repo.commit({MEASURE: text})
    event, label = scene.commented(f"/regbot run {scene.sha}"), scene.labelled()
    for _ in range(2):
        with pytest.raises(RefusedError):
            scene.replay(event)
    with pytest.raises(RefusedError):
        scene.pulled(label)
    assert {check.conclusion for check in scene.repo.check_runs(scene.sha)} == ({"cancelled"} if text else set())
    assert scene.repo.labels(scene.number) == []
    assert len(scene.replies) == 2
    assert all("GitHub refused the request: " in reply for reply in scene.replies)
    scene.repo.commit({MEASURE: workflow("measure")})
    assert scene.replay(event).effect == "started"
