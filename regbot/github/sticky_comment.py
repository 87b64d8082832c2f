"""The sticky comment: regbot's one comment on a pull request. It is created once and then edited. regbot recognizes it
by its stamp and its author.

If two jobs have created a comment, the newer comment is deleted. Only the check run is trusted, because anybody with
the role write can edit the comment. ``publication`` makes the comment agree with the check run.

A parameter ``bot`` is the login of regbot's app, ``number`` the number of the pull request, and ``current_head`` its
present head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regbot.github import checks
from regbot.github.client import DELETED_OBJECT, UNKNOWN_OBJECT, Forge, RefusedError
from regbot.github.comment_thread import CommentThread
from regbot.github.stamped_text import StampedText, select_strongest
from regbot.github.types import Comment

MAX_LOOKUPS = 8
"""Largest number of times that ``mark_stale`` checks whether another job has posted a verdict in the meantime."""


@dataclass(frozen=True)
class StickyComment:
    """The existing sticky comment on a pull request."""

    comment: Comment
    strongest: StampedText
    """The strongest of ``claims``."""
    claims: Sequence[StampedText] = ()
    """The stamped texts in ``comment`` and ``newer_comments``. They are only claims, because somebody may have edited a
    comment."""
    newer_comments: Sequence[Comment] = ()
    """Further comments with a stamp, which another job has created."""


def find(thread: CommentThread, bot: str, current_head: str) -> StickyComment | None:
    """Return the sticky comment of a pull request; None if there is none. Raises ForgeError.

    ``bot`` is the login of regbot's app, and ``current_head`` is the head of the pull request. If the comment is not in
    the pages that were read, all pages are read, because regbot must not write a second comment.
    """
    sticky = _select_sticky(thread.read(), thread.number, bot, current_head)
    if sticky is None and not thread.is_complete:
        sticky = _select_sticky(thread.read_all(), thread.number, bot, current_head)
    return sticky


def write(
    thread: CommentThread,
    bot: str,
    current_head: str,
    stamped_text: StampedText,
    sticky: StickyComment | None,
    *,
    new_target: str = "",
) -> bool:
    """Make the comment show ``stamped_text``, and delete newer comments of regbot. Return whether anything changed.
    Raises ForgeError.

    ``sticky`` is the existing comment; None to create the comment. If somebody has deleted the comment in the meantime,
    the caller's next ``find`` returns None. ``new_target`` is the present base branch if the text was judged against
    another base branch; otherwise ''.
    """
    body = stamped_text.body(current_head, new_target)
    if sticky is None:

        def find_created() -> Comment | None:
            created = find(thread, bot, current_head)
            return created.comment if created else None

        thread.forge.create_comment(thread.number, body, find_created)
        return True
    has_changed = False
    if not _is_same_text(sticky.comment.body, body):
        try:
            thread.forge.edit_comment(sticky.comment.id, body)
        except RefusedError as error:
            if error.status not in (UNKNOWN_OBJECT, DELETED_OBJECT):
                raise
            thread.forget(sticky.comment.id)
        has_changed = True
    for comment in sticky.newer_comments:
        thread.forge.delete_comment(comment.id)
        thread.forget(comment.id)
        has_changed = True
    return has_changed


def mark_stale(forge: Forge, number: int, bot: str, current_head: str, new_target: str = "") -> bool:
    """Mark the comment as stale if its result does not belong to ``current_head``, or if ``new_target`` is given.
    Return whether the comment was changed.

    ``new_target`` is the present base branch of the pull request if it has just changed; otherwise ''. Another job may
    post a verdict at the same time, and the mark could overwrite this verdict. In that case the verdict is copied from
    the check run to the comment again. Raises ForgeError.
    """
    # With a new base branch, the check run still has the old verdict at first. A text that differs from it is a new
    # verdict.
    known_text = _find_check_text(forge, number, bot, current_head) if new_target else None
    thread = CommentThread(forge, number)
    sticky = find(thread, bot, current_head)
    if sticky is None or (sticky.strongest.stamp.head == current_head and not new_target):
        return False
    is_marked = write(thread, bot, current_head, sticky.strongest, sticky, new_target=new_target)
    written_stamp = sticky.strongest.stamp
    for _ in range(MAX_LOOKUPS):
        check_text, sticky = _find_check_text(forge, number, bot, current_head), find(thread, bot, current_head)
        has_new_verdict = check_text is not None and check_text != known_text
        # If the comment still shows the text that this job wrote, it lacks the new verdict.
        shows_written_text = sticky is not None and sticky.strongest.stamp == written_stamp
        if check_text is None or sticky is None or not has_new_verdict or not shows_written_text:
            break
        write(thread, bot, current_head, check_text, sticky)
        known_text, written_stamp = check_text, check_text.stamp
    return is_marked


def _find_check_text(forge: Forge, number: int, bot: str, current_head: str) -> StampedText | None:
    """Return the result in the check run on ``current_head``; None without a result."""
    head_checks = checks.find(forge, current_head, number, bot)
    return head_checks.completed_text or head_checks.previous_text


def find_posted_run(forge: Forge, number: int, bot: str, current_head: str) -> int | None:
    """Return the id of the workflow run whose result the check run on ``current_head`` shows; None if the check run has
    no result. Raises ForgeError."""
    stamped_text = checks.find(forge, current_head, number, bot).completed_text
    return stamped_text.stamp.run if stamped_text is not None else None


def _select_sticky(comments: Sequence[Comment], number: int, bot: str, current_head: str) -> StickyComment | None:
    """Return the oldest comment of ``bot`` with a stamp of pull request ``number``, as the sticky comment; None
    without such a comment."""
    stamped_comments: list[Comment] = []
    claims: list[StampedText] = []
    for comment in sorted(comments, key=lambda comment: comment.id):  # a newer comment has a larger id
        text = StampedText.read(comment.body) if comment.author == bot else None
        if text is not None and text.stamp.pr == number:
            stamped_comments.append(comment)
            claims.append(text)
    if not stamped_comments:
        return None
    oldest_comment, *newer_comments = stamped_comments
    return StickyComment(oldest_comment, select_strongest(claims, current_head), claims, newer_comments)


def _is_same_text(body: str, other_body: str) -> bool:
    """Return whether two bodies are equal except for line ends and outer whitespace, which GitHub may change."""
    return body.replace("\r\n", "\n").strip() == other_body.replace("\r\n", "\n").strip()
