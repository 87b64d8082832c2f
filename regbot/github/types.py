"""GitHub's objects as frozen data classes, parsed from GitHub's JSON. If a required field is missing, parsing fails.

The text in these objects is untrusted. It is shown only through ``regbot.report.markdown``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

Role = Literal["none", "read", "triage", "write", "maintain", "admin"]
"""Roles in a repository, the weakest first."""
ROLES: tuple[Role, ...] = get_args(Role)

MAX_COMPARED = 300
"""GitHub lists at most this many changed files of a comparison."""
CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"]
"""Conclusions of a completed check run."""
Level = Literal["notice", "warning", "failure"]
"""Levels of an annotation."""
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Pull:
    """A pull request."""

    number: int
    title: str
    author: str
    """Login name; '' for a deleted account."""
    open: bool
    draft: bool
    head_sha: str
    """Newest commit of the head branch."""
    head_repository: str
    """Repository with the head branch, as "owner/name"; '' if it was deleted."""
    head_ref: str
    """Name of the head branch."""
    base_ref: str
    """Name of the base branch."""
    base_sha: str
    """Commit of the base branch, as GitHub last recorded it for the pull request."""
    labels: tuple[str, ...]
    fork: bool
    """Whether the head is in another repository than the base."""

    @classmethod
    def from_json(cls, data: Json) -> "Pull":
        """Parse GitHub's JSON."""
        head, base = data["head"], data["base"]
        head_name, base_name = _read_full_name(head["repo"]), _read_full_name(base["repo"])
        return cls(
            number=int(data["number"]),
            title=str(data["title"]),
            author=_read_login(data["user"]),
            open=data["state"] == "open",
            draft=bool(data.get("draft")),
            head_sha=str(head["sha"]),
            head_repository=head_name,
            head_ref=str(head["ref"]),
            base_ref=str(base["ref"]),
            base_sha=str(base["sha"]),
            labels=tuple(str(label["name"]) for label in data["labels"]),
            fork=head_name != base_name,
        )


@dataclass(frozen=True)
class ClosedPull:
    """A pull request that was merged, or closed without merging."""

    number: int
    head_sha: str
    """The last head."""
    base_ref: str
    """Name of the base branch."""
    merged: bool

    @classmethod
    def from_json(cls, data: Json) -> "ClosedPull":
        """Parse GitHub's JSON."""
        return cls(
            number=int(data["number"]),
            head_sha=str(data["head"]["sha"]),
            base_ref=str(data["base"]["ref"]),
            merged=data.get("merged_at") is not None,
        )


@dataclass(frozen=True)
class CommitComparison:
    """What a commit changes since its merge base with a branch."""

    merge_base: str
    files: tuple[str, ...] | None
    """Paths of the changed files; a renamed file appears with both paths. None if GitHub may not have listed all
    files."""

    @classmethod
    def from_json(cls, data: Json) -> "CommitComparison":
        """Parse GitHub's JSON."""
        listed_files = data.get("files")
        paths: dict[str, None] = {}  # without duplicates, in order
        for file in listed_files or ():
            paths[str(file["filename"])] = None
            if file.get("previous_filename"):
                paths[str(file["previous_filename"])] = None
        is_complete = listed_files is not None and len(listed_files) < MAX_COMPARED
        return cls(str(data["merge_base_commit"]["sha"]), tuple(paths) if is_complete else None)


@dataclass(frozen=True)
class Comment:
    """A comment on a pull request."""

    id: int
    author: str
    """Login name; '' for a deleted account."""
    bot: bool
    """Whether the author is an app."""
    body: str
    created: datetime
    updated: datetime
    """Time of the last edit. If the comment was never edited, it equals ``created``."""
    association: str = ""
    """GitHub's description of the author, such as "MEMBER" or "NONE". It does not show the role of the author, because
    GitHub does not show every membership."""

    @classmethod
    def from_json(cls, data: Json) -> "Comment":
        """Parse GitHub's JSON."""
        user = data["user"] or {}
        return cls(
            id=int(data["id"]),
            author=_read_login(data["user"]),
            bot=user.get("type") == "Bot",
            body=str(data["body"] or ""),
            created=_parse_time(data["created_at"]),
            updated=_parse_time(data["updated_at"]),
            association=str(data.get("author_association") or ""),
        )


@dataclass(frozen=True)
class Annotation:
    """A message that GitHub shows at a line of a file."""

    path: str
    line: int
    level: Level
    title: str
    message: str


@dataclass(frozen=True)
class NewCheck:
    """Content of a check run to create or to update."""

    name: str
    sha: str
    """The commit."""
    external_id: str
    """Identifier that regbot chooses; '' to keep that of an existing check run."""
    status: CheckStatus
    conclusion: Conclusion | None
    """None until the check run is completed."""
    title: str
    """Plain text."""
    summary: str
    """Text below the title, as markdown."""
    annotations: tuple[Annotation, ...] = ()
    details_url: str = ""
    """Page that GitHub links from the check run; '' for GitHub's default."""

    def body(self) -> dict[str, Any]:
        """Return the JSON of the request."""
        output: dict[str, Any] = {"title": self.title, "summary": self.summary}
        if self.annotations:
            output["annotations"] = [
                {
                    "path": annotation.path,
                    "start_line": annotation.line,
                    "end_line": annotation.line,
                    "annotation_level": annotation.level,
                    "title": annotation.title,
                    "message": annotation.message,
                }
                for annotation in self.annotations
            ]
        body: dict[str, Any] = {"name": self.name, "status": self.status, "output": output}
        if self.external_id:
            body["external_id"] = self.external_id
        if self.conclusion is not None:
            body["conclusion"] = self.conclusion
        if self.details_url:
            body["details_url"] = self.details_url
        return body


