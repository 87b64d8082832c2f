"""Post the result of a finished workflow run: the comment, the check run, labels and the job's page.

The measurement comes from the run's artifact. The measured commit comes from GitHub (``metadata``), the configuration
from the base commit (``base_branch``), and the declarations from comments (``declarations``). If a result cannot be
judged, INVALID is posted. Without any comment or completed check run, the pull request would look as if it had passed.

A parameter ``github`` has the settings of the table ``[github]``.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from regbot.check.concern import ChangedTrees, ConcernResult, find_unconcerned, has_paths, list_evidence
from regbot.check.conclusion import replace_references
from regbot.check.references import store_at
from regbot.github import checks, verdict_text
from regbot.github.annotations import collect_annotations
from regbot.github.artifact import ARTIFACT, MAX_ARCHIVE_BYTES, read_artifact
from regbot.github.base_branch import load_base_config, load_github_settings
from regbot.github.bisection import BisectionReply, post_bisection
from regbot.github.changed_files import fetched_trees
from regbot.github.client import Forge, RefusedError
from regbot.github.comment_thread import CommentThread
from regbot.github.declarations import Declarations, read_declarations
from regbot.github.labels import set_label
from regbot.github.metadata import BISECT, MEASURE, IgnoredRun, Subject, identify_subjects, is_traced_group
from regbot.github.publication import Result, publish
from regbot.github.run_artifact import ExpiredArtifact, UnusableArtifact, read_newest_artifact
from regbot.github.shared_history import MISSING_STATUSES, find_merge_bases
from regbot.github.stamped_text import Stamp, StampedText
from regbot.github.transport import ForgeError
from regbot.github.trusted_runs import build_trusted_session
from regbot.github.types import Annotation, WorkflowRun
from regbot.judge import judge
from regbot.records.config import Config, ConfigError, GitHub
from regbot.records.session import Session
from regbot.records.text.clip import short_commit
from regbot.records.verdict import Status
from regbot.report.markdown import UntrustedText, Words
from regbot.workloads import plan
from regbot.workloads.checkout.git import CheckoutError

MAX_RUN_ID = 2**63
"""Upper limit for the id of a workflow run. A stamp with a larger id is ignored."""
MAX_RETARGETS = 4
"""How often one result is judged, if somebody changes the pull request's base branch again and again."""
EXPIRED_NOTE = "The artifact of this run has expired, so the run was not judged again. The earlier result is kept:"
"""Line above the earlier result on the page of the job."""


@dataclass(frozen=True)
class PostedResult:
    """The result of one run for one commit."""

    number: int
    """Number of the pull request; 0 for a merge group."""
    sha: str
    """The judged commit."""
    status: Status
    title: str
    text: str
    """The report, as markdown."""
    is_published: bool
    """Whether the pull request shows this result; False if a stronger result exists."""
    fault: str = ""
    """Traceback for the job's log if regbot failed on the run's artifact; '' if it did not fail."""


def post(
    forge: Forge, run_id: int, repo: Path, post_run_id: int = 0
) -> list[PostedResult] | BisectionReply | IgnoredRun:
    """Judge and post the result of a run. A second call changes nothing.

    ``repo`` is a checkout of the default branch with its history. ``post_run_id`` is the id of the current run of
    regbot-post. Raises ForgeError, ConfigError, CheckoutError.
    """
    github = load_github_settings(repo)
    run = forge.run(run_id)
    # ``run.path`` is the workflow file: BISECT searches for a commit, and MEASURE measures one on a node.
    if run.path == BISECT:
        return post_bisection(forge, run, github.bot)
    if run.path == MEASURE:
        run = forge.ended_run(run)  # the last job of the run starts regbot-post, shortly before the run ends
    poster = _Poster(forge, repo, github, post_run_id)
    cases = poster.find_cases(run)
    if isinstance(cases, IgnoredRun):
        return cases
    return [_post_case(poster, case) for case in cases]


@dataclass(frozen=True)
class _Case:
    """One result to judge."""

    subject: Subject
    """The measured commit, and its pull request or merge group."""
    artifact: Session | UnusableArtifact
    """The session in the run's artifact, or why there is none."""
    bases: Sequence[str]
    """Allowed base commits of the session: the merge bases of the measured commit with the base branch. There can be
    several, because the base branch may have moved since the measurement."""

    @property
    def base(self) -> str:
        """The session's base commit if it is one of ``bases``. Otherwise the first commit of ``bases``; '' if ``bases``
        is empty."""
        if isinstance(self.artifact, Session) and self.artifact.header.base.commit in self.bases:
            return self.artifact.header.base.commit
        return next(iter(self.bases), "")


