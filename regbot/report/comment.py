"""The pull request comment: the verdict, three answers, two tables, what was found, what to do; everything else folded.

GitHub refuses comments above 65,536 characters, so every part has a budget, and a part that is cut says so.
"""

from collections.abc import Iterable, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from regbot.records.run import Arm
from regbot.records.session import Session
from regbot.records.verdict import Verdict
from regbot.report import advice, folded, table, wording
from regbot.report.advice import SharedFinding, Step
from regbot.report.answers import answers
from regbot.report.markdown import Markdown, Name, code, fence, fit, printed, prose, sentence
from regbot.report.sizes import ADVICE, small
from regbot.report.state import Check, State, check_of
from regbot.report.step_times import step_times
from regbot.report.unmeasured import unmeasured

MARKER = "<!-- regbot:verdict -->"
"""First line of the comment, by which its next version finds it."""

LIMIT = 64_000
"""Characters in all; the rest up to GitHub's 65,536 is left to whoever posts the comment."""

TABLE_BUDGET = 12_000
TIMES_BUDGET = 4_000
FINDINGS_BUDGET = 10_000
STEPS_BUDGET = 10_000
WARNINGS_BUDGET = 3_000
NAMES_SHOWN = 6


def comment(verdict: Verdict, session: Session) -> str:
    """The comment as GitHub-flavoured markdown, below 65,000 characters whatever it is told."""
    check = check_of(verdict, session)
    text = (
        _environment()
        .get_template("comment.md.j2")
        .render(
            marker=Markdown(MARKER),
            icon=Markdown(wording.icon(check)),
            word=Markdown(wording.word(check)),
            headline=wording.headline(check),
            base=_arm(verdict.base),
            head=_arm(verdict.head),
            subject=Name(verdict.head.subject),
            answers=_answers(check),
            tables=_tables(check),
            unmeasured=unmeasured(verdict, session.header),
            findings=_findings(check),
            steps=_steps(check),
            warnings=_warnings(check),
            compared=any(entry.judged for entry in check.entries),
            small=small(entry.verdict.sharding for entry in check.entries),
            full=ADVICE,
            regbot=session.header.regbot,
        )
    )
    return _with_sections(text.strip() + "\n", folded.sections(check))


def _arm(arm: Arm) -> Markdown:
    told = f" with {code(wording.overrides(arm))}" if arm.overrides else ""
    return Markdown(code(arm.commit[: advice.SHORT]) + told)


_ABOUT_TIME = {
    State.THROUGHPUT_FAIL,
    State.FASTER,
    State.INCONCLUSIVE,
    State.ENVIRONMENT,
    State.UNTIMED,
    State.TRAINS_DIFFERENTLY,
}
"""States whose headline is about the timed runs; their table comes first."""


def _tables(check: Check) -> Markdown:
    """What both halves of the check measured, that of the headline first."""
    both = [table.comparison(check, TABLE_BUDGET), step_times(check, TIMES_BUDGET)]
    ordered = both[::-1] if check.state in _ABOUT_TIME else both
    return Markdown("\n\n".join(part for part in ordered if part))


def _answers(check: Check) -> Markdown:
    """The three questions in one line, each with the sign of its own status."""
    shown = check.state is State.SHOWN
    parts = []
    for told in answers(check):
        sign = "" if told.status is None else wording.ICONS[told.status]
        sign = wording.icon(check) if shown and told.topic == "Sharding" else sign
        parts.append(f"**{told.topic}** {sign + ' ' if sign else ''}{told.words}")
    return Markdown(" · ".join(parts))


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("regbot.report"),
        undefined=StrictUndefined,
        finalize=printed,
        autoescape=False,  # not HTML: `finalize` escapes for markdown whatever is not Markdown already
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _with_sections(text: str, sections: Iterable[folded.Section]) -> str:
    """``text`` with as many folded sections as fit, naming those that do not."""
    left_out = []
    for section in sections:
        block = f"\n<details>\n<summary>{section.title}</summary>\n\n{section.body}\n\n</details>\n"
        if len(text) + len(block) > LIMIT:
            left_out.append(section.title)
        else:
            text += block
    if left_out:
        text += f"\nToo long for a comment, see the report: {', '.join(left_out)}.\n"
    return text


def _findings(check: Check) -> Markdown:
    found = advice.findings(check)
    kept, cut = fit((_finding(item, check) for item in found), FINDINGS_BUDGET)
    if cut:
        kept.append(f"- …and {cut} more findings, see the report")
    return Markdown("\n".join(kept))


def _finding(item: SharedFinding, check: Check) -> str:
    finding = item.finding
    sign = wording.icon(check) if check.state is State.SHOWN else wording.ICONS[finding.status]
    where = f" in {names(item.modules)}" if item.modules else ""
    parts = [f"- {sign} **{prose(finding.pattern, 160)}** on axis {code(finding.axis, 60)}{where}"]
    if len(item.workloads) < len(check.entries):
        parts.append(f"  <br>{names(item.workloads)}")
    parts.append(f"  <br>{sentence(item.text)}")
    if finding.accepted is not None:
        parts.append(f"  <br>Accepted, the declared reason: {code(finding.accepted, 400)}")
    return "\n".join(parts)


def _steps(check: Check) -> Markdown:
    kept, cut = fit((_step(number, step) for number, step in enumerate(advice.next_steps(check), 1)), STEPS_BUDGET)
    if cut:
        kept.append("…and more, see the report")
    return Markdown("\n".join(kept))


def _step(number: int, step: Step) -> str:
    lines = [f"{number}. {sentence(step.words)}"]
    if step.commands:
        block = fence("\n".join(step.commands), "sh")
        lines += ["", *(f"   {line}" for line in block.splitlines())]
    return "\n".join(lines)


def _warnings(check: Check) -> Markdown:
    told = dict.fromkeys([*check.verdict.warnings, *check.session.header.warnings])
    kept, cut = fit((f"- {prose(warning, 400)}" for warning in told), WARNINGS_BUDGET)
    if cut:
        kept.append(f"- …and {cut} more warnings, see the report")
    return Markdown("\n".join(kept))


def names(words: Sequence[str]) -> str:
    """``a``, ``b`` and 3 more, as code."""
    shown = ", ".join(code(word, 80) for word in words[:NAMES_SHOWN])
    return f"{shown} and {len(words) - NAMES_SHOWN} more" if len(words) > NAMES_SHOWN else shown
