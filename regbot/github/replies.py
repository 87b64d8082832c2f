"""Replies of the gate. Each comment or label gets one reply, however often the event is handled.

A reply begins with an invisible marker that names the comment or label it answers. Before the gate writes a reply, it
looks for an existing reply with the same marker. An event that arrives twice, or a lost answer from GitHub, therefore
causes no second reply.
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
    format_command,
)
from regbot.github.permission import OTHER_BASE_ROLE, PROTECTED_ROLE
from regbot.github.types import Comment, Pull, Role
from regbot.report.markdown import LOG_LINE_CHARACTERS, Name, UntrustedText, Words, fence, sentence

MARKER = "<!-- regbot:answer "
FAULT = "<!-- regbot:fault -->"
"""Second line of a reply to a command that failed because of a fault. The command is carried out if the job runs
again."""


def build_marker(subject: str) -> str:
    """Return the marker line of the reply to ``subject``, such as "comment:17" or "label:NONCE"."""
    return f"{MARKER}{json.dumps({'to': subject})} -->"


def reply_once(forge: Forge, number: int, subject: str, body: str, bot: str) -> bool:
    """Reply to ``subject``, unless ``bot`` has already replied. Return whether this call replied. Raises ForgeError."""
    return _find_or_create_reply(forge, number, build_marker(subject), body, bot) is None


def update_reply(forge: Forge, number: int, first_line: str, body: str, bot: str) -> bool:
    """Create or change the reply of ``bot`` that begins with ``first_line``, so that its text is ``body``. Return
    whether anything was written.

    Raises ForgeError.
    """
    reply = _find_or_create_reply(forge, number, first_line, body, bot)
    if reply is None:
        return True
    if reply.body.replace("\r\n", "\n").strip() == f"{first_line}\n{body}".strip():
        return False
    forge.edit_comment(reply.id, f"{first_line}\n{body}")
    return True


def _find_or_create_reply(forge: Forge, number: int, first_line: str, body: str, bot: str) -> Comment | None:
    """Return the existing reply of ``bot`` that begins with ``first_line``. Where there is none, write the reply and
    return None."""

    def find_reply() -> Comment | None:
        own_comments = (comment for comment in forge.comments(number) if comment.author == bot)
        return next((comment for comment in own_comments if comment.body.startswith(first_line)), None)

    if (reply := find_reply()) is None:
        forge.create_comment(number, f"{first_line}\n{body}", find_reply)
    return reply


def write_refusal(login: str, command: str, refusal: CommandRefusal) -> str:
    """Return the reply to somebody whose command or label was refused."""
    reason = sentence((Name(login), ", ", Name(command), ": nothing was done. ", *refusal.reason))
    body = f"{reason}\n\n{fence(refusal.line)}" if refusal.line else reason
    return f"{FAULT}\n{body}" if refusal.fault is not None else body


def format_line(command: Command) -> str:
    """Return the line to type for ``command``. Where that line is too long to show, return the form of the command with
    placeholders."""
    line = format_command(command)
    if len(line) <= LOG_LINE_CHARACTERS:
        return line
    return FORMS["accept"].replace("SHA", command.sha) if isinstance(command, AcceptCommand) else FORMS["expect"]


def refuse_role(command: Command | InvalidCommand, role: Role, required: Role) -> CommandRefusal:
    """Refuse a command for which the role is too weak."""
    line = "" if isinstance(command, InvalidCommand) else format_line(command)
    advice = " Somebody who has it can type this line:" if line else " Ask somebody who has it."
    return CommandRefusal((f"It needs the role {required} in this repository, and yours is {role}.{advice}",), line)


def refuse_moved_head(
    obstacle: Words, pull: Pull, command: RunCommand | MoreCommand | ExpectCommand | AcceptCommand
) -> CommandRefusal:
    """Refuse a command because the head has moved or the pull request is closed."""
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
    """Refuse a measurement of a draft. Its author still changes it, so only its collectives are counted."""
    reason = (
        "This pull request is a draft. regbot traces drafts and does not time them. Mark it as ready for review, then "
        "type this line:"
    )
    return CommandRefusal((reason,), format_line(command))


def refuse_protected(changes: Words, command: Command) -> CommandRefusal:
    """Refuse a command because the commit changes protected files. ``changes``: phrase that names the files."""
    return CommandRefusal(
        ("It changes ", *changes, f". Somebody with the role `{PROTECTED_ROLE}` can type this line:"),
        format_line(command),
    )


def refuse_other_base(base: str, branch: str, command: Command) -> CommandRefusal:
    """Refuse a measurement against a base commit outside the default branch, which anybody with push access may have
    made."""
    reason = (
        "The commit at which it branched off its base ",
        Name(base),
        " is not in ",
        Name(branch),
        f" and brings its own workloads and thresholds. Somebody with the role `{OTHER_BASE_ROLE}` can type this line:",
    )
    return CommandRefusal(reason, format_line(command))


def refuse_expired(sha: str) -> CommandRefusal:
    """Refuse to judge a run again, because its artifact no longer exists or is unusable."""
    reason = (
        "The artifact of this verdict's run has expired or is unusable, so the run cannot be judged again and the "
        "verdict stays as it is. The declaration counts when the commit is measured again. Somebody with the role "
        "write can type this line:"
    )
    return CommandRefusal((reason,), format_line(RunCommand(sha)))


def refuse_invalid(command: InvalidCommand, pull: Pull) -> CommandRefusal:
    """Refuse an invalid command. The refusal says what is wrong and what to type instead."""
    lines = {
        "run": format_command(RunCommand(pull.head_sha)),
        "more": format_command(MoreCommand(pull.head_sha)),
        "bisect": format_command(BisectCommand(pull.base_sha, pull.head_sha)),
        "expect": FORMS["expect"],
        "accept": FORMS["accept"].replace("SHA", pull.head_sha),
    }
    problem = UntrustedText(f"{command.problem[:1].upper()}{command.problem[1:]}.")
    if command.verb is None:
        return CommandRefusal((problem, " One of these lines, as the first of a comment:"), "\n".join(lines.values()))
    advice = "Look at the commit first, then type" if command.verb == "run" else "Type"
    return CommandRefusal((problem, f" {advice}, as the first line of a comment:"), lines[command.verb])
