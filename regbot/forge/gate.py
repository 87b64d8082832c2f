"""Who may spend time on which commit: what becomes of a comment, a label, a push and another base.

Nothing of a pull request is checked out or run here. A person is asked for by role, a commit by its 40 digits, and
everything that is decided by is asked of GitHub when it is decided. What was started is known by the titles of runs and
what was answered by reactions and replies that are there, so an event that comes twice, or late, does nothing twice.
"""

from collections.abc import Callable
from dataclasses import replace

from regbot.config import GitHub
from regbot.forge import checks
from regbot.forge.approval import Refusal, obstacle
from regbot.forge.client import Forge, ForgeError, RefusedError
from regbot.forge.commands import Accept, Command, Expect, Misunderstood, Run, parse
from regbot.forge.events import CommentEvent, PullEvent
from regbot.forge.history import MISSING
from regbot.forge.orders import Asked, Outcome, measured, obeyed, was_started
from regbot.forge.permission import ANSWERED, LABEL, may
from regbot.forge.replies import FAULT, answer_once, line_of, moved, no_right, refused
from regbot.forge.start import MEASURE, POST, began_since, nonce_of, started
from regbot.forge.sticky import mark_stale
from regbot.forge.types import Comment, Pull
from regbot.report.markdown import Said

EYES, THUMB, CONFUSED = "eyes", "+1", "confused"
"""Reactions to a comment: something was started, something was noted, nothing was done."""


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
    if _has_reacted(forge, comment, settings):
        return Outcome("nothing", "this comment was handled before")
    asked = Asked(
        event.number,
        comment.author,
        forge.role(comment.author),
        nonce_of(forge.repository, event.number, "comment", comment.id),
        comment.created,
    )
    found = _edited(comment, command) or _heard(lambda: obeyed(forge, asked, command, settings))
    done = THUMB if isinstance(command, Expect | Accept) else EYES
    if not isinstance(found, Refusal):
        return _reacted(forge, comment, found, done)
    if found.fault is None and was_started(forge, asked, command):
        return _reacted(forge, comment, Outcome("nothing", "this comment was obeyed before"), done)
    what = f"/regbot {type(command).__name__.lower()}"
    if isinstance(command, Misunderstood):
        what = f"/regbot {command.verb or ''}".rstrip()
    outcome = Outcome("refused", f"{what} of {asked.login} was refused")
    if may(asked.role, ANSWERED):
        body = refused(asked.login, what, found)
        answered = answer_once(forge, asked.number, f"comment:{comment.id}", body, settings.bot)
        if found.fault is not None:
            raise found.fault
        outcome = Outcome("nothing", "this comment was answered before")
        if answered:
            outcome = Outcome("refused", f"{what} of {asked.login} was refused and answered")
    return _reacted(forge, comment, outcome, CONFUSED)


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
    return measured(forge, asked, pull, Run(sha), settings)


def _heard(act: Callable[[], Outcome | Refusal]) -> Outcome | Refusal:
    """What ``act`` comes to. Whoever asked is told where GitHub cannot do it, for lack of a workflow or a commit."""
    try:
        return act()
    except RefusedError as error:
        if error.status not in MISSING:
            raise
        return Refusal((FAULT, Said(str(error)), ". Is everything installed?"), fault=error)


def _edited(comment: Comment, command: Command | Misunderstood) -> Refusal | None:
    if comment.created == comment.updated and parse(comment.body) == command:
        return None
    return Refusal(("The comment was edited, and an edited one is never obeyed. Write a new one.",))


def _has_reacted(forge: Forge, comment: Comment, settings: GitHub) -> bool:
    """Whether a comment was handled to the end: the reaction is the last that is done. Where a job's token may not read
    them, titles of runs and replies still tell most."""
    try:
        return bool(forge.reactions(comment.id, settings.bot))
    except RefusedError:
        return False


def _reacted(forge: Forge, comment: Comment, outcome: Outcome, reaction: str) -> Outcome:
    """What was done stays done where the reaction cannot be set."""
    try:
        forge.react(comment.id, reaction)
    except ForgeError as error:
        return replace(outcome, said=f"{outcome.said}; the reaction could not be set: {error}")
    return outcome


def _same(label: str, other: str) -> bool:
    """GitHub does not tell labels apart by case."""
    return label.casefold() == other.casefold()
