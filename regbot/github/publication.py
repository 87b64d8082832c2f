"""Publish one result: the check run of its commit and the comment show the strongest result.

Each pull request has one writer at a time: the workflow ``regbot-post`` has one ``concurrency:`` group for each pull
request. Two posts of different pull requests with one head may overlap, and then do not see each other.

Only the check run is trusted, because only regbot's app can change it. Nothing is read from the comment, which anybody
with the role write can edit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.github import checks
from regbot.github import sticky_comment as sticky
from regbot.github.client import Forge
from regbot.github.comment_thread import CommentThread
from regbot.github.stamped_text import StampedText, select_strongest
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


@dataclass(frozen=True)
class Publication:
    """What the check run of the commit and the comment show after publishing."""

    text: StampedText
    is_head: bool
    """Whether the commit is the present head of its pull request."""


def publish(forge: Forge, result: Result, github: GitHub, thread: CommentThread | None = None) -> Publication:
    """Publish ``result`` in the check run of its commit and in the comment.

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
        checks.write(forge, text, head_checks, github, result.title, url=result.url)
    else:
        checks.write(forge, text, head_checks, github, head_checks.title or f"{text.stamp.status}: see the summary")
    if not stamp.pr:  # a merge group has no comment
        return Publication(text, is_head=False)
    current_head = forge.pull(stamp.pr).head_sha
    shown_text = text
    if current_head != stamp.head:
        shown_text = checks.find(forge, current_head, stamp.pr, github.bot).text or text
    sticky.write(thread or CommentThread(forge, stamp.pr), github.bot, current_head, shown_text)
    return Publication(text, is_head=current_head == stamp.head)


def _keep_valid(text: StampedText | None, result: Result) -> StampedText | None:
    """Return the earlier ``text`` of a check run; None if it was judged against another base than ``result``.

    If such a verdict has the banner of an INVALID measurement, that measurement takes its place.
    """
    if text is None or result.bases is None or text.stamp.status == "INVALID":
        return text
    is_valid = text.stamp.base in result.bases and text.stamp.target == result.stamped_text.stamp.target
    return text if is_valid else text.void
