"""The one comment of a pull request: found by its stamp and its author, created once, edited ever after.

Should there be two, the younger goes. What the comment shows is settled together with the check run (``settle``), which
alone is believed: whoever has the role write can edit a comment of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regbot.forge import checks
from regbot.forge.client import Forge, RefusedError
from regbot.forge.shown import Shown, strongest
from regbot.forge.types import Comment

LOOKS = 8
"""At most, at whether a verdict was posted while another one was marked stale."""


@dataclass(frozen=True)
class Sticky:
    """The comment as it stands, what it and the younger ones show, the strongest of that, and the younger ones."""

    comment: Comment
    shown: Shown
    claims: Sequence[Shown] = ()
    younger: Sequence[Comment] = ()


def find(forge: Forge, number: int, bot: str, live: str) -> Sticky | None:
    """The comment of a pull request; ``live``: its head. Raises ForgeError."""
    return _sticky(forge.comments(number), number, bot, live)


def write(forge: Forge, number: int, bot: str, live: str, shown: Shown, there: Sticky | None, base: str = "") -> bool:
    """Have the comment show ``shown``, and be the only one; whether anything was changed.

    ``there``: what was found. A comment that has gone since is not missed before the next look. ``base``: the branch
    that is the base by now, where ``shown`` was judged against another. Raises ForgeError.
    """
    body = shown.body(live, base)
    if there is None:

        def happened() -> Comment | None:
            found = find(forge, number, bot, live)
            return found.comment if found else None

        forge.create_comment(number, body, happened)
        return True
    changed = False
    if not _same(there.comment.body, body):
        try:
            forge.edit_comment(there.comment.id, body)
        except RefusedError as error:
            if error.status not in (404, 410):
                raise
        changed = True
    for comment in there.younger:
        forge.delete_comment(comment.id)
        changed = True
    return changed


def mark_stale(forge: Forge, number: int, bot: str, live: str, base: str = "") -> bool:
    """Say in the comment that it is of an older head than ``live``, or of another base than ``base``, where that was
    changed; whether it had to be said. Raises ForgeError.

    The write may come late, over a verdict that was posted since: what the check run shows by then is put back.
    """
    known = _shown(forge, number, bot, live) if base else None
    there = find(forge, number, bot, live)
    if there is None or (there.shown.stamp.head == live and not base):
        return False
    marked, written = write(forge, number, bot, live, there.shown, there, base), there.shown.stamp
    for _ in range(LOOKS):
        now, there = _shown(forge, number, bot, live), find(forge, number, bot, live)
        if now is None or now == known or there is None or there.shown.stamp != written:
            break
        write(forge, number, bot, live, now, there)
        known, written = now, now.stamp
    return marked


def _shown(forge: Forge, number: int, bot: str, live: str) -> Shown | None:
    held = checks.find(forge, live, number, bot)
    return held.shown or held.kept


def posted_run(forge: Forge, number: int, bot: str, live: str) -> int | None:
    """The workflow run that the result in the check run on ``live`` is of, to be posted again; None where it has none.

    Raises ForgeError.
    """
    shown = checks.find(forge, live, number, bot).shown
    return shown.stamp.run if shown is not None else None


def _sticky(comments: Sequence[Comment], number: int, bot: str, live: str) -> Sticky | None:
    ours = [
        (comment, shown)
        for comment in sorted(comments, key=lambda comment: comment.id)
        if comment.author == bot and (shown := Shown.read(comment.body)) is not None and shown.stamp.pr == number
    ]
    if not ours:
        return None
    claims = [shown for _, shown in ours]
    return Sticky(ours[0][0], strongest(claims, live), claims, [comment for comment, _ in ours[1:]])


def _same(one: str, other: str) -> bool:
    """GitHub may change how lines end, and what stands behind the last."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
