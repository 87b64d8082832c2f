"""What GitHub says, as plain data: one frozen class for each thing, read strictly from GitHub's JSON.

Text in them was written by others and is shown only through ``regbot.report.markdown``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

Role = Literal["none", "read", "triage", "write", "maintain", "admin"]
"""What somebody may do in a repository, weakest first."""
ROLES: tuple[Role, ...] = get_args(Role)

MAX_COMPARED = 300
"""GitHub lists no more files of a comparison."""
CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"]
Level = Literal["notice", "warning", "failure"]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Pull:
    """A pull request. ``head_repository`` is '' where the fork was deleted; ``fork``: the head is elsewhere."""

    number: int
    title: str
    author: str
    open: bool
    draft: bool
    head_sha: str
    head_repository: str
    head_ref: str
    base_ref: str
    base_sha: str
    labels: tuple[str, ...]
    fork: bool

    @classmethod
    def of(cls, data: Json) -> "Pull":
        """From GitHub's own account of it."""
        head, base = data["head"], data["base"]
        theirs, ours = _full_name(head["repo"]), _full_name(base["repo"])
        return cls(
            number=int(data["number"]),
            title=str(data["title"]),
            author=_login(data["user"]),
            open=data["state"] == "open",
            draft=bool(data.get("draft")),
            head_sha=str(head["sha"]),
            head_repository=theirs,
            head_ref=str(head["ref"]),
            base_ref=str(base["ref"]),
            base_sha=str(base["sha"]),
            labels=tuple(str(label["name"]) for label in data["labels"]),
            fork=theirs != ours,
        )


@dataclass(frozen=True)
class ClosedPull:
    """A pull request that was merged or closed, and the commit that it was closed at."""

    number: int
    head_sha: str
    base_ref: str
    merged: bool

    @classmethod
    def of(cls, data: Json) -> "ClosedPull":
        """From GitHub's own account of it."""
        return cls(
            number=int(data["number"]),
            head_sha=str(data["head"]["sha"]),
            base_ref=str(data["base"]["ref"]),
            merged=data.get("merged_at") is not None,
        )


@dataclass(frozen=True)
class Comparison:
    """What a commit has changed since it left a branch. ``files``: paths, the old names of renamed ones among them;
    None where GitHub may not list all of them."""

    merge_base: str
    files: tuple[str, ...] | None

    @classmethod
    def of(cls, data: Json) -> "Comparison":
        """From GitHub's own account of it."""
        listed = data.get("files")
        paths: dict[str, None] = {}
        for each in listed or ():
            paths[str(each["filename"])] = None
            if each.get("previous_filename"):
                paths[str(each["previous_filename"])] = None
        whole = listed is not None and len(listed) < MAX_COMPARED
        return cls(str(data["merge_base_commit"]["sha"]), tuple(paths) if whole else None)


@dataclass(frozen=True)
class Comment:
    """A comment of a pull request. ``created`` and ``updated`` are equal exactly where it was never edited."""

    id: int
    author: str
    bot: bool
    body: str
    created: datetime
    updated: datetime

    @classmethod
    def of(cls, data: Json) -> "Comment":
        """From GitHub's own account of it."""
        user = data["user"] or {}
        return cls(
            id=int(data["id"]),
            author=_login(data["user"]),
            bot=user.get("type") == "Bot",
            body=str(data["body"] or ""),
            created=_time(data["created_at"]),
            updated=_time(data["updated_at"]),
        )


@dataclass(frozen=True)
class Annotation:
    """A finding at a line of a file."""

    path: str
    line: int
    level: Level
    title: str
    message: str


@dataclass(frozen=True)
class NewCheck:
    """What a check run is to say. ``conclusion`` is None until it is completed; ``external_id`` is '' where that of the
    check run is to stay as it is."""

    name: str
    sha: str
    external_id: str
    status: CheckStatus
    conclusion: Conclusion | None
    title: str
    summary: str
    annotations: tuple[Annotation, ...] = ()
    details_url: str = ""

    def body(self) -> dict[str, Any]:
        """As GitHub takes it."""
        output: dict[str, Any] = {"title": self.title, "summary": self.summary}
        if self.annotations:
            output["annotations"] = [
                {
                    "path": each.path,
                    "start_line": each.line,
                    "end_line": each.line,
                    "annotation_level": each.level,
                    "title": each.title,
                    "message": each.message,
                }
                for each in self.annotations
            ]
        body: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "output": output,
        }
        if self.external_id:
            body["external_id"] = self.external_id
        if self.conclusion is not None:
            body["conclusion"] = self.conclusion
        if self.details_url:
            body["details_url"] = self.details_url
        return body


@dataclass(frozen=True)
class CheckRun:
    """A check run as GitHub has it. ``annotations``: how many it shows; none can be taken back."""

    id: int
    name: str
    sha: str
    external_id: str
    status: str
    conclusion: str | None
    app: str
    title: str = ""
    summary: str = ""
    annotations: int = 0

    @classmethod
    def of(cls, data: Json) -> "CheckRun":
        """From GitHub's own account of it."""
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
    """A run of a workflow. ``title`` is its run-name. All of it comes from GitHub and none from a job."""

    id: int
    path: str
    event: str
    head_branch: str
    head_sha: str
    head_repository: str
    title: str
    status: str
    conclusion: str | None
    attempt: int
    repository: str
    started: datetime
    updated: datetime
    url: str = ""

    @classmethod
    def of(cls, data: Json) -> "WorkflowRun":
        """From GitHub's own account of it."""
        return cls(
            id=int(data["id"]),
            path=str(data["path"]).partition("@refs/")[0],  # a file's name may have an "@", and no "/"
            event=str(data["event"]),
            head_branch=str(data["head_branch"] or ""),
            head_sha=str(data["head_sha"]),
            head_repository=_full_name(data["head_repository"]),
            title=str(data["display_title"]),
            status=str(data["status"] or ""),
            conclusion=data["conclusion"],
            attempt=int(data.get("run_attempt") or 1),
            repository=_full_name(data["repository"]),
            started=_time(data.get("run_started_at") or data["created_at"]),
            updated=_time(data["updated_at"]),
            url=str(data.get("html_url") or ""),
        )


@dataclass(frozen=True)
class Artifact:
    """A file that a run left. ``size`` in bytes, as GitHub counts it."""

    id: int
    name: str
    size: int
    expired: bool = False

    @classmethod
    def of(cls, data: Json) -> "Artifact":
        """From GitHub's own account of it."""
        return cls(int(data["id"]), str(data["name"]), int(data["size_in_bytes"]), bool(data.get("expired")))


def _full_name(repository: Json | None) -> str:
    return "" if repository is None else str(repository["full_name"])


def _login(user: Json | None) -> str:
    """'' of an account that was deleted."""
    return "" if user is None else str(user["login"])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