@dataclass(frozen=True)
class _Poster:
    """Finds and judges the results of workflow runs."""

    forge: Forge
    repo: Path
    """A checkout of the default branch with its history."""
    github: GitHub
    """The ``[github]`` settings of the default branch."""
    post_run_id: int
    """Id of the current run of regbot-post."""
    threads: dict[int, CommentThread] = field(default_factory=dict)
    """Cache of ``get_thread``: comments of pull requests, by number."""
    merge_bases: dict[tuple[tuple[str, ...], str], list[str]] = field(default_factory=dict)
    """Cache of ``find_bases``: merge bases, by the tips of the base branch and the measured commit."""

    def get_thread(self, number: int) -> CommentThread:
        """Return the comment thread of a pull request. Each pull request has one thread, which caches its comments."""
        return self.threads.setdefault(number, CommentThread(self.forge, number))

    def find_bases(self, subject: Subject) -> list[str]:
        """Return the merge bases of the measured commit with the base branch. Each is requested from GitHub only
        once."""
        key = (tuple(subject.base_tips), subject.sha)
        if key not in self.merge_bases:
            self.merge_bases[key] = find_merge_bases(self.forge, subject.base_tips, subject.sha)
        return self.merge_bases[key]

    def find_cases(self, run: WorkflowRun) -> list[_Case] | IgnoredRun:
        """Return the cases of a run, or why the result of the run is not posted.

        A run can have several cases only if its title names no pull request. Then the cases whose allowed base commits
        include that of the session are returned, or all cases if there are none.
        """
        subjects = identify_subjects(self.forge, run, self.github.bot, self.repo)
        if isinstance(subjects, IgnoredRun):
            return subjects
        # With the setting "timed", the gate starts a measurement of each merge group.
        if self.github.queue == "timed" and any(is_traced_group(subject) for subject in subjects):
            return IgnoredRun(f"run {run.id} traces a merge group, which gets its verdict from a measurement")
        artifact = _read_session(self.forge, run)
        cases = [_Case(subject, artifact, self.find_bases(subject)) for subject in subjects]
        if not isinstance(artifact, Session):
            return cases
        with_same_base = [case for case in cases if case.base == artifact.header.base.commit]
        return with_same_base or cases

    def judge_case(self, case: _Case) -> Result:
        """Return the result of a case, judged with the declarations that are in the comments now. If the artifact has
        expired, return the verdict that the check run contains, if it is still valid."""
        subject, run = case.subject, case.subject.run
        if isinstance(case.artifact, ExpiredArtifact):
            known_result = self.find_known_result(case)
            if known_result is not None:
                return known_result
        if isinstance(case.artifact, UnusableArtifact):
            verdict = _write_invalid(case.artifact.reason, subject, self.github)
        else:
            declarations = Declarations()  # with several pull requests in a merge group, no declaration counts
            if not subject.has_other_pulls:
                declarations = read_declarations(self.get_thread(subject.comment_number), subject.acceptance_sha)
            verdict = _judge(
                self.forge, subject, case.artifact, case.base, self.repo, self.github, declarations=declarations
            )
        # A stamp without a base commit belongs to a result that was not judged.
        base = "" if isinstance(case.artifact, UnusableArtifact) else case.base
        stamp = Stamp(
            pr=subject.number,
            head=subject.sha,
            tier=subject.tier,
            run=run.id,
            attempt=run.attempt,
            status=verdict.status,
            post=self.post_run_id,
            base=base,
            target=subject.target_branch,
        )
        stamped_text = StampedText(stamp, verdict.text)
        return Result(
            stamped_text=stamped_text,
            nonce=subject.nonce,
            title=verdict.title,
            annotations=verdict.annotations,
            url=run.url,
            bases=case.bases,
            fault=verdict.fault,
        )

    def find_known_result(self, case: _Case) -> Result | None:
        """Return the verdict on the run of ``case`` from regbot's check run.

        The result is None if the check run contains no verdict on this run, or if the verdict was judged against a base
        commit or base branch that is no longer allowed. INVALID is no verdict.
        """
        subject, run = case.subject, case.subject.run
        head_checks = checks.find(self.forge, subject.sha, subject.number, self.github.bot)
        for stamped_text in (head_checks.completed_text, head_checks.previous_text):
            if stamped_text is None:
                continue
            stamp = stamped_text.stamp
            is_of_run = (stamp.tier, stamp.run, stamp.attempt) == (subject.tier, run.id, run.attempt)
            has_valid_base = stamp.base in case.bases and stamp.target == subject.target_branch
            if is_of_run and has_valid_base and stamp.status != "INVALID":
                title = head_checks.title or f"{stamp.status}: see the summary"
                return Result(
                    stamped_text=replace(stamped_text, void=None),  # without the banner of an INVALID measurement
                    nonce=subject.nonce,
                    title=title,
                    url=run.url,
                    bases=case.bases,
                )
        return None

    def judge_again(self, claim: Stamp) -> Result | None:
        """Judge the run that the stamp ``claim`` in a comment names. The comment's own text is not trusted, because
        somebody may have edited the comment.

        Return None if the run does not exist, or has no result for the commit and pull request in the stamp.
        """
        if not 0 < claim.run < MAX_RUN_ID:
            return None
        try:
            run = self.forge.run(claim.run)
        except RefusedError as error:
            if error.status in MISSING_STATUSES:
                return None
            raise
        case = self.find_case(run, claim.pr, claim.head)
        return self.judge_case(case) if case is not None else None

    def find_case(self, run: WorkflowRun, number: int, sha: str) -> _Case | None:
        """Return the case of a run for one pull request and commit; None if the run has no such case."""
        cases = self.find_cases(run)
        if isinstance(cases, IgnoredRun):
            return None
        for case in cases:
            if case.subject.number == number and case.subject.sha == sha:
                return case
        return None


