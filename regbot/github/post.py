"""Post the result of a finished workflow run: the comment, the check run, labels and the job's page.

The measurement comes from the run's artifact. The measured commit comes from GitHub (``metadata``), the configuration
from the base commit (``base_branch``), and the declarations from comments (``declarations``). If a result cannot be
judged, INVALID is posted.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.check.concern import ChangedTrees, ConcernResult, find_unconcerned, list_evidence
from regbot.check.conclusion import replace_references
from regbot.check.references import store_at
from regbot.github import checks, verdict_text
from regbot.github.annotations import list_annotations
from regbot.github.artifact import (
    ARTIFACT,
    MAX_ARCHIVE_BYTES,
    ExpiredArtifact,
    UnusableArtifact,
    read_artifact,
    read_newest_artifact,
)
from regbot.github.base_branch import load_base_config, load_github_settings
from regbot.github.bisection import BisectionReply, post_bisection
from regbot.github.changed_files import fetched_trees
from regbot.github.client import Forge
from regbot.github.comment_thread import CommentThread
from regbot.github.declarations import Declarations, read_declarations
from regbot.github.metadata import BISECT, MEASURE, IgnoredRun, PostRequest, Subject, find_runs, identify_subject
from regbot.github.publication import Result, mark_stale, publish
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
from regbot.workloads.checkout.git import CheckoutError
from regbot.workloads.task import plan


@dataclass(frozen=True)
class PostedResult:
    status: Status
    title: str
    text: str
    annotations: Sequence[Annotation] = ()
    fault: str = ""
    """Traceback for the job's log if regbot failed on the run's artifact; '' if it did not fail."""
    number: int = 0
    """Number of the pull request; 0 for a merge group."""
    sha: str = ""
    is_published: bool = False
    """Whether the pull request shows this result; False if a stronger result exists."""


def post(forge: Forge, request: PostRequest, repo: Path) -> Sequence[PostedResult | BisectionReply | IgnoredRun]:
    """Judge and post the result of the requested run, and all results that the change lacks. A second call changes
    nothing.

    ``repo`` is a checkout of the default branch with its history. Raises ForgeError, ConfigError, CheckoutError.
    """
    bot = load_github_settings(repo).bot
    is_pull = 0 < len(request.change) < 40
    thread = CommentThread(forge, int(request.change)) if is_pull else None
    results = [post_run(forge, request.run_id, repo, thread)] if request.run_id is not None else []
    if request.change:
        run_ids = dict.fromkeys(run.id for run in find_runs(forge, request.change, bot))
        results += [post_run(forge, run_id, repo, thread) for run_id in run_ids if run_id != request.run_id]
        if thread is not None and not any(isinstance(result, PostedResult) for result in results):
            mark_stale(thread, bot, forge.pull(thread.number).head_sha)
    return results


def post_run(
    forge: Forge, run_id: int, repo: Path, thread: CommentThread | None = None
) -> PostedResult | BisectionReply | IgnoredRun:
    """Judge and post the result of one run. ``thread`` has comments that were read already. Raises ForgeError,
    ConfigError, CheckoutError."""
    github = load_github_settings(repo)
    run = forge.run(run_id)
    # ``run.path`` is the workflow file: BISECT searches for a commit, and MEASURE measures one on a node.
    if run.path == BISECT:
        return post_bisection(forge, run, github.bot)
    if run.path == MEASURE:
        run = forge.ended_run(run)  # the last job of the run starts regbot-post, shortly before the run ends
    subject = identify_subject(forge, run, github, repo)
    if isinstance(subject, IgnoredRun):
        return subject
    post_context = _PostContext(forge, subject, repo, github)
    artifact = _read_session(forge, run)
    merge_bases = (forge.merge_base(tip, subject.sha) for tip in subject.base_tips)
    bases = list(dict.fromkeys(base for base in merge_bases if base))
    # The base branch may have moved since the measurement, so the session's base may be any of its merge bases.
    base = next(iter(bases), "")
    if isinstance(artifact, Session) and artifact.header.base.commit in bases:
        base = artifact.header.base.commit
    if isinstance(artifact, ExpiredArtifact) and post_context.is_shown(bases):
        return IgnoredRun(f"the artifact of run {run.id} has expired; the earlier result is kept")
    if thread is None or thread.number != subject.comment_number:
        thread = CommentThread(forge, subject.comment_number)
    if isinstance(artifact, UnusableArtifact):
        verdict = post_context.write_invalid(artifact.reason)
    else:
        # With several pull requests in a merge group, no declaration counts.
        declarations = Declarations() if subject.has_other_pulls else read_declarations(thread, subject.acceptance_sha)
        verdict = post_context.judge(artifact, base, declarations)
    stamp = Stamp(
        pr=subject.number,
        head=subject.sha,
        tier=subject.tier,
        run=run.id,
        attempt=run.attempt,
        status=verdict.status,
        base="" if isinstance(artifact, UnusableArtifact) else base,
        target=subject.target_branch,
    )
    result = Result(StampedText(stamp, verdict.text), subject.nonce, verdict.title, run.url, bases, verdict.annotations)
    is_published = publish(forge, result, github, thread).stamp == stamp
    return replace(verdict, number=subject.number, sha=subject.sha, is_published=is_published)


def _read_session(forge: Forge, run: WorkflowRun) -> Session | UnusableArtifact:
    if run.conclusion != "success":
        return UnusableArtifact(verdict_text.explain_failed_run(run))
    try:
        return read_newest_artifact(
            forge, run.id, ARTIFACT, MAX_ARCHIVE_BYTES, lambda archive: read_artifact(archive, "the artifact")
        )
    except UnusableArtifact as error:
        return error


@dataclass(frozen=True)
class _PostContext:
    forge: Forge
    subject: Subject
    repo: Path
    github: GitHub

    def is_shown(self, bases: Sequence[str]) -> bool:
        """Return whether the check run shows a result of this run, against one of the commits ``bases``."""
        subject = self.subject
        text = checks.find(self.forge, subject.sha, subject.number, self.github.bot).text
        if text is None or text.stamp.status == "INVALID":
            return False
        run, stamp = subject.run, text.stamp
        is_of_run = (stamp.tier, stamp.run, stamp.attempt) == (subject.tier, run.id, run.attempt)
        return is_of_run and stamp.base in bases and stamp.target == subject.target_branch

    def write_invalid(self, reason: Words, fault: str = "") -> PostedResult:
        title = verdict_text.write_invalid_title(reason, self.subject, self.github)
        text = verdict_text.write_invalid_text(reason, self.subject, self.github)
        return PostedResult("INVALID", title, text, fault=fault)

    def judge(self, session: Session, base: str, declarations: Declarations) -> PostedResult:
        """Judge a session by the configuration of the commit ``base``, which is '' if there is no merge base. If the
        session cannot be judged, the result is INVALID. Raises ForgeError."""
        try:
            return self._judge_by_base(session, base, declarations)
        except ForgeError:
            raise
        except UnusableArtifact as error:
            return self.write_invalid(("the job's artifact cannot be judged: ", *error.reason))
        except (ConfigError, CheckoutError) as error:
            return self.write_invalid(("it cannot be judged: ", UntrustedText(str(error))))
        except Exception as error:  # a pull request's job wrote the records; records that break the judge must not pass
            reason = f"regbot failed on the job's artifact ({type(error).__name__}); see the log of regbot-post"
            return self.write_invalid((reason,), fault=traceback.format_exc())

    def _judge_by_base(self, artifact_session: Session, base: str, declarations: Declarations) -> PostedResult:
        subject, repo = self.subject, self.repo
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
        with fetched_trees(self.forge, base, subject.sha, checkout=repo, with_files=True) as trees:
            concern_result = self._find_unconcerned(artifact_session, config, base, trees)
            session = build_trusted_session(artifact_session, config, subject, base, trees, concern_result.unconcerned)
        traced_variants = [(run.workload, run.variant) for run in session.runs if run.tier == "static"]
        timed_variants = [(timed_plan.entry, timed_plan.variant) for timed_plan in session.header.timed]
        variants = [*traced_variants, *timed_variants]
        with store_at(repo, base, config.baselines.folder, override=None, workloads=variants) as store:
            session = replace_references(session, store)
        # ``loaded_config`` has warnings about where the configuration comes from.
        warnings = [*loaded_config.messages(), *concern_result.warnings, *declarations.warnings]
        distinct_warnings = list(dict.fromkeys([*warnings, *session.header.warnings]))
        header = session.header.model_copy(update={"warnings": distinct_warnings})
        session = session.model_copy(update={"header": header})
        verdict = judge(session, config, declarations.rules)
        acceptance = declarations.acceptance if verdict.verdict == "REVIEW" else None
        status: Status = "PASS" if acceptance else verdict.verdict
        return PostedResult(
            status=status,
            title=verdict_text.write_title(verdict, session, status, subject, self.github),
            text=verdict_text.write_verdict_text(verdict, session, subject, acceptance, self.github),
            annotations=list_annotations(verdict),
        )

    def _find_unconcerned(self, session: Session, config: Config, base: str, trees: Path) -> ConcernResult:
        """Return the entries that need no runs, because the change cannot affect them (``regbot.check.concern``), by
        git's list of changed files and the stored references of ``base``. The artifact's own statement is not read."""
        measured_entries = {run.workload for run in session.runs}
        is_timed = self.subject.tier == "measured"
        # A workload with the adapter "command" is only timed, so a static result has no runs of it.
        tasks = [task for task in plan(config) if is_timed or task.workload.adapter != "command"]
        unmeasured_tasks = [task for task in tasks if task.entry not in measured_entries]
        if not any(task.workload.paths for task in unmeasured_tasks):
            return ConcernResult([], [])
        evidence = list_evidence(config, tasks, is_timed)
        variants = [(kind.entry, kind.variant) for kind in evidence]
        folder = config.baselines.folder
        change = ChangedTrees(trees, base, self.subject.sha, folder, config.inert)
        with store_at(self.repo, base, folder, override=None, workloads=variants) as store:
            return find_unconcerned(change, tasks, evidence, store)
