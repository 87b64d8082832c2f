"""The reply to a requested bisection: exactly one, for the requested range, whatever artifact the job uploads."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub
from regbot.github.bisection import ARTIFACT, MEMBER, BisectionReply, post_bisection
from regbot.github.client import Forge
from regbot.github.metadata import BISECT, IgnoredRun
from regbot.github.post import post_run
from regbot.github.replies import build_marker, reply_once
from regbot.github.workflow_start import compute_nonce
from regbot.records.bisection import Bisection, Candidate
from regbot.records.files import MAX_RECORD_BYTES
from support import bisection_cases
from support.forge_refresh_cases import zipped

BOT = "github-actions[bot]"


@dataclass
class Scene:
    """Six commits on main, a pull request, and a run of regbot-bisect over them."""

    hub: FakeGitHub

    def __post_init__(self) -> None:
        self.repo = self.hub.repository("acme/moe")
        self.commits = [self.repo.commit({"moe.py": f"x = {n}\n"}, message=f"change {n}") for n in range(6)]
        self.repo.commit({"moe.py": "x = 9\n"}, branch="topic", author="ann")
        self.number = self.repo.open_pull(head="topic", title="A change", author="ann")
        self.repo.member("walt", "write")
        self.question = self.ask(f"/regbot bisect {self.good}..{self.bad}")
        self.token = self.hub.token(BOT, actions="read", contents="read", pull_requests="write")
        self.waited: list[float] = []

    @property
    def good(self) -> str:
        return self.commits[0]

    @property
    def bad(self) -> str:
        return self.commits[-1]

    def ask(self, text: str, login: str = "walt") -> int:
        """A comment; its id."""
        return self.repo.comment(self.number, login, text)

    def title(self, question: int | None = None) -> str:
        """Of a run that is asked for by the comment ``question``."""
        nonce = compute_nonce("acme/moe", self.number, "comment", question or self.question)
        return f"regbot-bisect {self.number} {self.good} {self.bad} {nonce}"

    def run(self, *artifacts: bytes, **changes: Any) -> int:
        """A run whose last job is about to reply."""
        title = self.title()
        usual: dict[str, Any] = {"path": BISECT, "event": "workflow_dispatch", "head_branch": "main", "title": title}
        usual |= {"head_sha": self.bad, "status": "in_progress", "conclusion": None}
        made = self.repo.workflow_run(**(usual | changes))
        for content in artifacts:
            made.artifact(ARTIFACT, content)
        return made.id

    def result(self, culprit: int = 3, **more: object) -> Bisection:
        """An answer about these commits: exact, on the ledger."""
        points = [
            bisection_cases.point(number).model_copy(update={"commit": commit})
            for number, commit in enumerate(self.commits)
        ]
        named = bisection_cases.candidate(points[culprit], None)
        change = bisection_cases.change([named], points[culprit - 1], "exact", before="5", after="7")
        fields = {"found": "culprit", "culprit": points[culprit].commit, "candidates": [named], "changes": [change]}
        return bisection_cases.exact(**{**fields, "good": points[0], "bad": points[-1], **more})

    @property
    def forge(self) -> Forge:
        return Forge(self.token, "acme/moe", self.hub.url, self.waited.append)

    def answer(self, run: int) -> BisectionReply:
        reply = post_bisection(self.forge, self.forge.run(run), BOT)
        assert isinstance(reply, BisectionReply)
        return reply

    def ignored(self, run: int) -> str:
        """Why a run is not answered."""
        reply = post_bisection(self.forge, self.forge.run(run), BOT)
        assert isinstance(reply, IgnoredRun)
        return reply.reason

    @property
    def replies(self) -> list[str]:
        return [comment.body for comment in self.repo.comments(self.number) if comment.author != "walt"]


def left(result: Bisection) -> bytes:
    return zipped((MEMBER, result.to_json().encode()))


@pytest.fixture
def scene(hub: FakeGitHub) -> Scene:
    return Scene(hub)


def test_the_reply_is_the_page_of_the_result(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    answered = scene.answer(run)
    assert (answered.number, answered.is_new) == (scene.number, True)
    (reply,) = scene.replies
    assert reply.startswith(f"<!-- regbot:bisect {run} -->\n### ❌ CULPRIT FOUND: `{scene.commits[3][:12]}` ")
    assert f"- {scene.commits[3]} " in reply, "GitHub links it"
    assert f"regbot bisect {scene.good} {scene.bad}" in reply


def test_a_run_replies_once_and_a_second_attempt_updates_its_reply(scene: Scene) -> None:
    run = scene.run(left(scene.result()))
    assert [scene.answer(run).is_new for _ in range(3)] == [True, False, False]
    scene.repo.runs[run].artifact(ARTIFACT, left(scene.result(4)))
    assert scene.answer(run).is_new
    (reply,) = scene.replies
    assert scene.commits[4] in reply
    other = scene.run(left(scene.result(2)))
    scene.answer(other)
    assert len(scene.replies) == 2, "another question has an answer of its own"


# ---- what is not repeated


def _elsewhere(scene: Scene) -> Bisection:
    """Return a result whose culprit is the pull request's own commit, outside the range."""
    head = scene.repo.pulls[scene.number].head_sha
    point = bisection_cases.point(3).model_copy(update={"commit": head})
    result = scene.result()
    change = result.changes[0].model_copy(update={"candidates": [Candidate(point=point, probability=None)]})
    return result.model_copy(update={"changes": [change]})


