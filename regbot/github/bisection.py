"""Reply to a comment that asked for a bisection. There is one reply, however often the job runs.

Two inputs are not trusted. Anybody with the role write can start a run with any title, so the pull request must have a
comment with the same nonce, whose command was not refused. The job that wrote the artifact also ran a pull request's
code, so a result is not posted if it is for another range, or names a commit outside the range.
"""

import re
import traceback
from dataclasses import dataclass

from regbot.github.artifact import UnusableArtifact, read_newest_artifact, read_single_file
from regbot.github.client import Forge, ForgeError, MissingError
from regbot.github.commands import Command, get_required_role, has_role, parse_command
from regbot.github.metadata import BISECT, IgnoredRun
from regbot.github.replies import build_marker, reply_once
from regbot.github.types import WorkflowRun
from regbot.github.workflow_start import compute_nonce
from regbot.records.bisection import Bisection
from regbot.records.files import MAX_RECORD_BYTES, parse_record
from regbot.records.text.clip import short_commit
from regbot.report.bisection import bisection_page, list_named_points
from regbot.report.markdown import UntrustedText, code, sentence

ARTIFACT = "regbot-bisection"
MEMBER = "bisection.json"
"""Name of the only file in the artifact."""
MARKER = "<!-- regbot:bisect "
"""Start of the invisible first line of a reply. The id of the workflow run follows."""
_TITLE = re.compile(r"regbot-bisect ([1-9]\d{0,8}) ([0-9a-f]{40}) ([0-9a-f]{40}) ([0-9a-f]{16})")


@dataclass(frozen=True)
class BisectionReply:
    number: int
    text: str
    is_new: bool
    """Whether this call wrote or changed the reply."""
    fault: str = ""
    """Traceback for the job's log if regbot failed on the run's artifact; '' if it did not fail."""


@dataclass(frozen=True)
class BisectionRequest:
    """A requested bisection, parsed from the title of its workflow run."""

    run: WorkflowRun
    number: int
    good: str
    bad: str
    nonce: str


def post_bisection(forge: Forge, run: WorkflowRun, bot: str) -> BisectionReply | IgnoredRun:
    """Reply with the result of a regbot-bisect run, or with the reason why the run has no result. A second call changes
    nothing. The run may still be in progress, because its last job posts the reply. Raises ForgeError."""
    request = _read_request(forge, run)
    if request is None:
        return IgnoredRun(f"run {run.id} was not started by regbot-gate")
    if why_unrequested := _explain_unrequested(forge, request, bot):
        return IgnoredRun(f"run {run.id} answers no request of #{request.number}: {why_unrequested}")
    fault, failure = "", None
    try:
        text = bisection_page(_read_result(forge, request))
    except UnusableArtifact as error:
        failure = error.reason
    except ForgeError:
        raise
    except Exception as error:  # a pull request's code wrote the record and may break regbot; the failure is posted
        failure = (f"regbot failed on the job's artifact ({type(error).__name__})",)
        fault = traceback.format_exc()
    if failure is not None:
        endpoints = f"{code(short_commit(request.good))} to {code(short_commit(request.bad))}"
        text = f"### ⛔ NO ANSWER: {sentence(failure)}\n\nThe requested range was {endpoints}.\n"
    is_new = reply_once(forge, request.number, f"{MARKER}{run.id} -->", text, bot, update=True)
    return BisectionReply(request.number, text, is_new, fault)


def _read_request(forge: Forge, run: WorkflowRun) -> BisectionRequest | None:
    title_match = _TITLE.fullmatch(run.title)
    is_of_this_repository = {run.repository.casefold(), run.head_repository.casefold()} == {forge.repository.casefold()}
    is_bisection = run.path == BISECT and run.event == "workflow_dispatch"
    if title_match is None or not is_bisection or not is_of_this_repository:
        return None
    branch = forge.default_branch()
    # The run may be of a tag with the branch's name.
    if run.head_branch != branch or not forge.is_ancestor(run.head_sha, forge.tip(branch)):
        return None
    number, good, bad, nonce = title_match.groups()
    return BisectionRequest(run=run, number=int(number), good=good, bad=bad, nonce=nonce)


def _explain_unrequested(forge: Forge, request: BisectionRequest, bot: str) -> str:
    """Return why nobody requested the run; '' if a comment requested the run and regbot-gate did not refuse it."""
    try:
        forge.pull(request.number)  # raises RefusedError if the number is no pull request
        comments = forge.comments(request.number)
    except MissingError:
        return "this number is no pull request"
    # regbot-gate computes the nonce of a command in the same way.
    nonces = {compute_nonce(forge.repository, request.number, "comment", comment.id): comment for comment in comments}
    comment = nonces.get(request.nonce)
    if comment is None:
        return "none of its comments has this nonce"
    command = None if comment.bot or comment.is_edited else parse_command(comment.body)
    asked = (command.verb, command.good, command.sha) if isinstance(command, Command) else None
    if not isinstance(command, Command) or asked != ("bisect", request.good, request.bad):
        return f"comment {comment.id} does not ask for this range, or the comment was edited"
    role = forge.role(comment.author)
    if not has_role(role, get_required_role(command)):
        return f"the author of comment {comment.id} has only the role {role}"
    first_line = build_marker(f"comment:{comment.id}")
    is_refused = any(reply.author == bot and reply.body.startswith(first_line) for reply in comments)
    return f"comment {comment.id} was refused" if is_refused else ""


def _read_result(forge: Forge, request: BisectionRequest) -> Bisection:
    """Return the result in the run's artifact. Raises UnusableArtifact if the result does not answer ``request``."""

    def read(archive: bytes) -> Bisection:
        data = read_single_file(archive, MEMBER, MAX_RECORD_BYTES, "the artifact")
        return parse_record(data, Bisection, "the artifact")

    result = read_newest_artifact(forge, request.run.id, ARTIFACT, MAX_RECORD_BYTES, read)
    is_same_range = (result.good.commit, result.bad.commit) == (request.good, request.bad)
    # A comment can request neither a search over versions of a dependency nor a search by a command.
    is_requestable = not result.axis and result.on != "command"
    if not is_same_range or not is_requestable:
        raise UnusableArtifact("the job's artifact answers another request")
    # The reply accuses these points, so each of them must be a commit in the range, and not a version of a dependency.
    named_points = {point.key: point for point in list_named_points(result)}
    for point in named_points.values():
        is_in_range = forge.is_ancestor(point.commit, request.bad) and not forge.is_ancestor(point.commit, request.good)
        if point.version or not is_in_range:
            raise UnusableArtifact("the job's artifact names a commit outside the range: ", UntrustedText(point.commit))
    return result
