"""Every command gets one answer, a reaction or a reply, whatever else is posted or lost."""

from typing import Any

import pytest

from github_fake.fixtures import hub
from github_fake.state import Comment
from support.gate_scene import COMMANDS, POST, Scene, client, end_runs, posted, scene

__all__ = ["hub", "scene"]
DECLARED = ["expect", "accept"]


def posting(scene: Scene, number: int) -> None:
    """Post a verdict for somebody else."""
    made = scene.repo.workflow_run(POST, "workflow_dispatch", "main", scene.base, title=f"regbot-post {number}")
    made.status, made.conclusion = "completed", "success"


def answers(scene: Scene, event: dict[str, Any]) -> list[str]:
    """Return the reactions and replies to the comment of an event."""
    comment: Comment = scene.repo.all_comments[event["comment"]["id"]]
    replies = [reply for reply in scene.replies if f'"comment:{comment.id}"' in reply]
    return [what for _, what in comment.reactions] + ["reply"] * len(replies)


@pytest.mark.parametrize("command", DECLARED)
def test_a_refused_declaration_is_answered_although_something_was_posted_since(scene: Scene, command: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "tom")
    posting(scene, 999)
    posting(scene, scene.number)
    assert scene.replay(event).effect == "refused"
    assert scene.replay(event).effect == "nothing"
    assert sorted(answers(scene, event)) == ["confused", "reply"]
    assert "needs the role" in scene.replies[-1]


def test_an_acceptance_of_an_older_head_is_answered_although_something_was_posted_since(scene: Scene) -> None:
    event = scene.commented(COMMANDS["accept"][1](scene), "mia")
    scene.push({"moe.py": "3\n"})
    posting(scene, 999)
    assert scene.replay(event).effect == "refused"
    assert "is not the head of this pull request" in scene.replies[-1]


@pytest.mark.parametrize("command", DECLARED)
def test_a_declaration_that_an_earlier_post_reads_gets_a_reaction(scene: Scene, command: str) -> None:
    posted(scene)
    first, second = (scene.commented(COMMANDS[command][1](scene), "mia") for _ in range(2))
    for event in (second, first):
        scene.replay(event)
    assert len(scene.started) == 1
    assert [answers(scene, event) for event in (first, second)] == [["+1"], ["+1"]]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("later", ["nothing", "a push", "closed", "edited"])
def test_a_repeated_command_keeps_its_reply(scene: Scene, command: str, later: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "mia")
    scene.replay(event)
    before = answers(scene, event)
    assert len(before) == 1
    end_runs(scene)
    if later == "a push":
        scene.push({"moe.py": "3\n"})
    if later == "closed":
        scene.repo.close(scene.number)
    if later == "edited":
        scene.repo.edit_comment(event["comment"]["id"], "never mind")
    assert scene.replay(event).effect == "nothing"
    assert answers(scene, event) == before
    assert len(scene.started) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_that_ended_before_its_reply_writes_it_when_rerun(scene: Scene, command: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "mia")
    scene.forge.react = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scene.replay(event)
    assert answers(scene, event) == []
    scene.forge = client(scene.hub, scene.token)
    scene.replay(event)
    assert answers(scene, event) == ["+1" if command in DECLARED else "eyes"]
    assert len(scene.started) == 1


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


def test_a_reaction_of_somebody_else_does_not_count(scene: Scene) -> None:
    event = scene.commented(COMMANDS["run"][1](scene))
    scene.repo.all_comments[event["comment"]["id"]].reactions.append(("mallory", "eyes"))
    assert scene.replay(event).effect == "started"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(3))
def test_under_random_faults_every_command_gets_one_reply(scene: Scene, command: str, seed: int) -> None:
    posted(scene)
    good, bad = (scene.commented(COMMANDS[command][1](scene), login) for login in ("mia", "tom"))
    scene.hub.faults.plan(share=0.3, seed=seed)
    for event in (good, bad, good, bad):
        scene.replay(event)
    scene.hub.faults.stop()
    for event in (good, bad):
        scene.replay(event)
    assert answers(scene, good) == ["+1" if command in DECLARED else "eyes"]
    assert sorted(answers(scene, bad)) == ["confused", "reply"]
    assert len(scene.started) == 1


# Drafts


@pytest.mark.parametrize("more", [False, True])
def test_a_draft_is_not_measured_before_it_is_ready(scene: Scene, more: bool) -> None:
    line = f"/regbot more {scene.sha} 8" if more else f"/regbot run {scene.sha}"
    pull = scene.repo.pulls[scene.number]
    pull.draft = True
    assert scene.comment(line).effect == "refused"
    (reply,) = scene.replies
    assert "This pull request is a draft." in reply
    assert f"\n{line}\n" in reply
    assert not scene.started
    assert not scene.repo.check_runs(scene.sha)
    pull.draft = False
    assert scene.comment(line).effect == "started"


def test_the_label_of_a_draft_is_taken_off(scene: Scene) -> None:
    scene.repo.pulls[scene.number].draft = True
    assert scene.pulled(scene.labelled()).effect == "refused"
    assert scene.repo.labels(scene.number) == []
    assert "This pull request is a draft." in scene.replies[0]
    assert not scene.started


def test_a_draft_can_be_accepted(scene: Scene) -> None:
    scene.repo.pulls[scene.number].draft = True
    assert scene.comment(f"/regbot accept {scene.sha}: meant", "mia").effect == "noted"
