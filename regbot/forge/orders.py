"""What becomes of a command: a commit is measured, a culprit is searched for, a declared change is counted.

Whoever asks was told by GitHub, and may be refused here: for the role, for the commit, for protected files. What was
started is known by the titles of runs, so nothing is started twice.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from regbot.config import GitHub
from regbot.forge.approval import Refusal, obstacle, protected
from regbot.forge.artifact import NAME
from regbot.forge.client import Forge
from regbot.forge.commands import Accept, Bisect, Command, Expect, Misunderstood, More, Run
from regbot.forge.history import within
from regbot.forge.left import spent
from regbot.forge.permission import OTHER_BASE, PROTECTED, may, needed
from regbot.forge.replies import beside, guarded, misread, moved, no_right, outlived
from regbot.forge.start import BISECT, MEASURE, POST, Measurement, judged_since, measure, started
from regbot.forge.sticky import posted_run
from regbot.forge.types import Pull, Role
from regbot.report.markdown import Name

Did = Literal["nothing", "started", "noted", "refused", "stale"]


@dataclass(frozen=True)
class Outcome:
    """What was done about an event, and a sentence for the job's log."""

    did: Did
    said: str


@dataclass(frozen=True)
class Asked:
    """A command, who gave it where, and what tells it from all others."""

    number: int
    login: str
    role: Role
    nonce: str
    since: datetime


def obeyed(forge: Forge, asked: Asked, command: Command | Misunderstood, settings: GitHub) -> Outcome | Refusal:
    """Do what a command asks for, or say why not. Raises ForgeError."""
    need = "write" if isinstance(command, Misunderstood) else needed(command)
    if not may(asked.role, need):
        return no_right(command, asked.role, need)
    pull = forge.pull(asked.number)
    match command:
        case Misunderstood():
            return misread(command, pull)
        case Run() | More():
            if void := obstacle(pull, command.sha):
                return moved(void, pull, command)
            return measured(forge, asked, pull, command, settings)
        case Bisect():
            return _bisected(forge, asked, pull, command, settings)
        case Expect() | Accept():
            return _noted(forge, asked, pull, command, settings)


def measured(forge: Forge, asked: Asked, pull: Pull, command: Run | More, settings: GitHub) -> Outcome | Refusal:
    """Have a commit measured, by a command or a label, or say why not. Raises ForgeError."""
    change, branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    if pull.base_ref != branch and not may(asked.role, OTHER_BASE) and not within(forge, change.merge_base, branch):
        return beside(pull.base_ref, branch, command)
    allowed = command.protected if isinstance(command, Run) else may(asked.role, PROTECTED)
    if not allowed and (files := protected(change.files, settings.protected)):
        return guarded(files.words(), Run(command.sha, protected=True) if isinstance(command, Run) else command)
    more = command.pairs if isinstance(command, More) else 0
    wanted = Measurement(
        pull, command.sha, change.merge_base, branch, asked.nonce, asked.login, asked.since, settings.bot, more
    )
    found = measure(forge, wanted)
    if isinstance(found, Refusal):
        return found
    if not found:
        return Outcome("nothing", "this was started before")
    return Outcome("started", f"{MEASURE} was started on {command.sha}, for {asked.login}")


def _bisected(forge: Forge, asked: Asked, pull: Pull, command: Bisect, settings: GitHub) -> Outcome | Refusal:
    """Code of the pull request may be in the range; what is neither its nor its base's is not run."""
    if void := obstacle(pull, pull.head_sha):
        return Refusal(void)
    theirs = False
    for sha in (command.good, command.bad):
        if within(forge, sha, pull.base_ref):
            continue
        if not within(forge, sha, pull.head_sha):
            return Refusal((Name(sha), " is a commit neither of this pull request nor of ", Name(pull.base_ref), "."))
        theirs = True
    if theirs and not may(asked.role, PROTECTED):
        change = forge.compare(pull.base_ref, pull.head_sha)
        if files := protected(change.files, settings.protected):
            return guarded(files.words(), command)
    if started(forge, BISECT, asked.nonce, asked.since):
        return Outcome("nothing", "this was started before")
    branch = forge.default_branch()
    if void := obstacle(forge.pull(pull.number), pull.head_sha):
        return Refusal(void)
    given = {"good": command.good, "bad": command.bad, "workload": command.workload}
    forge.dispatch(BISECT, branch, {"pr": str(pull.number), **given, "nonce": asked.nonce})
    return Outcome("started", f"{BISECT} was started for {asked.login}")


def _noted(forge: Forge, asked: Asked, pull: Pull, command: Expect | Accept, settings: GitHub) -> Outcome | Refusal:
    """What was declared is read from the comments whenever a verdict is posted: the one that stands is posted again."""
    sha = command.sha if isinstance(command, Accept) else pull.head_sha
    if void := obstacle(pull, sha):
        return moved(void, pull, command)
    run = posted_run(forge, pull.number, settings.bot, pull.head_sha)
    if run is None:
        return Outcome("noted", f"what {asked.login} declared counts when a verdict is posted")
    if judged_since(forge, run, asked.since):
        return Outcome("nothing", f"{POST} was started since, and reads this comment too")
    if spent(forge, run, NAME):
        return outlived(sha)
    forge.dispatch(POST, forge.default_branch(), {"run": str(run)})
    return Outcome("noted", f"{POST} was started on run {run}: {asked.login} declared a change")


def was_started(forge: Forge, asked: Asked, command: Command | Misunderstood) -> bool:
    """Whether a command has started something before. Of one that only had a verdict posted again nobody can tell: not
    whose post it was. Raises ForgeError."""
    match command:
        case Run() | More():
            return started(forge, MEASURE, asked.nonce, asked.since)
        case Bisect():
            return started(forge, BISECT, asked.nonce, asked.since)
        case Misunderstood() | Expect() | Accept():
            return False
