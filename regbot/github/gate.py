"""The gate decides who may start a measurement of which commit. It reacts to comments, labels, pushes and base changes.

It neither checks out nor runs code of a pull request. Roles, commits and other facts come from GitHub at the time of
the decision. An event that arrives twice has no second effect: the gate recognizes it by the title of the run that it
has started, or by its own reaction or reply.
"""

from collections.abc import Callable

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome
from regbot.github.client import Forge, MissingError
from regbot.github.command_effects import execute_command
from regbot.github.commands import (
    REPLY_ROLE,
    Command,
    InvalidCommand,
    build_run_command,
    has_role,
    parse_command,
)
from regbot.github.events import CommentEvent, PullEvent
from regbot.github.replies import build_marker, reply_once
from regbot.github.types import Comment
from regbot.github.workflow_start import POST, CommandRequest, compute_nonce
from regbot.records.config import GitHub
from regbot.report.markdown import Name, UntrustedText, fence, sentence

EYES, THUMB, CONFUSED = "eyes", "+1", "confused"
"""The gate's reactions to a comment. EYES: a workflow was started. THUMB: a declaration was accepted. CONFUSED: the
command was refused."""


def handle_comment(forge: Forge, event: CommentEvent, settings: GitHub) -> GateOutcome:
    """Execute the command in a comment, or reply with the reason for the refusal. People with a weaker role than
    ``REPLY_ROLE`` get no reply. Raises ForgeError."""
    if event.action != "created" or not event.pull or event.author_type == "Bot" or event.author == settings.bot:
        return GateOutcome("nothing", "this is not a person's new comment on a pull request")
    command = parse_command(event.body)
    if command is None:
        return GateOutcome("nothing", "the comment is no command")
    comment = forge.comment(event.comment)
    if comment is None or comment.author != event.author:
        return GateOutcome("nothing", "the comment was deleted, or its author has changed")
    if settings.bot in forge.reaction_authors(comment.id):  # the gate reacts last
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
    if not isinstance(result, CommandRefusal):
        forge.react(comment.id, THUMB if result.effect == "noted" else EYES)
        return result
    name = f"/regbot {command.verb}" if command.verb is not None else "/regbot"
    is_new = _answer(forge, request, f"comment:{comment.id}", name, result, settings)
    forge.react(comment.id, CONFUSED)
    if not is_new:
        return GateOutcome("nothing", "this comment was answered before")
    return GateOutcome("refused", f"{name} of {request.login} was refused")


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
    if event.action == "edited" and event.changed_base:
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
    if label is None:
        return GateOutcome("nothing", "the label was removed again")
    command = build_run_command(event.head_sha)
    result = _catch_refusal(lambda: execute_command(forge, request, command, settings))
    if not isinstance(result, CommandRefusal):
        return result
    forge.remove_label(event.number, label)
    if not _answer(forge, request, f"label:{nonce}", settings.run_label, result, settings):
        return GateOutcome("nothing", "this label was answered before")
    return GateOutcome("refused", f"the label of {event.sender} was removed")


def _answer(
    forge: Forge, request: CommandRequest, subject: str, name: str, refusal: CommandRefusal, settings: GitHub
) -> bool:
    """Reply to a refused request, unless its author has too weak a role. Return False if it was answered before.

    ``name`` is that of the command or label. A fault of GitHub is raised after the reply. Its marker differs from that
    of a refusal, because the command is executed if the job runs again.
    """
    is_new = True
    if has_role(request.role, REPLY_ROLE):
        first_line = build_marker(f"fault:{subject}" if refusal.fault is not None else subject)
        reason = sentence((Name(request.login), ", ", Name(name), ": nothing was done. ", *refusal.reason))
        body = f"{reason}\n\n{fence(refusal.line)}" if refusal.line else reason
        is_new = reply_once(forge, request.number, first_line, body, settings.bot)
    if refusal.fault is not None:
        raise refusal.fault
    return is_new


def _catch_refusal(execute: Callable[[], GateOutcome | CommandRefusal]) -> GateOutcome | CommandRefusal:
    """Return the result of ``execute``. If GitHub reports that a workflow or commit does not exist, return a
    refusal."""
    try:
        return execute()
    except MissingError as error:
        return CommandRefusal(
            ("GitHub refused the request: ", UntrustedText(str(error)), ". Are all regbot workflows installed?"),
            fault=error,
        )


def _refuse_edited(comment: Comment, command: Command | InvalidCommand) -> CommandRefusal | None:
    """Return the refusal of a command whose comment was edited; None if the comment was not edited.

    ``command`` comes from the event, and ``comment`` is the comment as it is now.
    """
    if not comment.is_edited and parse_command(comment.body) == command:
        return None
    return CommandRefusal(("The comment was edited, and regbot ignores edited comments. Write a new comment.",))


def _is_same_label(label: str, other_label: str) -> bool:
    return label.casefold() == other_label.casefold()
