"""What the fake GitHub knows: users' roles, tokens, repositories, and what tests put in and look at."""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from . import events
from .faults import Faults
from .git import GitData
from .records import CheckRun, Comment, Dispatch, Issue, Pull, Run, Token

Role = Literal["none", "read", "triage", "write", "maintain", "admin"]
ROLES = get_args(Role)
PERMISSIONS = {"actions", "administration", "checks", "contents", "issues", "metadata", "pull_requests", "statuses"}


class Repository:
    """One repository: what tests do to it directly, and what came of what they did over HTTP."""

    def __init__(self, hub: "Hub", name: str, default_branch: str, source: "Repository | None") -> None:
        self.hub, self.full_name, self.default_branch, self.source = hub, name, default_branch, source
        self.owner, _, self.name = name.partition("/")
        self.id = hub.new_id()
        self.git: GitData = GitData.create(hub.folder / f"{name}.git", default_branch, source.git if source else None)
        self.clone_url, self.url = f"{hub.server_url}/{name}.git", f"{hub.url}/repos/{name}"
        self.members: dict[str, Role] = {self.owner: "admin"}
        self.issues: dict[int, Issue] = {}
        self.all_comments: dict[int, Comment] = {}
        self.all_checks: dict[int, CheckRun] = {}
        self.runs: dict[int, Run] = {}
        self.dispatched: list[Dispatch] = []
        self.actions_may_open_pulls = False  # a setting of GitHub's that is off unless an owner turns it on

    # What tests do.
    def member(self, login: str, role: Role) -> None:
        assert role in ROLES, role
        self.members[login] = role

    def fork(self, login: str) -> "Repository":
        return self.hub.add(Repository(self.hub, f"{login}/{self.name}", self.default_branch, self))

    def commit(
        self, files: Mapping[str, str | None], branch: str = "main", message: str = "change", author: str = "ann",
        parent: str | None = None,
    ) -> str:  # fmt: skip
        """A commit on top of ``branch`` (a new one starts at the default branch), or of ``parent`` as a forced push
        would put it; gives its id."""
        start = parent or self.git.branch(branch) or self.git.branch(self.default_branch)
        return self.git.commit(files, branch, message, author, self.hub.tick(), start)

    def open_issue(self, title: str, author: str) -> int:
        now = self.hub.tick()
        self.issues[len(self.issues) + 1] = Issue(self, len(self.issues) + 1, title, author, "", now, now)
        return len(self.issues)

    def open_pull(
        self, head: str, base: str = "main", title: str = "A change", author: str = "mallory", body: str = ""
    ) -> int:
        """``head`` is a branch of this repository, or ``owner:branch`` of a fork."""
        owner, _, branch = head.rpartition(":")
        where = self.hub.repositories[f"{owner or self.owner}/{self.name}"]
        assert where.git.branch(branch), f"{head}: there is no such branch in {where.full_name}"
        now, number = self.hub.tick(), len(self.issues) + 1
        pull = Pull(self, number, title, author, body, now, now, base=base, head_repository=where, head=branch)
        self.issues[number] = pull
        assert pull.head_sha  # also makes refs/pull/N/head
        return number

    def close(self, number: int, merge: bool = False) -> None:
        pull = self.pulls[number]
        sha, now = pull.head_sha, self.hub.tick()
        if merge:
            base = self.git.branch(pull.base)
            assert base
            pull.merged = self.git.merge(base, sha, f"Merge pull request #{number}", now)
            self.git.set_ref(f"refs/heads/{pull.base}", pull.merged)
        pull.state, pull.closed, pull.updated = "closed", now, now

    def comment(self, number: int, author: str, body: str) -> int:
        now = self.hub.tick()
        made = Comment(self.hub.new_id(), self.issues[number].number, author, body, now, now)
        self.all_comments[made.id] = made
        return made.id

    def edit_comment(self, id: int, body: str) -> None:
        comment = self.all_comments[id]
        comment.body, comment.updated = body, self.hub.tick()

    def label(self, number: int, login: str, name: str) -> None:
        """``login`` sets a label; whether they may is not asked here: the event says who it was."""
        if name not in self.issues[number].labels:
            self.issues[number].labels.append(name)

    def workflow_run(
        self, path: str, event: str, head_branch: str, head_sha: str, title: str = "a run",
        conclusion: str | None = "success", status: str = "completed", attempt: int = 1,
        head_repository: "Repository | None" = None, actor: str = "ann", seconds: float = 0.0,
    ) -> Run:  # fmt: skip
        run = Run(
            self, self.hub.new_id(), path, event, head_branch, head_sha, head_repository or self, title, status,
            conclusion, attempt, actor, self.hub.tick(), seconds=seconds,
        )  # fmt: skip
        self.runs[run.id] = run
        return run

    def event_of(self, name: str, **subject: Any) -> dict[str, Any]:
        """The payload of an event, as the file named by GITHUB_EVENT_PATH holds it (see events.py)."""
        return events.payload(self, name, **subject)

    # What tests, and the API, look at.
    def comments(self, number: int) -> list[Comment]:
        return [comment for comment in self.all_comments.values() if comment.number == number]

    def check_runs(self, sha: str) -> list[CheckRun]:
        return [check for check in self.all_checks.values() if check.sha == sha]

    def shown_check(self, sha: str, name: str) -> CheckRun | None:
        """The one that a pull request shows, and that a required check of the name looks at: the newest."""
        return next((check for check in self.check_runs(sha)[::-1] if check.name == name), None)

    def labels(self, number: int) -> list[str]:
        return list(self.issues[number].labels)

    @property
    def pulls(self) -> dict[int, Pull]:
        return {number: issue for number, issue in self.issues.items() if isinstance(issue, Pull)}

    def role(self, login: str) -> Role:
        return self.members.get(login, "none")

    def at_least(self, login: str, role: Role) -> bool:
        return ROLES.index(self.role(login)) >= ROLES.index(role)

    def visible_to(self, token: Token | None) -> bool:
        if token is None or (token.repositories is not None and self.full_name not in token.repositories):
            return False
        return token.bot or self.at_least(token.login, "read")

    def follow_heads(self) -> None:
        """Bring refs/pull/*/head to where the branches are."""
        for pull in self.pulls.values():
            assert pull.head_sha


