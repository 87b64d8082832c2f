"""What the gate says to somebody: one reply to each comment or label, however often it is handled.

A reply carries, unseen, what it is a reply to. Before one is written the replies that are there are looked at, so that
an event that comes twice is answered once, and a reply whose request was lost is not written again.
"""

import json
from dataclasses import replace

from regbot.forge.approval import Refusal
from regbot.forge.client import Forge
from regbot.forge.commands import FORMS, Accept, Bisect, Command, Expect, Misunderstood, More, Run, typed
from regbot.forge.permission import OTHER_BASE, PROTECTED
from regbot.forge.types import Comment, Pull, Role
from regbot.report.markdown import LOG_LINE_CHARACTERS, Name, Said, Words, fence, sentence

MARKER = "<!-- regbot:answer "
FAULT = "GitHub did not do it: "
"""Begins what is said where the same job, run again, may do it after all."""


def marker(subject: str) -> str:
    """The first line of the reply to ``subject``: "comment:17", "label:NONCE"."""
    return f"{MARKER}{json.dumps({'to': subject})} -->"


def answer_once(forge: Forge, number: int, subject: str, body: str, bot: str) -> bool:
    """Reply to ``subject``, unless ``bot`` has done so; whether it was done now. Raises ForgeError."""
    return _reply(forge, number, marker(subject), body, bot) is None


def bring_up_to_date(forge: Forge, number: int, first: str, body: str, bot: str) -> bool:
    """Have the reply of ``bot`` that begins with the line ``first`` say ``body``; whether anything was written. Raises
    ForgeError."""
    there = _reply(forge, number, first, body, bot)
    if there is None:
        return True
    if there.body.replace("\r\n", "\n").strip() == f"{first}\n{body}".strip():
        return False
    forge.edit_comment(there.id, f"{first}\n{body}")
    return True


def _reply(forge: Forge, number: int, first: str, body: str, bot: str) -> Comment | None:
    """The reply of ``bot`` that begins with ``first`` and was there already; None where it was written now."""

    def there() -> Comment | None:
        written = (comment for comment in forge.comments(number) if comment.author == bot)
        return next((comment for comment in written if comment.body.startswith(first)), None)

    if (found := there()) is None:
        forge.create_comment(number, f"{first}\n{body}", there)
    return found


def refused(login: str, what: str, refusal: Refusal) -> str:
    """The reply to somebody whose command or label was not obeyed."""
    told = sentence((Name(login), ", ", Name(what), ": nothing was done. ", *refusal.said))
    return f"{told}\n\n{fence(refusal.line)}" if refusal.line else told


def line_of(command: Command) -> str:
    """What to type for ``command``; a reason that is too long to be shown whole is left to whoever types."""
    line = typed(command)
    if len(line) <= LOG_LINE_CHARACTERS:
        return line
    return FORMS["accept"].replace("SHA", command.sha) if isinstance(command, Accept) else FORMS["expect"]


def no_right(command: Command | Misunderstood, role: Role, need: Role) -> Refusal:
    """Somebody may not do this."""
    line = "" if isinstance(command, Misunderstood) else line_of(command)
    ask = " Somebody who has it can type this line:" if line else " Ask somebody who has it."
    return Refusal((f"It needs the role {need} in this repository, and yours is {role}.{ask}",), line)


def moved(void: Words, pull: Pull, command: Run | More | Expect | Accept) -> Refusal:
    """The head is another one, or the pull request is closed."""
    if not pull.open:
        return Refusal(void)
    match command:
        case Run():
            again: Command = Run(pull.head_sha)
        case More() | Accept():
            again = replace(command, sha=pull.head_sha)
        case Expect():
            again = command
    return Refusal((*void, " Look at that one first, then type this line:"), line_of(again))


def guarded(words: Words, command: Command) -> Refusal:
    """It changes protected files, as ``words`` say."""
    return Refusal(
        ("It changes ", *words, f". Somebody with the role {PROTECTED} can type this line:"), line_of(command)
    )


def beside(base: str, branch: str, command: Command) -> Refusal:
    """It is compared with a commit that whoever pushes a branch can make."""
    told = (
        "The commit at which it left its base ",
        Name(base),
        " is none of ",
        Name(branch),
        f", and brings its own workloads and thresholds. Somebody with the role {OTHER_BASE} can type this line:",
    )
    return Refusal(told, line_of(command))


def outlived(sha: str) -> Refusal:
    """The verdict cannot be made again."""
    told = (
        "What the run of this verdict left has expired, or is of no use, so it cannot be judged again, and what is "
        "shown stays as it is. What was declared counts when the commit is measured again. Somebody with the role "
        "write can type this line:"
    )
    return Refusal((told,), line_of(Run(sha)))


def misread(found: Misunderstood, pull: Pull) -> Refusal:
    """A command that could not be understood: what was wrong, and what to type."""
    lines = {
        "run": typed(Run(pull.head_sha)),
        "more": typed(More(pull.head_sha)),
        "bisect": typed(Bisect(pull.base_sha, pull.head_sha)),
        "expect": FORMS["expect"],
        "accept": FORMS["accept"].replace("SHA", pull.head_sha),
    }
    problem = Said(f"{found.problem[:1].upper()}{found.problem[1:]}.")
    if found.verb is None:
        return Refusal((problem, " One of these lines, as the first of a comment:"), "\n".join(lines.values()))
    look = "Look at the commit first, then type" if found.verb == "run" else "Type"
    return Refusal((problem, f" {look}, as the first line of a comment:"), lines[found.verb])
