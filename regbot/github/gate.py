"""The gate decides who may start a measurement of which commit. It reacts to comments, labels, pushes and base changes.

It neither checks out nor runs code of a pull request. Roles, commits and other facts come from GitHub at the time of
the decision. An event that arrives twice has no second effect: the gate recognizes it by the title of the run that it
has started, or by its own reaction or reply.
"""

import re
from dataclasses import replace

from regbot.github import checks, commands
from regbot.github.approval import CommandRefusal, GateOutcome, check_head, find_protected
from regbot.github.client import Forge, MissingError
from regbot.github.commands import Command, InvalidCommand, build_run_command, has_role, parse_command
from regbot.github.events import CommentEvent, PullEvent
from regbot.github.replies import build_marker, reply_once
from regbot.github.types import CommitComparison, Pull
from regbot.github.workflow_start import BISECT, POST, CommandRequest, compute_nonce, request_measurement
from regbot.records.config import GitHub
from regbot.report.markdown import code, fence, prose

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
    nonce = compute_nonce(forge.repository, event.number, "comment", comment.id)
    request = CommandRequest(event.number, comment.author, forge.role(comment.author), nonce, comment.created)
    try:
        if comment.is_edited or parse_command(comment.body) != command:
            raise CommandRefusal("The comment was edited, and regbot ignores edited comments. Write a new comment.")
        outcome = _execute_command(forge, request, command, settings)
    except (CommandRefusal, MissingError) as refusal:
        name = f"/regbot {command.verb}" if command.verb is not None else "/regbot"
        is_new = _answer(forge, request, f"comment:{comment.id}", name, refusal, settings)
        forge.react(comment.id, CONFUSED)
        if not is_new:
            return GateOutcome("nothing", "this comment was answered before")
        return GateOutcome("refused", f"{name} of {request.login} was refused")
    forge.react(comment.id, THUMB if outcome.effect == "noted" else EYES)
    return outcome


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
    request = CommandRequest(event.number, event.sender, forge.role(event.sender), nonce, event.updated)
    labels = forge.pull(event.number).labels  # in GitHub's spelling
    label = next((label for label in labels if _is_same_label(label, settings.run_label)), None)
    if label is None:
        return GateOutcome("nothing", "the label was removed again")
    try:
        return _execute_command(forge, request, build_run_command(event.head_sha), settings)
    except (CommandRefusal, MissingError) as refusal:
        forge.remove_label(event.number, label)
        if not _answer(forge, request, f"label:{nonce}", settings.run_label, refusal, settings):
            return GateOutcome("nothing", "this label was answered before")
        return GateOutcome("refused", f"the label of {event.sender} was removed")


def _answer(
    forge: Forge,
    request: CommandRequest,
    subject: str,
    name: str,
    refusal: CommandRefusal | MissingError,
    settings: GitHub,
) -> bool:
    """Reply to a refused request, unless its author has too weak a role. Return False if it was answered before.

    ``name`` is that of the command or label. If GitHub refused what regbot accepted, for example because a workflow
    does not exist, the error is raised after the reply. The marker of that reply differs from that of a refusal,
    because the command is executed if the job runs again.
    """
    line, is_new = "", True
    if isinstance(refusal, CommandRefusal):
        reason, line = refusal.reason, refusal.line
    else:
        subject = f"fault:{subject}"
        reason = f"GitHub refused the request: {prose(str(refusal))}. Are all regbot workflows installed?"
    if has_role(request.role, commands.REPLY_ROLE):
        body = f"{code(request.login)}, {code(name)}: nothing was done. {reason}"
        body += f"\n\n{fence(line)}" if line else ""
        is_new = reply_once(forge, request.number, build_marker(subject), body, settings.bot)
    if isinstance(refusal, MissingError):
        raise refusal
    return is_new


def _is_same_label(label: str, other_label: str) -> bool:
    return label.casefold() == other_label.casefold()


# What a command does


def _execute_command(
    forge: Forge, request: CommandRequest, command: Command | InvalidCommand, settings: GitHub
) -> GateOutcome:
    """Execute a command. Raises CommandRefusal, ForgeError."""
    # An invalid command needs the same role as most valid commands.
    required_role = "write" if isinstance(command, InvalidCommand) else commands.get_required_role(command)
    if not has_role(request.role, required_role):
        reason = f"It needs the role {required_role} in this repository, and yours is {request.role}."
        if isinstance(command, InvalidCommand):
            raise CommandRefusal(f"{reason} Ask somebody with that role.")
        raise CommandRefusal(f"{reason} Somebody with that role can type this line:", command.shown_line)
    pull = forge.pull(request.number)
    if isinstance(command, InvalidCommand):
        raise _refuse_invalid(command, pull)
    if command.verb == "bisect":
        return _start_bisection(forge, request, pull, command, settings)
    line = command.line.replace(command.sha, pull.head_sha) if command.sha else command.line
    if command.verb == "run":
        line = build_run_command(pull.head_sha).line  # its protected files have to be looked at again
    check_head(pull, command.sha or pull.head_sha, replace(command, line=line).shown_line)
    if command.verb in ("run", "more"):
        return _start_measurement(forge, request, pull, command, settings)
    return _apply_declaration(forge, request, pull, settings)


