"""Find the pull request and the commit that a workflow run measured, from GitHub's metadata of the run.

Nothing is read from the artifact. A job cannot choose the id, path, event, branch and title of its run, and the heads
of pull requests.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import AliasPath, Field

from regbot.errors import UserError
from regbot.github import checks
from regbot.github.client import Forge, MissingError
from regbot.github.events import Number, parse_event
from regbot.github.stamped_text import Tier
from regbot.github.types import GitHubObject, Pull, Text, WorkflowJob, WorkflowRun
from regbot.github.workflow_start import MEASURE_TITLE
from regbot.records.config import GitHub
from regbot.records.text.clip import short_commit
from regbot.workloads.checkout.git import try_git

FOLDER = ".github/workflows/"
STATIC = FOLDER + "regbot-static.yml"
MEASURE = FOLDER + "regbot-measure.yml"
BISECT = FOLDER + "regbot-bisect.yml"
_CHANGE = "[1-9][0-9]{0,8}|[0-9a-f]{40}"
STATIC_TITLE = re.compile(rf"regbot-static (?P<change>{_CHANGE})")
"""Title of a run of ``STATIC``: the pull request, or the commit of the merge group. The pull request may have changed
the title, so it counts only if the pull request comes from the branch of the run."""
MAX_MEASUREMENT_AGE = timedelta(days=2)
"""Unposted measurements that are older are not looked for."""
_QUEUE_BRANCH = re.compile(r"gh-readonly-queue/(?P<target>.+)/pr-(?P<last>[1-9][0-9]{0,8})-(?P<base>[0-9a-f]{40})")


@dataclass(frozen=True)
class MergeGroup:
    branch: str
    sha: str
    target: str
    base: str
    """Commit that the merge group is based on: the newest commit of ``target`` or of the previous merge group in the
    queue."""
    last_pull: int


@dataclass(frozen=True)
class Subject:
    """What a workflow run measured: one commit of a pull request, or a merge group."""

    run: WorkflowRun
    tier: Tier
    sha: str
    number: int
    """Number of the pull request; 0 for a merge group."""
    comment_number: int
    """Pull request whose comments may declare changes. For a merge group, it is the last pull request of the group."""
    target_branch: str
    base_tips: Sequence[str]
    nonce: str = checks.STATIC_NONCE
    measured_base: str = ""
    """Base commit in the title of a measurement; '' for a static result, and for a title without a base commit."""
    group_head: str = ""
    """Present head of the last pull request of a merge group; '' for a pull request."""
    has_other_pulls: bool = False
    """Whether a merge group contains, or may contain, more than its last pull request."""
    jobs: Sequence[WorkflowJob] = ()

    @property
    def acceptance_sha(self) -> str:
        """Commit that ``/regbot accept`` has to name. For a merge group it is ``group_head``, because nobody can know
        the commit of a merge group before it is queued."""
        return self.group_head or self.sha

    @property
    def job_s(self) -> float:
        """Upper limit for the duration of the measuring job, in seconds.

        It is the duration of the longest job. For a job that was executed several times, the newest execution counts.
        If no jobs are known, the limit is the duration of the whole run, including the wait for a machine. This is only
        the second choice: if somebody runs the posting job again, GitHub moves the start of the run.
        """
        newest_jobs = {job.name: job for job in sorted(self.jobs, key=lambda job: job.started)}
        run_s = (self.run.updated - self.run.started).total_seconds()
        return max((job.seconds for job in newest_jobs.values()), default=run_s)


@dataclass(frozen=True)
class IgnoredRun:
    """A workflow run whose result is not posted, and the reason."""

    reason: str


@dataclass(frozen=True)
class PostRequest:
    """What a job of regbot-post has to do: post the result of one run, and bring one change up to date."""

    change: str
    """Number of the pull request, or commit of the merge group. '' for no change."""
    run_id: int | None
    """A workflow run to judge, which may be of an older head or about to end; None for none."""


class _PostEvent(GitHubObject):
    run_id: Number | None = Field(None, validation_alias=AliasPath("workflow_run", "id"))
    title: Text = Field("", validation_alias=AliasPath("workflow_run", "display_title"))
    workflow: Any = None
    """Path of the workflow that somebody started, with the inputs of regbot-post."""
    change: str = Field("", pattern=rf"^({_CHANGE})?$", validation_alias=AliasPath("inputs", "change"))
    input_run: str = Field("", pattern=r"^([1-9][0-9]{0,17})?$", validation_alias=AliasPath("inputs", "run"))


def read_request(file: Path, own_id: int = 0) -> PostRequest:
    """Read the event that started regbot-post, or the last job of the run ``own_id`` of regbot-bisect, which posts the
    result of its own run. Raises UserError."""
    event = parse_event(file, _PostEvent)
    if event.run_id is not None:
        title = STATIC_TITLE.fullmatch(event.title)
        return PostRequest(title["change"] if title is not None else "", event.run_id)
    if event.workflow == BISECT and own_id:
        return PostRequest("", own_id)
    if not event.change:
        raise UserError(f"{file}: names no change", "start regbot-post with the number of a pull request")
    return PostRequest(event.change, int(event.input_run) if event.input_run else None)


def find_runs(forge: Forge, change: str, bot: str) -> list[WorkflowRun]:
    """Return the finished runs to judge for the present head of a pull request, or for a merge group: the run whose
    result its check run shows, and those whose results it lacks. Raises ForgeError.

    The shown run is judged again because declarations or the base branch may have changed. GitHub cancels all but the
    newest waiting job of a concurrency group, so each job of regbot-post also does the work of cancelled ones.
    """
    pull = forge.pull(int(change)) if len(change) < 40 else None
    number, sha, event = (pull.number, pull.head_sha, "pull_request") if pull else (0, change, "merge_group")
    head_checks = checks.find(forge, sha, number, bot)
    stamp = head_checks.text.stamp if head_checks.text is not None else None
    runs = []
    if stamp is not None:
        with contextlib.suppress(MissingError):  # somebody has deleted the run
            runs.append(forge.run(stamp.run))
    if head_checks.pending_nonce:
        for run in forge.runs(MEASURE.removeprefix(FOLDER), datetime.now(UTC) - MAX_MEASUREMENT_AGE):
            title = MEASURE_TITLE.fullmatch(run.title)
            if title is not None and (title["sha"], title["nonce"]) == (sha, head_checks.pending_nonce):
                runs.append(run)
    if stamp is None or stamp.tier == "static" or stamp.is_void:
        traces = forge.head_runs(STATIC.removeprefix(FOLDER), event, sha)
        own_traces = [run for run in traces if run.title == f"regbot-static {change}" and run.conclusion != "skipped"]
        # A job of another pull request with this head may have the title too.
        runs += [run for run in own_traces if pull is None or _is_of_branch(run, pull)][:1]
    return [run for run in runs if run.status == "completed"]


def identify_subject(forge: Forge, run: WorkflowRun, github: GitHub, repo: Path) -> Subject | IgnoredRun:
    """Return what a run measured, or why its result is not posted.

    Raises ForgeError, CheckoutError.
    """
    if run.repository.casefold() != forge.repository.casefold():
        return IgnoredRun(f"run {run.id} is of another repository")
    if run.status != "completed":
        return IgnoredRun(f"run {run.id} has not ended; its result is posted after its end")
    if run.path == STATIC and run.event == "pull_request":
        return _identify_static(forge, run)
    if run.path == STATIC and run.event == "merge_group":
        group = find_group(forge, run)
        if group is None:
            return IgnoredRun(f"run {run.id} is of a merge group, but not of a branch of the merge queue")
        if github.queue == "timed":
            return IgnoredRun(f"run {run.id} traces a merge group, which gets its verdict from a measurement")
        return _build_subject(forge, run, "static", group)
    if run.path == MEASURE and run.event == "workflow_dispatch":
        return _identify_measured(forge, run, github.bot, repo)
    return IgnoredRun(f"run {run.id} ({run.event}) is of no workflow whose results are posted")


def _identify_static(forge: Forge, run: WorkflowRun) -> Subject | IgnoredRun:
    if run.conclusion == "action_required":
        return IgnoredRun(f"run {run.id} waits for an approval and has not started")
    if run.conclusion == "skipped":
        return IgnoredRun(f"run {run.id} had nothing to trace: only the title or text was changed")
    match = STATIC_TITLE.fullmatch(run.title)
    pull = None
    if match is not None and len(match["change"]) < 40:
        with contextlib.suppress(MissingError):
            pull = forge.pull(int(match["change"]))
    if run.conclusion == "cancelled" and (pull is None or pull.head_sha != run.head_sha):
        return IgnoredRun(f"run {run.id} was cancelled for a newer head and has no result")
    if pull is None or not pull.open or not run.head_repository or not _is_of_branch(run, pull):
        return IgnoredRun(f"the title of run {run.id} names no open pull request from its branch")
    return _build_subject(forge, run, "static", pull, run.head_sha)


def _is_of_branch(run: WorkflowRun, pull: Pull) -> bool:
    return (pull.head_repository, pull.head_ref) == (run.head_repository, run.head_branch)


def find_group(forge: Forge, run: WorkflowRun) -> MergeGroup | None:
    """Return the merge group that a run of regbot-static traces; None if the run traces no merge group.

    GitHub puts the base commit and the number of the last pull request into the name of the merge group's branch. The
    name can be trusted, because only the merge queue causes the event ``merge_group``.
    """
    match = _QUEUE_BRANCH.fullmatch(run.head_branch)
    is_of_this_repository = run.head_repository.casefold() == run.repository.casefold() == forge.repository.casefold()
    is_trace_of_group = run.path == STATIC and run.event == "merge_group"
    if match is None or not is_of_this_repository or not is_trace_of_group:
        return None
    return MergeGroup(run.head_branch, run.head_sha, match["target"], match["base"], int(match["last"]))


def has_other_pulls(forge: Forge, group: MergeGroup) -> bool:
    """Return whether ``group`` contains, or may contain, more than its last pull request. Raises ForgeError.

    A queue that merges or squashes adds one commit for each pull request. If the merge group has one pull request, the
    first parent of its commit is therefore its base. A queue that rebases adds all commits of a pull request. One pull
    request with several commits then looks like several pull requests, and the result is True.
    """
    return forge.parents(group.sha)[:1] != [group.base]


def _identify_measured(forge: Forge, run: WorkflowRun, bot: str, repo: Path) -> Subject | IgnoredRun:
    """Return the pull request or merge group that a run of regbot-measure measured, or why its result is not posted.

    The title of the run names the pull request. The title can be trusted only if regbot-gate started the run on the
    default branch, and if the nonce belongs to the last requested measurement.
    """
    match = MEASURE_TITLE.fullmatch(run.title)
    is_of_this_repository = run.head_repository.casefold() == forge.repository.casefold()
    if match is None or not is_of_this_repository or run.head_branch != forge.default_branch():
        return IgnoredRun(f"run {run.id} was not started by regbot-gate on the default branch")
    if try_git(repo, "merge-base", "--is-ancestor", run.head_sha, "HEAD").code != 0:
        return IgnoredRun(
            f"the commit of run {run.id} is not in the default branch; the run may be of a tag with the branch's name"
        )
    number, sha = int(match["pr"]), match["sha"]
    if not checks.find(forge, sha, number, bot).can_show(match["nonce"], run.id):
        return IgnoredRun(f"run {run.id} is not the last requested measurement of {short_commit(sha)}")
    change: Pull | MergeGroup | None = None
    if number:
        change = forge.pull(number)
    else:  # the branch of a merge group is known only from the run of regbot-static that traced it
        tracing_runs = forge.head_runs(STATIC.removeprefix(FOLDER), "merge_group", sha)
        groups = (find_group(forge, tracing_run) for tracing_run in tracing_runs)
        change = next((group for group in groups if group is not None), None)
    if change is None:
        return IgnoredRun(f"run {run.id} measured {short_commit(sha)}, which is no merge group of the merge queue")
    subject = _build_subject(forge, run, "measured", change, sha)
    return replace(subject, nonce=match["nonce"], measured_base=match["base"], jobs=forge.jobs(run.id))


def _build_subject(forge: Forge, run: WorkflowRun, tier: Tier, change: Pull | MergeGroup, sha: str = "") -> Subject:
    """Return the subject for the commit ``sha`` of a pull request, or for a merge group.

    The base branch may have moved since the run of a pull request. ``base_tips`` therefore has two items: the commit
    that GitHub recorded for the pull request, and the branch itself, which stands for its present commit.
    """
    if isinstance(change, Pull):
        base_tips = (change.base_sha, change.base_ref)
        return Subject(run, tier, sha, change.number, change.number, change.base_ref, base_tips)
    return Subject(
        run=run,
        tier=tier,
        sha=change.sha,
        number=0,
        comment_number=change.last_pull,
        target_branch=change.target,
        base_tips=(change.base,),
        group_head=forge.pull(change.last_pull).head_sha,
        has_other_pulls=has_other_pulls(forge, change),
    )
