"""The gate decides who may start a measurement of which commit. It reacts to comments, labels, pushes and base changes.

It neither checks out nor runs code of a pull request. Roles, commits and other facts come from GitHub at the time of
the decision. An event that arrives twice has no second effect: the gate recognizes it by the title of the run that it
has started, or by its own reaction or reply.
"""

from collections.abc import Callable
from dataclasses import replace

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome
from regbot.github.client import Forge, ForgeError, RefusedError
from regbot.github.command_effects import (
    CommandRequest,
    execute_command,
    has_command_started,
)
from regbot.github.commands import AcceptCommand, Command, ExpectCommand, InvalidCommand, RunCommand, parse_command
from regbot.github.events import CommentEvent, PullEvent
from regbot.github.permission import REPLY_ROLE, has_role
from regbot.github.replies import format_line, reply_once, write_refusal
from regbot.github.shared_history import MISSING_STATUSES
from regbot.github.types import Comment
from regbot.github.workflow_start import POST, compute_nonce
from regbot.records.config import GitHub
from regbot.report.markdown import UntrustedText

EYES, THUMB, CONFUSED = "eyes", "+1", "confused"
"""The gate's reactions to a comment. EYES: a workflow was started. THUMB: a declaration was accepted. CONFUSED: the
command was refused."""


def handle_comment(forge: Forge, event: CommentEvent, settings: GitHub) -> GateOutcome:
    """Execute the command in a comment, or reply with the reason for the refusal. People with a weaker role than
    ``REPLY_ROLE`` get no reply. Raises ForgeError."""
    if event.action != "created" or not event.pull or event.bot or event.author == settings.bot:
        return GateOutcome("nothing", "this is not a person's new comment on a pull request")
    command = parse_command(event.body)
    if command is None:
        return GateOutcome("nothing", "the comment is no command")
    comment = forge.comment(event.comment)
    if comment is None or comment.author != event.author:
        return GateOutcome("nothing", "the comment was deleted, or its author has changed")
    if _has_reacted(forge, comment, settings):
        return GateOutcome("nothing", "this comment was handled before")
    request = CommandRequest(
        number=event.number,
        login=comment.author,
        role=forge.role(comment.author),
        nonce=compute_nonce(forge.repository, event.number, "comment", comment.id),
        since=comment.created,
    )
    result = _refuse_edited(comment, command) or _catch_refusal(
        lambda: execute_command(forge, request, command, settings)
    )
    # The reaction to a command that is executed.
    reaction = THUMB if isinstance(command, ExpectCommand | AcceptCommand) else EYES
    if not isinstance(result, CommandRefusal):
        return _react(forge, comment, result, reaction)
    # An event that arrives twice may be refused because the first one has started the workflow. ``fault`` is GitHub's
    # error if GitHub refused what regbot accepted; None if regbot refused the command.
    if result.fault is None and has_command_started(forge, request, command):
        return _react(forge, comment, GateOutcome("nothing", "this comment was handled before"), reaction)
    if _answer(forge, request, f"comment:{comment.id}", _name_command(command), result, settings):
        outcome = GateOutcome("refused", f"{_name_command(command)} of {request.login} was refused")
    else:
        outcome = GateOutcome("nothing", "this comment was answered before")
    return _react(forge, comment, outcome, CONFUSED)


def _name_command(command: Command | InvalidCommand) -> str:
    if isinstance(command, InvalidCommand):
        return f"/regbot {command.verb}" if command.verb is not None else "/regbot"
    verb = type(command).__name__.removesuffix("Command").lower()  # "run" for RunCommand
    return f"/regbot {verb}"


def handle_pull(forge: Forge, event: PullEvent, settings: GitHub) -> GateOutcome:
    """Handle a push, a label, a change of the base branch, or a reopened pull request. Raises ForgeError.

    A push ends an approval. After a push, a reopening or a change of the base branch, regbot-post marks results of
    other heads as stale and judges those against another base again. The run label approves the head if the person who
    set the label has the required role.
    """
    if event.action == "labeled":
        if not _is_same_label(event.label, settings.run_label):
            return GateOutcome("nothing", f"the label is not {settings.run_label}")
        return _handle_label(forge, event, settings)
    if event.action == "edited" and event.base_changed:
        return _handle_base_change(forge, event, settings)
    if event.action not in ("synchronize", "reopened"):
        return GateOutcome("nothing", f"nothing is done when a pull request is {event.action}")
    pull = forge.pull(event.number)
    # A run label from before the push is removed. A run label that was set after the push approves the pushed commit.
    is_push = event.action == "synchronize"
    was_set_before_push = any(_is_same_label(label, settings.run_label) for label in event.labels)
    if is_push and was_set_before_push:
        for label in pull.labels:
            if _is_same_label(label, settings.run_label):
                forge.remove_label(event.number, label)
    _start_post(forge, event.number)
    return GateOutcome("stale", f"#{event.number} has the head {pull.head_sha}; {POST} was started")


