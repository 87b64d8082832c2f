"""Declarations in pull request comments: expected sharding changes, and the acceptance of a REVIEW verdict.

regbot stores no declarations. Whenever it posts a result, it reads the comments and the roles of their authors again.
An edited comment does not count, because somebody other than its author may have edited it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.github.commands import Command, get_required_role, has_role, parse_command
from regbot.github.comment_thread import MAX_AUTHORS, MAX_PAGES, CommentThread
from regbot.github.transport import PER_PAGE
from regbot.github.types import Comment
from regbot.judge import Expectation

MEMBERS = ("OWNER", "MEMBER", "COLLABORATOR")


@dataclass(frozen=True)
class ReviewAcceptance:
    """Acceptance of a REVIEW verdict on a commit, and on a merge group that contains only this pull request."""

    login: str
    reason: str


@dataclass(frozen=True)
class Declarations:
    """Valid declarations: unedited comments by people with the required role."""

    rules: Sequence[Expectation] = ()
    """Expected sharding changes. A rule also applies to later pushes, so readers have to see who declared it, and when.
    The reason of each rule therefore begins with author and time, because a report may cut off the end of a reason."""
    acceptance: ReviewAcceptance | None = None
    """The latest acceptance of the judged commit; None if nobody accepted it."""
    warnings: Sequence[str] = ()


def read_declarations(thread: CommentThread, sha: str) -> Declarations:
    """Read the declarations of a pull request, and the acceptance of the commit ``sha``. Raises ForgeError."""
    candidates: list[tuple[Comment, Command]] = []
    for comment in thread.read():
        command = None if comment.bot or comment.is_edited else parse_command(comment.body)
        if isinstance(command, Command) and (
            command.verb == "expect" or (command.verb, command.sha) == ("accept", sha)
        ):
            candidates.append((comment, command))
    comments = [comment for comment, _ in candidates]
    # Only the roles of the first authors in this order are requested: members first, then authors of newer comments.
    for comment in sorted(comments, key=lambda comment: (comment.association in MEMBERS, comment.id), reverse=True):
        thread.role(comment.author)
    rules: dict[Expectation, None] = {}  # without duplicates, in order
    acceptance = None
    for comment, command in candidates:
        role = thread.role(comment.author) or "none"
        if not has_role(role, get_required_role(command)):
            continue
        if command.expectation is not None:
            origin = f"{comment.author}, {comment.created:%Y-%m-%d %H:%M} UTC, for later heads too"
            rules[replace(command.expectation, reason=f"{origin}: {command.reason}")] = None
        else:
            acceptance = ReviewAcceptance(comment.author, command.reason)
    return Declarations(list(rules), acceptance, _list_left_out(thread, comments))


def _list_left_out(thread: CommentThread, comments: Sequence[Comment]) -> list[str]:
    """Return a warning if comments were not read, and a warning if the role of an author was not requested."""
    warnings = []
    if not thread.is_complete:
        warnings.append(
            f"the pull request has too many comments: only the {PER_PAGE} oldest comments and the last "
            f"{MAX_PAGES - 1} pages of {PER_PAGE} comments were read. Repeat a declaration that is missing here"
        )
    if any(thread.role(comment.author) is None for comment in comments):
        warnings.append(
            f"more than {MAX_AUTHORS} accounts declare changes, and regbot considered only {MAX_AUTHORS} accounts. "
            "Repeat a declaration that is missing here"
        )
    return warnings
