"""Shared by the tests of forge bisection and others."""

from dataclasses import dataclass
from typing import Any

import pytest

from github_fake import FakeGitHub
from regbot.github.bisection import ARTIFACT, MEMBER, BisectionReply, post_bisection
from regbot.github.client import Forge
from regbot.github.metadata import BISECT, IgnoredRun
from regbot.github.workflow_start import compute_nonce
from regbot.records.bisection import Bisection
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
