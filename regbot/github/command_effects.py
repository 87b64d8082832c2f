"""Execute a command: measure a commit, bisect a range, or judge a commit again with a new declaration.

GitHub reports the author of a command. A command can be refused because of the author's role, the commit or protected
files. A workflow that was already started is recognized by the title of its run, so that no workflow starts twice.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from regbot.config import GitHub
from regbot.github.approval import CommandRefusal, find_obstacle, find_protected
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
from regbot.github.run_artifact import is_spent
from regbot.github.shared_history import is_ancestor
from regbot.github.sticky_comment import find_posted_run
from regbot.github.types import Pull, Role
from regbot.github.workflow_start import (
    BISECT,
    MEASURE,
    POST,
    Measurement,
    has_measurement_started,
    has_run_started,
    is_judged_since,
    request_measurement,
)
from regbot.report.markdown import Name

Effect = Literal["nothing", "started", "noted", "refused", "stale"]


@dataclass(frozen=True)
class GateOutcome:
    """What the gate did about an event, and a message for the job's log."""

    effect: Effect
    message: str


@dataclass(frozen=True)
class CommandRequest:
    """A command or a run label on the pull request ``number``. ``login``, ``role``: the person who gave the command or
    set the label. ``since``: time of the comment or label event. ``nonce`` identifies the request."""

    number: int
    login: str
    role: Role
    nonce: str
    since: datetime


def execute_command(
    forge: Forge, request: CommandRequest, command: Command | InvalidCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Carry out a command, or return the refusal. Raises ForgeError."""
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
    """Start the measurement of a commit for a command or a label, or return the refusal. Raises ForgeError."""
    if pull.draft:
        return refuse_draft(command)
    change, branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    if (
        pull.base_ref != branch
        and not has_role(request.role, OTHER_BASE_ROLE)
        and not is_ancestor(forge, change.merge_base, branch)
    ):
        return refuse_other_base(pull.base_ref, branch, command)
    may_change_protected = (
        command.protected if isinstance(command, RunCommand) else has_role(request.role, PROTECTED_ROLE)
    )
    paths = [] if may_change_protected else list_changed_files(forge, change, command.sha)
    if files := find_protected(paths, settings.protected):
        confirmed = RunCommand(command.sha, protected=True) if isinstance(command, RunCommand) else command
        return refuse_protected(files.describe(), confirmed)
    more_pairs = command.pairs if isinstance(command, MoreCommand) else 0
    measurement = Measurement(
        pull.number,
        command.sha,
        change.merge_base,
        branch,
        request.nonce,
        request.login,
        request.since,
        settings.bot,
        more_pairs,
    )
    started = request_measurement(forge, measurement, lambda: find_obstacle(forge.pull(pull.number), command.sha))
    if isinstance(started, CommandRefusal):
        return started
    if not started:
        return GateOutcome("nothing", "this was started before")
    return GateOutcome("started", f"{MEASURE} was started on {command.sha}, for {request.login}")


def _start_bisection(
    forge: Forge, request: CommandRequest, pull: Pull, command: BisectCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start a bisection, or return the refusal. Both ends of the range must be in the history of the pull request or of
    its base."""
    if obstacle := find_obstacle(pull, pull.head_sha):
        return CommandRefusal(obstacle)
    has_pull_code = False
    for sha in (command.good, command.bad):
        if is_ancestor(forge, sha, pull.base_ref):
            continue
        if not is_ancestor(forge, sha, pull.head_sha):
            return CommandRefusal(
                (Name(sha), " is a commit neither of this pull request nor of ", Name(pull.base_ref), ".")
            )
        has_pull_code = True
    if has_pull_code and not has_role(request.role, PROTECTED_ROLE):
        change = forge.compare(pull.base_ref, pull.head_sha)
        if files := find_protected(list_changed_files(forge, change, pull.head_sha), settings.protected):
            return refuse_protected(files.describe(), command)
    if has_run_started(forge, BISECT, request.nonce, request.since):
        return GateOutcome("nothing", "this was started before")
    branch = forge.default_branch()
    if obstacle := find_obstacle(forge.pull(pull.number), pull.head_sha):
        return CommandRefusal(obstacle)
    inputs = {"good": command.good, "bad": command.bad, "workload": command.workload}
    forge.dispatch(BISECT, branch, {"pr": str(pull.number), **inputs, "nonce": request.nonce})
    return GateOutcome("started", f"{BISECT} was started for {request.login}")


def _apply_declaration(
    forge: Forge, request: CommandRequest, pull: Pull, command: ExpectCommand | AcceptCommand, settings: GitHub
) -> GateOutcome | CommandRefusal:
    """Start regbot-post again for the run of the present verdict. Every run of regbot-post reads the declarations from
    the comments."""
    sha = command.sha if isinstance(command, AcceptCommand) else pull.head_sha
    if obstacle := find_obstacle(pull, sha):
        return refuse_moved_head(obstacle, pull, command)
    run = find_posted_run(forge, pull.number, settings.bot, pull.head_sha)
    if run is None:
        return GateOutcome("noted", f"the declaration of {request.login} counts when a verdict is posted")
    if is_judged_since(forge, run, request.since):
        return GateOutcome("nothing", f"{POST} was started after this comment, and reads it too")
    if is_spent(forge, run, ARTIFACT):
        return refuse_expired(sha)
    forge.dispatch(POST, forge.default_branch(), {"run": str(run)})
    return GateOutcome(
        "noted", f"{POST} was started to judge run {run} again: {request.login} declared or accepted a change"
    )


def has_command_started(forge: Forge, request: CommandRequest, command: Command | InvalidCommand) -> bool:
    """Return whether a command has already started a workflow. Raises ForgeError.

    The result is always False for commands that only start regbot-post, because another command may have started the
    same post.
    """
    match command:
        case RunCommand() | MoreCommand():
            return has_measurement_started(forge, request.nonce, request.since)
        case BisectCommand():
            return has_run_started(forge, BISECT, request.nonce, request.since)
        case InvalidCommand() | ExpectCommand() | AcceptCommand():
            return False
