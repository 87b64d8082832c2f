"""The words around a verdict on GitHub: where it came from, who accepted it, and what can be typed next.

``regbot.report`` writes the verdict and knows nothing of GitHub. What is added here stands below its first line, so
that the verdict stays what is read first.
"""

import re
from collections.abc import Iterator, Sequence

from regbot.config import GitHub
from regbot.forge.checks import STOPPING, would_be
from regbot.forge.metadata import Subject
from regbot.forge.people import Acceptance
from regbot.forge.shown import MAX_CHARACTERS
from regbot.forge.types import WorkflowRun
from regbot.records.session import Session
from regbot.records.verdict import Status, Verdict
from regbot.report import comment, wording
from regbot.report.comment import MARKER
from regbot.report.markdown import LOG_LINE_CHARACTERS, Markdown, Words, code, fence, prose, sentence, visible
from regbot.report.state import check_of

HEADLINE_CHARACTERS = 160
RULES_SHOWN = 3
FOLD = "\n<details>\n"
"""Where what is folded begins in a report."""
ROOM = 4_000
"""Characters left to the stamp, to what is said above a text, and to a measurement that came to nothing."""
_URL = re.compile(r"https?://[A-Za-z0-9.:/_-]{1,200}")

Line = tuple[str, str]
"""A sentence of ours, and the line that can be typed."""


def title(verdict: Verdict, session: Session, status: Status, subject: Subject, github: GitHub) -> str:
    """Of the check run: plain text."""
    told = "".join(visible(str(part), HEADLINE_CHARACTERS) for part in wording.headline(check_of(verdict, session)))
    word = f"{status}, accepted" if status != verdict.verdict else status
    return visible(f"{_before(subject, github)}{word}: {told}", HEADLINE_CHARACTERS)


def invalid_title(said: Words, subject: Subject, github: GitHub) -> str:
    """Of a check run without a verdict."""
    told = "".join(visible(str(part), HEADLINE_CHARACTERS) for part in said)
    return visible(f"{_before(subject, github)}INVALID: {told}", HEADLINE_CHARACTERS)


def verdict_text(
    verdict: Verdict, session: Session, subject: Subject, acceptance: Acceptance | None, github: GitHub
) -> str:
    """The report of a verdict with everything around it, as markdown below the stamp."""
    report = comment(verdict, session).removeprefix(MARKER).lstrip("\n")
    first, _, rest = report.partition("\n")
    status: Status = verdict.verdict
    top = []
    if acceptance is not None:
        status = "PASS"
        who = f"### ✅ PASS: accepted by {code(acceptance.login)}"
        top = [who, f"The reason: {prose(acceptance.reason, 500)}", "What was accepted:"]
    notes = [f"> {note}" for note in _notes(status, subject, github)]
    told, fold, folded = rest.strip("\n").partition(FOLD)
    lines = [] if acceptance is not None else [*_next(verdict, subject)]
    return _fitted([*top, first, *notes, told.rstrip("\n")], _typed(lines, subject), fold.lstrip("\n") + folded)


def invalid_text(said: Words, subject: Subject, github: GitHub) -> str:
    """The text where there is no verdict: why, in a sentence, and what to do."""
    parts = [f"### ⛔ INVALID: {sentence(said)}"]
    parts += [f"> {note}" for note in _notes("INVALID", subject, github)]
    parts.append(f"Nothing is said of {code(subject.sha[:12])}: it is neither a pass nor a regression.{_log(subject)}")
    lines = []
    if subject.number:
        lines = [("Somebody with the role write has it measured with", f"/regbot run {subject.sha}")]
    return _fitted(parts, _typed(lines, subject), "")


def _before(subject: Subject, github: GitHub) -> str:
    """What has to be known before the verdict is read."""
    mode = "shadow, nothing is blocked: " if github.shadow else ""
    return f"{mode}self-reported " if subject.tier == "static" else mode


