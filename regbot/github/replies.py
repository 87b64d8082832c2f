"""Replies of the gate. Each comment or label gets at most one reply, however often the event is handled.

The first line of a reply is an invisible marker that names the answered comment or label.
"""

import json
from dataclasses import replace

from regbot.github.approval import CommandRefusal
from regbot.github.client import Forge
from regbot.github.commands import (
    FORMS,
    AcceptCommand,
    BisectCommand,
    Command,
    ExpectCommand,
    InvalidCommand,
    MoreCommand,
    RunCommand,
    Verb,
    format_command,
)
from regbot.github.permission import OTHER_BASE_ROLE, PROTECTED_ROLE
from regbot.github.types import Comment, Pull, Role
from regbot.report.markdown import LOG_LINE_CHARACTERS, Name, UntrustedText, Words, fence, sentence

MARKER = "<!-- regbot:answer "
FAULT = "<!-- regbot:fault -->"
"""Second line of a reply to a command that GitHub refused, although regbot accepted it. If the job runs again, it
executes the command."""


def build_marker(subject: str) -> str:
    """Return the marker line of the reply to ``subject``, such as "comment:17" or "label:NONCE"."""
    return f"{MARKER}{json.dumps({'to': subject})} -->"


def reply_once(forge: Forge, number: int, subject: str, body: str, bot: str) -> bool:
    """Reply to ``subject``, a comment or label (see ``build_marker``). If the account ``bot`` has already replied, do
    nothing. Return whether this call replied. Raises ForgeError."""
    existing_reply = _find_or_create_reply(forge, number, build_marker(subject), body, bot)
    return existing_reply is None


def update_reply(forge: Forge, number: int, first_line: str, body: str, bot: str) -> bool:
    """Make sure that ``bot`` has one reply with the marker ``first_line`` and the text ``body``. Return whether the
    reply was created or changed.

    Raises ForgeError.
    """
    existing_reply = _find_or_create_reply(forge, number, first_line, body, bot)
    if existing_reply is None:
        return True
    text = f"{first_line}\n{body}"
    if existing_reply.body.replace("\r\n", "\n").strip() == text.strip():
        return False
    forge.edit_comment(existing_reply.id, text)
    return True


def _find_or_create_reply(forge: Forge, number: int, first_line: str, body: str, bot: str) -> Comment | None:
    """Return the existing reply of ``bot`` that begins with ``first_line``. If no such reply exists, create it and
    return None."""

    def find_reply() -> Comment | None:
        own_comments = (comment for comment in forge.comments(number) if comment.author == bot)
        return next((comment for comment in own_comments if comment.body.startswith(first_line)), None)

    existing_reply = find_reply()
    if existing_reply is None:
        forge.create_comment(number, f"{first_line}\n{body}", find_reply)
    return existing_reply


def write_refusal(login: str, command: str, refusal: CommandRefusal) -> str:
    """Return the reply to the person ``login``, whose command or label was refused. ``command`` is its name, such as
    ``/regbot run``.

    If GitHub refused what regbot had accepted (``refusal.fault``), the reply begins with FAULT. It then does not count
    as a refusal."""
    reason = sentence((Name(login), ", ", Name(command), ": nothing was done. ", *refusal.reason))
    body = f"{reason}\n\n{fence(refusal.line)}" if refusal.line else reason
    return f"{FAULT}\n{body}" if refusal.fault is not None else body


def format_line(command: Command) -> str:
    """Return the line to type for ``command``. If the line is too long to show, return the syntax of the command with
    placeholders."""
    line = format_command(command)
    if len(line) <= LOG_LINE_CHARACTERS:
        return line
    # Only a command with a reason can be so long: "accept" or "expect".
    if isinstance(command, AcceptCommand):
        return FORMS["accept"].replace("SHA", command.sha)
    return FORMS["expect"]


def refuse_role(command: Command | InvalidCommand, role: Role, required: Role) -> CommandRefusal:
    line = "" if isinstance(command, InvalidCommand) else format_line(command)
    advice = " Somebody with that role can type this line:" if line else " Ask somebody with that role."
    reason = f"It needs the role {required} in this repository, and yours is {role}.{advice}"
    return CommandRefusal((reason,), line)


def refuse_moved_head(
    obstacle: Words, pull: Pull, command: RunCommand | MoreCommand | ExpectCommand | AcceptCommand
) -> CommandRefusal:
    """Refuse a command because the head has moved or the pull request is closed. ``obstacle`` is the result of
    ``find_obstacle``."""
    if not pull.open:
        return CommandRefusal(obstacle)
    match command:
        case RunCommand():
            new_command: Command = RunCommand(pull.head_sha)
        case MoreCommand() | AcceptCommand():
            new_command = replace(command, sha=pull.head_sha)
        case ExpectCommand():
            new_command = command
    return CommandRefusal((*obstacle, " Look at the new head first, then type this line:"), format_line(new_command))


def refuse_draft(command: Command) -> CommandRefusal:
    """Refuse to measure a draft. The author still changes a draft, so regbot only traces it."""
    reason = (
        "This pull request is a draft. regbot traces drafts and does not time them. Mark it as ready for review, then "
        "type this line:"
    )
    return CommandRefusal((reason,), format_line(command))


def refuse_protected(changes: Words, command: Command) -> CommandRefusal:
    """Refuse a command because the commit changes protected files. ``changes`` is a phrase that names the files
    (``ProtectedFiles.describe``). ``command`` is the command that a person with the required role may give."""
    advice = f". Somebody with the role `{PROTECTED_ROLE}` can type this line:"
    return CommandRefusal(("This pull request changes ", *changes, advice), format_line(command))


def refuse_other_base(base: str, branch: str, command: Command) -> CommandRefusal:
    """Refuse a measurement against a base commit outside the default branch. Anybody with push access may have made
    this base commit. ``base`` is the base branch of the pull request, and ``branch`` is the default branch."""
    reason = (
        "The merge base of this pull request and its base branch ",
        Name(base),
        " is not in ",
        Name(branch),
        ". The merge base has its own workloads and thresholds. Somebody with the role ",
        f"`{OTHER_BASE_ROLE}` can type this line:",
    )
    return CommandRefusal(reason, format_line(command))


def refuse_expired(sha: str) -> CommandRefusal:
    """Refuse to judge a run again, because its artifact has expired or is unusable."""
    reason = (
        "The artifact of the run behind this verdict has expired or is unusable. The run cannot be judged again, and "
        "the verdict stays as it is. The declaration will count when the commit is measured again. Somebody with the "
        "role write can type this line:"
    )
    return CommandRefusal((reason,), format_line(RunCommand(sha)))


def refuse_invalid(command: InvalidCommand, pull: Pull) -> CommandRefusal:
    """Refuse an invalid command. The refusal says what is wrong and what to type instead."""
    line_by_verb: dict[Verb, str] = {
        "run": format_command(RunCommand(pull.head_sha)),
        "more": format_command(MoreCommand(pull.head_sha)),
        "bisect": format_command(BisectCommand(pull.base_sha, pull.head_sha)),
        "expect": FORMS["expect"],
        "accept": FORMS["accept"].replace("SHA", pull.head_sha),
    }
    problem = UntrustedText(f"{command.problem[:1].upper()}{command.problem[1:]}.")
    if command.verb is None:
        advice = " Type one of these lines as the first line of a comment:"
        return CommandRefusal((problem, advice), "\n".join(line_by_verb.values()))
    advice = " Type this line as the first line of a comment:"
    if command.verb == "run":
        advice = " Look at the commit first, then type this line as the first line of a comment:"
    return CommandRefusal((problem, advice), line_by_verb[command.verb])
