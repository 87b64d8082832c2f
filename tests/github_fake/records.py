"""What the fake GitHub keeps about one comment, one pull request, one run."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import Repository


@dataclass
class Token:
    login: str
    permissions: dict[str, str]
    repositories: tuple[str, ...] | None  # None: all of them
    expired: bool = False

    @property
    def bot(self) -> bool:
        """Whether an app acts, as in Actions; only apps may write check runs, and roles are asked of people only."""
        return self.login.endswith("[bot]")

    def may(self, permission: str, level: str) -> bool:
        return self.permissions.get(permission) in (level, "write")


@dataclass
class Comment:
    id: int
    number: int
    author: str
    body: str
    created: str
    updated: str
    reactions: list[tuple[str, str]] = field(default_factory=list)  # (who, what)


@dataclass
class CheckRun:
    id: int
    app: str  # the login of the token that made it
    name: str
    sha: str
    status: str = "queued"
    conclusion: str | None = None
    external_id: str = ""
    details_url: str | None = None
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    started: str = ""
    completed: str | None = None
    annotations: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Issue:
    repository: "Repository"
    number: int
    title: str
    author: str
    body: str
    created: str
    updated: str
    state: str = "open"
    closed: str | None = None
    labels: list[str] = field(default_factory=list)


@dataclass
class Pull(Issue):
    base: str = "main"
    head_repository: "Repository" = None  # type: ignore[assignment]  # always given
    head: str = ""  # its branch there
    merged: str | None = None  # the merge commit
    last_sha: str = ""

    @property
    def head_sha(self) -> str:
        """Follows the branch while the pull request is open; a branch that is gone leaves its last commit."""
        now = self.head_repository.git.branch(self.head) if self.state == "open" else None
        if now and now != self.last_sha:
            self.last_sha = now
            self.repository.git.set_ref(f"refs/pull/{self.number}/head", now)
        return self.last_sha


@dataclass
class Artifact:
    id: int
    run: "Run"
    name: str
    content: bytes
    expired: bool = False


@dataclass(frozen=True)
class Job:
    name: str
    attempt: int
    started: str
    seconds: float


@dataclass
class Run:
    repository: "Repository"
    id: int
    path: str
    event: str
    head_branch: str
    head_sha: str
    head_repository: "Repository"
    title: str
    status: str
    conclusion: str | None
    attempt: int
    actor: str
    created: str
    artifacts: list[Artifact] = field(default_factory=list)
    seconds: float = 0.0  # from its start to its end
    started: str = ""  # of the last attempt
    past_jobs: list[Job] = field(default_factory=list)  # of earlier attempts, or not run again in the last one

    def rerun(self, failed_only: bool = False) -> None:
        """Another attempt, which begins now. With ``failed_only``, the measuring job is not run again, only the last
        one, which takes no time."""
        measuring = self.jobs[0]
        self.past_jobs.append(measuring)
        self.attempt, self.started = self.attempt + 1, self.repository.hub.tick()
        if failed_only:
            self.past_jobs.append(Job("hand-over", self.attempt, self.started, 0.0))
            self.seconds = 0.0

    @property
    def jobs(self) -> list[Job]:
        """Newest first. A run has one job that takes all of its time, unless only another one was run again."""
        if self.past_jobs and self.past_jobs[-1].name == "hand-over":
            return self.past_jobs[::-1]
        return [Job("measure", self.attempt, self.started or self.created, self.seconds), *self.past_jobs[::-1]]

    def artifact(self, name: str, content: bytes) -> Artifact:
        made = Artifact(self.repository.hub.new_id(), self, name, content)
        self.artifacts.append(made)
        return made


@dataclass(frozen=True)
class Dispatch:
    workflow: str  # its path
    ref: str
    inputs: dict[str, str]
    by: str
