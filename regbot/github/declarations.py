"""Declarations in pull request comments: expected sharding changes, and the acceptance of a REVIEW verdict.

Nothing is stored. For every post, the comments and the roles of their authors are read again. An edited comment does
not count, because somebody other than its author may have edited it.

Anybody may write commands, so the roles of only a few authors are asked for. Authors whom GitHub describes as members
come first, then those of newer comments. What is left out is named in ``Declarations.warnings``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.github.commands import AcceptCommand, ExpectCommand, parse_command
from regbot.github.comment_thread import MAX_AUTHORS, MAX_PAGES, CommentThread
from regbot.github.permission import get_required_role, has_role
from regbot.github.transport import PER_PAGE
from regbot.github.types import Comment
from regbot.judge import Expectation, parse_expectation

MEMBERS = ("OWNER", "MEMBER", "COLLABORATOR")
"""Descriptions by GitHub of authors who probably have a role."""


@dataclass(frozen=True)
class ReviewAcceptance:
    """Acceptance of a REVIEW verdict on a commit, or on the merge group of that pull request alone. The role of
    ``login`` has been checked."""

    login: str
    reason: str


@dataclass(frozen=True)
class Declarations:
    """Declarations that count: those in unedited comments by people with the required role.

    The reason of a rule begins with the author and the time of the comment. A rule also applies to later pushes, so
    readers have to see its author and time even where a long reason is cut off.
    """

    rules: Sequence[Expectation] = ()
    acceptance: ReviewAcceptance | None = None
    warnings: Sequence[str] = ()


def read_declarations(thread: CommentThread, sha: str) -> Declarations:
    """Read the declarations of a pull request, and the acceptance of the commit ``sha``. Raises ForgeError."""
    declared = [
        (comment, command)
        for comment in thread.read_once()
        if not comment.bot
        and comment.updated == comment.created
        and isinstance(command := parse_command(comment.body), ExpectCommand | AcceptCommand)
        and (isinstance(command, ExpectCommand) or command.sha == sha)
    ]
    for comment, _ in sorted(declared, key=lambda pair: (pair[0].association in MEMBERS, pair[0].id), reverse=True):
        thread.role(comment.author)  # asks in the order of this loop
    rules: dict[Expectation, None] = {}
    acceptance = None
    for comment, command in declared:
        if not has_role(thread.role(comment.author) or "none", get_required_role(command)):
            continue
        if isinstance(command, ExpectCommand):
            rule = parse_expectation(command.rule)
            origin = f"{comment.author}, {comment.created:%Y-%m-%d %H:%M} UTC, for later heads too"
            rules[replace(rule, reason=f"{origin}: {rule.reason}")] = None
        else:
            acceptance = ReviewAcceptance(comment.author, command.reason)
    return Declarations(list(rules), acceptance, _list_left_out(thread, [comment for comment, _ in declared]))


def _list_left_out(thread: CommentThread, comments: Sequence[Comment]) -> list[str]:
    """Return a warning for unread comments, and one for authors whose role was not asked for."""
    warnings = []
    if not thread.is_complete:
        warnings.append(
            f"of the comments, only the {PER_PAGE} oldest and the last {MAX_PAGES - 1} pages of {PER_PAGE} were read: "
            "repeat a declaration that is missing here"
        )
    if any(thread.role(comment.author) is None for comment in comments):
        warnings.append(
            f"more than {MAX_AUTHORS} accounts declare changes, and only {MAX_AUTHORS} of them were considered: repeat "
            "a declaration that is missing here"
        )
    return warnings
