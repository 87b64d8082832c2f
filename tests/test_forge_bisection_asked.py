"""Whose question a bisection answers: that of a comment which regbot-gate obeys, whoever started the run."""

import json
from collections.abc import Callable

import pytest

from github_fake.fixtures import hub as hub
from regbot.forge.replies import FAULT, answer_once
from test_forge_bisection import BOT, Scene, left
from test_forge_bisection import scene as scene

NOT_ASKED: dict[str, tuple[Callable[[Scene], int], str]] = {
    "by nobody": (lambda s: 10**9, "none of its comments has this nonce"),
    "by a reader": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", "rita"), "somebody with the role read"),
    "by a stranger": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", "eve"), "somebody with the role none"),
    "for something else": (lambda s: s.ask(f"/regbot run {s.bad}"), "does not ask for this range"),
    "between other commits": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.commits[2]}"), "does not ask for this"),
    "further down": (lambda s: s.ask(f"Look:\n/regbot bisect {s.good}..{s.bad}"), "does not ask for this range"),
    "by a bot": (lambda s: s.ask(f"/regbot bisect {s.good}..{s.bad}", BOT), "does not ask for this range"),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_a_run_that_somebody_started_himself_is_answered_only_where_a_comment_asks_for_it(
    scene: Scene, name: str
) -> None:
    ask, why = NOT_ASKED[name]
    scene.repo.member("rita", "read")
    run = scene.run(left(scene.result()), title=scene.title(ask(scene)))
    before = scene.replies
    assert why in scene.ignored(run)
    assert scene.replies == before


def test_a_question_that_was_edited_or_deleted_is_not_answered(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    scene.repo.edit_comment(scene.question, scene.repo.all_comments[scene.question].body)
    assert "was edited" in scene.ignored(run)
    del scene.repo.all_comments[scene.question]
    assert "none of its comments" in scene.ignored(run)


def test_who_has_lost_the_role_since_is_not_answered(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    scene.repo.member("walt", "triage")
    assert "somebody with the role triage" in scene.ignored(run)


def test_a_question_that_the_gate_has_refused_is_not_answered(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    subject = f"comment:{scene.question}"
    scene.repo.comment(scene.number, "mallory", f"<!-- regbot:answer {json.dumps({'to': subject})} -->\nno")
    scene.answer(run)
    answer_once(scene.forge, scene.number, subject, "walt: nothing was done.", BOT)
    assert "was refused" in scene.ignored(run)


def test_a_question_that_github_did_not_take_at_first_is_answered(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    answer_once(scene.forge, scene.number, f"comment:{scene.question}", f"walt: nothing was done. {FAULT}404.", BOT)
    assert scene.answer(run).new


def test_an_issue_is_no_pull_request(scene: Scene) -> None:
    run = scene.run(left(scene.result()), title=scene.title().replace(f" {scene.number} ", " 77 "))
    assert scene.ignored(run).endswith("#77: it is no pull request")