def _post_case(poster: _Poster, case: _Case) -> PostedResult:
    """Judge a case and publish the result. If the pull request's base branch changes meanwhile, judge again."""
    forge, github, subject = poster.forge, poster.github, case.subject
    for _ in range(MAX_RETARGETS):
        result = poster.judge_case(case)
        thread = poster.get_thread(subject.number) if subject.number else None
        publication = publish(forge, result, github, poster.judge_again, thread)
        if not publication.is_retargeted:
            break
        case = poster.find_case(subject.run, subject.number, subject.sha) or case
    stamp, text = result.stamped_text.stamp, result.stamped_text.text
    comment_text = publication.comment
    if comment_text is not None:
        # A result of an old head gets no label.
        status = comment_text.stamp.status if comment_text.stamp.head == publication.current_head else None
        set_label(forge, subject.number, status, github.labels)
    # A merge group has no comment, so its check run decides.
    is_published = comment_text.stamp == stamp if comment_text is not None else publication.is_concluded
    if isinstance(case.artifact, ExpiredArtifact) and stamp.status != "INVALID":
        text = f"{EXPIRED_NOTE}\n\n{text}"
    return PostedResult(
        number=subject.number,
        sha=subject.sha,
        status=stamp.status,
        title=result.title,
        text=text,
        is_published=is_published,
        fault=result.fault,
    )


def _read_session(forge: Forge, run: WorkflowRun) -> Session | UnusableArtifact:
    """Return the session in a run's artifact, or the reason why no session can be used."""
    if run.conclusion != "success":
        return UnusableArtifact(*verdict_text.explain_failed_run(run))
    try:
        return read_newest_artifact(
            forge, run.id, ARTIFACT, MAX_ARCHIVE_BYTES, lambda archive: read_artifact(archive, "the artifact")
        )
    except UnusableArtifact as error:
        return error


@dataclass(frozen=True)
class _JudgedText:
    """The verdict on a commit as texts to post."""

    status: Status
    title: str
    """Title of the check run, as plain text."""
    text: str
    """The report, as markdown."""
    annotations: Sequence[Annotation] = ()
    fault: str = ""
    """Traceback for the job's log if regbot failed on the run's artifact; '' if it did not fail."""


def _judge(
    forge: Forge,
    subject: Subject,
    session: Session,
    base: str,
    repo: Path,
    github: GitHub,
    *,
    declarations: Declarations,
) -> _JudgedText:
    """Judge a session by the configuration of the commit ``base``. If the session cannot be judged, the result is
    INVALID. Raises ForgeError."""
    try:
        return _judge_by_base(forge, subject, session, base, repo, github, declarations=declarations)
    except ForgeError:
        raise
    except UnusableArtifact as error:
        return _write_invalid(("the job's artifact cannot be judged: ", *error.reason), subject, github)
    except (ConfigError, CheckoutError) as error:
        return _write_invalid(("it cannot be judged: ", UntrustedText(str(error))), subject, github)
    except Exception as error:  # a pull request's job wrote the records; records that break the judge must not pass
        reason = f"regbot failed on the job's artifact ({type(error).__name__}); see the log of regbot-post"
        return replace(_write_invalid((reason,), subject, github), fault=traceback.format_exc())


