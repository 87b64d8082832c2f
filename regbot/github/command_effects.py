"""Execute a command: measure a commit, bisect a range, or judge a commit again with a new declaration.

No workflow starts twice for a command: the title of a workflow run shows which command started it.
"""

import re
from dataclasses import replace

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome, find_obstacle, find_protected
from regbot.github.artifact import ARTIFACT, can_judge_again
from regbot.github.client import Forge
from regbot.github.commands import (
    FORMS,
    OTHER_BASE_ROLE,
    PROTECTED_ROLE,
    VERBS,
    Command,
    InvalidCommand,
    Verb,
    build_run_command,
    get_required_role,
    has_role,
)
from regbot.github.types import Pull
from regbot.github.workflow_start import BISECT, POST, CommandRequest, request_measurement
from regbot.records.config import GitHub
from regbot.report.markdown import Name, UntrustedText, Words


def execute_command(
    forge: Forge, request: CommandRequest, command: Command | InvalidCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Execute a command, or return the reason for its refusal. Raises ForgeError."""
    if isinstance(command, InvalidCommand):  # needs the same role as most valid commands
        if has_role(request.role, "write"):
            return _refuse_invalid(command, forge.pull(request.number))
        reason = f"It needs the role write in this repository, and yours is {request.role}."
        return CommandRefusal((f"{reason} Ask somebody with that role.",))
    required_role = get_required_role(command)
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

    def fill_form(verb: Verb) -> str:
        line = re.sub(r" \[\S+\]", "", FORMS[verb])
        return line.replace("GOOD", pull.base_sha).replace("BAD", pull.head_sha).replace("SHA", pull.head_sha)

    problem = UntrustedText(f"{command.problem[:1].upper()}{command.problem[1:]}.")
    if command.verb is None:
        advice = " Type one of these lines as the first line of a comment:"
        return CommandRefusal((problem, advice), "\n".join(fill_form(verb) for verb in VERBS))
    start = " Look at the commit first, then type" if command.verb == "run" else " Type"
    return CommandRefusal((problem, f"{start} this line as the first line of a comment:"), fill_form(command.verb))


def _start_measurement(
    forge: Forge, request: CommandRequest, pull: Pull, command: Command, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start the measurement of a commit for a command or label, or return the reason for the refusal. Raises
    ForgeError."""
    if pull.draft:  # its author still changes it
        reason = (
            "This pull request is a draft. regbot traces drafts and does not time them. Mark it as ready for review, "
            "then type this line:"
        )
        return CommandRefusal((reason,), command.shown_line)
    change, default_branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    # A base commit outside the default branch has thresholds of its own, so it needs a stronger role.
    may_use_other_base = pull.base_ref == default_branch or has_role(request.role, OTHER_BASE_ROLE)
    if not may_use_other_base and not forge.is_ancestor(change.merge_base, default_branch):
        reasons: Words = (
            "The merge base of this pull request and its base branch ",
            Name(pull.base_ref),
            " is not in ",
            Name(default_branch),
            ". The merge base has its own workloads and thresholds. Somebody with the role ",
            f"`{OTHER_BASE_ROLE}` can type this line:",
        )
        return CommandRefusal(reasons, command.shown_line)
    # "/regbot run" must confirm protected files with its option; the role alone is not enough.
    may_change_protected = command.protected if command.verb == "run" else has_role(request.role, PROTECTED_ROLE)
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
    advice = f". Somebody with the role `{PROTECTED_ROLE}` can type this line:"
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
    if pull_commits and not has_role(request.role, PROTECTED_ROLE):
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


def _apply_declaration(
    forge: Forge, request: CommandRequest, pull: Pull, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start regbot-post, which judges the present verdict again and reads the new declaration from the comments.

    If there is no verdict yet, nothing is started: the declaration counts as soon as a verdict is posted.
    """
    stamped_text = checks.find(forge, pull.head_sha, pull.number, settings.bot).completed_text
    if stamped_text is None:
        return GateOutcome("noted", f"the declaration of {request.login} counts when a verdict is posted")
    if not can_judge_again(forge, stamped_text.stamp.run, ARTIFACT):
        reason = (
            "The artifact of the run behind this verdict has expired or is unusable. The run cannot be judged again, "
            "and the verdict stays as it is. The declaration will count when the commit is measured again. Somebody "
            "with the role write can type this line:"
        )
        return CommandRefusal((reason,), build_run_command(pull.head_sha).line)
    forge.dispatch(POST, forge.default_branch(), {"change": str(pull.number)})
    return GateOutcome(
        "noted", f"{POST} was started to judge the head again: {request.login} declared or accepted a change"
    )