@dataclass(frozen=True)
class CheckRun:
    """A check run on GitHub."""

    id: int
    """A newer check run has a larger id."""
    name: str
    sha: str
    """The commit."""
    external_id: str
    """Identifier that the creator of the check run chose; '' if there is none."""
    status: str
    conclusion: str | None
    """None until the check run is completed."""
    app: str
    """Short name (slug) of the app that created the check run."""
    title: str = ""
    summary: str = ""
    annotations: int = 0
    """Number of annotations, which cannot be removed."""
    completed: datetime | None = None
    """Time of completion; None if the check run is not completed."""

    @classmethod
    def from_json(cls, data: Json) -> "CheckRun":
        """Parse GitHub's JSON."""
        output = data.get("output") or {}
        app = data.get("app") or {}
        return cls(
            id=int(data["id"]),
            name=str(data["name"]),
            sha=str(data["head_sha"]),
            external_id=str(data.get("external_id") or ""),
            status=str(data["status"]),
            conclusion=data["conclusion"],
            app=str(app.get("slug") or ""),
            title=str(output.get("title") or ""),
            summary=str(output.get("summary") or ""),
            annotations=int(output.get("annotations_count") or 0),
            completed=_parse_time(data["completed_at"]) if data.get("completed_at") else None,
        )


@dataclass(frozen=True)
class WorkflowRun:
    """A run of a workflow. All fields come from GitHub, and no job can change them."""

    id: int
    path: str
    """Path of the workflow file."""
    event: str
    """Name of the event that started the run."""
    head_branch: str
    """Branch or tag of the run; '' if unknown."""
    head_sha: str
    """Commit of the run."""
    head_repository: str
    """Repository with ``head_branch``, as "owner/name"; '' if it was deleted."""
    title: str
    """The ``run-name`` in the workflow file."""
    status: str
    conclusion: str | None
    """None until the run has ended."""
    attempt: int
    """Number of the newest attempt."""
    repository: str
    """Repository whose workflow runs, as "owner/name"."""
    started: datetime
    """Start of the newest attempt."""
    updated: datetime
    url: str = ""
    """Page of the run."""

    @classmethod
    def from_json(cls, data: Json) -> "WorkflowRun":
        """Parse GitHub's JSON."""
        return cls(
            id=int(data["id"]),
            path=str(data["path"]).partition("@refs/")[0],  # the file name itself may contain "@"
            event=str(data["event"]),
            head_branch=str(data["head_branch"] or ""),
            head_sha=str(data["head_sha"]),
            head_repository=_read_full_name(data["head_repository"]),
            title=str(data["display_title"]),
            status=str(data["status"] or ""),
            conclusion=data["conclusion"],
            attempt=int(data.get("run_attempt") or 1),
            repository=_read_full_name(data["repository"]),
            started=_parse_time(data.get("run_started_at") or data["created_at"]),
            updated=_parse_time(data["updated_at"]),
            url=str(data.get("html_url") or ""),
        )


@dataclass(frozen=True)
class WorkflowJob:
    """A job of a workflow run."""

    name: str
    attempt: int
    """Number of the run's attempt."""
    started: datetime
    completed: datetime | None
    """Time of the end; None if the job has not ended."""

    @classmethod
    def from_json(cls, data: Json) -> "WorkflowJob":
        """Parse GitHub's JSON."""
        return cls(
            name=str(data["name"]),
            attempt=int(data.get("run_attempt") or 1),
            started=_parse_time(data["started_at"]),
            completed=_parse_time(data["completed_at"]) if data["completed_at"] else None,
        )

    @property
    def seconds(self) -> float:
        """Duration in seconds; 0 if the job has not ended."""
        return (self.completed - self.started).total_seconds() if self.completed is not None else 0.0


@dataclass(frozen=True)
class Artifact:
    """An artifact that a run uploaded."""

    id: int
    name: str
    size: int
    """Size of the zip archive in bytes."""
    expired: bool = False
    """Whether GitHub has deleted the content."""

    @classmethod
    def from_json(cls, data: Json) -> "Artifact":
        """Parse GitHub's JSON."""
        return cls(
            id=int(data["id"]),
            name=str(data["name"]),
            size=int(data["size_in_bytes"]),
            expired=bool(data.get("expired")),
        )


def _read_full_name(repository: Json | None) -> str:
    """Return "owner/name" of a repository; '' for a deleted repository."""
    return "" if repository is None else str(repository["full_name"])


def _read_login(user: Json | None) -> str:
    """Return the login name; '' for a deleted account."""
    return "" if user is None else str(user["login"])


def _parse_time(text: str) -> datetime:
    """Parse one of GitHub's times, such as ``2026-01-31T12:00:00Z``."""
    return datetime.fromisoformat(text)
