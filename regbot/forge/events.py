"""What GitHub says has happened, from the event file that Actions gives to a job.

An event says who did what to which pull request, and when. It says nothing about how things are *now*: between an event
and the job that handles it the head may have moved, and the same event may come twice or late. So the gate asks GitHub
for everything that it decides by, and takes from here only what has to be asked about.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from regbot.records.files import RecordError, parse_json, read_capped

MAX_EVENT_BYTES = 25 * 1024 * 1024
"""GitHub's own limit of an event."""

T = TypeVar("T")


class EventError(Exception):
    """An event file cannot be used. The message says which, what is wrong with it, and what to do."""


@dataclass(frozen=True)
class PullEvent:
    """Something happened to a pull request. ``label`` is '' where it is not about a label."""

    action: str
    number: int
    head_sha: str
    label: str
    labels: tuple[str, ...]
    """That it had when it happened. ``label`` is the one that was set or taken off."""
    sender: str
    updated: datetime
    """When the pull request was last changed: two labellings differ in it, a replay does not."""
    rebased: bool
    """It is to be merged into another branch than before."""


@dataclass(frozen=True)
class CommentEvent:
    """Somebody commented. ``pull``: on a pull request, not on an issue."""

    action: str
    number: int
    pull: bool
    comment: int
    body: str
    author: str
    bot: bool


def read_pull_event(file: Path, repository: str) -> PullEvent:
    """The ``pull_request_target`` event in ``file``, of ``repository`` ("owner/name"). Raises EventError."""
    event = _Event(file, repository)
    action = event.take("action", str)
    return PullEvent(
        action=action,
        number=event.number("pull_request.number"),
        head_sha=event.take("pull_request.head.sha", str),
        label=event.take("label.name", str) if action in ("labeled", "unlabeled") else "",
        labels=tuple(event.names("pull_request.labels")),
        sender=event.take("sender.login", str),
        updated=event.moment("pull_request.updated_at"),
        rebased=action == "edited" and event.has("changes.base"),
    )


def read_comment_event(file: Path, repository: str) -> CommentEvent:
    """The ``issue_comment`` event in ``file``, of ``repository`` ("owner/name"). Raises EventError."""
    event = _Event(file, repository)
    user = event.has("comment.user")  # an account that is gone comments no more
    return CommentEvent(
        action=event.take("action", str),
        number=event.number("issue.number"),
        pull=event.has("issue.pull_request"),
        comment=event.number("comment.id"),
        body=event.take("comment.body", str) if event.has("comment.body") else "",
        author=event.take("comment.user.login", str) if user else "",
        bot=user and event.take("comment.user.type", str) == "Bot",
    )


def check_event(file: Path, repository: str) -> None:
    """Whatever happened, by the clock or by hand, it was in ``repository``. Raises EventError."""
    _Event(file, repository, clock=True)


class _Event:
    """The document in an event file, read strictly. ``clock``: it may be a schedule's, which names no repository."""

    def __init__(self, file: Path, repository: str, clock: bool = False) -> None:
        self._file = file
        try:
            self._document = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
        except RecordError as error:
            raise EventError(str(error)) from error
        if clock and self.has("schedule"):
            return
        found = self.take("repository.full_name", str)
        if found.casefold() != repository.casefold():
            raise EventError(f"{file}: is an event of {found[:200]!r}, and GITHUB_REPOSITORY is {repository!r}")

    def has(self, path: str) -> bool:
        return self._at(path) is not None

    def take(self, path: str, kind: type[T]) -> T:
        value = self._at(path)
        if not isinstance(value, kind) or isinstance(value, bool):
            fault = "is missing" if value is None else f"is no {_KINDS[kind]}"
            raise EventError(f"{self._file}: {path} {fault}; {_WHOLE}")
        return value

    def number(self, path: str) -> int:
        value = self.take(path, int)
        if value <= 0:
            raise EventError(f"{self._file}: {path} is {value}; {_WHOLE}")
        return value

    def moment(self, path: str) -> datetime:
        text = self.take(path, str)
        try:
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise EventError(f"{self._file}: {path} is no time; {_WHOLE}") from None

    def names(self, path: str) -> list[str]:
        """Of a list of things that have a name."""
        items = [item.get("name") if isinstance(item, dict) else None for item in self.take(path, list)]
        if not all(isinstance(item, str) for item in items):
            raise EventError(f"{self._file}: {path} is no list of named things; {_WHOLE}")
        return [str(item) for item in items]

    def _at(self, path: str) -> Any:
        value = self._document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


_KINDS: dict[type, str] = {str: "text", int: "whole number", list: "list"}
_WHOLE = "give the file that GITHUB_EVENT_PATH names, as it is"
