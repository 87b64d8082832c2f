"""Execute a command: measure a commit, bisect a range, or judge a commit again with a new declaration.

No workflow starts twice for a command: the title of a workflow run shows which command started it.
"""

from dataclasses import dataclass
from datetime import datetime

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome, find_obstacle, find_protected
from regbot.github.artifact import ARTIFACT
from regbot.github.changed_files import list_changed_files
from regbot.github.client import Forge
from regbot.github.commands import (
    AcceptCommand,
    BisectCommand,
    Command,
    ExpectCommand,
    InvalidCommand,
    MoreCommand,
    RunCommand,
)
from regbot.github.permission import OTHER_BASE_ROLE, PROTECTED_ROLE, get_required_role, has_role
from regbot.github.replies import (
    refuse_draft,
    refuse_expired,
    refuse_invalid,
    refuse_moved_head,
    refuse_other_base,
    refuse_protected,
    refuse_role,
)
from regbot.github.run_artifact import can_judge_again
from regbot.github.shared_history import is_ancestor
from regbot.github.types import Pull, Role
from regbot.github.workflow_start import (
    BISECT,
    POST,
    Measurement,
    has_measurement_started,
    has_run_started,
    is_judged_since,
    request_measurement,
)
from regbot.records.config import GitHub
from regbot.report.markdown import Name


@dataclass(frozen=True)
class CommandRequest:
    """Who requested something, where and when: by a command or a label."""

    number: int
    login: str
    role: Role
    nonce: str
    since: datetime
    """Time of the request. Runs that the request has started cannot be older."""


def execute_command(
    forge: Forge, request: CommandRequest, command: Command | InvalidCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Execute a command, or return the reason for its refusal. Raises ForgeError."""
    # An invalid command needs the same role as most valid commands.
    required_role = "write" if isinstance(command, InvalidCommand) else get_required_role(command)
    if not has_role(request.role, required_role):
        return refuse_role(command, request.role, required_role)
    pull = forge.pull(request.number)
    match command:
        case InvalidCommand():
            return refuse_invalid(command, pull)
        case RunCommand() | MoreCommand():
            if obstacle := find_obstacle(pull, command.sha):
                return refuse_moved_head(obstacle, pull, command)
            return start_measurement(forge, request, pull, command, settings)
        case BisectCommand():
            return _start_bisection(forge, request, pull, command, settings)
        case ExpectCommand() | AcceptCommand():
            return _apply_declaration(forge, request, pull, command, settings)


def start_measurement(
    forge: Forge, request: CommandRequest, pull: Pull, command: RunCommand | MoreCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start the measurement of a commit for a command or label, or return the reason for the refusal. Raises
    ForgeError."""
    if pull.draft:
        return refuse_draft(command)
    change, default_branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    # A base commit outside the default branch has thresholds of its own, so it needs a stronger role.
    may_use_other_base = pull.base_ref == default_branch or has_role(request.role, OTHER_BASE_ROLE)
    if not may_use_other_base and not is_ancestor(forge, change.merge_base, default_branch):
        return refuse_other_base(pull.base_ref, default_branch, command)
    if isinstance(command, RunCommand):
        # "/regbot run" must confirm protected files with its option; the role alone is not enough.
        may_change_protected = command.protected
        # A refusal because of protected files suggests ``accepted_command``.
        accepted_command: Command = RunCommand(command.sha, protected=True)
    else:
        may_change_protected = has_role(request.role, PROTECTED_ROLE)
        accepted_command = command
    if not may_change_protected:
        files = find_protected(list_changed_files(forge, change, command.sha), settings.protected)
        if files:
            return refuse_protected(files.describe(), accepted_command)
    measurement = Measurement(
        number=pull.number,
        sha=command.sha,
        base=change.merge_base,
        branch=default_branch,
        request_nonce=request.nonce,
        login=request.login,
        since=request.since,
        bot=settings.bot,
        # Number of pairs to add to an earlier measurement; 0 for a new measurement.
        more=command.pairs if isinstance(command, MoreCommand) else 0,
    )
    return request_measurement(forge, measurement, lambda: find_obstacle(forge.pull(pull.number), command.sha))


def _start_bisection(
    forge: Forge, request: CommandRequest, pull: Pull, command: BisectCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start a bisection, or return the reason for the refusal. Both ends of the range must be in the history of the
    pull request's head or base branch. If an end is not in the base branch yet, a pull request that changes protected
    files needs a stronger role."""
    # The command names no head, so the only possible obstacle is that the pull request is closed.
    if obstacle := find_obstacle(pull, pull.head_sha):
        return CommandRefusal(obstacle)
    has_code_of_pull = False  # whether an end of the range is not in the base branch yet
    for sha in (command.good, command.bad):
        if is_ancestor(forge, sha, pull.base_ref):
            continue
        if not is_ancestor(forge, sha, pull.head_sha):
            return CommandRefusal(
                (Name(sha), " is neither a commit of this pull request nor a commit of ", Name(pull.base_ref), ".")
            )
        has_code_of_pull = True
    if has_code_of_pull and not has_role(request.role, PROTECTED_ROLE):
        change = forge.compare(pull.base_ref, pull.head_sha)
        if files := find_protected(list_changed_files(forge, change, pull.head_sha), settings.protected):
            return refuse_protected(files.describe(), command)
    if has_run_started(forge, BISECT, request.nonce, request.since):
        return GateOutcome("nothing", "this bisection was started before")
    branch = forge.default_branch()
    if obstacle := find_obstacle(forge.pull(pull.number), pull.head_sha):
        return CommandRefusal(obstacle)
    inputs = {"good": command.good, "bad": command.bad, "workload": command.workload}
    forge.dispatch(BISECT, branch, {"pr": str(pull.number), **inputs, "nonce": request.nonce})
    return GateOutcome("started", f"{BISECT} was started for {request.login}")


def _apply_declaration(
    forge: Forge, request: CommandRequest, pull: Pull, command: ExpectCommand | AcceptCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start regbot-post, which judges the present verdict again and reads the new declaration from the comments.

    If there is no verdict yet, nothing is started: the declaration counts as soon as a verdict is posted.
    """
    sha = command.sha if isinstance(command, AcceptCommand) else pull.head_sha
    if obstacle := find_obstacle(pull, sha):
        return refuse_moved_head(obstacle, pull, command)
    stamped_text = checks.find(forge, pull.head_sha, pull.number, settings.bot).completed_text
    if stamped_text is None:
        return GateOutcome("noted", f"the declaration of {request.login} counts when a verdict is posted")
    run_id = stamped_text.stamp.run
    if is_judged_since(forge, pull.number, request.since):
        return GateOutcome("nothing", f"{POST} was started after this comment, and reads this comment too")
    if not can_judge_again(forge, run_id, ARTIFACT):
        return refuse_expired(sha)
    forge.dispatch(POST, forge.default_branch(), {"change": str(pull.number)})
    return GateOutcome(
        "noted", f"{POST} was started to judge the head again: {request.login} declared or accepted a change"
    )


def has_command_started(forge: Forge, request: CommandRequest, command: Command | InvalidCommand) -> bool:
    """Return whether a command has already started a workflow. Raises ForgeError.

    The result is False for commands that only start regbot-post. The title of a regbot-post run does not show which
    command started it.
    """
    match command:
        case RunCommand() | MoreCommand():
            return has_measurement_started(forge, request.nonce, request.since)
        case BisectCommand():
            return has_run_started(forge, BISECT, request.nonce, request.since)
        case InvalidCommand() | ExpectCommand() | AcceptCommand():
            return False
