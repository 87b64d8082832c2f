"""The gate does nothing twice: events that come again or late, answers that are lost, a GitHub that is down."""

from datetime import datetime
from typing import Any

import pytest

from gate_scene import BOT, COMMANDS, MEASURE, Scene, client, end_runs, posted, scene, workflow
from github_fake.fixtures import hub
from regbot.forge.client import AwayError, Forge, RefusedError
from regbot.forge.replies import marker
from regbot.forge.types import WorkflowRun

__all__ = ["hub", "scene"]


# Nothing twice


@pytest.mark.parametrize("command", COMMANDS)
def test_a_comment_that_comes_twice_starts_nothing_twice(scene: Scene, command: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "mia")
    assert scene.replay(event).did != "nothing"
    for _ in range(2):
        assert scene.replay(event).did == "nothing"
        end_runs(scene)
    assert len(scene.started) == 1
    assert len(scene.replies) == 1  # the verdict


@pytest.mark.parametrize("command", COMMANDS)
def test_a_comment_that_comes_again_under_another_head_is_left_alone(scene: Scene, command: str) -> None:
    event = scene.commented(COMMANDS[command][1](scene), "mia")
    posted(scene)
    scene.replay(event)
    end_runs(scene)
    scene.push({"moe.py": "3\n"})
    replies = len(scene.replies)
    assert scene.replay(event).did in ("nothing", "noted")
    assert len(scene.started) == 1
    assert len(scene.replies) == replies


def test_a_post_of_another_pull_request_is_not_taken_for_this_ones(scene: Scene) -> None:
    posted(scene)
    event = scene.commented(COMMANDS["expect"][1](scene), "mia")
    main = scene.repo.git.branch("main")
    assert main is not None
    path = ".github/workflows/regbot-post.yml"
    scene.repo.workflow_run(
        path, "workflow_dispatch", "main", main, title="regbot-post 999", conclusion=None, status="queued"
    )
    assert scene.replay(event).did == "noted"
    assert [dispatch.inputs for dispatch in scene.started] != []


def test_a_refused_comment_that_comes_twice_is_answered_once(scene: Scene) -> None:
    for text in ("/regbot run", f"/regbot run {'b' * 40}", "/regbot rerun"):
        event = scene.commented(text)
        assert scene.replay(event).did == "refused"
        assert scene.replay(event).did == "nothing"
    assert len(scene.replies) == 3


def test_two_comments_with_the_same_mistake_are_both_answered(scene: Scene) -> None:
    scene.comment("/regbot run")
    scene.comment("/regbot run")
    assert len(scene.replies) == 2


def test_somebody_cannot_write_the_answer_to_keep_the_bot_silent(scene: Scene) -> None:
    event = scene.commented("/regbot run")
    first = marker(f"comment:{event['comment']['id']}")
    scene.repo.comment(scene.number, "mallory", f"{first}\nhm")
    assert scene.replay(event).did == "refused"
    assert len(scene.replies) == 1


def test_a_label_that_comes_twice_starts_nothing_twice(scene: Scene) -> None:
    event = scene.labelled()
    assert scene.pulled(event).did == "started"
    end_runs(scene)
    assert scene.pulled(event).did == "nothing"
    scene.push({"moe.py": "3\n"})
    assert scene.pulled(event).did == "nothing"
    assert len(scene.started) == 1
    assert not scene.replies


def test_a_refused_label_that_comes_twice_is_answered_once(scene: Scene) -> None:
    event = scene.labelled("tom")
    assert [scene.pulled(event).did for _ in range(2)] == ["refused", "nothing"]
    assert len(scene.replies) == 1


def test_an_old_comment_starts_nothing_after_another_one_measured_the_same_commit(scene: Scene) -> None:
    first, second = (scene.commented(f"/regbot run {scene.sha}", login) for login in ("walt", "mia"))
    scene.replay(first)
    end_runs(scene)
    scene.replay(second)
    end_runs(scene)
    assert scene.replay(first).did == "nothing"
    assert len(scene.started) == 2


def test_a_head_that_comes_back_does_not_bring_its_old_approval_back(scene: Scene) -> None:
    event = scene.commented(f"/regbot run {scene.sha}")
    scene.replay(event)
    end_runs(scene)
    scene.push({"moe.py": "3\n"})
    scene.fork.git.set_ref("refs/heads/topic", scene.sha)
    assert scene.replay(event).did == "nothing"
    assert len(scene.started) == 1


# Faults