def _refuse_invalid(command: InvalidCommand, pull: Pull) -> CommandRefusal:
    """Say what is wrong and what to type instead."""

    def fill_form(verb: commands.Verb) -> str:
        line = re.sub(r" \[\S+\]", "", commands.FORMS[verb])
        return line.replace("GOOD", pull.base_sha).replace("BAD", pull.head_sha).replace("SHA", pull.head_sha)

    problem = prose(f"{command.problem[:1].upper()}{command.problem[1:]}.")
    if command.verb is None:
        lines = "\n".join(fill_form(verb) for verb in commands.VERBS)
        return CommandRefusal(f"{problem} Type one of these lines as the first line of a comment:", lines)
    start = "Look at the commit first, then type" if command.verb == "run" else "Type"
    return CommandRefusal(f"{problem} {start} this line as the first line of a comment:", fill_form(command.verb))


def _start_measurement(
    forge: Forge, request: CommandRequest, pull: Pull, command: Command, settings: GitHub
) -> GateOutcome:
    """Start the measurement of a commit for a command or label. Raises CommandRefusal, ForgeError."""
    change, default_branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    # A base commit outside the default branch has thresholds of its own, so it needs a stronger role.
    may_use_other_base = pull.base_ref == default_branch or has_role(request.role, commands.OTHER_BASE_ROLE)
    if not may_use_other_base and not forge.is_ancestor(change.merge_base, default_branch):
        raise CommandRefusal(
            f"The merge base of this pull request and its base branch {code(pull.base_ref)} is not in "
            f"{code(default_branch)}. The merge base has its own workloads and thresholds. Somebody with the role "
            f"`{commands.OTHER_BASE_ROLE}` can type this line:",
            command.shown_line,
        )
    if command.verb == "run":  # must confirm protected files with its option; the role alone is not enough
        may_change_protected = command.protected
        accepted_line = build_run_command(command.sha, protected=True).line
    else:
        may_change_protected = has_role(request.role, commands.PROTECTED_ROLE)
        accepted_line = command.line
    if not may_change_protected:
        _check_protected(forge, change, command.sha, accepted_line, settings)
    more = command.pairs if command.verb == "more" else 0

    def check_again() -> None:
        check_head(forge.pull(pull.number), command.sha)

    return request_measurement(forge, request, command.sha, change.merge_base, settings.bot, check_again, more)


def _check_protected(forge: Forge, change: CommitComparison, sha: str, line: str, settings: GitHub) -> None:
    """Check that ``sha`` changes no protected files. Raises CommandRefusal; a person with the required role may then
    type ``line``."""
    if files := find_protected(forge, change, sha, settings.protected):
        advice = f"Somebody with the role `{commands.PROTECTED_ROLE}` can type this line:"
        raise CommandRefusal(f"This pull request changes {files}. {advice}", line)


def _start_bisection(
    forge: Forge, request: CommandRequest, pull: Pull, command: Command, settings: GitHub
) -> GateOutcome:
    """Start a bisection. Both ends of the range must be in the history of the pull request's head or base branch. If an
    end is not in the base branch yet, a pull request that changes protected files needs a stronger role. Raises
    CommandRefusal, ForgeError."""
    check_head(pull, pull.head_sha)  # the command names no head, so only a closed pull request is refused
    # Ends of the range that are not in the base branch yet.
    pull_commits = [sha for sha in (command.good, command.sha) if not forge.is_ancestor(sha, pull.base_ref)]
    for sha in pull_commits:
        if not forge.is_ancestor(sha, pull.head_sha):
            base = code(pull.base_ref)
            raise CommandRefusal(f"{code(sha)} is neither a commit of this pull request nor a commit of {base}.")
    if pull_commits and not has_role(request.role, commands.PROTECTED_ROLE):
        change = forge.compare(pull.base_ref, pull.head_sha)
        _check_protected(forge, change, pull.head_sha, command.line, settings)
    if forge.has_run(BISECT, request.nonce, request.since):
        return GateOutcome("nothing", "this bisection was started before")
    check_head(forge.pull(pull.number), pull.head_sha)
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
