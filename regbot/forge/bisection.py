"""The answer of a bisection that somebody asked for in a pull request: one reply, however often its job is run.

Which pull request it is for and between which commits was searched is told by the title of the run. Whoever has the
role write can start one with any title, so the comment that asked has to be there, by its nonce, and not refused. The
artifact was written where the code of a pull request ran: an answer to another question, or one that names a commit
outside of the range, is not repeated.
"""

import re
import traceback
from dataclasses import dataclass

from regbot.forge.archive import only_member
from regbot.forge.client import Forge, ForgeError, RefusedError
from regbot.forge.commands import Bisect, parse
from regbot.forge.history import MISSING, within
from regbot.forge.left import Unusable, artifact_of
from regbot.forge.metadata import BISECT, Ignored
from regbot.forge.permission import may, needed
from regbot.forge.replies import FAULT, bring_up_to_date, marker
from regbot.forge.start import nonce_of
from regbot.forge.types import Comment, WorkflowRun
from regbot.records.bisection import Bisection
from regbot.records.files import MAX_RECORD_BYTES, parse_record
from regbot.report.bisection_comment import bisection_comment, linked
from regbot.report.markdown import Said, Words, code, sentence

ARTIFACT = "regbot-bisection"
MEMBER = "bisection.json"
MARKER = "<!-- regbot:bisect "
_TITLE = re.compile(r"regbot-bisect ([1-9]\d{0,8}) ([0-9a-f]{40}) ([0-9a-f]{40}) ([0-9a-f]{16})")
_PAGE = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True)
class Answered:
    """The reply that stands in the pull request ``number``. ``new``: it was written, or changed, now.

    ``fault``: the traceback where regbot itself failed on what the run left; it is for the job's log.
    """

    number: int
    text: str
    new: bool
    fault: str = ""


@dataclass(frozen=True)
class Question:
    """What was asked, by the title of the run."""

    run: WorkflowRun
    number: int
    good: str
    bad: str
    nonce: str


def post_bisection(forge: Forge, run: WorkflowRun, bot: str) -> Answered | Ignored:
    """Reply with the answer of a run of regbot-bisect, or with why there is none; to do it again changes nothing.

    Ignored: a run that regbot-gate did not start, or whose question does not stand any more. It may still be under way:
    its last job is the one that replies. ``bot``: our login. Raises ForgeError.
    """
    asked = _question(forge, run)
    if asked is None:
        return Ignored(f"run {run.id} was not started by regbot-gate")
    if why := _unasked(forge, asked, bot):
        return Ignored(f"run {run.id} answers no question of #{asked.number}: {why}")
    fault = ""
    try:
        result = _answer(forge, asked)
        text = bisection_comment(result, _commits(run))
    except Unusable as error:
        text = _no_answer(asked, error.said)
    except ForgeError:
        raise
    except Exception as error:  # the record was written where a pull request's code ran: whoever asked is told
        text, fault = _no_answer(asked, (f"regbot failed on it ({type(error).__name__})",)), traceback.format_exc()
    new = bring_up_to_date(forge, asked.number, f"{MARKER}{run.id} -->", text, bot)
    return Answered(asked.number, text, new, fault)


def _question(forge: Forge, run: WorkflowRun) -> Question | None:
    """What a run answers, by what GitHub says of it."""
    title = _TITLE.fullmatch(run.title)
    ours = {run.repository.casefold(), run.head_repository.casefold()} == {forge.repository.casefold()}
    if title is None or run.path != BISECT or run.event != "workflow_dispatch" or not ours:
        return None
    branch = forge.default_branch()
    if run.head_branch != branch or not within(forge, run.head_sha, forge.tip(branch)):  # of a tag of its name
        return None
    return Question(run, int(title[1]), title[2], title[3], title[4])


def _unasked(forge: Forge, asked: Question, bot: str) -> str:
    """Why regbot-gate cannot have started the run: no comment asks for it, or none that it would obey; '' if it can."""
    try:
        forge.pull(asked.number)
        comments = forge.comments(asked.number)
    except RefusedError as error:
        if error.status not in MISSING:
            raise
        return "it is no pull request"
    comment = next((each for each in comments if _nonce(forge, asked, each) == asked.nonce), None)
    if comment is None:
        return "none of its comments has this nonce"
    command = None if comment.bot or comment.created != comment.updated else parse(comment.body)
    if not isinstance(command, Bisect) or (command.good, command.bad) != (asked.good, asked.bad):
        return f"comment {comment.id} does not ask for this range, or was edited"
    role = forge.role(comment.author)
    if not may(role, needed(command)):
        return f"comment {comment.id} is by somebody with the role {role}"
    refused = marker(f"comment:{comment.id}")
    if any(each.author == bot and each.body.startswith(refused) and FAULT not in each.body for each in comments):
        return f"comment {comment.id} was refused"
    return ""


def _nonce(forge: Forge, asked: Question, comment: Comment) -> str:
    return nonce_of(forge.repository, asked.number, "comment", comment.id)


def _commits(run: WorkflowRun) -> str:
    """What the id of a commit is put behind for a link: the repository's page, by GitHub's own account."""
    page, actions, _ = run.url.partition("/actions/runs/")
    if not actions or not _PAGE.fullmatch(page):
        raise ForgeError(f"GitHub does not say on which page run {run.id} is")
    return f"{page}/commit/"


def _answer(forge: Forge, asked: Question) -> Bisection:
    def read(archive: bytes) -> Bisection:
        data = only_member(archive, MEMBER, MAX_RECORD_BYTES, "the artifact")
        return parse_record(data, Bisection, "the artifact")

    result = artifact_of(forge, asked.run.id, ARTIFACT, MAX_RECORD_BYTES, read)
    if (result.good.commit, result.bad.commit) != (asked.good, asked.bad) or result.axis or result.on == "command":
        raise Unusable("what the job left answers another question")
    for point in {each.key: each for each in linked(result)}.values():
        if point.version or not _between(forge, point.commit, asked):
            raise Unusable("what the job left names a commit that is not in the range: ", Said(point.commit))
    return result


def _between(forge: Forge, commit: str, asked: Question) -> bool:
    """Whether ``commit`` is in the history of bad and not in that of good."""
    return within(forge, commit, asked.bad) and not within(forge, commit, asked.good)


def _no_answer(asked: Question, said: Words) -> str:
    ends = f"{code(asked.good[:12])} to {code(asked.bad[:12])}"
    return f"### ⛔ NO ANSWER: {sentence(said)}\n\nThe range was {ends}.\n"