@pytest.mark.parametrize("kind", ["502-after", "503-after", "reset-after"])
@pytest.mark.parametrize("command", ["run", "bisect"])
def test_a_dispatch_whose_answer_is_lost_happens_once(scene: Scene, kind: str, command: str) -> None:
    scene.hub.faults.next(kind, "POST", "*/dispatches")
    assert scene.comment(COMMANDS[command][1](scene)).did == "started"
    assert scene.hub.faults.happened
    assert len(scene.started) == 1


def test_a_dispatch_that_is_in_no_list_for_half_a_minute_happens_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    scene.forge = Forge(scene.token, "acme/moe", scene.hub.url, sleep=naps.append)
    real = scene.forge.runs

    def late(workflow: str, since: datetime) -> list[WorkflowRun]:
        return real(workflow, since) if sum(naps) >= 30 else []

    monkeypatch.setattr(scene.forge, "runs", late)
    scene.hub.faults.next("502-after", "POST", "*/dispatches")
    assert scene.comment(f"/regbot run {scene.sha}").did == "started"
    assert len(scene.started) == 1


@pytest.mark.parametrize("kind", ["502-before", "reset-before", "secondary-403", "secondary-429"])
def test_a_dispatch_that_did_not_happen_is_asked_for_again(scene: Scene, kind: str) -> None:
    scene.hub.faults.next(kind, "POST", "*/dispatches", times=2)
    assert scene.comment(f"/regbot run {scene.sha}").did == "started"
    assert len(scene.started) == 1


@pytest.mark.parametrize("path", ["*/check-runs", "*/comments", "*/reactions"])
def test_what_was_created_before_the_answer_was_lost_is_there_once(scene: Scene, path: str) -> None:
    scene.hub.faults.next("502-after", "POST", path)
    scene.comment(f"/regbot run {scene.sha}")
    scene.comment("/regbot run")
    assert len(scene.hub.faults.happened) == 1
    assert len(scene.repo.check_runs(scene.sha)) == 1
    assert len(scene.replies) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_starts_everything_once(scene: Scene, seed: int) -> None:
    scene.hub.faults.plan(share=0.3, seed=seed, kinds=STORM)
    assert scene.comment(f"/regbot run {scene.sha}").did == "started"
    assert scene.comment("/regbot run").did == "refused"
    assert len(scene.started) == 1
    assert [check.status for check in scene.repo.check_runs(scene.sha)] == ["in_progress"]
    assert len(scene.replies) == 1


STORM = [f"{fault}-{when}" for fault in ("502", "503", "reset") for when in ("before", "after")] + ["secondary-403"]


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
    assert scene.replay(event).did == "started"
    assert len(scene.started) == 1
    assert len(scene.repo.check_runs(scene.sha)) == 1


@pytest.mark.parametrize("text", [None, "on:\n  workflow_dispatch:\n"])
def test_a_workflow_that_cannot_be_started_is_told_and_leaves_no_check_run_waiting(
    scene: Scene, text: str | None
) -> None:
    scene.repo.commit({MEASURE: text})
    event, label = scene.commented(f"/regbot run {scene.sha}"), scene.labelled()
    for _ in range(2):
        with pytest.raises(RefusedError):
            scene.replay(event)
    with pytest.raises(RefusedError):
        scene.pulled(label)
    assert [check.conclusion for check in scene.repo.check_runs(scene.sha)] == (["cancelled"] if text else [])
    assert scene.repo.labels(scene.number) == []
    assert len(scene.replies) == 2
    assert all("GitHub did not do it: " in reply for reply in scene.replies)
    scene.repo.commit({MEASURE: workflow("measure")})
    assert scene.replay(event).did == "started"


def test_histories_that_have_nothing_in_common_are_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(base: str, head: str) -> str:
        raise RefusedError("no common ancestor", 404)

    monkeypatch.setattr(scene.forge, "compare", nothing)
    with pytest.raises(RefusedError):
        scene.comment(f"/regbot run {scene.sha}")
    assert "no common ancestor" in scene.replies[0]
    assert not scene.started


def test_a_reaction_that_is_refused_does_not_undo_what_was_done(scene: Scene) -> None:
    token = scene.hub.token(BOT, actions="write", checks="write", contents="read", pull_requests="write")
    scene.forge = client(scene.hub, token)
    outcome = scene.comment(f"/regbot run {scene.sha}")
    assert outcome.did == "started"
    assert "the reaction could not be set" in outcome.said


def test_an_expired_token_is_said(scene: Scene) -> None:
    scene.hub.expire(scene.token)
    with pytest.raises(RefusedError, match="expired"):
        scene.comment(f"/regbot run {scene.sha}")


def test_a_command_costs_a_dozen_requests(scene: Scene) -> None:
    event = scene.commented(f"/regbot run {scene.sha}")
    scene.hub.requests.clear()
    scene.replay(event)
    assert len(scene.hub.requests) <= 13
