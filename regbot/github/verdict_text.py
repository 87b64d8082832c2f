"""Text around a verdict on GitHub: origin of the result, acceptance, and commands that people can give next. It stands
below the first line of the report, so that readers see the verdict first."""

import re
from collections.abc import Iterator, Sequence

from regbot.github.artifact import ARTIFACT
from regbot.github.checks import BLOCKING_CONCLUSIONS, conclude_without_shadow, get_mildest_conclusion
from regbot.github.declarations import ReviewAcceptance
from regbot.github.metadata import Subject
from regbot.github.stamped_text import MAX_CHARACTERS
from regbot.github.types import WorkflowRun
from regbot.records.config import GitHub
from regbot.records.session import Session
from regbot.records.text.clip import short_commit
from regbot.records.verdict import Status, Verdict
from regbot.report import comment_parts
from regbot.report import headline as wording
from regbot.report.markdown import LOG_LINE_CHARACTERS, Markdown, Words, code, fence, prose, sentence, visible
from regbot.report.state import prepare_check

HEADLINE_CHARACTERS = 160
MAX_RULES = 3
RESERVED_CHARACTERS = 4_000
"""Characters that are reserved for the stamp, the banners and the line about an INVALID measurement."""
_URL = re.compile(r"https?://[A-Za-z0-9.:/_-]{1,200}")

WRITER, MAINTAINER = "Somebody with the role `write` can", "Somebody with the role `maintain` can"
SuggestedCommand = tuple[str, str]


def write_title(verdict: Verdict, session: Session, status: Status, subject: Subject, github: GitHub) -> str:
    """Return the title of the check run as plain text. ``status`` is PASS if a REVIEW verdict was accepted; otherwise
    it is the status of ``verdict``."""
    parts = wording.headline(prepare_check(verdict, session))
    headline = "".join(visible(str(part), HEADLINE_CHARACTERS) for part in parts)
    status_text = f"{status}, accepted" if status != verdict.verdict else status
    return visible(f"{_write_prefix(subject, github)}{status_text}: {headline}", HEADLINE_CHARACTERS)


def write_invalid_title(reason: Words, subject: Subject, github: GitHub) -> str:
    """Return the title of the check run if a result could not be judged, as plain text."""
    text = "".join(visible(str(part), HEADLINE_CHARACTERS) for part in reason)
    return visible(f"{_write_prefix(subject, github)}INVALID: {text}", HEADLINE_CHARACTERS)


def write_verdict_text(
    verdict: Verdict, session: Session, subject: Subject, acceptance: ReviewAcceptance | None, github: GitHub
) -> str:
    """Return the report on a verdict with the text around it, as markdown without the stamp. ``acceptance`` is the
    acceptance of a REVIEW verdict, which makes it a PASS; None if nobody accepted it."""
    report = comment_parts(verdict, session, is_self_reported=subject.tier == "static")
    if acceptance is not None:
        status: Status = "PASS"
        heading = f"### ✅ PASS: accepted by {code(acceptance.login)}"
        acceptance_lines = [
            heading,
            f"The reason: {prose(acceptance.reason, 500)}",
            "This is the accepted verdict, as it was before:",
        ]
        suggestions: list[SuggestedCommand] = []
    else:
        status = verdict.verdict
        acceptance_lines = []
        suggestions = list(_list_suggestions(verdict, subject))
    notes = [f"> {note}" for note in _write_notes(status, subject, github)]
    return _join_within_limit(
        [*acceptance_lines, report.heading, *notes, report.body, _locate_report(verdict)],
        _write_suggestions(suggestions, subject),
        report.sections,
    )


def write_invalid_text(reason: Words, subject: Subject, github: GitHub) -> str:
    """Return the text to post if a result could not be judged: the reason, and what to do."""
    url = subject.run.url
    log_link = f" The log is in [the run]({url})." if _URL.fullmatch(url) else ""
    parts = [f"### ⛔ INVALID: {sentence(reason)}"]
    parts += [f"> {note}" for note in _write_notes("INVALID", subject, github, has_result=False)]
    parts.append(
        f"Nothing is known about {code(short_commit(subject.sha))}: this is neither a pass nor a regression.{log_link}"
    )
    suggestions = []
    if subject.number:  # 0 for a merge group, which no command can measure
        suggestions = [(f"{WRITER} start a measurement with", f"/regbot run {subject.sha}")]
    return _join_within_limit(parts, _write_suggestions(suggestions, subject), sections="")


def _write_prefix(subject: Subject, github: GitHub) -> str:
    """Return the words before the verdict in a title. They name the shadow mode and a self-reported result; '' if
    neither applies."""
    shadow_text = "shadow, nothing is blocked: " if github.shadow else ""
    return f"{shadow_text}self-reported " if subject.tier == "static" else shadow_text


