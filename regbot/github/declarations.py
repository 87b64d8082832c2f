"""Declarations in pull request comments: expected sharding changes, and the acceptance of a REVIEW verdict.

Nothing is stored. For every post, the comments and the roles of their authors are read again. An edited comment does
not count, because somebody other than its author may have edited it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.github.client import Forge
from regbot.github.commands import AcceptCommand, ExpectCommand, parse_command
from regbot.github.permission import get_required_role, has_role
from regbot.github.types import Comment, Role
from regbot.judge import Expectation, parse_expectation


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


def read_declarations(forge: Forge, number: int, sha: str) -> Declarations:
    """Read the declarations of a pull request, and the acceptance of the commit ``sha``. Raises ForgeError."""
    roles: dict[str, Role] = {}
    rules: dict[Expectation, None] = {}
    acceptance = None
    for comment in forge.comments(number):
        command = None if comment.bot or comment.updated != comment.created else parse_command(comment.body)
        if not isinstance(command, ExpectCommand | AcceptCommand) or not _is_allowed(forge, comment, command, roles):
            continue
        if isinstance(command, ExpectCommand):
            rule = parse_expectation(command.rule)
            origin = f"{comment.author}, {comment.created:%Y-%m-%d %H:%M} UTC, for later heads too"
            rules[replace(rule, reason=f"{origin}: {rule.reason}")] = None
        elif command.sha == sha:
            acceptance = ReviewAcceptance(comment.author, command.reason)
    return Declarations(list(rules), acceptance)


def _is_allowed(forge: Forge, comment: Comment, command: ExpectCommand | AcceptCommand, roles: dict[str, Role]) -> bool:
    if comment.author not in roles:
        roles[comment.author] = forge.role(comment.author)
    return has_role(roles[comment.author], get_required_role(command))
