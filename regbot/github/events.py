"""Read the event that started a job, from the event file of GitHub Actions.

An event says who did what to which pull request, and when. An event can arrive late or twice, and the head may move
before the job runs. The gate therefore requests the present state of the pull request from GitHub, before it decides.
"""

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


@dataclass(frozen=True)
class CheckEvent:
    action: str
    """What happened, in GitHub's words, such as "rerequested"."""
    check: int
    sender: str


def read_pull_event(file: Path, repository: str) -> PullEvent:
    """Read the ``pull_request_target`` event in ``file``. It must belong to ``repository`` ("owner/name"). Raises
    UserError."""
    event = _Event(file, repository)
    action = event.take("action", str)
    return PullEvent(
        action=action,
        number=event.take_number("pull_request.number"),
        head_sha=event.take("pull_request.head.sha", str),
        label=event.take("label.name", str) if action in ("labeled", "unlabeled") else "",
        labels=tuple(event.take_names("pull_request.labels")),
        sender=event.take("sender.login", str),
        updated=event.take_time("pull_request.updated_at"),
        base_changed=action == "edited" and event.has("changes.base"),
    )


def read_comment_event(file: Path, repository: str) -> CommentEvent:
    """Read the ``issue_comment`` event in ``file``. It must belong to ``repository`` ("owner/name"). Raises
    UserError."""
    event = _Event(file, repository)
    has_author = event.has("comment.user")  # null for a deleted account
    return CommentEvent(
        action=event.take("action", str),
        number=event.take_number("issue.number"),
        pull=event.has("issue.pull_request"),
        comment=event.take_number("comment.id"),
        body=event.take("comment.body", str) if event.has("comment.body") else "",
        author=event.take("comment.user.login", str) if has_author else "",
        bot=has_author and event.take("comment.user.type", str) == "Bot",
    )


def read_check_event(file: Path, repository: str) -> CheckEvent:
    """Read the ``check_run`` event in ``file``. It must belong to ``repository`` ("owner/name"). Raises UserError."""
    event = _Event(file, repository)
    return CheckEvent(event.take("action", str), event.take_number("check_run.id"), event.take("sender.login", str))


def check_event_repository(file: Path, repository: str) -> None:
    """Check that the event in ``file``, of any kind, belongs to ``repository``. Raises UserError."""
    _Event(file, repository, allow_schedule=True)


class _Event:
    """The JSON document in an event file. Its methods check that a field exists and has the expected type.

    A field is named by its keys with dots between them, such as "pull_request.number". With ``allow_schedule``, the
    event of a scheduled job is accepted too. Such an event names no repository.
    """

    def __init__(self, file: Path, repository: str, allow_schedule: bool = False) -> None:
        self._file = file
        try:
            self._document = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
        except RecordError as error:
            raise UserError(str(error)) from error
        if allow_schedule and self.has("schedule"):
            return
        full_name = self.take("repository.full_name", str)
        if full_name.casefold() != repository.casefold():
            raise UserError(f"{file}: the event is of {full_name[:200]!r}, but GITHUB_REPOSITORY is {repository!r}")

    def has(self, path: str) -> bool:
        """Return whether the field exists and is not null."""
        return self._find_value(path) is not None

    def take(self, path: str, kind: type[T]) -> T:
        """Return the value of a field. Raises UserError if the field is missing or is not of the type ``kind``."""
        value = self._find_value(path)
        if not isinstance(value, kind) or isinstance(value, bool):  # in Python, a bool is an int
            fault = "is missing" if value is None else f"is no {_TYPE_NAMES[kind]}"
            raise UserError(f"{self._file}: {path} {fault}", _ADVICE)
        return value

    def take_number(self, path: str) -> int:
        """Return a positive whole number. Raises UserError."""
        value = self.take(path, int)
        if value <= 0:
            raise UserError(f"{self._file}: {path} is {value}", _ADVICE)
        return value

    def take_time(self, path: str) -> datetime:
        """Return a time in UTC. Raises UserError."""
        text = self.take(path, str)
        try:
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise UserError(f"{self._file}: {path} is no time", _ADVICE) from None

    def take_names(self, path: str) -> list[str]:
        """Return the ``name`` of every item in the list at ``path``. Raises UserError if an item has none."""
        names = [item.get("name") if isinstance(item, dict) else None for item in self.take(path, list)]
        if not all(isinstance(name, str) for name in names):
            raise UserError(f"{self._file}: {path} is no list of objects with a name", _ADVICE)
        return [str(name) for name in names]

    def _find_value(self, path: str) -> Any:
        value = self._document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


_TYPE_NAMES: dict[type, str] = {str: "text", int: "whole number", list: "list"}
_ADVICE = "pass the file that GITHUB_EVENT_PATH names, without changes"