class Hub:
    """Everything but the server."""

    def __init__(self, folder: Path, url: str, storage: str) -> None:
        self.folder, self.server_url, self.url, self.storage_url = folder / "hub", url, url, storage
        self.lock = threading.RLock()
        self.faults = Faults()
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, Token] = {}
        self.requests: list[tuple[str, str, int]] = []  # method, path, status (0: the connection was reset)
        self.violations: list[str] = []
        self._clock = datetime(2026, 1, 5, 9, tzinfo=timezone.utc)
        self._last_id = 1000

    def repository(self, name: str, default_branch: str = "main") -> Repository:
        """A new one with a first commit. It is private: a token needs every permission it uses, for reading too."""
        made = self.add(Repository(self, name, default_branch, None))
        made.commit({"README.md": f"{made.name}\n"}, default_branch, "first")
        return made

    def add(self, repository: Repository) -> Repository:
        self.repositories[repository.full_name] = repository
        return repository

    def token(self, login: str, *, repositories: Sequence[str] | None = None, **permissions: str) -> str:
        """A token of ``login`` (an app, if it ends in "[bot]") with these permissions, each "read" or "write"."""
        assert set(permissions) <= PERMISSIONS, f"{sorted(set(permissions) - PERMISSIONS)}: no such permission"
        secret = f"ghs_{len(self.tokens):036d}"
        allowed = {"metadata": "read"} | permissions
        self.tokens[secret] = Token(login, allowed, None if repositories is None else tuple(repositories))
        return secret

    def new_id(self) -> int:
        with self.lock:
            self._last_id += 1
            return self._last_id

    def tick(self) -> str:
        """The time, in GitHub's notation; it moves one second at every write, so an edit is never in the second of
        what it edits."""
        with self.lock:
            self._clock += timedelta(seconds=1)
            return self._clock.strftime("%Y-%m-%dT%H:%M:%SZ")
