"""Who may spend time on which commit: what becomes of a comment, a label, a push and another base.

Nothing of a pull request is checked out or run here. A person is asked for by role, a commit by its 40 digits, and
everything that is decided by is asked of GitHub when it is decided. What was started is known by the titles of runs and
what was answered by the replies that are there, so an event that comes twice, or late, does nothing twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from regbot.config import GitHub
from regbot.forge import checks
from regbot.forge.approval import Refusal, obstacle, protected
from regbot.forge.client import Forge, ForgeError, RefusedError
from regbot.forge.commands import Accept, Bisect, Command, Expect, Misunderstood, More, Run, parse
from regbot.forge.events import CommentEvent, PullEvent
from regbot.forge.permission import ANSWERED, LABEL, OTHER_BASE, PROTECTED, may, needed
from regbot.forge.replies import answer_once, beside, guarded, line_of, misread, moved, no_right, refused
from regbot.forge.start import BISECT, MEASURE, POST, Measurement, began_since, judged_since, measure, nonce_of, started
from regbot.forge.sticky import mark_stale, posted_run
from regbot.forge.types import Comment, Pull, Role
from regbot.report.markdown import Name, Said

_MISSING = (404, 422)
"""Statuses of what is not there, or not as it was asked for."""
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


def on_comment(forge: Forge, event: CommentEvent, settings: GitHub) -> Outcome:
    """Obey a comment, or say why not. Raises ForgeError."""
    if event.action != "created" or not event.pull or event.bot or event.author == settings.bot:
        return Outcome("nothing", "not a new comment of a person on a pull request")
    command = parse(event.body)
    if command is None:
        return Outcome("nothing", "the comment is no command")
    comment = forge.comment(event.comment)
    if comment is None or comment.author != event.author:
        return Outcome("nothing", "the comment is gone")
    asked = Asked(
        event.number,
        comment.author,
        forge.role(comment.author),
        nonce_of(forge.repository, event.number, "comment", comment.id),
        comment.created,
    )
    found = _edited(comment, command) or _heard(lambda: _obeyed(forge, asked, command, settings))
    if isinstance(found, Refusal):
        if found.fault is None and _was_started(forge, asked, command):
            return Outcome("nothing", "this comment was obeyed before")
        what = f"/regbot {type(command).__name__.lower()}"
        if isinstance(command, Misunderstood):
            what = f"/regbot {command.verb or ''}".rstrip()
        if not may(asked.role, ANSWERED):
            return _reacted(forge, comment, Outcome("refused", f"{what} of {asked.login} was refused"))
        body = refused(asked.login, what, found)
        answered = answer_once(forge, asked.number, f"comment:{comment.id}", body, settings.bot)
        if found.fault is not None:
            raise found.fault
        if not answered:
            return Outcome("nothing", "this comment was answered before")
        found = Outcome("refused", f"{what} of {asked.login} was refused and answered")
    return _reacted(forge, comment, found)


def on_pull(forge: Forge, event: PullEvent, settings: GitHub) -> Outcome:
    """What a push, a label and another base do: the first ends an approval, the second may be one, and what was judged
    against the old base is judged again. Raises ForgeError."""
    if event.action == "labeled":
        if not _same(event.label, settings.run_label):
            return Outcome("nothing", "another label")
        return _labelled(forge, event, settings)
    if event.action == "edited" and event.rebased:
        return _rebased(forge, event, settings)
    if event.action not in ("synchronize", "reopened"):
        return Outcome("nothing", f"nothing is done when a pull request is {event.action}")
    pull = forge.pull(event.number)
    set_before = any(_same(label, settings.run_label) for label in event.labels)
    for label in pull.labels:  # one that was set after the push is an approval of what was pushed
        if event.action == "synchronize" and set_before and _same(label, settings.run_label):
            forge.remove_label(event.number, label)
    mark_stale(forge, event.number, settings.bot, pull.head_sha)
    return Outcome("stale", f"#{event.number} has the head {pull.head_sha}; what was said of another is marked so")


def _rebased(forge: Forge, event: PullEvent, settings: GitHub) -> Outcome:
    """A verdict against another base is none against this one, and is marked until it was judged again."""
    pull = forge.pull(event.number)
    shown = checks.find(forge, pull.head_sha, event.number, settings.bot).shown
    if shown is not None and began_since(forge, shown.stamp.post, event.updated):
        return Outcome("nothing", "what stands there was judged since")
    marked = mark_stale(forge, event.number, settings.bot, pull.head_sha, pull.base_ref)
    if shown is None:  # what is being measured will be judged by the base as it is then
        return Outcome("stale" if marked else "nothing", "there is no verdict on the head")
    run = shown.stamp.run
    forge.dispatch(POST, forge.default_branch(), {"run": str(run)})
    return Outcome("stale", f"#{event.number} has the base {pull.base_ref}; {POST} was started on run {run} again")


def _labelled(forge: Forge, event: PullEvent, settings: GitHub) -> Outcome:
    nonce = nonce_of(forge.repository, event.number, "label", event.head_sha, event.sender, event.updated)
    asked = Asked(event.number, event.sender, forge.role(event.sender), nonce, event.updated)
    pull = forge.pull(event.number)
    label = next((label for label in pull.labels if _same(label, settings.run_label)), None)
    found = _heard(lambda: _approved(forge, asked, pull, label, event.head_sha, settings))
    if not isinstance(found, Refusal):
        return found
    if found.fault is None and started(forge, MEASURE, nonce, event.updated):
        return Outcome("nothing", "this label was obeyed before")
    if label is not None:
        forge.remove_label(event.number, label)
    body = refused(event.sender, settings.run_label, found)
    answered = answer_once(forge, event.number, f"label:{nonce}", body, settings.bot)
    if found.fault is not None:
        raise found.fault
    if not answered:
        return Outcome("nothing", "this label was answered before")
    return Outcome("refused", f"the label of {event.sender} was taken off and answered")


def _approved(
    forge: Forge, asked: Asked, pull: Pull, label: str | None, sha: str, settings: GitHub
) -> Outcome | Refusal:
    """A label approves what was the head when it was set."""
    command = Run(pull.head_sha)
    if not may(asked.role, LABEL):
        return no_right(command, asked.role, LABEL)
    if label is None:
        return Refusal(("The label is there no more. Set it again, or type this line:",), line_of(command))
    if void := obstacle(pull, sha):
        return moved(void, pull, command)
    return _measured(forge, asked, pull, Run(sha), settings)


def _heard(act: Callable[[], Outcome | Refusal]) -> Outcome | Refusal:
    """What ``act`` comes to. Whoever asked is told where GitHub cannot do it, for lack of a workflow or a commit."""
    try:
        return act()
    except RefusedError as error:
        if error.status not in _MISSING:
            raise
        return Refusal(("GitHub did not do it: ", Said(str(error)), ". Is everything installed?"), fault=error)


def _edited(comment: Comment, command: Command | Misunderstood) -> Refusal | None:
    if comment.created == comment.updated and parse(comment.body) == command:
        return None
    return Refusal(("The comment was edited, and an edited one is never obeyed. Write a new one.",))


def _obeyed(forge: Forge, asked: Asked, command: Command | Misunderstood, settings: GitHub) -> Outcome | Refusal:
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
            return _measured(forge, asked, pull, command, settings)
        case Bisect():
            return _bisected(forge, asked, pull, command, settings)
        case Expect() | Accept():
            return _noted(forge, asked, pull, command, settings)


def _measured(forge: Forge, asked: Asked, pull: Pull, command: Run | More, settings: GitHub) -> Outcome | Refusal:
    change, branch = forge.compare(pull.base_ref, command.sha), forge.default_branch()
    if pull.base_ref != branch and not may(asked.role, OTHER_BASE) and not _within(forge, change.merge_base, branch):
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
        if _within(forge, sha, pull.base_ref):
            continue
        if not _within(forge, sha, pull.head_sha):
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
    forge.dispatch(POST, forge.default_branch(), {"run": str(run)})
    return Outcome("noted", f"{POST} was started on run {run}: {asked.login} declared a change")


def _within(forge: Forge, sha: str, branch: str) -> bool:
    """Whether ``sha`` is in the history of ``branch``."""
    try:
        return forge.merge_base(branch, sha) == sha
    except RefusedError as error:
        if error.status in _MISSING:
            return False
        raise


def _was_started(forge: Forge, asked: Asked, command: Command | Misunderstood) -> bool:
    match command:
        case Misunderstood():
            return False
        case Run() | More():
            return started(forge, MEASURE, asked.nonce, asked.since)
        case Bisect():
            return started(forge, BISECT, asked.nonce, asked.since)
        case Expect() | Accept():
            return judged_since(forge, None, asked.since)  # of a head that has moved: which run it was is not known


_REACTIONS: dict[Did, str] = {"started": "eyes", "noted": "+1", "refused": "confused"}


def _reacted(forge: Forge, comment: Comment, outcome: Outcome) -> Outcome:
    """What was done stays done where the reaction cannot be set."""
    if reaction := _REACTIONS.get(outcome.did):
        try:
            forge.react(comment.id, reaction)
        except ForgeError as error:
            return replace(outcome, said=f"{outcome.said}; the reaction could not be set: {error}")
    return outcome


def _same(label: str, other: str) -> bool:
    """GitHub does not tell labels apart by case."""
    return label.casefold() == other.casefold()