def _judge_by_base(
    forge: Forge,
    subject: Subject,
    artifact_session: Session,
    base: str,
    repo: Path,
    github: GitHub,
    *,
    declarations: Declarations,
) -> _JudgedText:
    """Judge a session by the configuration of the commit ``base``. ``base`` is '' if there is no merge base.

    Raises UnusableArtifact, ConfigError, CheckoutError or ForgeError if the session cannot be judged.
    """
    if not base:
        raise UnusableArtifact("GitHub finds no merge base of the commit and its base branch")
    if subject.measured_base not in ("", base):  # '' if the title of the run names no base commit
        raise UnusableArtifact(
            f"the commit was measured against {short_commit(subject.measured_base)}, but its base is "
            f"{short_commit(base)}"
        )
    # The branch that the change merges into must not supply the thresholds of a measurement on a node.
    target_branch = subject.target_branch if subject.tier == "static" else None
    loaded_config = load_base_config(repo, base, target_branch)
    config = loaded_config.config
    # Only a measurement can prove that both arms run the same code, and needs the files for it.
    with fetched_trees(forge, base, subject.sha, checkout=repo, with_files=subject.tier == "measured") as trees:
        concern_result = _find_unconcerned(subject, artifact_session, config, base, repo, trees)
        session = build_trusted_session(artifact_session, config, subject, base, trees, concern_result.unconcerned)
    traced_variants = [(run.workload, run.variant) for run in session.runs if run.tier == "static"]
    timed_variants = [(timed_plan.entry, timed_plan.variant) for timed_plan in session.header.timed]
    variants = [*traced_variants, *timed_variants]
    with store_at(repo, base, config.baselines.folder, override=None, workloads=variants) as store:
        session = replace_references(session, store)
    # ``loaded_config`` has warnings about where the configuration comes from.
    warnings = [*loaded_config.messages(), *concern_result.warnings, *declarations.warnings, *session.header.warnings]
    distinct_warnings = list(dict.fromkeys(warnings))
    session = session.model_copy(update={"header": session.header.model_copy(update={"warnings": distinct_warnings})})
    verdict = judge(session, config, declarations.rules)
    acceptance = declarations.acceptance if verdict.verdict == "REVIEW" else None
    status: Status = "PASS" if acceptance else verdict.verdict
    return _JudgedText(
        status=status,
        title=verdict_text.write_title(verdict, session, status, subject, github),
        text=verdict_text.write_verdict_text(verdict, session, subject, acceptance, github),
        annotations=collect_annotations(verdict, session),
    )


def _find_unconcerned(
    subject: Subject, session: Session, config: Config, base: str, repo: Path, trees: Path
) -> ConcernResult:
    """Return the entries that need no runs, because the change cannot affect them (``regbot.check.concern``).

    These entries are computed from git's list of changed files and the stored references of ``base``. The artifact's
    own statement about these entries is not read. If every entry with the setting ``paths`` has runs, the result is
    empty. ``trees`` is a repository with both commits, and ``repo`` the checkout of the default branch.
    """
    measured_entries = {run.workload for run in session.runs}
    is_timed = subject.tier == "measured"
    # A workload with the adapter "command" is only timed, so a static result has no runs of it.
    tasks = [task for task in plan(config) if is_timed or task.workload.adapter != "command"]
    unmeasured_tasks = [task for task in tasks if task.entry not in measured_entries]
    if not has_paths(unmeasured_tasks):
        return ConcernResult([], [])
    # By entry: the kinds of stored sessions that must show which files the workload loads.
    evidence = list_evidence(config, tasks, is_timed)
    variants = [(entry, kind.variant) for entry, kinds in evidence.items() for kind in kinds]
    folder = config.baselines.folder
    change = ChangedTrees(trees, base, subject.sha, folder, config.inert)
    with store_at(repo, base, folder, override=None, workloads=variants) as store:
        return find_unconcerned(change, tasks, evidence, store)


def _write_invalid(reason: Words, subject: Subject, github: GitHub) -> _JudgedText:
    """Return the texts to post if a result could not be judged."""
    return _JudgedText(
        status="INVALID",
        title=verdict_text.write_invalid_title(reason, subject, github),
        text=verdict_text.write_invalid_text(reason, subject, github),
    )
