"""Write the pull request comment: verdict, three answers, two tables, findings and next steps. Evidence is in folded
sections.

GitHub rejects comments above 65,536 characters, so every part has a limit. Where a part is cut, a line says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from regbot.records.run import Arm
from regbot.records.session import Session
from regbot.records.text.clip import short_commit
from regbot.records.text.words import listed
from regbot.records.verdict import Verdict
from regbot.report import advice, table
from regbot.report import details as folded
from regbot.report import headline as wording
from regbot.report.advice import NextStep, SharedFinding
from regbot.report.answers import answer_questions
from regbot.report.baseline_row import describe_stored_collectives, describe_stored_times
from regbot.report.markdown import Markdown, Name, code, fence, fit, printed, prose, sentence
from regbot.report.not_measured import list_unmeasured
from regbot.report.sizes import ADVICE, name_small_variants
from regbot.report.state import Check, State, prepare_check
from regbot.report.step_times import step_times

MARKER = "<!-- regbot:verdict -->"
"""First line of the comment. It identifies the comment when a later version replaces it."""

LIMIT = 64_000
"""Maximum number of characters of the comment. The rest up to GitHub's limit of 65,536 is left for text that
``regbot.github`` adds."""

TABLE_BUDGET = 12_000
TIMES_BUDGET = 4_000
BASELINE_BUDGET = 3_000
FINDINGS_BUDGET = 10_000
STEPS_BUDGET = 10_000
WARNINGS_BUDGET = 3_000
"""Largest numbers of characters of the parts of the comment."""

MAX_NAMES = 6
"""Largest number of names in a list of names."""
MAX_SETTINGS = 3
"""Largest number of changed settings that are shown for a workload."""


@dataclass(frozen=True)
class CommentParts:
    """The comment in three parts of markdown, so that ``regbot.github`` can put text between them."""

    heading: str
    """The status and the headline, in one line."""
    body: str
    """Everything between the heading and the folded sections."""
    sections: str
    """The folded sections, '' if there are none."""


def comment(verdict: Verdict, session: Session) -> str:
    """Return the comment as GitHub-flavoured markdown, below 65,000 characters for any input."""
    parts = comment_parts(verdict, session)
    text = "\n\n".join(filter(None, (f"{MARKER}\n{parts.heading}", parts.body, parts.sections)))
    return f"{text}\n"


def comment_parts(verdict: Verdict, session: Session, *, is_self_reported: bool = False) -> CommentParts:
    """Return the parts of the comment, without the marker. ``is_self_reported``: a job that the pull request controls
    reported the result, so the answer about trust refers to the note that says so."""
    check = prepare_check(verdict, session)
    heading = f"### {wording.icon(check)} {wording.word(check)}: {printed(wording.headline(check))}"
    body = (
        _build_environment()
        .get_template("comment.md.j2")
        .render(
            arms=_format_arms(verdict.base, verdict.head),
            subject=Name(verdict.head.subject),
            answers=_write_answers(check, is_self_reported),
            tables=_write_tables(check),
            baseline=_write_baseline_rows(check),
            unmeasured=list_unmeasured(verdict, session.header, has_other_operators=check.has_only_other_operators),
            findings=_write_findings(check),
            steps=_write_steps(check),
            warnings=_write_warnings(check),
            compared=any(entry.judged for entry in check.entries),  # whether the ledgers of any workload were compared
            # The names of the small variants that were judged, and the advice how to judge the full model.
            small=name_small_variants(entry.verdict.sharding for entry in check.entries),
            full=ADVICE,
            regbot=session.header.regbot,
        )
    )
    room = LIMIT - len(MARKER) - len(heading) - len(body)
    sections = _write_folded_sections(folded.folded_sections(check), room)
    return CommentParts(heading=heading, body=body.strip(), sections=sections)


def _format_arms(base: Arm, head: Arm) -> Markdown:
    """Return the commits of both arms with their overrides. If both arms are the same commit with different overrides,
    the commit is named once."""
    if base.commit == head.commit and base.overrides and head.overrides:
        settings = (code(wording.overrides(arm)) for arm in (base, head))
        return Markdown(f"commit {code(short_commit(head.commit))} with {' → '.join(settings)}")
    return Markdown(f"base {_format_arm(base)} → head {_format_arm(head)}")


def _format_arm(arm: Arm) -> Markdown:
    overrides = f" with {code(wording.overrides(arm))}" if arm.overrides else ""
    return Markdown(code(short_commit(arm.commit)) + overrides)


_TIMED_STATES = {
    State.THROUGHPUT_FAIL,
    State.FASTER,
    State.INCONCLUSIVE,
    State.ENVIRONMENT,
    State.UNTIMED,
    State.TRAINS_DIFFERENTLY,
}
"""States whose headline is about the timed runs. In these states the table of step times comes first."""


def _write_tables(check: Check) -> Markdown:
    """Return the table of collectives and the table of step times. The table that the headline is about comes first."""
    tables = [table.compare_workloads(check, TABLE_BUDGET), step_times(check, TIMES_BUDGET)]
    ordered = tables[::-1] if check.state in _TIMED_STATES else tables
    return Markdown("\n\n".join(part for part in ordered if part))


def _write_baseline_rows(check: Check) -> Markdown:
    """Return one line for each comparison with the stored baseline: first the times, then the collectives. Workloads
    with the same text share a line."""
    stored = [(entry.name, entry.verdict.stored) for entry in check.entries if entry.verdict.stored is not None]
    descriptions = [
        *(
            (name, describe_stored_times(comparison.times))
            for name, comparison in stored
            if comparison.times is not None
        ),
        *(
            (name, describe_stored_collectives(comparison.collectives))
            for name, comparison in stored
            if comparison.collectives is not None
        ),
    ]
    names_by_row: dict[str, list[str]] = {}
    for name, words in descriptions:
        names_by_row.setdefault(sentence(words), []).append(name)
    rows = (f"- **Not part of the verdict**, {list_names(names)}: {row}" for row, names in names_by_row.items())
    lines, cut = fit(rows, BASELINE_BUDGET)
    if cut:
        lines.append(f"- …and {cut} more rows, see the report")
    return Markdown("\n".join(lines))


def _write_answers(check: Check, is_self_reported: bool) -> Markdown:
    """Return the three answers in one line, each with the sign of its status."""
    # Both arms are one commit with different overrides, so differences are shown and not judged.
    not_judged = check.state is State.NOT_JUDGED
    parts = []
    for answer in answer_questions(check):
        sign = "" if answer.status is None else wording.ICONS[answer.status]
        sign = wording.icon(check) if not_judged and answer.topic == "Sharding" else sign
        words = answer.words
        if is_self_reported and answer.topic == "Trust" and answer.status == "PASS":
            sign, words = "🔎", "self-reported, see above"
        parts.append(f"**{answer.topic}** {sign + ' ' if sign else ''}{words}")
    return Markdown(" · ".join(parts))


def _build_environment() -> Environment:
    return Environment(
        loader=PackageLoader("regbot.report"),
        undefined=StrictUndefined,
        finalize=printed,
        autoescape=False,  # for HTML only; `finalize` escapes everything that is not of type Markdown
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _write_folded_sections(sections: Iterable[folded.Section], room: int) -> str:
    """Return the sections that fit into ``room`` characters, and a list of the titles of the other sections."""
    blocks, omitted_titles = [], []
    for section in sections:
        block = f"<details>\n<summary>{section.title}</summary>\n\n{section.body}\n\n</details>"
        length = len(block) + 2  # with the empty line between blocks
        if length > room:
            omitted_titles.append(section.title)
        else:
            blocks.append(block)
            room -= length
    if omitted_titles:
        blocks.append(f"Too long for a comment, see the report: {', '.join(omitted_titles)}.")
    return "\n\n".join(blocks)


def _write_findings(check: Check) -> Markdown:
    """Return the changed settings and the findings as a list; '' without findings."""
    shared = advice.share_findings(check)
    parts = [*_write_setting_changes(check), *(_write_finding(item, check) for item in shared)] if shared else []
    lines, cut = fit(parts, FINDINGS_BUDGET)
    if cut:
        lines.append(f"- …and {cut} more findings, see the report")
    return Markdown("\n".join(lines))


def _write_setting_changes(check: Check) -> list[str]:
    """Return one line for each setting that differs between the arms, such as the dispatcher. A changed setting is
    often the cause of the findings."""
    names_by_change: dict[str, list[str]] = {}
    for entry in check.entries:
        changes = entry.verdict.sharding.config_changes if entry.verdict.sharding else {}
        for key, (old, new) in list(changes.items())[:MAX_SETTINGS]:
            values = " → ".join(code(folded.format_setting(value), 60) for value in (old, new))
            names_by_change.setdefault(f"{code(key, 60)}: {values}", []).append(entry.name)
    return [
        f"- Setting {change}" + (f" in {list_names(names)}" if len(names) < len(check.entries) else "")
        for change, names in names_by_change.items()
    ]


def _write_finding(item: SharedFinding, check: Check) -> str:
    """Return a finding as a list item. The workloads are named only if other workloads do not have the finding.

    In the state NOT_JUDGED, both arms are one commit with different overrides. The sign then shows no status."""
    finding = item.finding
    sign = wording.icon(check) if check.state is State.NOT_JUDGED else wording.ICONS[finding.status]
    where = f" in {list_names(item.modules)}" if item.modules else ""
    parts = [f"- {sign} **{prose(finding.pattern, 160)}** on axis {code(finding.axis, 60)}{where}"]
    if len(item.workloads) < len(check.entries):
        parts.append(f"  <br>{list_names(item.workloads)}")
    parts.append(f"  <br>{sentence(item.text)}")
    if finding.accepted is not None:
        parts.append(f"  <br>Accepted with the declared reason: {code(finding.accepted, 400)}")
    return "\n".join(parts)


def _write_steps(check: Check) -> Markdown:
    lines, cut = fit(
        (_write_step(number, step) for number, step in enumerate(advice.advise_next_steps(check), 1)), STEPS_BUDGET
    )
    if cut:
        lines.append("…and more, see the report")
    return Markdown("\n".join(lines))


def _write_step(number: int, step: NextStep) -> str:
    """Return a step as an item of a numbered list, with its commands in a code block."""
    lines = [f"{number}. {sentence(step.words)}"]
    if step.commands:
        block = fence("\n".join(step.commands), "sh")
        lines += ["", *(f"   {line}" for line in block.splitlines())]
    return "\n".join(lines)


def _write_warnings(check: Check) -> Markdown:
    """Return the warnings of the verdict and of the session, without duplicates."""
    warnings = dict.fromkeys([*check.verdict.warnings, *check.session.header.warnings])
    lines, cut = fit((f"- {prose(warning, 400)}" for warning in warnings), WARNINGS_BUDGET)
    if cut:
        lines.append(f"- …and {cut} more warnings, see the report")
    return Markdown("\n".join(lines))


def list_names(words: Sequence[str]) -> str:
    """Return a list of names, formatted as code: ``a``, ``b`` and 3 more."""
    return listed([code(word, 80) for word in words], MAX_NAMES)
