"""The answer of a bisection that somebody asked for in a pull request: one reply, however often its job is run.

Which pull request it is for and between which commits was searched is told by the title of the run, which regbot-gate
gave it. The artifact was written where the code of a pull request ran: an answer to another question, or one that names
a commit outside of the range, is not repeated.
"""

import re
import traceback
from dataclasses import dataclass

from regbot.forge.archive import only_member
from regbot.forge.client import Forge, ForgeError, RefusedError, TooLargeError
from regbot.forge.metadata import BISECT
from regbot.forge.types import Comment, WorkflowRun
from regbot.records.bisection import Bisection
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_record
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


class _Unusable(Exception):
    """There is no answer to repeat. ``said``: why, in a sentence."""

    def __init__(self, *said: str) -> None:
        super().__init__("".join(said))
        self.said: Words = said


def post_bisection(forge: Forge, run: WorkflowRun, bot: str) -> Answered | None:
    """Reply with the answer of a run of regbot-bisect, or with why there is none; to do it again changes nothing.

    None for a run that regbot-gate did not start. It may still be under way: its last job is the one that replies.
    ``bot``: our login. Raises ForgeError.
    """
    asked = _question(forge, run)
    if asked is None:
        return None
    fault = ""
    try:
        result = _answer(forge, asked)
        text = bisection_comment(result, _commits(run))
    except _Unusable as error:
        text = _no_answer(asked, error.said)
    except ForgeError:
        raise
    except Exception as error:  # the record was written where a pull request's code ran: whoever asked is told
        text, fault = _no_answer(asked, (f"regbot failed on it ({type(error).__name__})",)), traceback.format_exc()
    return _replied(forge, asked, text, bot, fault)


def _question(forge: Forge, run: WorkflowRun) -> Question | None:
    """What a run answers, by what GitHub says of it."""
    title = _TITLE.fullmatch(run.title)
    ours = {run.repository.casefold(), run.head_repository.casefold()} == {forge.repository.casefold()}
    if title is None or run.path != BISECT or run.event != "workflow_dispatch" or not ours:
        return None
    branch = forge.default_branch()
    if run.head_branch != branch or not _within(forge, run.head_sha, forge.tip(branch)):  # of a tag of its name
        return None
    return Question(run, int(title[1]), title[2], title[3])


def _commits(run: WorkflowRun) -> str:
    """What the id of a commit is put behind for a link: the repository's page, by GitHub's own account."""
    page, actions, _ = run.url.partition("/actions/runs/")
    if not actions or not _PAGE.fullmatch(page):
        raise ForgeError(f"GitHub does not say on which page run {run.id} is")
    return f"{page}/commit/"


def _answer(forge: Forge, asked: Question) -> Bisection:
    found = [each for each in forge.artifacts(asked.run.id) if each.name == ARTIFACT and not each.expired]
    if not found:
        raise _Unusable("the job left no answer; its log says why")
    if found[-1].size > MAX_RECORD_BYTES:
        raise _Unusable(f"what the job left has more than {MAX_RECORD_BYTES:,} bytes, and was not read")
    try:
        archive = forge.download(found[-1].id, MAX_RECORD_BYTES)
        data = only_member(archive, MEMBER, MAX_RECORD_BYTES, "the artifact")
        result = parse_record(data, Bisection, "the artifact")
    except (RecordError, TooLargeError) as error:
        raise _Unusable("what the job left cannot be read: ", Said(str(error))) from error
    if (result.good.commit, result.bad.commit) != (asked.good, asked.bad) or result.axis or result.on == "command":
        raise _Unusable("what the job left answers another question")
    for point in {each.key: each for each in linked(result)}.values():
        if point.version or not _between(forge, point.commit, asked):
            raise _Unusable("what the job left names a commit that is not in the range: ", Said(point.commit))
    return result


def _between(forge: Forge, commit: str, asked: Question) -> bool:
    """Whether ``commit`` is in the history of bad and not in that of good."""
    return _within(forge, commit, asked.bad) and not _within(forge, commit, asked.good)


def _within(forge: Forge, commit: str, tip: str) -> bool:
    """Whether ``commit`` is in the history of ``tip``; one that GitHub does not know is not."""
    try:
        return forge.merge_base(tip, commit) == commit
    except RefusedError as error:
        if error.status in (404, 422):
            return False
        raise


def _no_answer(asked: Question, said: Words) -> str:
    ends = f"{code(asked.good[:12])} to {code(asked.bad[:12])}"
    return f"### ⛔ NO ANSWER: {sentence(said)}\n\nThe range was {ends}.\n"


def _replied(forge: Forge, asked: Question, text: str, bot: str, fault: str) -> Answered:
    first = f"{MARKER}{asked.run.id} -->"
    body = f"{first}\n{text}"

    def there() -> Comment | None:
        written = (comment for comment in forge.comments(asked.number) if comment.author == bot)
        return next((comment for comment in written if comment.body.startswith(first)), None)

    comment = there()
    if comment is not None and comment.body.replace("\r\n", "\n").strip() == body.strip():
        return Answered(asked.number, text, False, fault)
    if comment is None:
        forge.create_comment(asked.number, body, there)
    else:
        forge.edit_comment(comment.id, body)
    return Answered(asked.number, text, True, fault)
