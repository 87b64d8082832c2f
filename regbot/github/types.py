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
CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"]
Level = Literal["notice", "warning", "failure"]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Pull:
    number: int
    open: bool
    merged: bool
    draft: bool
    head_sha: str
    head_repository: str
    """Repository with the head branch, as "owner/name"; '' if it was deleted."""
    head_ref: str
    base_ref: str
    base_sha: str
    labels: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Json) -> "Pull":
        head, base = data["head"], data["base"]
        return cls(
            number=int(data["number"]),
            open=data["state"] == "open",
            merged=data.get("merged_at") is not None,
            draft=bool(data.get("draft")),
            head_sha=str(head["sha"]),
            head_repository=_read_full_name(head["repo"]),
            head_ref=str(head["ref"]),
            base_ref=str(base["ref"]),
            base_sha=str(base["sha"]),
            labels=tuple(str(label["name"]) for label in data["labels"]),
        )


@dataclass(frozen=True)
class CommitComparison:
    merge_base: str
    files: tuple[str, ...] | None
    """Paths of the changed files; a renamed file appears with both paths. None if GitHub may not have listed all
    files."""

    @classmethod
    def from_json(cls, data: Json) -> "CommitComparison":
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
    path: str
    line: int
    level: Level
    title: str
    message: str


@dataclass(frozen=True)
class NewCheck:
    name: str
    sha: str
    external_id: str
    """Identifier that regbot chooses; '' to keep that of an existing check run."""
    status: CheckStatus
    conclusion: Conclusion | None
    """None until the check run is completed."""
    title: str
    summary: str
    annotations: tuple[Annotation, ...] = ()
    details_url: str = ""
    """Page that GitHub links from the check run; '' for GitHub's default."""

    def body(self) -> dict[str, Any]:
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
    id: int
    name: str
    sha: str
    external_id: str
    """Identifier that the creator of the check run chose; '' if there is none."""
    status: str
    conclusion: str | None
    """None until the check run is completed."""
    app: str
    title: str = ""
    summary: str = ""
    annotations: int = 0
    """Number of annotations, which cannot be removed."""

    @classmethod
    def from_json(cls, data: Json) -> "CheckRun":
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
        )


@dataclass(frozen=True)
class WorkflowRun:
    """A run of a workflow. All fields come from GitHub, and no job can change them."""

    id: int
    path: str
    event: str
    head_branch: str
    """Branch or tag of the run; '' if unknown."""
    head_sha: str
    head_repository: str
    """Repository with ``head_branch``, as "owner/name"; '' if it was deleted."""
    title: str
    status: str
    conclusion: str | None
    """None until the run has ended."""
    attempt: int
    repository: str
    """Repository whose workflow runs, as "owner/name"."""
    started: datetime
    updated: datetime
    url: str = ""

    @classmethod
    def from_json(cls, data: Json) -> "WorkflowRun":
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
    name: str
    started: datetime
    completed: datetime | None
    """Time of the end; None if the job has not ended."""

    @classmethod
    def from_json(cls, data: Json) -> "WorkflowJob":
        return cls(
            name=str(data["name"]),
            started=_parse_time(data["started_at"]),
            completed=_parse_time(data["completed_at"]) if data["completed_at"] else None,
        )

    @property
    def seconds(self) -> float:
        """Duration in seconds; 0 if the job has not ended."""
        return (self.completed - self.started).total_seconds() if self.completed is not None else 0.0


@dataclass(frozen=True)
class Artifact:
    id: int
    name: str
    size: int
    expired: bool = False
    """Whether GitHub has deleted the content."""

    @classmethod
    def from_json(cls, data: Json) -> "Artifact":
        return cls(
            id=int(data["id"]),
            name=str(data["name"]),
            size=int(data["size_in_bytes"]),
            expired=bool(data.get("expired")),
        )


def _read_full_name(repository: Json | None) -> str:
    return "" if repository is None else str(repository["full_name"])


def _read_login(user: Json | None) -> str:
    return "" if user is None else str(user["login"])


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
