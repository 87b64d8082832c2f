"""Find the pull request and the commit that a workflow run measured, from GitHub's metadata of the run.

Nothing is read from the artifact. A job cannot choose the id, path, event, branch and title of its run, and the heads
of pull requests.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from regbot.errors import UserError
from regbot.github import checks
from regbot.github.client import UNKNOWN_OBJECT, Forge, RefusedError
from regbot.github.events import MAX_EVENT_BYTES
from regbot.github.stamped_text import Tier
from regbot.github.types import Pull, WorkflowJob, WorkflowRun
from regbot.github.workflow_start import MEASURE_TITLE
from regbot.records.config import GitHub
from regbot.records.files import RecordError, parse_json, read_capped
from regbot.records.text.clip import short_commit
from regbot.workloads.checkout.git import try_git

FOLDER = ".github/workflows/"
STATIC = FOLDER + "regbot-static.yml"
MEASURE = FOLDER + "regbot-measure.yml"
BISECT = FOLDER + "regbot-bisect.yml"
STATIC_TITLE = re.compile(r"regbot-static (?P<change>[1-9][0-9]{0,8}|[0-9a-f]{40})")
"""Title of a run of ``STATIC``: the pull request, or the commit of the merge group. The pull request may have changed
the title, so it counts only if the pull request comes from the branch of the run."""
_CHANGE = re.compile(r"[1-9][0-9]{0,8}|[0-9a-f]{40}")
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


def read_request(file: Path, own_id: int = 0) -> PostRequest:
    """Read the event that started regbot-post, or the last job of the run ``own_id`` of regbot-bisect, which posts the
    result of its own run. Raises UserError."""
    try:
        event = parse_json(read_capped(file, MAX_EVENT_BYTES), str(file))
    except RecordError as error:
        raise UserError(str(error)) from error
    if not isinstance(event, dict):
        event = {}
    run, inputs = event.get("workflow_run"), event.get("inputs")
    if isinstance(run, dict):
        title = STATIC_TITLE.fullmatch(str(run.get("display_title")))
        return PostRequest(title["change"] if title is not None else "", _read_id(run.get("id"), file))
    if event.get("workflow") == BISECT and own_id:
        return PostRequest("", own_id)
    if not isinstance(inputs, dict) or _CHANGE.fullmatch(str(inputs.get("change"))) is None:
        raise UserError(f"{file}: names no change", "start regbot-post with the number of a pull request")
    return PostRequest(str(inputs["change"]), _read_id(inputs["run"], file) if inputs.get("run") else None)


def _read_id(run_id: object, file: Path) -> int:
    if isinstance(run_id, bool) or not re.fullmatch(r"[1-9]\d{0,17}", str(run_id), re.ASCII):
        raise UserError(f"{file}: names no workflow run", "start regbot-post with the id in a run's URL")
    return int(str(run_id))


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
        try:
            runs.append(forge.run(stamp.run))
        except RefusedError as error:  # somebody has deleted the run
            if error.status != UNKNOWN_OBJECT:
                raise
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
        return _build_group_subject(forge, run, "static", group)
    if run.path == MEASURE and run.event == "workflow_dispatch":
        return _identify_measured(forge, run, github.bot, repo)
    return IgnoredRun(f"run {run.id} ({run.event}) is of no workflow whose results are posted")


def _identify_static(forge: Forge, run: WorkflowRun) -> Subject | IgnoredRun:
    if run.conclusion == "action_required":
        return IgnoredRun(f"run {run.id} waits for an approval and has not started")
    if run.conclusion == "skipped":
        return IgnoredRun(f"run {run.id} had nothing to trace: only the title or text was changed")
    pull = _find_pull(forge, run)
    if run.conclusion == "cancelled" and (pull is None or pull.head_sha != run.head_sha):
        return IgnoredRun(f"run {run.id} was cancelled for a newer head and has no result")
    if pull is None:
        return IgnoredRun(f"the title of run {run.id} names no open pull request from its branch")
    return _build_subject(run, "static", pull, run.head_sha, checks.STATIC_NONCE)


def _find_pull(forge: Forge, run: WorkflowRun) -> Pull | None:
    match = STATIC_TITLE.fullmatch(run.title)
    if match is None or len(match["change"]) == 40 or not run.head_repository:
        return None
    try:
        pull = forge.pull(int(match["change"]))
    except RefusedError as error:
        if error.status != UNKNOWN_OBJECT:
            raise
        return None
    return pull if pull.open and _is_of_branch(run, pull) else None


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
    return MergeGroup(
        branch=run.head_branch,
        sha=run.head_sha,
        target=match["target"],
        base=match["base"],
        last_pull=int(match["last"]),
    )


def has_other_pulls(forge: Forge, group: MergeGroup) -> bool:
    """Return whether ``group`` contains, or may contain, more than its last pull request. Raises ForgeError.

    A queue that merges or squashes adds one commit for each pull request. If the merge group has one pull request, the
    first parent of its commit is therefore its base. A queue that rebases adds all commits of a pull request. One pull
    request with several commits then looks like several pull requests, and the result is True.
    """
    first_parent = next(iter(forge.parents(group.sha)), None)
    return first_parent != group.base


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
    number, sha, nonce, base = int(match["pr"]), match["sha"], match["nonce"], match["base"]
    head_checks = checks.find(forge, sha, number, bot)
    if not head_checks.can_show(nonce, run.id):
        return IgnoredRun(f"run {run.id} is not the last requested measurement of {short_commit(sha)}")
    if number:  # 0 stands for a merge group
        subject = _build_subject(run, "measured", forge.pull(number), sha, nonce)
        return replace(subject, measured_base=base, jobs=forge.jobs(run.id))
    # The branch of a merge group is known only from the run of regbot-static that traced it.
    tracing_runs = forge.head_runs(STATIC.removeprefix(FOLDER), "merge_group", sha)
    groups = (find_group(forge, tracing_run) for tracing_run in tracing_runs)
    group = next((group for group in groups if group is not None), None)
    if group is None:
        return IgnoredRun(f"run {run.id} measured {short_commit(sha)}, which is no merge group of the merge queue")
    subject = _build_group_subject(forge, run, "measured", group)
    return replace(subject, nonce=nonce, measured_base=base, jobs=forge.jobs(run.id))


def _build_subject(run: WorkflowRun, tier: Tier, pull: Pull, sha: str, nonce: str) -> Subject:
    """Return the subject for the commit ``sha`` of a pull request.

    The base branch may have moved since the run. ``base_tips`` therefore has two items: the commit that GitHub recorded
    for the pull request, and the branch itself, which stands for its present commit.
    """
    return Subject(
        run=run,
        tier=tier,
        sha=sha,
        number=pull.number,
        comment_number=pull.number,
        target_branch=pull.base_ref,
        base_tips=(pull.base_sha, pull.base_ref),
        nonce=nonce,
    )


def _build_group_subject(forge: Forge, run: WorkflowRun, tier: Tier, group: MergeGroup) -> Subject:
    return Subject(
        run=run,
        tier=tier,
        sha=group.sha,
        number=0,
        comment_number=group.last_pull,
        target_branch=group.target,
        base_tips=(group.base,),
        group_head=forge.pull(group.last_pull).head_sha,
        has_other_pulls=has_other_pulls(forge, group),
    )
