"""Each command that is typed has one answer, a reaction or a reply, whatever else is posted and whatever is lost."""

from typing import Any

import pytest

from gate_scene import COMMANDS, POST, Scene, client, end_runs, posted, scene
from github_fake.fixtures import hub
from github_fake.state import Comment

__all__ = ["hub", "scene"]
DECLARED = ["expect", "accept"]


def posting(scene: Scene, run: int) -> None:
    """Somebody else has a verdict posted."""
    made = scene.repo.workflow_run(POST, "workflow_dispatch", "main", scene.base, title=f"regbot-post {run}")
    made.status, made.conclusion = "completed", "success"


def answers(scene: Scene, event: dict[str, Any]) -> list[str]:
    """To the comment of an event: the reaction, and the replies."""
    comment: Comment = scene.repo.all_comments[event["comment"]["id"]]
    replies = [reply for reply in scene.replies if f'"comment:{comment.id}"' in reply]
    return [what for _, what in comment.reactions] + ["reply"] * len(replies)


@pytest.mark.parametrize("command", DECLARED)
def test_a_refused_declaration_is_answered_although_something_was_posted_since(scene: Scene, command: str) -> None:
    posted(scene)
    event = scene.commented(COMMANDS[command][1](scene), "tom")
    posting(scene, 999)
    posting(scene, 17)
    assert scene.replay(event).did == "refused"
    assert scene.replay(event).did == "nothing"
    assert sorted(answers(scene, event)) == ["confused", "reply"]
    assert "needs the role" in scene.replies[-1]


def test_an_acceptance_of_an_older_head_is_answered_although_something_was_posted_since(scene: Scene) -> None:
    event = scene.commented(COMMANDS["accept"][1](scene), "mia")
    scene.push({"moe.py": "3\n"})
    posting(scene, 999)
    assert scene.replay(event).did == "refused"
    assert "is not the head of this pull request" in scene.replies[-1]


@pytest.mark.parametrize("command", DECLARED)
def test_a_declaration_that_another_ones_post_reads_is_noted_visibly(scene: Scene, command: str) -> None:
    posted(scene)
    first, second = (scene.commented(COMMANDS[command][1](scene), "mia") for _ in range(2))
    for event in (second, first):
        scene.replay(event)
    assert len(scene.started) == 1
    assert [answers(scene, event) for event in (first, second)] == [["+1"], ["+1"]]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("later", ["nothing", "a push", "closed", "edited"])
def test_a_command_that_comes_again_has_the_answer_that_it_had(scene: Scene, command: str, later: str) -> None:
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
    assert scene.replay(event).did == "nothing"
    assert answers(scene, event) == before
    assert len(scene.started) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_that_ends_before_its_answer_gives_it_when_it_is_run_again(scene: Scene, command: str) -> None:
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


def test_a_reaction_of_somebody_else_is_no_answer(scene: Scene) -> None:
    event = scene.commented(COMMANDS["run"][1](scene))
    scene.repo.all_comments[event["comment"]["id"]].reactions.append(("mallory", "eyes"))
    assert scene.replay(event).did == "started"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(3))
def test_in_a_storm_every_command_has_one_answer(scene: Scene, command: str, seed: int) -> None:
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
