"""Publish one result: the check run of its commit and the comment show the strongest result.

Each pull request has one writer at a time: the workflow ``regbot-post`` has one ``concurrency:`` group for each pull
request. Two posts of different pull requests with one head may overlap, and then do not see each other.

Only the check run is trusted, because only regbot's app can change it. Nothing is read from the comment, which anybody
with the role write can edit. This is regbot's one comment on a pull request, created once and then edited. regbot
recognizes it by its stamp and its author.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.github import checks
from regbot.github.client import Forge, MissingError
from regbot.github.comment_thread import CommentThread
from regbot.github.stamped_text import StampedText, select_strongest
from regbot.github.types import Annotation, Comment
from regbot.records.config import GitHub


@dataclass(frozen=True)
class Result:
    """A result to publish. A stronger existing result takes precedence."""

    stamped_text: StampedText
    nonce: str
    title: str
    url: str = ""
    bases: Sequence[str] | None = None
    """Allowed base commits of a verdict on the head; None allows all."""
    annotations: Sequence[Annotation] = ()


def publish(forge: Forge, result: Result, github: GitHub, thread: CommentThread | None = None) -> StampedText:
    """Publish ``result`` in the check run of its commit and in the comment. Return what the check run shows.

    Raises ForgeError. After an error, another call completes the work.
    """
    stamp = result.stamped_text.stamp
    head_checks = checks.find(forge, stamp.head, stamp.pr, github.bot)
    standing = _keep_valid(head_checks.text, result)
    text = select_strongest([standing, result.stamped_text] if standing is not None else [result.stamped_text])
    if head_checks.pending_nonce not in ("", result.nonce):
        # A check run that waits for another measurement is completed by the post of that measurement.
        checks.show_waiting(forge, head_checks)
    elif replace(text, void=None) == result.stamped_text:
        checks.write(forge, text, head_checks, github, result.title, url=result.url, annotations=result.annotations)
    else:
        checks.write(forge, text, head_checks, github, head_checks.title or f"{text.stamp.status}: see the summary")
    if not stamp.pr:  # a merge group has no comment
        return text
    current_head = forge.pull(stamp.pr).head_sha
    shown_text = text
    if current_head != stamp.head:
        shown_text = checks.find(forge, current_head, stamp.pr, github.bot).text or text
    write_comment(thread or CommentThread(forge, stamp.pr), github.bot, current_head, shown_text)
    return text


def _keep_valid(text: StampedText | None, result: Result) -> StampedText | None:
    """Return the earlier ``text`` of a check run; None if it was judged against another base than ``result``.

    If such a verdict has the banner of an INVALID measurement, that measurement takes its place.
    """
    if text is None or result.bases is None or text.stamp.status == "INVALID":
        return text
    is_valid = text.stamp.base in result.bases and text.stamp.target == result.stamped_text.stamp.target
    return text if is_valid else text.void


def find_comment(thread: CommentThread, bot: str) -> Comment | None:
    """Return the oldest comment of the account ``bot`` with a stamp of this pull request; None if there is none. Raises
    ForgeError."""
    comment = _select(thread.read(), thread.number, bot)
    if comment is None and not thread.is_complete:  # regbot must not write a second comment
        comment = _select(thread.read_all(), thread.number, bot)
    return comment


def write_comment(thread: CommentThread, bot: str, current_head: str, text: StampedText) -> None:
    """Make the comment show ``text``, with a banner if it is not of ``current_head``. Raises ForgeError."""
    body = text.body(current_head)
    comment = find_comment(thread, bot)
    if comment is not None:
        if comment.body.strip() == body.strip():
            return
        try:
            thread.edit(comment, body)
            return
        except MissingError:  # somebody has deleted the comment in the meantime
            pass
    thread.create(body, lambda comments: _select(comments, thread.number, bot))


def mark_stale(thread: CommentThread, bot: str, current_head: str) -> None:
    """Add a banner to the comment if its text is not of ``current_head``. Raises ForgeError."""
    comment = find_comment(thread, bot)
    text = StampedText.read(comment.body) if comment is not None else None
    if text is not None and text.stamp.head != current_head:
        write_comment(thread, bot, current_head, text)


def _select(comments: list[Comment], number: int, bot: str) -> Comment | None:
    for comment in sorted(comments, key=lambda comment: comment.id):  # a newer comment has a larger id
        text = StampedText.read(comment.body) if comment.author == bot else None
        if text is not None and text.stamp.pr == number:
            return comment
    return None
