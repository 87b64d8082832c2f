"""Every command gets one answer, a reaction or a reply, whatever else is posted or lost."""

from typing import Any

import pytest

from github_fake.fixtures import hub
from github_fake.state import Comment
from support.gate_scene import COMMANDS, Scene, client, end_runs, posted, scene

__all__ = ["hub", "scene"]


def answers(scene: Scene, event: dict[str, Any]) -> list[str]:
    """Return the reactions and replies to the comment of an event."""
    comment: Comment = scene.repo.all_comments[event["comment"]["id"]]
    replies = [reply for reply in scene.replies if f'"comment:{comment.id}"' in reply]
    return [what for _, what in comment.reactions] + ["reply"] * len(replies)


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
