"""What people have said of a pull request: declared changes, and an acceptance of one commit.

Their comments are read again whenever a verdict is posted, and what they may do is asked then: nothing is remembered. A
comment that was edited says nothing, because somebody else may have edited it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regbot.forge.client import Forge
from regbot.forge.commands import Accept, Expect, parse
from regbot.forge.permission import may, needed
from regbot.forge.types import Comment, Role
from regbot.judge import Expectation, parse_expectation


@dataclass(frozen=True)
class Acceptance:
    """Somebody who may has accepted what a verdict of REVIEW shows of a commit, or of the merge group with it."""

    login: str
    reason: str


@dataclass(frozen=True)
class Said:
    """What counts of it. The reason of a rule begins with who declared it and when: it holds for what is pushed
    later, which whoever reads it has to see, and a long reason is cut."""

    rules: Sequence[Expectation] = ()
    acceptance: Acceptance | None = None


def said(forge: Forge, number: int, sha: str) -> Said:
    """What was said of a pull request and of ``sha``, the commit that can be accepted. Raises ForgeError."""
    roles: dict[str, Role] = {}
    rules: dict[Expectation, None] = {}
    acceptance = None
    for comment in forge.comments(number):
        command = None if comment.bot or comment.updated != comment.created else parse(comment.body)
        if not isinstance(command, Expect | Accept) or not _may(forge, comment, command, roles):
            continue
        if isinstance(command, Expect):
            rule = parse_expectation(command.rule)
            told = f"{comment.author}, {comment.created:%Y-%m-%d %H:%M} UTC, for later heads too"
            rules[replace(rule, reason=f"{told}: {rule.reason}")] = None
        elif command.sha == sha:
            acceptance = Acceptance(comment.author, command.reason)
    return Said(list(rules), acceptance)


def _may(forge: Forge, comment: Comment, command: Expect | Accept, roles: dict[str, Role]) -> bool:
    if comment.author not in roles:
        roles[comment.author] = forge.role(comment.author)
    return may(roles[comment.author], needed(command))
