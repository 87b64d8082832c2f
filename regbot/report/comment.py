"""Render the view of a check as the pull request comment, in GitHub-flavoured markdown.

GitHub rejects comments above 65,536 characters, so every part has a limit. Where a part is cut, a line says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regbot.records.session import Session
from regbot.records.text.table import markdown_head, markdown_row
from regbot.records.verdict import Verdict
from regbot.report.advice import NextStep
from regbot.report.markdown import Words, fence, fit, sentence
from regbot.report.notes import more
from regbot.report.tables import Block, Items, Log
from regbot.report.view import Fold, build_view, describe_finding

MARKER = "<!-- regbot:verdict -->"
"""First line of the comment. It identifies the comment when a later version replaces it."""
LIMIT = 64_000
"""Maximum number of characters of the comment. The rest up to GitHub's limit of 65,536 is left for text that
``regbot.github`` adds."""
BUDGET = 9_000
"""Largest number of characters of a part of the comment, and of a folded section."""
MAX_ROWS = 200
"""Number of rows that fill a part. Further rows are not written; they only count as lines that do not fit."""


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
    """Return the comment, below 65,000 characters for any input."""
    parts = comment_parts(verdict, session)
    text = "\n\n".join(filter(None, (f"{MARKER}\n{parts.heading}", parts.body, parts.sections)))
    return f"{text}\n"


def comment_parts(verdict: Verdict, session: Session, *, is_self_reported: bool = False) -> CommentParts:
    """Return the parts of the comment, without the marker. ``is_self_reported``: a job that the pull request controls
    reported the result."""
    view = build_view(verdict, session, is_self_reported=is_self_reported)
    heading = f"### {view.icon} {view.word}: {sentence(view.headline)}"
    answers = (f"**{answer.topic}** {sign}{' ' if sign else ''}{answer.words}" for sign, answer in view.answers)
    findings = Items([*view.settings, *(describe_finding(item, view.check) for item in view.findings)])
    steps = (_render_step(number, step) for number, step in enumerate(view.steps, 1))
    parts = [
        " · ".join(answers),
        sentence(view.arms),
        *(_render([block], "rows") for block in view.tables),
        _render([view.stored], "rows"),
        *map(sentence, view.unmeasured),
        _title("What changed", _render([findings], "findings")),
        _title("What to do next", _join(steps, "steps")),
        _title("Warnings", _render([Items(view.warnings)], "warnings")),
        f"<sub>{sentence(view.note)}</sub>",
    ]
    room = LIMIT - len(MARKER) - len(heading)
    fitting_parts, cut = fit((f"{part}\n" for part in parts if part), room)
    body = "\n".join([*fitting_parts, *([more(cut, "parts")] if cut else [])]).strip()
    folds = [fold for fold in view.folds if fold.in_comment]
    return CommentParts(heading, body, _render_folds(folds, room - len(body)))


def _title(title: str, text: str) -> str:
    return f"#### {title}\n\n{text}" if text else ""


def _render(blocks: Iterable[Block], noun: str) -> str:
    return _join((line for block in blocks for line in _list_lines(block)), noun)


def _join(lines: Iterable[str], noun: str) -> str:
    """Join lines up to ``BUDGET``. A note gives the number of lines that do not fit."""
    fitting_lines, cut = fit(lines, BUDGET)
    return "\n".join([*fitting_lines, *(["", more(cut, noun)] if cut else [])]).strip()


def _list_lines(block: Block) -> list[str]:
    """Return the lines of a block, each of which may be cut, and an empty line."""
    if isinstance(block, Log):
        return [fence(block.text), ""]
    if isinstance(block, Items):
        return [f"- {_break(item, f'{chr(10)}  <br>')}" for item in block.items] + [""]
    if isinstance(block, tuple):
        return [sentence(block), ""]
    rows = [markdown_row(_break(cell, "<br>") for cell in row) for row in block.rows[:MAX_ROWS]]
    return [*markdown_head(*block.columns), *rows, *[""] * len(block.rows[MAX_ROWS:]), ""]


def _break(words: Words, line_end: str) -> str:
    """Return words with ``line_end`` for the line ends of trusted parts. Untrusted parts become one line each."""
    return sentence([word.replace("\n", line_end) if type(word) is str else word for word in words])


def _render_step(number: int, step: NextStep) -> str:
    """Return a step as an item of a numbered list, with its commands in a code block."""
    lines = [f"{number}. {sentence(step.words)}"]
    if step.commands:
        lines += ["", *(f"   {line}" for line in fence("\n".join(step.commands), "sh").splitlines())]
    return "\n".join(lines)


def _render_folds(folds: Sequence[Fold], room: int) -> str:
    """Return the folds that fit into ``room`` characters, and a list of the titles of the others."""
    blocks, omitted_titles = [], []
    for fold in folds:
        block = f"<details>\n<summary>{fold.title}</summary>\n\n{_render(fold.blocks, 'lines')}\n\n</details>"
        length = len(block) + 2  # with the empty line between blocks
        if length > room:
            omitted_titles.append(fold.title)
        else:
            blocks.append(block)
            room -= length
    if omitted_titles:
        blocks.append(f"Too long for a comment, see the report: {', '.join(omitted_titles)}.")
    return "\n\n".join(blocks)
