"""The gate decides who may start a measurement of which commit. It reacts to comments, labels, pushes and base changes.

It neither checks out nor runs code of a pull request. Roles, commits and other facts come from GitHub at the time of
the decision. An event that arrives twice has no second effect: the gate recognizes it by the title of the run that it
has started, or by its own reaction or reply.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from regbot.github import checks, commands
from regbot.github.approval import CommandRefusal, GateOutcome, find_obstacle, find_protected
from regbot.github.client import Forge, MissingError
from regbot.github.commands import Command, InvalidCommand, build_run_command, has_role, parse_command
from regbot.github.events import CommentEvent, PullEvent
from regbot.github.replies import build_marker, reply_once
from regbot.github.types import Comment, Pull
from regbot.github.workflow_start import BISECT, POST, CommandRequest, compute_nonce, request_measurement
from regbot.records.config import GitHub
from regbot.report.markdown import Name, UntrustedText, Words, fence, sentence

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
        lambda: _execute_command(forge, request, command, settings)
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
    result = _catch_refusal(lambda: _execute_command(forge, request, command, settings))
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
    if has_role(request.role, commands.REPLY_ROLE):
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


# What a command does


def _execute_command(
    forge: Forge, request: CommandRequest, command: Command | InvalidCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Execute a command, or return the reason for its refusal. Raises ForgeError."""
    if isinstance(command, InvalidCommand):  # needs the same role as most valid commands
        if has_role(request.role, "write"):
            return _refuse_invalid(command, forge.pull(request.number))
        reason = f"It needs the role write in this repository, and yours is {request.role}."
        return CommandRefusal((f"{reason} Ask somebody with that role.",))
    required_role = commands.get_required_role(command)
    if not has_role(request.role, required_role):
        reason = f"It needs the role {required_role} in this repository, and yours is {request.role}."
        return CommandRefusal((f"{reason} Somebody with that role can type this line:",), command.shown_line)
    pull = forge.pull(request.number)
    if command.verb == "bisect":
        return _start_bisection(forge, request, pull, command, settings)
    if obstacle := find_obstacle(pull, command.sha or pull.head_sha):
        if not pull.open:
            return CommandRefusal(obstacle)
        line = command.line.replace(command.sha, pull.head_sha)
        if command.verb == "run":
            line = build_run_command(pull.head_sha).line  # its protected files have to be looked at again
        new_command = replace(command, line=line)
        reasons = (*obstacle, " Look at the new head first, then type this line:")
        return CommandRefusal(reasons, new_command.shown_line)
    if command.verb in ("run", "more"):
        return _start_measurement(forge, request, pull, command, settings)
    return _apply_declaration(forge, request, pull, settings)


def _refuse_invalid(command: InvalidCommand, pull: Pull) -> CommandRefusal:
    """Say what is wrong and what to type instead."""

    def fill_form(verb: commands.Verb) -> str:
        line = re.sub(r" \[\S+\]", "", commands.FORMS[verb])
        return line.replace("GOOD", pull.base_sha).replace("BAD", pull.head_sha).replace("SHA", pull.head_sha)

    problem = UntrustedText(f"{command.problem[:1].upper()}{command.problem[1:]}.")
    if command.verb is None:
        advice = " Type one of these lines as the first line of a comment:"
        return CommandRefusal((problem, advice), "\n".join(fill_form(verb) for verb in commands.VERBS))
    start = " Look at the commit first, then type" if command.verb == "run" else " Type"
    return CommandRefusal((problem, f"{start} this line as the first line of a comment:"), fill_form(command.verb))