def _write_notes(status: Status, subject: Subject, github: GitHub, *, has_result: bool = True) -> Iterator[Markdown]:
    """Yield the notes below the headline: shadow mode, whether the result blocks the merge, and the origin of the
    result. ``has_result`` is False if the job uploaded no usable result."""
    mildest_conclusion = get_mildest_conclusion(github, subject.tier, subject.number)
    is_blocking = conclude_without_shadow(status, github, mildest_conclusion) in BLOCKING_CONCLUSIONS
    if github.shadow:
        effect = "would have stopped" if is_blocking else "would not have stopped"
        yield Markdown(f"👁️ **Shadow mode:** nothing is blocked. regbot {effect} this change.")
    elif status not in ("PASS", "FAIL"):
        effect = "blocks the merge if" if is_blocking else "does not block the merge, even if"
        yield Markdown(f"This {status} {effect} the check `regbot` is required.")
    if subject.tier == "static":
        # The number is 0 for a merge group.
        origin = "this pull request" if subject.number else "this merge group"
        # For a measured result, the mildest allowed conclusion is "success".
        would_block_if_measured = conclude_without_shadow(status, github, mildest="success") in BLOCKING_CONCLUSIONS
        would_measurement_unblock = is_blocking and not would_block_if_measured and not github.shadow
        verb = "traced" if has_result else "should have traced"
        consequence = ", and could so have forged this result" if has_result else ""
        advice = " The check blocks this change until a measurement has passed." if would_measurement_unblock else ""
        yield Markdown(
            f"🔎 **Self-reported:** a job of {origin} {verb} this commit. {origin[:1].upper()}{origin[1:]} may have "
            f"changed the workflow file and the code of that job{consequence}. Nothing was timed.{advice}"
        )


def _list_suggestions(verdict: Verdict, subject: Subject) -> Iterator[SuggestedCommand]:
    """Yield the commands that people can give after this verdict. For a merge group, people comment on its last pull
    request."""
    sha, status = subject.sha, verdict.verdict
    is_merge_group = subject.number == 0
    if is_merge_group:
        if status == "REVIEW":
            alone_text = ", as the only pull request of its group" if subject.has_other_pulls else ""
            pull = f"#{subject.comment_number}"
            text = (
                f"{MAINTAINER} accept this REVIEW for the head of {pull}, by this comment in {pull}, and then has to "
                f"queue {pull} again{alone_text}:"
            )
            yield text, f"/regbot accept {subject.acceptance_sha}: why"
        return
    if subject.tier == "static" or status == "INVALID":  # a static result is self-reported
        yield (
            f"{WRITER} start a measurement by a workflow that this pull request cannot change, with",
            f"/regbot run {sha}",
        )
    elif status == "INCONCLUSIVE" and any(
        entry.throughput is not None and entry.throughput.status == status for entry in verdict.workloads
    ):
        yield f"{WRITER} request more timed pairs with", f"/regbot more {sha}"
    if status == "REVIEW":
        yield f"{MAINTAINER} accept this REVIEW for this commit and its merge group with", f"/regbot accept {sha}: why"
    expect_lines = list(_list_expect_lines(verdict))[:MAX_RULES]
    if expect_lines:
        text = f"{WRITER} declare an intended change of the sharding, for all later commits too, with"
        yield text, "\n".join(expect_lines)
    if subject.tier == "measured" and status == "FAIL":
        text = f"{WRITER} search for the commit that caused the regression with"
        yield text, f"/regbot bisect {verdict.base.commit}..{sha}"


def _list_expect_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the ``/regbot expect`` lines that declare the findings with FAIL or REVIEW. A finding of all workloads gets
    one line with ``*`` instead of the workload. A line that a reader cannot copy, because it is cut off or has
    invisible characters, is left out."""
    names_by_finding: dict[tuple[str, str], list[str]] = {}
    for entry in verdict.workloads:
        for finding in entry.findings:
            if finding.status in ("FAIL", "REVIEW"):
                names_by_finding.setdefault((finding.pattern, finding.axis), []).append(entry.name)
    for (pattern, axis), names in names_by_finding.items():
        is_in_all = len(set(names)) == len(verdict.workloads)
        for name in ["*"] if is_in_all else names:
            line = f"/regbot expect {pattern}@{axis}@{name}: why this is intended"
            if visible(line, len(line)) == line and len(line) < LOG_LINE_CHARACTERS:
                yield line


def _write_suggestions(suggestions: Sequence[SuggestedCommand], subject: Subject) -> list[str]:
    if not suggestions:
        return []
    # The number is 0 for a merge group, whose last pull request takes the comments.
    target = "this pull request" if subject.number else f"#{subject.comment_number}"
    steps = [f"{text}\n\n{fence(line)}" for text, line in suggestions]
    return [f"#### On {target}", "Post each command as a comment of its own, without other text.", *steps]


def _join_within_limit(parts: Sequence[str], optional_parts: Sequence[str], sections: str) -> str:
    """Return all parts as one text: ``parts``, then ``optional_parts``, then ``sections``.

    If the text is too long, the ``optional_parts`` are left out, and the end is cut off if the rest is still too long.
    """
    max_characters = MAX_CHARACTERS - RESERVED_CHARACTERS
    full_text, short_text = (
        "\n\n".join(part for part in [*parts, *options, sections] if part) + "\n" for options in (optional_parts, ())
    )
    return full_text if len(full_text) <= max_characters else short_text[:max_characters]


def _locate_report(verdict: Verdict) -> str:
    """Return how to get ``report.html``, to which the advice about timed runs refers. Return '' for a PASS, and if no
    runs were timed."""
    if verdict.verdict == "PASS" or not any(entry.throughput for entry in verdict.workloads):
        return ""
    command = "`regbot judge session.jsonl --out report`"
    return f"`report.html`: download the artifact `{ARTIFACT}` of the workflow run, and type {command}."


def explain_failed_run(run: WorkflowRun) -> str:
    known_endings = {"cancelled": "was cancelled", "timed_out": "ran into its time limit", "skipped": "was skipped"}
    return f"the job for this commit {known_endings.get(run.conclusion or '', 'failed')}"