def _good_itself(scene: Scene) -> Bisection:
    return scene.result(0)


def _changed(scene: Scene, **fields: object) -> bytes:
    document = json.loads(scene.result().to_json())
    return zipped((MEMBER, json.dumps({**document, **fields}).encode()))


UNUSABLE: dict[str, tuple[Callable[[Scene], bytes | None], str]] = {
    "nothing": (lambda _: None, "uploaded no artifact regbot-bisection; its log says why"),
    "a path": (lambda s: zipped((f"../../{MEMBER}", b"{}")), "must contain only the file bisection.json"),
    "a bomb": (lambda _: zipped((MEMBER, b" " * (MAX_RECORD_BYTES + 1))), "unpacks to more"),
    "another key": (lambda s: _changed(s, comment="**hello**"), "cannot be read"),
    "a culprit that is no commit": (lambda s: _changed(s, culprit="https://evil.example"), "cannot be read"),
    "another range": (lambda s: left(s.result(good=bisection_cases.point(1))), "answers another request"),
    "another axis": (lambda s: left(s.result(axis="torch")), "answers another request"),
    "a command": (lambda s: left(s.result(on="command")), "answers another request"),
    "a commit outside of the range": (lambda s: left(_elsewhere(s)), "names a commit outside the range"),
    "the commit that is good": (lambda s: left(_good_itself(s)), "names a commit outside the range"),
    "a commit that is not there": (
        lambda s: left(s.result(changes=[], candidates=[Candidate(point=bisection_cases.point(9), probability=None)])),
        "names a commit outside the range",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSABLE)
def test_an_artifact_without_a_valid_result_is_reported_and_not_posted(scene: Scene, name: str) -> None:
    make, why = UNUSABLE[name]
    content = make(scene)
    scene.answer(scene.run(*([] if content is None else [content])))
    (reply,) = scene.replies
    assert "### ⛔ NO ANSWER: " in reply
    assert why in reply
    assert "evil" not in reply
    assert "](" not in reply


def test_a_result_that_breaks_regbot_is_reported_and_logged(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbot.github.bisection.bisection_page", lambda *_: 1 / 0)
    answered = scene.answer(scene.run(left(scene.result())))
    assert "NO ANSWER: regbot failed on the job's artifact (ZeroDivisionError)" in scene.replies[0]
    assert answered.fault.startswith("Traceback")


NO_RUN: dict[str, dict[str, Any]] = {
    "another workflow": {"path": ".github/workflows/regbot-static.yml"},
    "another event": {"event": "pull_request"},
    "another branch": {"head_branch": "topic"},
    "a title of somebody": {"title": "regbot-bisect 1 main HEAD 0123456789abcdef"},
    "a title with more": {"title": f"regbot-bisect 1 {'a' * 40} {'b' * 40} 0123456789abcdef x"},
}


@pytest.mark.parametrize("name", NO_RUN)
def test_a_run_that_the_gate_did_not_start_gets_no_reply(scene: Scene, name: str) -> None:
    run = scene.run(left(scene.result()), **NO_RUN[name])
    assert scene.ignored(run) == f"run {run} was not started by regbot-gate"
    assert scene.replies == []


def test_a_run_of_a_tag_named_like_the_default_branch_gets_no_reply(scene: Scene) -> None:
    evil = scene.repo.commit({".github/workflows/regbot-bisect.yml": "jobs: {}\n"}, branch="evil")
    scene.repo.git.set_ref("refs/tags/main", evil)
    run = scene.run(left(scene.result()), head_sha=evil)
    assert scene.ignored(run) == f"run {run} was not started by regbot-gate"
    assert scene.replies == []
    scene.answer(scene.run(left(scene.result()), head_sha=scene.commits[2]))
    assert len(scene.replies) == 1, "the default branch has moved on since that run began"


def test_regbot_post_replies_once_and_ignores_runs_that_the_gate_did_not_start(scene: Scene, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(scene.repo.git.path), str(checkout)], check=True)
    run = scene.run(left(scene.result()))
    first, again = (post_run(scene.forge, run, checkout) for _ in range(2))
    assert isinstance(first, BisectionReply)
    assert isinstance(again, BisectionReply)
    assert (first.is_new, again.is_new) == (True, False)
    assert isinstance(post_run(scene.forge, scene.run(title="regbot-bisect 1"), checkout), IgnoredRun)
    assert len(scene.replies) == 1


# Which requests a bisection run may answer, whoever started the run


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