def _notes(status: Status, subject: Subject, github: GitHub) -> Iterator[Markdown]:
    stops = would_be(status, github, subject.self_reported) in STOPPING
    if github.shadow:
        would = "would have stopped" if stops else "would not have stopped"
        yield Markdown(f"👁️ **Shadow mode:** nothing is blocked. regbot {would} this change.")
    if subject.tier == "static":
        of = "this pull request" if subject.number else "this merge group"
        waits = stops and would_be(status, github) not in STOPPING and not github.shadow
        yield Markdown(
            f"🔎 **Self-reported:** a job of {of} traced this, with a workflow file and code that it may have changed. "
            f"Nothing was timed.{' The check stops this change until somebody has it measured.' if waits else ''}"
        )


def _next(verdict: Verdict, subject: Subject) -> Iterator[Line]:
    """What can be typed about this verdict on the pull request, or on that which the merge group ends with."""
    sha, status = subject.sha, verdict.verdict
    if not subject.number:
        if status == "REVIEW":
            told = f"Somebody with the role maintain accepts it in #{subject.people}, before that is queued again, with"
            yield told, f"/regbot accept {subject.accepted}: why"
        return
    if subject.tier == "static" or status == "INVALID":
        told = "Somebody with the role write has it measured, apart from the pull request's own jobs, with"
        yield told, f"/regbot run {sha}"
    elif status == "INCONCLUSIVE":
        yield "Somebody with the role write has more pairs timed with", f"/regbot more {sha}"
    if status == "REVIEW":
        told = "Somebody with the role maintain accepts it, for this commit and the merge group that ends with it, with"
        yield told, f"/regbot accept {sha}: why"
    rules = [rule for rule in _rules(verdict) if visible(rule, len(rule)) == rule and len(rule) < LOG_LINE_CHARACTERS]
    if rules:
        yield "Somebody with the role write declares a change as meant with", "\n".join(rules[:RULES_SHOWN])
    if subject.tier == "measured" and status == "FAIL":
        told = "Somebody with the role write has the commit found that did it with"
        yield told, f"/regbot bisect {verdict.base.commit}..{sha}"


def _rules(verdict: Verdict) -> list[str]:
    """The lines that declare what was found, one for each change that several workloads share."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in verdict.workloads:
        for finding in entry.sharding.findings if entry.sharding is not None else ():
            if finding.status in ("FAIL", "REVIEW"):
                found.setdefault((finding.pattern, finding.axis), []).append(entry.name)
    return [
        f"/regbot expect {pattern}@{axis}@{name}: why this is meant"
        for (pattern, axis), names in found.items()
        for name in (names if len(set(names)) < len(verdict.workloads) else ["*"])
    ]


def _typed(lines: Sequence[Line], subject: Subject) -> list[str]:
    if not lines:
        return []
    on = "this pull request" if subject.number else f"#{subject.people}"
    steps = [f"{told}\n\n{fence(line)}" for told, line in lines]
    return [f"#### On {on}", "One line is one comment, with nothing before it.", *steps]


def _fitted(parts: Sequence[str], more: Sequence[str], folded: str) -> str:
    """All of it, or without ``more`` where that would be too long."""
    whole, short = (
        "\n\n".join(part for part in chosen if part) + "\n" for chosen in ([*parts, *more, folded], [*parts, folded])
    )
    most = MAX_CHARACTERS - ROOM
    return whole if len(whole) <= most else short[:most]


def _log(subject: Subject) -> str:
    url = subject.run.url
    return f" The log is in [the run]({url})." if _URL.fullmatch(url) else ""


def failed(run: WorkflowRun) -> Words:
    """Why a job that did not end well left no verdict."""
    return (f"the job that was to measure it {_ENDED.get(run.conclusion or '', 'failed')}",)


_ENDED = {
    "cancelled": "was cancelled",
    "timed_out": "ran into its time limit",
    "skipped": "was skipped",
    "startup_failure": "could not be started",
    "stale": "was given up by GitHub, because no machine took it",
}
