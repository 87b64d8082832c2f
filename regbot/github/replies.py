"""Replies to comments and labels. Each comment or label gets at most one reply, however often the event is handled.

The first line of a reply is an invisible marker that names the answered comment or label.
"""

import json

from regbot.github.client import Forge
from regbot.github.types import Comment

MARKER = "<!-- regbot:answer "


def build_marker(subject: str) -> str:
    """Return the marker line of the reply to ``subject``, such as "comment:17" or "label:NONCE"."""
    return f"{MARKER}{json.dumps({'to': subject})} -->"


def reply_once(forge: Forge, number: int, first_line: str, body: str, bot: str, *, update: bool = False) -> bool:
    """Make sure that ``bot`` has one reply with the marker ``first_line``. With ``update``, an existing reply gets the
    text ``body`` too. Return whether the reply was created or changed. Raises ForgeError."""

    def find_reply() -> Comment | None:
        own_comments = (comment for comment in forge.comments(number) if comment.author == bot)
        return next((comment for comment in own_comments if comment.body.startswith(first_line)), None)

    text = f"{first_line}\n{body}"
    existing_reply = find_reply()
    if existing_reply is None:
        forge.create_comment(number, text, find_reply)
        return True
    if not update or existing_reply.body.strip() == text.strip():
        return False
    forge.edit_comment(existing_reply.id, text)
    return True
