"""The one comment of regbot on a pull request. It is recognized by its stamp and author, created once and then edited.

If there are two such comments, the newer one is deleted. Only the check run is trusted, because anybody with the role
write can edit the comment. ``publication`` makes the comment agree with the check run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regbot.github import checks
from regbot.github.client import Forge, RefusedError
from regbot.github.comment_thread import CommentThread
from regbot.github.stamped_text import StampedText, select_strongest
from regbot.github.types import Comment

MAX_LOOKUPS = 8
"""How often ``mark_stale`` checks whether another job posted a verdict in the meantime."""


@dataclass(frozen=True)
class StickyComment:
    """The existing comment. ``claims``: the stamped texts in this comment and in newer comments of regbot.
    ``strongest``: the strongest of ``claims``. ``younger``: the newer comments."""

    comment: Comment
    strongest: StampedText
    claims: Sequence[StampedText] = ()
    younger: Sequence[Comment] = ()


def find(thread: CommentThread, bot: str, current_head: str) -> StickyComment | None:
    """Return regbot's comment on a pull request; None without one. ``current_head``: head of the pull request. Raises
    ForgeError.

    If the comment is not among the read pages, all pages are read, because regbot must not write a second comment.
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

    ``sticky``: the existing comment; None creates one. If the comment was deleted in the meantime, the caller's next
    lookup finds no comment. ``new_target``: present base branch, if the text was judged against another base branch.
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
            if error.status not in (404, 410):
                raise
            thread.forget(sticky.comment.id)
        has_changed = True
    for comment in sticky.younger:
        thread.forge.delete_comment(comment.id)
        thread.forget(comment.id)
        has_changed = True
    return has_changed


def mark_stale(forge: Forge, number: int, bot: str, current_head: str, new_target: str = "") -> bool:
    """Mark the comment as stale if its result belongs to another head than ``current_head``, or if ``new_target`` is
    given.

    ``new_target``: the pull request's new base branch, after it was changed. Returns whether the comment was marked.
    Another job may post a verdict at the same time, and the mark could overwrite it. In that case the text of the check
    run is written to the comment again. Raises ForgeError.
    """
    known_text = _find_check_text(forge, number, bot, current_head) if new_target else None
    thread = CommentThread(forge, number)
    sticky = find(thread, bot, current_head)
    if sticky is None or (sticky.strongest.stamp.head == current_head and not new_target):
        return False
    is_marked, written_stamp = (
        write(thread, bot, current_head, sticky.strongest, sticky, new_target=new_target),
        sticky.strongest.stamp,
    )
    for _ in range(MAX_LOOKUPS):
        check_text, sticky = _find_check_text(forge, number, bot, current_head), find(thread, bot, current_head)
        if check_text is None or check_text == known_text or sticky is None or sticky.strongest.stamp != written_stamp:
            break
        write(thread, bot, current_head, check_text, sticky)
        known_text, written_stamp = check_text, check_text.stamp
    return is_marked


def _find_check_text(forge: Forge, number: int, bot: str, current_head: str) -> StampedText | None:
    head_checks = checks.find(forge, current_head, number, bot)
    return head_checks.completed_text or head_checks.previous_text


def find_posted_run(forge: Forge, number: int, bot: str, current_head: str) -> int | None:
    """Return the id of the workflow run whose result the check run on ``current_head`` shows; None without a result.

    Raises ForgeError.
    """
    stamped_text = checks.find(forge, current_head, number, bot).completed_text
    return stamped_text.stamp.run if stamped_text is not None else None


def _select_sticky(comments: Sequence[Comment], number: int, bot: str, current_head: str) -> StickyComment | None:
    own_comments = [
        (comment, text)
        for comment in sorted(comments, key=lambda comment: comment.id)
        if comment.author == bot and (text := StampedText.read(comment.body)) is not None and text.stamp.pr == number
    ]
    if not own_comments:
        return None
    claims = [text for _, text in own_comments]
    return StickyComment(
        own_comments[0][0], select_strongest(claims, current_head), claims, [comment for comment, _ in own_comments[1:]]
    )


def _is_same_text(body: str, other_body: str) -> bool:
    """Return whether two bodies are equal except for line ends and outer whitespace, which GitHub may change."""
    return body.replace("\r\n", "\n").strip() == other_body.replace("\r\n", "\n").strip()