def _handle_base_change(forge: Forge, event: PullEvent, settings: GitHub) -> GateOutcome:
    pull = forge.pull(event.number)
    stamped_text = checks.find(forge, pull.head_sha, event.number, settings.bot).completed_text
    if stamped_text is not None and stamped_text.stamp.target == pull.base_ref:
        return GateOutcome("nothing", "the verdict was judged against this base branch")
    _start_post(forge, event.number)
    return GateOutcome("stale", f"#{event.number} has the base {pull.base_ref}; {POST} was started")


def _start_post(forge: Forge, number: int) -> None:
    forge.dispatch(POST, forge.default_branch(), {"change": str(number)})


def _handle_label(forge: Forge, event: PullEvent, settings: GitHub) -> GateOutcome:
    """Start the measurement of the commit that was the head when the label was set, or remove the label and reply."""
    nonce = compute_nonce(forge.repository, event.number, "label", event.head_sha, event.sender, event.updated)
    request = CommandRequest(
        number=event.number, login=event.sender, role=forge.role(event.sender), nonce=nonce, since=event.updated
    )
    labels = forge.pull(event.number).labels  # in GitHub's spelling
    label = next((label for label in labels if _is_same_label(label, settings.run_label)), None)
    command = RunCommand(event.head_sha)
    result: GateOutcome | CommandRefusal
    if label is None:
        reason = "Somebody has removed the label. Set the label again, or type this line:"
        result = CommandRefusal((reason,), format_line(command))
    else:
        result = _catch_refusal(lambda: execute_command(forge, request, command, settings))
    if not isinstance(result, CommandRefusal):
        return result
    if result.fault is None and has_command_started(forge, request, command):
        return GateOutcome("nothing", "this label was handled before")
    if label is not None:
        forge.remove_label(event.number, label)
    if not _answer(forge, request, f"label:{nonce}", settings.run_label, result, settings):
        return GateOutcome("nothing", "this label was answered before")
    return GateOutcome("refused", f"the label of {event.sender} was removed")


def _answer(
    forge: Forge, request: CommandRequest, subject: str, name: str, refusal: CommandRefusal, settings: GitHub
) -> bool:
    """Reply to a refused request, unless its author has too weak a role. Return False if it was answered before.

    Raises GitHub's own refusal of what regbot had accepted.
    """
    is_new = True
    if has_role(request.role, REPLY_ROLE):
        body = write_refusal(request.login, name, refusal)
        is_new = reply_once(forge, request.number, subject, body, settings.bot)
    if refusal.fault is not None:
        raise refusal.fault
    return is_new


def _catch_refusal(execute: Callable[[], GateOutcome | CommandRefusal]) -> GateOutcome | CommandRefusal:
    """Return the result of ``execute``. If GitHub reports that a workflow or commit does not exist, return a
    refusal."""
    try:
        return execute()
    except RefusedError as error:
        if error.status not in MISSING_STATUSES:
            raise
        return CommandRefusal(
            ("GitHub refused the request: ", UntrustedText(str(error)), ". Are all regbot workflows installed?"),
            fault=error,
        )


def _refuse_edited(comment: Comment, command: Command | InvalidCommand) -> CommandRefusal | None:
    """Return the refusal of a command whose comment was edited; None if the comment was not edited.

    ``command`` comes from the event, and ``comment`` is the comment as it is now.
    """
    if comment.created == comment.updated and parse_command(comment.body) == command:
        return None
    return CommandRefusal(("The comment was edited, and regbot ignores edited comments. Write a new comment.",))


def _has_reacted(forge: Forge, comment: Comment, settings: GitHub) -> bool:
    """Return whether a comment has a reaction of regbot. The gate reacts last, so a comment with a reaction is handled
    completely.

    The result is False if the job's token may not read reactions. In that case the titles of runs and the existing
    replies still prevent most repeated effects.
    """
    try:
        return bool(forge.reactions(comment.id, settings.bot))
    except RefusedError:
        return False


def _react(forge: Forge, comment: Comment, outcome: GateOutcome, reaction: str) -> GateOutcome:
    """Add a reaction to a comment and return ``outcome``. If the reaction fails, the message of the outcome says so."""
    try:
        forge.react(comment.id, reaction)
    except ForgeError as error:
        return replace(outcome, message=f"{outcome.message}; the reaction could not be added: {error}")
    return outcome


def _is_same_label(label: str, other_label: str) -> bool:
    return label.casefold() == other_label.casefold()