def _start_measurement(
    forge: Forge, request: CommandRequest, pull: Pull, command: Command, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start the measurement of a commit for a command or label, or return the reason for the refusal. Raises
    ForgeError."""
    change, default_branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    # A base commit outside the default branch has thresholds of its own, so it needs a stronger role.
    may_use_other_base = pull.base_ref == default_branch or has_role(request.role, commands.OTHER_BASE_ROLE)
    if not may_use_other_base and not forge.is_ancestor(change.merge_base, default_branch):
        reasons: Words = (
            "The merge base of this pull request and its base branch ",
            Name(pull.base_ref),
            " is not in ",
            Name(default_branch),
            ". The merge base has its own workloads and thresholds. Somebody with the role ",
            f"`{commands.OTHER_BASE_ROLE}` can type this line:",
        )
        return CommandRefusal(reasons, command.shown_line)
    # "/regbot run" must confirm protected files with its option; the role alone is not enough.
    may_change_protected = (
        command.protected if command.verb == "run" else has_role(request.role, commands.PROTECTED_ROLE)
    )
    if not may_change_protected and (files := find_protected(forge, change, command.sha, settings.protected)):
        is_run = command.verb == "run"
        return _refuse_protected(files, build_run_command(command.sha, protected=True) if is_run else command)
    return request_measurement(
        forge,
        request,
        command.sha,
        change.merge_base,
        settings.bot,
        find_obstacle=lambda: find_obstacle(forge.pull(pull.number), command.sha),
        more=command.pairs if command.verb == "more" else 0,
    )


def _refuse_protected(files: Words, command: Command) -> CommandRefusal:
    """``command`` is the command that a person with the required role may give."""
    advice = f". Somebody with the role `{commands.PROTECTED_ROLE}` can type this line:"
    return CommandRefusal(("This pull request changes ", *files, advice), command.shown_line)


def _start_bisection(
    forge: Forge, request: CommandRequest, pull: Pull, command: Command, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start a bisection, or return the reason for the refusal. Both ends of the range must be in the history of the
    pull request's head or base branch. If an end is not in the base branch yet, a pull request that changes protected
    files needs a stronger role."""
    # The command names no head, so the only possible obstacle is that the pull request is closed.
    if obstacle := find_obstacle(pull, pull.head_sha):
        return CommandRefusal(obstacle)
    # Ends of the range that are not in the base branch yet.
    pull_commits = [sha for sha in (command.good, command.sha) if not forge.is_ancestor(sha, pull.base_ref)]
    for sha in pull_commits:
        if not forge.is_ancestor(sha, pull.head_sha):
            return CommandRefusal(
                (Name(sha), " is neither a commit of this pull request nor a commit of ", Name(pull.base_ref), ".")
            )
    if pull_commits and not has_role(request.role, commands.PROTECTED_ROLE):
        change = forge.compare(pull.base_ref, pull.head_sha)
        if files := find_protected(forge, change, pull.head_sha, settings.protected):
            return _refuse_protected(files, command)
    if forge.has_run(BISECT, request.nonce, request.since):
        return GateOutcome("nothing", "this bisection was started before")
    if obstacle := find_obstacle(forge.pull(pull.number), pull.head_sha):
        return CommandRefusal(obstacle)
    inputs = {"good": command.good, "bad": command.sha, "workload": command.workload}
    forge.dispatch(BISECT, forge.default_branch(), {"pr": str(pull.number), **inputs, "nonce": request.nonce})
    return GateOutcome("started", f"{BISECT} was started for {request.login}")


def _apply_declaration(forge: Forge, request: CommandRequest, pull: Pull, settings: GitHub) -> GateOutcome:
    """Start regbot-post, which judges the present verdict again and reads the new declaration from the comments.

    If there is no verdict yet, nothing is started: the declaration counts as soon as a verdict is posted.
    """
    if checks.find(forge, pull.head_sha, pull.number, settings.bot).completed_text is None:
        return GateOutcome("noted", f"the declaration of {request.login} counts when a verdict is posted")
    forge.dispatch(POST, forge.default_branch(), {"change": str(pull.number)})
    return GateOutcome(
        "noted", f"{POST} was started to judge the head again: {request.login} declared or accepted a change"
    )
