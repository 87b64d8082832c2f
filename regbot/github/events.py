"""Read the event that started a job, from the event file of GitHub Actions.

An event says who did what to which pull request, and when. An event can arrive late or twice, and the head may move
before the job runs. The gate therefore requests the present state of the pull request from GitHub, before it decides.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasPath, Field, ValidationError

from regbot.errors import UserError
from regbot.github.types import GitHubObject, Names, Text
from regbot.records.files import describe_validation_error, parse_json, read_capped

MAX_EVENT_BYTES = 25 * 1024 * 1024
Number = Annotated[int, Field(strict=True, gt=0)]


class JobEvent(GitHubObject):
    """An event of any kind."""

    repository: str = Field("", validation_alias=AliasPath("repository", "full_name"))
    schedule: str = ""
    """Set for a scheduled job, whose event names no repository."""


class PullEvent(JobEvent):
    action: str
    """What happened, in GitHub's words, such as "synchronize" for a push."""
    number: Number = Field(validation_alias=AliasPath("pull_request", "number"))
    head_sha: str = Field(validation_alias=AliasPath("pull_request", "head", "sha"))
    label: str = Field("", validation_alias=AliasPath("label", "name"))
    """The label that was added or removed; '' if the event is about something else."""
    labels: Names = Field(validation_alias=AliasPath("pull_request", "labels"))
    sender: str = Field(validation_alias=AliasPath("sender", "login"))
    updated: datetime = Field(validation_alias=AliasPath("pull_request", "updated_at"))
    """Time of the last change to the pull request. Two label events have different times. If GitHub sends an event
    twice, both have the same time."""
    changed_base: Any = Field(None, validation_alias=AliasPath("changes", "base"))
    """The earlier base branch, if the event changed the base branch; otherwise None."""


class CommentEvent(JobEvent):
    action: str
    """What happened, in GitHub's words, such as "created"."""
    number: Number = Field(validation_alias=AliasPath("issue", "number"))
    pull: Any = Field(None, validation_alias=AliasPath("issue", "pull_request"))
    """None for a comment on an issue."""
    comment: Number = Field(validation_alias=AliasPath("comment", "id"))
    body: Text = Field(validation_alias=AliasPath("comment", "body"))
    author: str = Field(validation_alias=AliasPath("comment", "user", "login"))
    author_type: str = Field(validation_alias=AliasPath("comment", "user", "type"))


AnyEvent = TypeVar("AnyEvent", bound=GitHubObject)
AnyJobEvent = TypeVar("AnyJobEvent", bound=JobEvent)


def parse_event(file: Path, kind: type[AnyEvent]) -> AnyEvent:
    """Read the event in ``file``. Raises UserError."""
    try:
        return kind.model_validate(parse_json(read_capped(file, MAX_EVENT_BYTES), str(file)))
    except ValidationError as error:
        raise UserError(
            f"{file}: is no such event of GitHub ({describe_validation_error(error)})",
            "pass the file that GITHUB_EVENT_PATH names, without changes",
        ) from error


def read_event(file: Path, repository: str, kind: type[AnyJobEvent]) -> AnyJobEvent:
    """Read the event in ``file``. It must belong to ``repository`` ("owner/name"). Raises UserError."""
    event = parse_event(file, kind)
    if not event.schedule and event.repository.casefold() != repository.casefold():
        raise UserError(f"{file}: the event is of {event.repository[:200]!r}, not of {repository!r}")
    return event
