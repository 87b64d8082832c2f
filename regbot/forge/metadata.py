"""Which commit of which pull request a workflow run was of: by what GitHub says of the run, and nothing that it left.

A job of a pull request chooses what is in its artifact. It chooses neither the id, the path, the event, the branch and
the title of its run, nor which pull requests have which head.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout.git import try_git
from regbot.forge import checks
from regbot.forge.client import Forge
from regbot.forge.events import MAX_EVENT_BYTES, EventError
from regbot.forge.shown import Tier, self_reported
from regbot.forge.types import Pull, WorkflowRun
from regbot.records.files import RecordError, parse_json, read_capped

FOLDER = ".github/workflows/"
STATIC = FOLDER + "regbot-static.yml"
MEASURE = FOLDER + "regbot-measure.yml"
BISECT = FOLDER + "regbot-bisect.yml"
_TITLE = re.compile(r"regbot ([1-9][0-9]{0,8}) ([0-9a-f]{40}) ([0-9a-f]{16})")
_QUEUE = re.compile(r"gh-readonly-queue/(.+)/pr-([1-9][0-9]{0,8})-([0-9a-f]{40})")


@dataclass(frozen=True)
class Subject:
    """What a run was of. ``number`` is 0 for a merge group, which has no comment."""

    run: WorkflowRun
    tier: Tier
    sha: str
    number: int
    people: int
    """The pull request whose comments declare changes: of a group, that which it ends with."""
    target: str
    """The branch that it is to be merged into."""
    tips: Sequence[str]
    """Commits or branches: the base is the merge base of one of them and ``sha``."""
    nonce: str = checks.STATIC
    ends_with: str = ""
    """The live head of the pull request that a group ends with."""

    @property
    def accepted(self) -> str:
        """The commit of which an acceptance counts: nobody can know that of a group before it is made."""
        return self.ends_with or self.sha

    @property
    def self_reported(self) -> bool:
        """Whether a job that a pull request's author has written has made it, and no measurement."""
        return self_reported(self.tier, self.number)

    @property
    def job_s(self) -> float:
        """Seconds that the run took, waiting for a machine among them."""
        return (self.run.updated - self.run.started).total_seconds()


@dataclass(frozen=True)
class Ignored:
    """Nothing is posted, and why."""

    why: str


def run_of_event(file: Path, own: int = 0) -> int:
    """The id of the run that the ``workflow_run`` or ``workflow_dispatch`` event in ``file`` is about: the last job of
    regbot-bisect is about its ``own``. All else is asked of GitHub. Raises EventError."""
    try:
        event = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
    except RecordError as error:
        raise EventError(str(error)) from error
    event = event if isinstance(event, dict) else {}
    run, inputs = event.get("workflow_run"), event.get("inputs")
    found = run.get("id") if isinstance(run, dict) else inputs.get("run") if isinstance(inputs, dict) else None
    if found is None and event.get("workflow") == BISECT and own:
        return own
    if isinstance(found, bool) or not re.fullmatch(r"[1-9]\d{0,17}", str(found), re.ASCII):
        raise EventError(f"{file}: names no workflow run; start regbot-post with the id that stands in a run's URL")
    return int(str(found))


def identify(forge: Forge, run: WorkflowRun, bot: str, repo: Path) -> list[Subject] | Ignored:
    """What a run was of: several where one branch has several pull requests. ``bot``: our login; ``repo``: a checkout
    of the default branch with its history. Raises ForgeError, CheckoutError."""
    if run.repository.casefold() != forge.repository.casefold():
        return Ignored(f"run {run.id} is of another repository")
    if run.status != "completed":
        return Ignored(f"run {run.id} has not ended; it is posted when it has")
    if run.path == STATIC and run.event == "pull_request":
        return _static(forge, run)
    if run.path == STATIC and run.event == "merge_group":
        return _group(forge, run)
    if run.path == MEASURE and run.event == "workflow_dispatch":
        return _measured(forge, run, bot, repo)
    return Ignored(f"run {run.id} ({run.event}) is none of the workflows that are posted from")


def _static(forge: Forge, run: WorkflowRun) -> list[Subject] | Ignored:
    if run.conclusion == "action_required":
        return Ignored(f"run {run.id} waits for an approval, and has not begun")
    if run.conclusion == "skipped":
        return Ignored(f"run {run.id} had nothing to trace: it was of another title or text")
    pulls = forge.pulls_with_head(run.head_repository, run.head_branch) if run.head_repository else []
    if run.conclusion == "cancelled" and all(pull.head_sha != run.head_sha for pull in pulls):
        return Ignored(f"run {run.id} was given up for a newer head, and says nothing of any")
    found = [_of_pull(run, "static", pull, run.head_sha, checks.STATIC) for pull in pulls]
    return found or Ignored(f"no open pull request comes from the branch of run {run.id} any more")


def _group(forge: Forge, run: WorkflowRun) -> list[Subject] | Ignored:
    """Of a merge queue. Its branch, which GitHub makes, names the commit that the group is put on."""
    found = _QUEUE.fullmatch(run.head_branch)
    if found is None or run.head_repository.casefold() != forge.repository.casefold():
        return Ignored(f"run {run.id} is of a merge group, and not of a branch of the merge queue")
    target, last, base = found[1], int(found[2]), found[3]
    head = forge.pull(last).head_sha
    return [Subject(run, "static", run.head_sha, 0, last, target, (base,), ends_with=head)]


def _measured(forge: Forge, run: WorkflowRun, bot: str, repo: Path) -> list[Subject] | Ignored:
    found = _TITLE.fullmatch(run.title)
    ours = run.head_repository.casefold() == forge.repository.casefold()
    if found is None or not ours or run.head_branch != forge.default_branch():
        return Ignored(f"run {run.id} was not started by regbot-gate on the default branch")
    if try_git(repo, "merge-base", "--is-ancestor", run.head_sha, "HEAD").code != 0:
        return Ignored(f"run {run.id} is of a commit that the default branch does not have: of a tag of its name?")
    number, sha, nonce = int(found[1]), found[2], found[3]
    held = checks.find(forge, sha, number, bot)
    if not held.of(nonce, run.id):
        return Ignored(f"run {run.id} is not what was last asked to be measured of {sha[:12]}")
    return [_of_pull(run, "measured", forge.pull(number), sha, nonce)]


def _of_pull(run: WorkflowRun, tier: Tier, pull: Pull, sha: str, nonce: str) -> Subject:
    return Subject(run, tier, sha, pull.number, pull.number, pull.base_ref, (pull.base_sha, pull.base_ref), nonce)
