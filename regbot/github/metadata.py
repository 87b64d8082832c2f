"""Find the pull request and the commit that a workflow run measured, from what GitHub reports about the run.

A job of a pull request chooses the content of its artifact, so this module reads nothing from the artifact. The job
cannot choose the id, path, event, branch and title of its workflow run, nor the heads of pull requests.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.checkout.git import try_git
from regbot.errors import UserError
from regbot.github import checks
from regbot.github.client import Forge, RefusedError
from regbot.github.events import MAX_EVENT_BYTES
from regbot.github.stamped_text import Tier
from regbot.github.types import Pull, WorkflowJob, WorkflowRun
from regbot.github.workflow_start import MEASURE_TITLE
from regbot.records.files import RecordError, parse_json, read_capped
from regbot.text.clip import short_commit

FOLDER = ".github/workflows/"
STATIC = FOLDER + "regbot-static.yml"
MEASURE = FOLDER + "regbot-measure.yml"
BISECT = FOLDER + "regbot-bisect.yml"
STATIC_TITLE = re.compile(r"regbot-static (?P<pr>[1-9][0-9]{0,8})")
"""Title of a run of ``STATIC`` on a pull request. The pull request may have changed it, so it only chooses among the
pull requests from the branch of the run."""
_QUEUE_BRANCH = re.compile(r"gh-readonly-queue/(?P<target>.+)/pr-(?P<last>[1-9][0-9]{0,8})-(?P<base>[0-9a-f]{40})")


@dataclass(frozen=True)
class MergeGroup:
    """A merge group of GitHub's merge queue. ``branch``: its branch. ``target``: the branch that it merges into.
    ``base``: the commit that it is based on, which may be the group before it in the queue.

    ``last_pull``: the last pull request of the group. It is the only one unless the queue puts several into one group.
    """

    branch: str
    sha: str
    target: str
    base: str
    last_pull: int


@dataclass(frozen=True)
class Subject:
    """What a workflow run measured. ``number`` is 0 for a merge group, which has no comment."""

    run: WorkflowRun
    tier: Tier
    sha: str
    number: int
    comment_number: int
    """Pull request whose comments may declare changes. For a merge group, it is the last pull request of the group."""
    target_branch: str
    """Branch that the change merges into."""
    base_tips: Sequence[str]
    """Commits or branches. The base is the merge base of ``sha`` and one of these tips."""
    nonce: str = checks.STATIC_NONCE
    measured_base: str = ""
    """Base commit in the title of a measurement; '' for a static result, and where the title has none."""
    group_head: str = ""
    """Present head of the last pull request of a merge group."""
    has_other_pulls: bool = False
    """Whether a merge group contains more than its last pull request, or may do so."""

    jobs: Sequence[WorkflowJob] = ()
    """Jobs of all attempts of a measurement; empty for a static result."""

    @property
    def acceptance_sha(self) -> str:
        """Commit that an acceptance has to name. For a merge group it is ``group_head``, because nobody can know the
        commit of a merge group in advance."""
        return self.group_head or self.sha

    @property
    def job_s(self) -> float:
        """Upper limit in seconds for the job that measured.

        It is the duration of the longest job. Of each job only the newest execution counts. Somebody may run only the
        posting job again: GitHub then moves the start of the run, and the measuring job keeps its times. Without known
        jobs, it is the duration of the run, including the wait for a machine.
        """
        newest = {job.name: job for job in sorted(self.jobs, key=lambda job: job.started)}
        run_s = (self.run.updated - self.run.started).total_seconds()
        return max((job.seconds for job in newest.values()), default=run_s)


def is_traced_group(subject: Subject) -> bool:
    """Return whether ``subject`` is a merge group that its own job has traced."""
    return subject.number == 0 and subject.tier == "static"


@dataclass(frozen=True)
class IgnoredRun:
    """A workflow run whose result is not posted, and the reason."""

    reason: str


def read_run_id(file: Path, own_id: int = 0) -> int:
    """Return the id of the run that the ``workflow_run`` or ``workflow_dispatch`` event in ``file`` names.

    The last job of regbot-bisect posts the result of the run that it belongs to. In that case the id is ``own_id``.
    Raises UserError.
    """
    try:
        event = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
    except RecordError as error:
        raise UserError(str(error)) from error
    event = event if isinstance(event, dict) else {}
    run, inputs = event.get("workflow_run"), event.get("inputs")
    run_id = run.get("id") if isinstance(run, dict) else inputs.get("run") if isinstance(inputs, dict) else None
    if run_id is None and event.get("workflow") == BISECT and own_id:
        return own_id
    if isinstance(run_id, bool) or not re.fullmatch(r"[1-9]\d{0,17}", str(run_id), re.ASCII):
        raise UserError(f"{file}: names no workflow run", "start regbot-post with the id in a run's URL")
    return int(str(run_id))


def identify_subjects(forge: Forge, run: WorkflowRun, bot: str, repo: Path) -> list[Subject] | IgnoredRun:
    """Return what a run measured.

    ``bot``: login of regbot's app. ``repo``: a checkout of the default branch with its history. Raises ForgeError,
    CheckoutError.
    """
    if run.repository.casefold() != forge.repository.casefold():
        return IgnoredRun(f"run {run.id} is of another repository")
    if run.status != "completed":
        return IgnoredRun(f"run {run.id} has not ended; it is posted afterwards")
    if run.path == STATIC and run.event == "pull_request":
        return _identify_static(forge, run)
    if run.path == STATIC and run.event == "merge_group":
        group = find_group(forge, run)
        if group is None:
            return IgnoredRun(f"run {run.id} is of a merge group, but not of a branch of the merge queue")
        return [_build_group_subject(forge, run, "static", group)]
    if run.path == MEASURE and run.event == "workflow_dispatch":
        return _identify_measured(forge, run, bot, repo)
    return IgnoredRun(f"run {run.id} ({run.event}) is of no workflow whose results are posted")


def _identify_static(forge: Forge, run: WorkflowRun) -> list[Subject] | IgnoredRun:
    if run.conclusion == "action_required":
        return IgnoredRun(f"run {run.id} waits for an approval and has not started")
    if run.conclusion == "skipped":
        return IgnoredRun(f"run {run.id} had nothing to trace: only the title or text was changed")
    pulls = _find_pulls(forge, run)
    if len(pulls) > 1:
        return IgnoredRun(
            f"{len(pulls)} open pull requests come from the branch of run {run.id}, and its title names none of them: "
            "update regbot-static.yml on that branch"
        )
    if run.conclusion == "cancelled" and all(pull.head_sha != run.head_sha for pull in pulls):
        return IgnoredRun(f"run {run.id} was cancelled for a newer head and has no result")
    subjects = [_build_subject(run, "static", pull, run.head_sha, checks.STATIC_NONCE) for pull in pulls]
    return subjects or IgnoredRun(f"no open pull request comes from the branch of run {run.id} any more")


def _find_pulls(forge: Forge, run: WorkflowRun) -> list[Pull]:
    """Return the open pull request that the title of the run names, if it comes from the run's branch. Without such a
    title, as older workflows have none, return the open pull requests from the branch."""
    if not run.head_repository:
        return []
    match = STATIC_TITLE.fullmatch(run.title)
    if match is None:
        return forge.pulls_with_head(run.head_repository, run.head_branch)
    try:
        pull = forge.pull(int(match["pr"]))
    except RefusedError as error:
        if error.status != 404:
            raise
        return []
    comes_from_branch = (pull.head_repository, pull.head_ref) == (run.head_repository, run.head_branch)
    return [pull] if pull.open and comes_from_branch else []


def find_group(forge: Forge, run: WorkflowRun) -> MergeGroup | None:
    """Return the merge group that a run of regbot-static traces; None if it traces none.

    GitHub puts the base commit and the number of the last pull request into the name of the group's branch. Only the
    merge queue causes the event ``merge_group``.
    """
    match = _QUEUE_BRANCH.fullmatch(run.head_branch)
    is_own = run.head_repository.casefold() == run.repository.casefold() == forge.repository.casefold()
    if match is None or not is_own or (run.path, run.event) != (STATIC, "merge_group"):
        return None
    return MergeGroup(run.head_branch, run.head_sha, match["target"], match["base"], int(match["last"]))


def has_other_pulls(forge: Forge, group: MergeGroup) -> bool:
    """Return whether ``group`` contains more than its last pull request, or may do so. Raises ForgeError.

    A queue that merges or squashes adds one commit for each pull request. With one pull request, the first parent of
    the group is therefore its base. A queue that rebases adds all commits of a pull request, so a pull request with
    several commits cannot be told from several pull requests.
    """
    return forge.parents(group.sha)[:1] != [group.base]


def _identify_measured(forge: Forge, run: WorkflowRun, bot: str, repo: Path) -> list[Subject] | IgnoredRun:
    match = MEASURE_TITLE.fullmatch(run.title)
    is_own = run.head_repository.casefold() == forge.repository.casefold()
    if match is None or not is_own or run.head_branch != forge.default_branch():
        return IgnoredRun(f"run {run.id} was not started by regbot-gate on the default branch")
    if try_git(repo, "merge-base", "--is-ancestor", run.head_sha, "HEAD").code != 0:
        return IgnoredRun(
            f"run {run.id} is of a commit that is not in the default branch; it may be of a tag with the branch's name"
        )
    number, sha, nonce, base = int(match["pr"]), match["sha"], match["nonce"], match["base"] or ""
    head_checks = checks.find(forge, sha, number, bot)
    if not head_checks.can_show(nonce, run.id):
        return IgnoredRun(f"run {run.id} is not the last requested measurement of {short_commit(sha)}")
    if number:
        subject = _build_subject(run, "measured", forge.pull(number), sha, nonce)
        return [replace(subject, measured_base=base, jobs=forge.jobs(run.id))]
    groups = (find_group(forge, traced) for traced in forge.group_runs(STATIC.removeprefix(FOLDER), sha))
    group = next((group for group in groups if group is not None), None)
    if group is None:
        return IgnoredRun(f"run {run.id} measured {short_commit(sha)}, which is no merge group of the merge queue")
    subject = _build_group_subject(forge, run, "measured", group)
    return [replace(subject, nonce=nonce, measured_base=base, jobs=forge.jobs(run.id))]


def _build_subject(run: WorkflowRun, tier: Tier, pull: Pull, sha: str, nonce: str) -> Subject:
    return Subject(run, tier, sha, pull.number, pull.number, pull.base_ref, (pull.base_sha, pull.base_ref), nonce)


def _build_group_subject(forge: Forge, run: WorkflowRun, tier: Tier, group: MergeGroup) -> Subject:
    head, others = forge.pull(group.last_pull).head_sha, has_other_pulls(forge, group)
    bases = (group.base,)
    return Subject(
        run, tier, group.sha, 0, group.last_pull, group.target, bases, group_head=head, has_other_pulls=others
    )
