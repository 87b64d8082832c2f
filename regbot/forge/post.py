"""From a workflow run that has ended to what GitHub shows of it: the comment, the check run, labels, the job's summary.

The run says which commit it was of (``metadata``), its artifact what was measured (``believed``), the base commit how
it is judged (``basis``), people what they declared (``people``). What cannot be judged is INVALID, and is posted too: a
check that never ends, or a comment that is missing, would look like a pass.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regbot.checkout.git import CheckoutError
from regbot.conclusion import held_against
from regbot.config import ConfigError, GitHub
from regbot.forge import checks, words
from regbot.forge.annotations import annotations
from regbot.forge.artifact import MAX_ARCHIVE_BYTES, NAME, read_artifact
from regbot.forge.basis import basis_of, github_settings
from regbot.forge.believed import believed
from regbot.forge.bisection import Answered, post_bisection
from regbot.forge.client import Forge, RefusedError
from regbot.forge.history import MISSING, bases
from regbot.forge.labels import set_label
from regbot.forge.left import Expired, Unusable, artifact_of
from regbot.forge.metadata import BISECT, MEASURE, Ignored, Subject, identify
from regbot.forge.people import Said as Declared
from regbot.forge.people import said
from regbot.forge.settle import Result, settle
from regbot.forge.shown import Shown, Stamp
from regbot.forge.types import Annotation, WorkflowRun
from regbot.judge import judge
from regbot.records.session import Session
from regbot.records.verdict import Status
from regbot.report.markdown import Said, Words
from regbot.stored import store_at

MANY_RUNS = 2**63
"""More than any run's number."""
LEFT_ALONE = "The artifact of this run has expired, so it was not judged again. What is shown of it was left as it is:"


@dataclass(frozen=True)
class Posted:
    """What was posted of one run. ``shown``: the comment shows it, and not something stronger.

    ``fault``: the traceback where regbot itself failed on what the run left; it is for the job's log.
    """

    number: int
    sha: str
    status: Status
    title: str
    text: str
    shown: bool
    fault: str = ""


def post(forge: Forge, run_id: int, repo: Path, by: int = 0) -> list[Posted] | Answered | Ignored:
    """Post the result of a run; to do it again changes nothing. ``repo``: a checkout of the default branch with its
    history. ``by``: the run of regbot-post itself. Raises ForgeError, ConfigError, CheckoutError.
    """
    github = github_settings(repo)
    run = forge.run(run_id)
    if run.path == BISECT:
        return post_bisection(forge, run, github.bot)
    if run.path == MEASURE:
        run = forge.ended_run(run_id)  # its last job may have asked for this
    poster = _Poster(forge, repo, github, by)
    cases = poster.cases(run)
    return cases if isinstance(cases, Ignored) else [_posted(poster, case) for case in cases]


@dataclass(frozen=True)
class _Case:
    """What is judged: the commit, what its run left, and the commits that it may be compared with: the merge base by
    the tip of its base today may be a later one than that by the tip as it was, and either will do."""

    subject: Subject
    left: Session | Unusable
    bases: Sequence[str]

    @property
    def base(self) -> str:
        """The commit that it was compared with, if that may be; '' where there is none."""
        if isinstance(self.left, Session) and self.left.header.base.commit in self.bases:
            return self.left.header.base.commit
        return next(iter(self.bases), "")


@dataclass(frozen=True)
class _Poster:
    """Where results come from and go to."""

    forge: Forge
    repo: Path
    github: GitHub
    by: int

    def cases(self, run: WorkflowRun) -> list[_Case] | Ignored:
        """What a run was of: of several pull requests from one branch, those with the base that was compared."""
        subjects = identify(self.forge, run, self.github.bot, self.repo)
        if isinstance(subjects, Ignored):
            return subjects
        left = _session(self.forge, run)
        cases = [_Case(subject, left, bases(self.forge, subject.tips, subject.sha)) for subject in subjects]
        same = [case for case in cases if isinstance(left, Session) and case.base == left.header.base.commit]
        return same or cases

    def result(self, case: _Case) -> Result:
        """The verdict on it, by what people say of it now."""
        subject, run = case.subject, case.subject.run
        if isinstance(case.left, Expired) and (known := self.known(case)):
            return known
        if isinstance(case.left, Unusable):
            verdict = _invalid(case.left.said, subject, self.github)
        else:
            declared = said(self.forge, subject.people, subject.accepted)
            verdict = _judged(subject, case.left, case.base, self.repo, self.github, declared)
        base = "" if isinstance(case.left, Unusable) else case.base
        stamp = Stamp(subject.number, subject.sha, subject.tier, run.id, run.attempt, verdict.status, self.by, base)
        shown = Shown(stamp, verdict.text)
        found = verdict.annotations
        return Result(shown, subject.nonce, verdict.title, found, run.url, case.bases, verdict.fault)

    def known(self, case: _Case) -> Result | None:
        """The verdict on it that our own check run shows, where it is held against one of the bases; None without."""
        subject, run = case.subject, case.subject.run
        held = checks.find(self.forge, subject.sha, subject.number, self.github.bot)
        for shown in (held.shown, held.kept):
            if shown is None or shown.stamp.status == "INVALID" or shown.stamp.base not in case.bases:
                continue
            stamp = shown.stamp
            if (stamp.tier, stamp.run, stamp.attempt) == (subject.tier, run.id, run.attempt):
                title = held.title or f"{stamp.status}: see the summary"
                return Result(replace(shown, void=None), subject.nonce, title, (), run.url, case.bases)
        return None

    def again(self, claim: Stamp) -> Result | None:
        """The result of the run that a comment names: somebody may have edited it, and of the run all is asked anew."""
        if not 0 < claim.run < MANY_RUNS:
            return None
        try:
            run = self.forge.run(claim.run)
        except RefusedError as error:
            if error.status in MISSING:
                return None
            raise
        cases = self.cases(run)
        if isinstance(cases, Ignored):
            return None
        of_claim = (case for case in cases if (case.subject.number, case.subject.sha) == (claim.pr, claim.head))
        return next((self.result(case) for case in of_claim), None)


