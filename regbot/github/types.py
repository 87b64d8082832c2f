"""GitHub's objects, parsed from GitHub's JSON. If a required field is missing, parsing fails.

The text in these objects is untrusted. It is shown only through ``regbot.report.markdown``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

Role = Literal["none", "read", "triage", "write", "maintain", "admin"]
"""Roles in a repository, the weakest first."""
ROLES: tuple[Role, ...] = get_args(Role)

MAX_COMPARED = 300
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"]


def _read_text(value: Any) -> Any:
    return value.replace("\r\n", "\n") if isinstance(value, str) else value or ""


def _list_paths(files: list[dict[str, Any]] | None) -> tuple[str, ...] | None:
    if files is None or len(files) >= MAX_COMPARED:
        return None
    paths = (path for file in files for path in (file["filename"], file.get("previous_filename")))
    return tuple(dict.fromkeys(path for path in paths if path))


Text = Annotated[str, BeforeValidator(_read_text)]
"""A text; '' if GitHub sends null. GitHub may change line ends."""
Names = Annotated[tuple[str, ...], BeforeValidator(lambda items: [item["name"] for item in items])]
Paths = Annotated[tuple[str, ...] | None, BeforeValidator(_list_paths)]
WorkflowPath = Annotated[str, BeforeValidator(lambda path: path.partition("@refs/")[0])]
"""Path of a workflow file. GitHub may add "@refs/..." to it; the file name itself may contain "@"."""


class GitHubObject(BaseModel):
    """An object of GitHub. Fields that are not declared are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Pull(GitHubObject):
    number: int
    state: str
    merged_at: datetime | None = None
    head_sha: str = Field(validation_alias=AliasPath("head", "sha"))
    head_repository: Text = Field("", validation_alias=AliasPath("head", "repo", "full_name"))
    """Repository with the head branch, as "owner/name"; '' if it was deleted."""
    head_ref: str = Field(validation_alias=AliasPath("head", "ref"))
    base_ref: str = Field(validation_alias=AliasPath("base", "ref"))
    base_sha: str = Field(validation_alias=AliasPath("base", "sha"))
    labels: Names

    @property
    def open(self) -> bool:
        return self.state == "open"


class CommitComparison(GitHubObject):
    merge_base: str = Field(validation_alias=AliasPath("merge_base_commit", "sha"))
    files: Paths = None
    """Paths of the changed files; a renamed file appears with both paths. None if GitHub may not have listed all
    files."""


class Comment(GitHubObject):
    id: int
    author: Text = Field("", validation_alias=AliasPath("user", "login"))
    """Login name; '' for a deleted account."""
    author_type: Text = Field("", validation_alias=AliasPath("user", "type"))
    body: Text = ""
    created: datetime = Field(validation_alias="created_at")
    updated: datetime = Field(validation_alias="updated_at")
    """Time of the last edit. If the comment was never edited, it equals ``created``."""
    association: Text = Field("", validation_alias="author_association")
    """GitHub's description of the author, such as "MEMBER" or "NONE". It does not show the role of the author, because
    GitHub does not show every membership."""

    @property
    def bot(self) -> bool:
        """Whether the author is an app."""
        return self.author_type == "Bot"

    @property
    def is_edited(self) -> bool:
        return self.created != self.updated


AnnotationLevel = Literal["notice", "warning", "failure"]


@dataclass(frozen=True)
class Annotation:
    """A text that GitHub shows at a line of the commit."""

    path: str
    line: int
    level: AnnotationLevel
    title: str
    message: str

    def body(self) -> dict[str, Any]:
        place = {"path": self.path, "start_line": self.line, "end_line": self.line}
        return {**place, "annotation_level": self.level, "title": self.title, "message": self.message}


@dataclass(frozen=True)
class NewCheck:
    name: str
    sha: str
    external_id: str
    """Identifier that regbot chooses; '' to keep that of an existing check run."""
    status: Literal["in_progress", "completed"]
    conclusion: str | None
    """None until the check run is completed."""
    title: str
    summary: str
    details_url: str = ""
    """Page that GitHub links from the check run; '' for GitHub's default."""
    annotations: Sequence[Annotation] = ()
    """GitHub adds them to those that the check run has."""

    def body(self) -> dict[str, Any]:
        annotations = {"annotations": [annotation.body() for annotation in self.annotations]}
        body = {
            "name": self.name,
            "status": self.status,
            "external_id": self.external_id,
            "conclusion": self.conclusion,
            "details_url": self.details_url,
            "output": {"title": self.title, "summary": self.summary, **(annotations if self.annotations else {})},
        }
        return {key: value for key, value in body.items() if value}


class CheckRun(GitHubObject):
    id: int
    name: str
    sha: str = Field(validation_alias="head_sha")
    external_id: Text = ""
    """Identifier that the creator of the check run chose; '' if there is none."""
    status: str
    conclusion: str | None
    """None until the check run is completed."""
    app: Text = Field("", validation_alias=AliasPath("app", "slug"))
    title: Text = Field("", validation_alias=AliasPath("output", "title"))
    summary: Text = Field("", validation_alias=AliasPath("output", "summary"))
    annotations: int = Field(0, validation_alias=AliasPath("output", "annotations_count"))
    """Number of its annotations."""


class WorkflowRun(GitHubObject):
    """A run of a workflow. All fields come from GitHub, and no job can change them."""

    id: int
    path: WorkflowPath
    event: str
    head_branch: Text
    """Branch or tag of the run; '' if unknown."""
    head_sha: str
    head_repository: Text = Field(validation_alias=AliasPath("head_repository", "full_name"))
    """Repository with ``head_branch``, as "owner/name"; '' if it was deleted."""
    title: str = Field(validation_alias="display_title")
    status: Text
    conclusion: str | None
    """None until the run has ended."""
    attempt: int = Field(1, validation_alias="run_attempt")
    repository: str = Field(validation_alias=AliasPath("repository", "full_name"))
    """Repository whose workflow runs, as "owner/name"."""
    started: datetime = Field(validation_alias="run_started_at")
    updated: datetime = Field(validation_alias="updated_at")
    url: Text = Field("", validation_alias="html_url")


class WorkflowJob(GitHubObject):
    name: str
    started: datetime = Field(validation_alias="started_at")
    completed: datetime | None = Field(validation_alias="completed_at")
    """Time of the end; None if the job has not ended."""

    @property
    def seconds(self) -> float:
        """Duration in seconds; 0 if the job has not ended."""
        return (self.completed - self.started).total_seconds() if self.completed is not None else 0.0


class Artifact(GitHubObject):
    id: int
    name: str
    expired: bool = False
    """Whether GitHub has deleted the content."""
