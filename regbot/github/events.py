"""Read the event that started a job, from the event file of GitHub Actions.

An event says who did what to which pull request, and when. An event can arrive late or twice, and the head may move
before the job runs. The gate therefore requests the present state of the pull request from GitHub, before it decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from regbot.errors import UserError
from regbot.records.files import RecordError, parse_json, read_capped

MAX_EVENT_BYTES = 25 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class PullEvent:
    action: str
    """What happened, in GitHub's words, such as "synchronize" for a push."""
    number: int
    head_sha: str
    label: str
    """The label that was added or removed; '' if the event is about something else."""
    labels: tuple[str, ...]
    sender: str
    updated: datetime
    """Time of the last change to the pull request. Two label events have different times. If GitHub sends an event
    twice, both have the same time."""
    base_changed: bool
    """Whether the event changed the base branch."""


@dataclass(frozen=True)
class CommentEvent:
    action: str
    """What happened, in GitHub's words, such as "created"."""
    number: int
    pull: bool
    """Whether the comment is on a pull request; otherwise it is on an issue."""
    comment: int
    body: str
    author: str
    """'' if the account was deleted."""
    bot: bool
    """Whether the author is an app."""


def read_pull_event(file: Path, repository: str) -> PullEvent:
    """Read the ``pull_request_target`` event in ``file``. It must belong to ``repository`` ("owner/name"). Raises
    UserError."""

    def read(event: Any) -> PullEvent:
        pull, action = event["pull_request"], _text(event["action"])
        return PullEvent(
            action=action,
            number=_number(pull["number"]),
            head_sha=_text(pull["head"]["sha"]),
            label=_text(event["label"]["name"]) if action in ("labeled", "unlabeled") else "",
            labels=tuple(_text(label["name"]) for label in pull["labels"]),
            sender=_text(event["sender"]["login"]),
            updated=datetime.strptime(pull["updated_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
            base_changed=action == "edited" and bool((event.get("changes") or {}).get("base")),
        )

    return _read_event(file, repository, read)


def read_comment_event(file: Path, repository: str) -> CommentEvent:
    """Read the ``issue_comment`` event in ``file``. It must belong to ``repository`` ("owner/name"). Raises
    UserError."""

    def read(event: Any) -> CommentEvent:
        issue, comment = event["issue"], event["comment"]
        user = comment["user"]  # null for a deleted account
        return CommentEvent(
            action=_text(event["action"]),
            number=_number(issue["number"]),
            pull=issue.get("pull_request") is not None,
            comment=_number(comment["id"]),
            body=_text(comment["body"] or ""),
            author=_text(user["login"]) if user else "",
            bot=bool(user) and user["type"] == "Bot",
        )

    return _read_event(file, repository, read)


def check_event_repository(file: Path, repository: str) -> None:
    """Check that the event in ``file``, of any kind, belongs to ``repository``. The event of a scheduled job names no
    repository. Raises UserError."""
    _read_event(file, repository, lambda _: None, allow_schedule=True)


def _read_event(file: Path, repository: str, read: Callable[[Any], T], allow_schedule: bool = False) -> T:
    """Return ``read(event)``. ``read`` may raise the errors of a missing field or of another type."""
    try:
        event = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
    except RecordError as error:
        raise UserError(str(error)) from error
    try:
        if not (allow_schedule and event.get("schedule")):
            full_name = _text(event["repository"]["full_name"])
            if full_name.casefold() != repository.casefold():
                raise UserError(f"{file}: the event is of {full_name[:200]!r}, not of {repository!r}")
        return read(event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{file}: is no such event of GitHub ({type(error).__name__}: {str(error)[:200]})",
            "pass the file that GITHUB_EVENT_PATH names, without changes",
        ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a field is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise TypeError("a field is no positive whole number")
    return value
