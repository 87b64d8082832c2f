"""Which requests a bisection run may answer: those of a comment that regbot-gate obeys, whoever started the run."""

import json
from collections.abc import Callable

import pytest

from github_fake.fixtures import hub as hub
from regbot.github.replies import build_marker, reply_once
from support.bisection_scene import BOT, Scene, left
from support.bisection_scene import scene as scene

INVALID_REQUESTS: dict[str, tuple[Callable[[Scene], int], str]] = {
    "by nobody": (lambda s: 10**9, "none of its comments has this nonce"),
    "by a reader": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", "rita"), "has only the role read"),
    "by a stranger": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", "eve"), "has only the role none"),
    "for something else": (lambda s: s.ask(f"/regbot run {s.bad}"), "does not ask for this range"),
    "between other commits": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.commits[2]}"), "does not ask for this"),
    "further down": (lambda s: s.ask(f"Look:\n/regbot bisect {s.good}..{s.bad}"), "does not ask for this range"),
    "by a bot": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", BOT), "does not ask for this range"),
}


@pytest.mark.parametrize("name", INVALID_REQUESTS)
def test_a_run_that_a_person_started_gets_a_reply_only_if_a_comment_requests_it(scene: Scene, name: str) -> None:
    ask, why = INVALID_REQUESTS[name]
    scene.repo.member("rita", "read")
    run = scene.run(left(scene.result()), title=scene.title(ask(scene)))
    before = scene.replies
    assert why in scene.ignored(run)
    assert scene.replies == before


def test_an_edited_or_deleted_request_gets_no_reply(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    scene.repo.edit_comment(scene.question, scene.repo.all_comments[scene.question].body)
    assert "was edited" in scene.ignored(run)
    del scene.repo.all_comments[scene.question]
    assert "none of its comments" in scene.ignored(run)


def test_an_author_who_has_lost_the_role_gets_no_reply(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    scene.repo.member("walt", "triage")
    assert "has only the role triage" in scene.ignored(run)


def test_a_request_that_the_gate_refused_gets_no_reply(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    subject = f"comment:{scene.question}"
    scene.repo.comment(scene.number, "mallory", f"<!-- regbot:answer {json.dumps({'to': subject})} -->\nno")
    scene.answer(run)
    reply_once(scene.forge, scene.number, build_marker(subject), "walt: nothing was done.", BOT)
    assert "was refused" in scene.ignored(run)


def test_a_request_that_github_refused_at_first_gets_a_reply(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    marker = build_marker(f"fault:comment:{scene.question}")
    reply_once(scene.forge, scene.number, marker, "walt: nothing was done. 404.", BOT)
    assert scene.answer(run).is_new


def test_an_issue_is_no_pull_request(scene: Scene) -> None:
    run = scene.run(left(scene.result()), title=scene.title().replace(f" {scene.number} ", " 77 "))
    assert scene.ignored(run).endswith("#77: this number is no pull request")
