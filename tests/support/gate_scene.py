"""A repository on the fake GitHub, with people of every role, a fork's pull request, and the gate over it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from github_fake import FakeGitHub
from github_fake.state import Dispatch, Repository
from regbot.github.approval import GateOutcome
from regbot.github.client import Forge
from regbot.github.events import CommentEvent, PullEvent, read_event
from regbot.github.gate import handle_comment, handle_pull
from regbot.github.stamped_text import Stamp, StampedText
from regbot.github.types import NewCheck, Pull
from regbot.records.config import GitHub
from support.workflow_rules import read
from support.workflows_act import title_of

WORKFLOWS = Path(__file__).parents[2] / "workflows"
BOT = "github-actions[bot]"
LABEL = "regbot: measure"
MEASURE = ".github/workflows/regbot-measure.yml"
BISECT = ".github/workflows/regbot-bisect.yml"
STATIC = ".github/workflows/regbot-static.yml"
POST = ".github/workflows/regbot-post.yml"
RULE = "recompute re-dispatches@ep@*: saves memory"
PEOPLE = {"nemo": "none", "rita": "read", "tom": "triage", "walt": "write", "mia": "maintain", "ada": "admin"}


def token(hub: FakeGitHub, job: str) -> str:
    """Create a token with exactly the permissions of a job of regbot-gate."""
    named = YAML(typ="safe").load(workflow("gate"))["jobs"][job]["permissions"]
    return hub.token(BOT, **{name.replace("-", "_"): level for name, level in named.items()})


def client(hub: FakeGitHub, token: str) -> Forge:
    return Forge(token, "acme/moe", hub.url, sleep=lambda _: None)


def workflow(name: str) -> str:
    """Return the text of a shipped workflow."""
    return (WORKFLOWS / f"regbot-{name}.yml").read_text()


class Scene:
    """Actions of a test on GitHub, and the gate's reactions."""

    def __init__(self, hub: FakeGitHub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.repo: Repository = hub.repository("acme/moe")
        self.repo.dispatched = Starting(self.repo)
        shipped = {f".github/workflows/regbot-{name}.yml": workflow(name) for name in ("measure", "bisect", "post")}
        files = {"moe.py": "1\n", "regbot.toml": "version = 1\n"}
        self.base = self.repo.commit({**shipped, **files})
        for login, role in PEOPLE.items():
            self.repo.member(login, role)
        self.fork = self.repo.fork("mallory")
        self.sha = self.push({"moe.py": "2\n"})
        self.number = self.repo.open_pull(head="mallory:topic", title="Faster", author="mallory")
        self.token, self.gate_token = (token(hub, job) for job in ("command", "gate"))
        self.forge, self.gate_forge = (client(hub, own_token) for own_token in (self.token, self.gate_token))
        self.settings = GitHub()

    def push(self, files: dict[str, str | None], parent: str | None = None) -> str:
        """Push a new head of the pull request; by force with ``parent``."""
        return self.fork.commit(files, "topic", parent=parent)

    def comment(self, text: str, login: str = "walt") -> GateOutcome:
        return self.replay(self.commented(text, login))

    def commented(self, text: str, login: str = "walt") -> dict[str, Any]:
        """Write a comment and return its event."""
        return self.repo.event_of("issue_comment", comment=self.repo.comment(self.number, login, text))

    def replay(self, event: dict[str, Any]) -> GateOutcome:
        """Handle an event of a comment."""
        return handle_comment(self.forge, read_event(self.file(event), "acme/moe", CommentEvent), self.settings)

    def labelled(self, login: str = "walt", name: str = LABEL) -> dict[str, Any]:
        """Set a label and return its event."""
        self.repo.label(self.number, login, name)
        self.repo.pulls[self.number].updated = self.hub.tick()
        return self.repo.event_of("pull_request_target", action="labeled", number=self.number, label=name, sender=login)

    def happened(self, action: str, **about: Any) -> dict[str, Any]:
        return self.repo.event_of("pull_request_target", action=action, number=self.number, **about)

    def pulled(self, event: dict[str, Any]) -> GateOutcome:
        """Handle an event of a pull request."""
        return handle_pull(self.gate_forge, read_event(self.file(event), "acme/moe", PullEvent), self.settings)

    def file(self, event: dict[str, Any]) -> Path:
        path = self.folder / "event.json"
        path.write_text(json.dumps(event))
        return path

    @property
    def started(self) -> list[Dispatch]:
        return self.repo.dispatched

    @property
    def replies(self) -> list[str]:
        return [comment.body for comment in self.repo.comments(self.number) if comment.author == BOT]

    def reactions(self) -> list[str]:
        """Return the bot's reactions to comments of people, oldest first."""
        return [what for comment in self.repo.comments(self.number) for who, what in comment.reactions if who == BOT]


class Starting(list[Dispatch]):
    """Dispatched workflows. As on GitHub, each becomes a run with the title that its workflow defines."""

    def __init__(self, repo: Repository) -> None:
        super().__init__()
        self.repo = repo

    def append(self, dispatch: Dispatch) -> None:
        super().append(dispatch)
        about = {"path": dispatch.workflow, "event": "workflow_dispatch", "conclusion": None, "status": "queued"}
        about["title"] = title_of(read(WORKFLOWS / Path(dispatch.workflow).name), dispatch.inputs)
        self.repo.workflow_run(head_branch="main", head_sha=str(self.repo.git.branch("main")), **about)


def retargeted(repo: Repository, number: int, base: str) -> dict[str, Any]:
    """Change the base branch of a pull request and return the event."""
    pull = repo.pulls[number]
    was, pull.base, pull.updated = pull.base, base, repo.hub.tick()
    changes = {"base": {"ref": {"from": was}, "sha": {"from": repo.git.branch(was)}}}
    return repo.event_of("pull_request_target", action="edited", number=number) | {"changes": changes}


COMMANDS: dict[str, tuple[str, Callable[[Scene], str]]] = {
    "run": ("write", lambda scene: f"/regbot run {scene.sha}"),
    "run with-protected-files": ("maintain", lambda scene: f"/regbot run {scene.sha} with-protected-files"),
    "more": ("write", lambda scene: f"/regbot more {scene.sha} 8"),
    "bisect": ("write", lambda scene: f"/regbot bisect {scene.base}..{scene.sha}"),
    "expect": ("write", lambda _: f"/regbot expect {RULE}"),
    "accept": ("maintain", lambda scene: f"/regbot accept {scene.sha}: meant"),
}


def before_last_look(scene: Scene, act: Callable[[], object]) -> None:
    """Call ``act`` just before the gate reads the pull request for the second time."""
    real, looks = scene.forge.pull, [0]

    def pull(number: int) -> Pull:
        looks[0] += 1
        if looks[0] == 2:
            act()
        return real(number)

    scene.forge.pull = pull  # type: ignore[method-assign]


def new_check(sha: str, external_id: str) -> NewCheck:
    return NewCheck("regbot", sha, external_id, "completed", "success", "t", "s")


def completed_check(scene: Scene) -> int:
    return scene.forge.create_check(new_check(scene.sha, f"{scene.number}:{scene.sha}:static")).id


def posted(scene: Scene, run: int = 17) -> None:
    """Write the bot's verdict on the head to the check run and the comment, with the run that it names."""
    made = scene.repo.workflow_run(STATIC, "pull_request", "topic", scene.sha)
    scene.repo.runs[run] = replace(made, id=run)
    target = scene.repo.pulls[scene.number].base
    stamp = Stamp(scene.number, scene.sha, "static", run, 1, "REVIEW", target=target)
    text = StampedText(stamp, "the verdict").body(scene.sha)
    check = new_check(scene.sha, f"{scene.number}:{scene.sha}:static")
    scene.forge.create_check(replace(check, summary=text))
    scene.repo.comment(scene.number, BOT, text)


def end_runs(scene: Scene) -> None:
    for run in scene.repo.runs.values():
        run.status, run.conclusion = "completed", "success"


@pytest.fixture
def scene(hub: FakeGitHub, tmp_path: Path) -> Scene:
    return Scene(hub, tmp_path)
