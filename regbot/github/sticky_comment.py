"""The sticky comment: regbot's one comment on a pull request. It is created once and then edited. regbot recognizes it
by its stamp and its author."""

from regbot.github.client import MissingError
from regbot.github.comment_thread import CommentThread
from regbot.github.stamped_text import StampedText
from regbot.github.types import Comment


def find(thread: CommentThread, bot: str) -> Comment | None:
    """Return the oldest comment of the account ``bot`` with a stamp of this pull request; None if there is none. Raises
    ForgeError."""
    comment = _select(thread.read(), thread.number, bot)
    if comment is None and not thread.is_complete:  # regbot must not write a second comment
        comment = _select(thread.read_all(), thread.number, bot)
    return comment


def write(thread: CommentThread, bot: str, current_head: str, text: StampedText) -> None:
    """Make the comment show ``text``, with a banner if it is not of ``current_head``. Raises ForgeError."""
    body = text.body(current_head)
    comment = find(thread, bot)
    if comment is not None:
        if _normalise(comment.body) == _normalise(body):
            return
        try:
            thread.edit(comment, body)
            return
        except MissingError:  # somebody has deleted the comment in the meantime
            pass
    thread.create(body, lambda comments: _select(comments, thread.number, bot))


def mark_stale(thread: CommentThread, bot: str, current_head: str) -> None:
    """Add a banner to the comment if its text is not of ``current_head``. Raises ForgeError."""
    comment = find(thread, bot)
    text = StampedText.read(comment.body) if comment is not None else None
    if text is not None and text.stamp.head != current_head:
        write(thread, bot, current_head, text)


def _select(comments: list[Comment], number: int, bot: str) -> Comment | None:
    for comment in sorted(comments, key=lambda comment: comment.id):  # a newer comment has a larger id
        text = StampedText.read(comment.body) if comment.author == bot else None
        if text is not None and text.stamp.pr == number:
            return comment
    return None


def _normalise(body: str) -> str:
    return body.replace("\r\n", "\n").strip()