def _posted(poster: _Poster, case: _Case) -> Posted:
    forge, github, subject = poster.forge, poster.github, case.subject
    result = poster.result(case)
    stamp, text = result.shown.stamp, result.shown.text
    settled = settle(forge, result, github, poster.again)
    on_comment = settled.comment
    if on_comment is not None:
        status = on_comment.stamp.status if on_comment.stamp.head == settled.live else None
        set_label(forge, subject.number, status, github.labels)
    there = on_comment.stamp == stamp if on_comment is not None else settled.concluded
    if isinstance(case.left, Expired) and stamp.status != "INVALID":
        text = f"{LEFT_ALONE}\n\n{text}"
    return Posted(subject.number, subject.sha, stamp.status, result.title, text, there, result.fault)


def _session(forge: Forge, run: WorkflowRun) -> Session | Unusable:
    """What a run left, or why there is nothing to judge."""
    if run.conclusion != "success":
        return Unusable(*words.failed(run))
    try:
        return artifact_of(
            forge, run.id, NAME, MAX_ARCHIVE_BYTES, lambda archive: read_artifact(archive, "the artifact")
        )
    except Unusable as error:
        return error


@dataclass(frozen=True)
class _Verdict:
    """What is said of a commit."""

    status: Status
    title: str
    text: str
    annotations: Sequence[Annotation] = ()
    fault: str = ""


def _judged(subject: Subject, left: Session, base: str, repo: Path, github: GitHub, declared: Declared) -> _Verdict:
    """The verdict on what a run left, by its base; INVALID where it cannot be judged."""
    try:
        return _by_base(subject, left, base, repo, github, declared)
    except Unusable as error:
        return _invalid(("what the job left cannot be judged: ", *error.said), subject, github)
    except (ConfigError, CheckoutError) as error:
        return _invalid(("it cannot be judged: ", Said(str(error))), subject, github)
    except Exception as error:  # a pull request's job wrote the records: one that breaks the judge must not look green
        why = f"regbot failed on what the job left ({type(error).__name__}); see the log of regbot-post"
        return replace(_invalid((why,), subject, github), fault=traceback.format_exc())


def _by_base(subject: Subject, left: Session, base: str, repo: Path, github: GitHub, declared: Declared) -> _Verdict:
    if not base:
        raise Unusable("GitHub knows no commit that it shares with its base")
    basis = basis_of(repo, base, subject.target if subject.tier == "static" else None)
    session = believed(left, basis.config, subject, base)
    wanted = [
        *((run.workload, run.variant) for run in session.runs if run.tier == "static"),
        *((plan.entry, plan.variant) for plan in session.header.timed),
    ]
    with store_at(repo, base, basis.config.baselines.folder, None, wanted) as store:
        session = held_against(session, store)
    warnings = [*basis.notes, *session.header.warnings]
    session = session.model_copy(update={"header": session.header.model_copy(update={"warnings": warnings})})
    verdict = judge(session, basis.config, declared.rules)
    accepted = declared.acceptance if verdict.verdict == "REVIEW" else None
    status: Status = "PASS" if accepted else verdict.verdict
    return _Verdict(
        status,
        words.title(verdict, session, status, subject, github),
        words.verdict_text(verdict, session, subject, accepted, github),
        annotations(verdict, session),
    )


def _invalid(why: Words, subject: Subject, github: GitHub) -> _Verdict:
    text = words.invalid_text(why, subject, github)
    return _Verdict("INVALID", words.invalid_title(why, subject, github), text)
