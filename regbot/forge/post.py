"""From a workflow run that has ended to what GitHub shows of it: the comment, the check run, labels, the job's summary.

The run says which commit it was of (``metadata``), its artifact what was measured (``believed``), the base commit how
it is judged (``basis``), people what they declared (``people``). What cannot be judged is INVALID, and is posted too: a
check that never ends, or a comment that is missing, would look like a pass.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout.git import CheckoutError
from regbot.conclusion import held_against
from regbot.config import ConfigError, GitHub
from regbot.forge import words
from regbot.forge.annotations import annotations
from regbot.forge.artifact import MAX_ARCHIVE_BYTES, NAME, read_artifact
from regbot.forge.basis import basis_of, github_settings
from regbot.forge.believed import Unusable, believed
from regbot.forge.bisection import Answered, post_bisection
from regbot.forge.client import Forge, RefusedError, TooLargeError
from regbot.forge.labels import set_label
from regbot.forge.metadata import BISECT, Ignored, Subject, identify
from regbot.forge.people import Said as Declared
from regbot.forge.people import said
from regbot.forge.settle import Result, settle
from regbot.forge.shown import Shown, Stamp
from regbot.forge.types import Annotation, WorkflowRun
from regbot.judge import judge
from regbot.records.files import RecordError
from regbot.records.session import Session
from regbot.records.verdict import Status
from regbot.report.markdown import Said, Words
from regbot.stored import store_at

MANY_RUNS = 2**63
"""More than any run's number."""


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


@dataclass(frozen=True)
class _Answer:
    status: Status
    title: str
    text: str
    annotations: Sequence[Annotation] = ()
    fault: str = ""


def post(forge: Forge, run_id: int, repo: Path, by: int = 0) -> list[Posted] | Answered | Ignored:
    """Post the result of a run; to do it again changes nothing. ``repo``: a checkout of the default branch with its
    history. ``by``: the run of regbot-post itself. Raises ForgeError, ConfigError, CheckoutError.
    """
    github = github_settings(repo)
    run = forge.run(run_id)
    if run.path == BISECT:
        return post_bisection(forge, run, github.bot) or Ignored(f"run {run.id} was not started by regbot-gate")
    poster = _Poster(forge, repo, github, by)
    cases = poster.cases(run)
    return cases if isinstance(cases, Ignored) else [_posted(poster, case) for case in cases]


@dataclass(frozen=True)
class _Case:
    """What is judged: the commit, what its run left, and the commit that it is compared with."""

    subject: Subject
    left: Session | Unusable
    base: str


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
        cases = [_Case(subject, left, _base(self.forge, subject, left)) for subject in subjects]
        same = [case for case in cases if isinstance(left, Session) and case.base == left.header.base.commit]
        return same or cases

    def result(self, case: _Case) -> tuple[Result, _Answer]:
        """The verdict on it, by what people say of it now."""
        subject, run = case.subject, case.subject.run
        if isinstance(case.left, Unusable):
            answer = _invalid(case.left.said, subject, self.github)
        else:
            declared = said(self.forge, subject.people, subject.accepted)
            answer = _judged(subject, case.left, case.base, self.repo, self.github, declared)
        stamp = Stamp(subject.number, subject.sha, subject.tier, run.id, run.attempt, answer.status, self.by)
        shown = Shown(stamp, answer.text)
        return Result(shown, subject.nonce, answer.title, answer.annotations, run.url), answer

    def again(self, claim: Stamp) -> Result | None:
        """The result of the run that a comment names: somebody may have edited it, and of the run all is asked anew."""
        if not 0 < claim.run < MANY_RUNS:
            return None
        try:
            run = self.forge.run(claim.run)
        except RefusedError as error:
            if error.status in (404, 422):
                return None
            raise
        cases = self.cases(run)
        if isinstance(cases, Ignored):
            return None
        of_claim = (case for case in cases if (case.subject.number, case.subject.sha) == (claim.pr, claim.head))
        return next((self.result(case)[0] for case in of_claim), None)


def _posted(poster: _Poster, case: _Case) -> Posted:
    forge, github, subject = poster.forge, poster.github, case.subject
    result, answer = poster.result(case)
    stamp = result.shown.stamp
    settled = settle(forge, result, github, poster.again)
    on_comment = settled.comment
    if on_comment is not None:
        status = on_comment.stamp.status if on_comment.stamp.head == settled.live else None
        set_label(forge, subject.number, status, github.labels)
    there = on_comment.stamp == stamp if on_comment is not None else settled.concluded
    return Posted(subject.number, subject.sha, answer.status, answer.title, answer.text, there, answer.fault)


def _session(forge: Forge, run: WorkflowRun) -> Session | Unusable:
    """What a run left, or why there is nothing to judge."""
    if run.conclusion != "success":
        return Unusable(*words.failed(run))
    found = [artifact for artifact in forge.artifacts(run.id) if artifact.name == NAME and not artifact.expired]
    if not found:
        return Unusable(f"the job left no artifact {NAME}")
    newest = found[-1]
    too_large = Unusable(f"its artifact has more than {MAX_ARCHIVE_BYTES:,} bytes, and was not read")
    if newest.size > MAX_ARCHIVE_BYTES:
        return too_large
    try:
        return read_artifact(forge.download(newest.id, MAX_ARCHIVE_BYTES), "the artifact")
    except TooLargeError:
        return too_large
    except RecordError as error:
        return Unusable("what the job left cannot be read: ", Said(str(error)))


def _base(forge: Forge, subject: Subject, left: Session | Unusable) -> str:
    """The merge base by GitHub's account. That of the base's tip today may be a later one than that of the base as it
    was: either will do. '' where there is none."""
    found = []
    for tip in subject.tips if isinstance(left, Session) else ():
        try:
            found.append(forge.merge_base(tip, subject.sha))
        except RefusedError as error:
            if error.status != 404:
                raise
            continue
        if isinstance(left, Session) and found[-1] == left.header.base.commit:
            return found[-1]
    return found[0] if found else ""


def _judged(subject: Subject, left: Session, base: str, repo: Path, github: GitHub, declared: Declared) -> _Answer:
    """The verdict on what a run left, by its base; INVALID where it cannot be judged."""
    try:
        return _by_base(subject, left, base, repo, github, declared)
    except Unusable as error:
        return _invalid(("what the job left cannot be judged: ", *error.said), subject, github)
    except (ConfigError, CheckoutError) as error:
        return _invalid(("it cannot be judged: ", Said(str(error))), subject, github)
    except Exception as error:  # a pull request's job wrote the records: one that breaks the judge must not look green
        answer = _invalid(
            (f"regbot failed on what the job left ({type(error).__name__}); see the log of regbot-post",),
            subject,
            github,
        )
        return _Answer(answer.status, answer.title, answer.text, fault=traceback.format_exc())


def _by_base(subject: Subject, left: Session, base: str, repo: Path, github: GitHub, declared: Declared) -> _Answer:
    if not base:
        raise Unusable("GitHub knows no commit that it shares with its base")
    basis = basis_of(repo, base, subject.target)
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
    return _Answer(
        status,
        words.title(verdict, session, status, subject, github),
        words.verdict_text(verdict, session, subject, accepted, github),
        annotations(verdict, session),
    )


def _invalid(why: Words, subject: Subject, github: GitHub) -> _Answer:
    text = words.invalid_text(why, subject, github)
    return _Answer("INVALID", words.invalid_title(why, subject, github), text)
