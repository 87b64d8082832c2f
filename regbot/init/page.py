"""The terminal page of ``regbot init``."""

from regbot.init.file_plan import WAITING, WRITTEN, InitFile
from regbot.init.flow import InitReport
from regbot.init.next_steps import SetupStep
from regbot.text.table import columns
from regbot.text.wrap import wrapped

WIDTH = 100
"""Characters of a line if the output is not a terminal."""


def page(report: InitReport) -> str:
    """Return a page with the detected facts, what was done with each file, diffs of newer files, and the next steps."""
    lines = [f"{report.root}", ""]
    lines += columns([(fact.what, f"{fact.value or 'none'}  ({fact.why})") for fact in report.facts])
    lines.append("")
    lines += [_file_line(file, report.dry_run) for file in report.files]
    for file in report.files:
        if file.diff:
            lines += ["", file.diff.rstrip("\n")]
    lines += ["", _outcome(report)]
    lines += [f"warning: {warning}" for warning in report.warnings]
    if report.next_steps:
        lines += ["", "next"]
        for number, step in enumerate(report.next_steps, start=1):
            lines += _step_lines(number, step)
    if any("docs/" in text for text in (*report.warnings, *(step.text for step in report.next_steps))):
        docs_address = report.docs or "in the repository from which regbot was installed"
        lines += ["", f"docs/... are pages of regbot: {docs_address}"]
    return "\n".join(lines) + "\n"


def _step_lines(number: int, step: SetupStep) -> list[str]:
    """Return the numbered text of a step, wrapped, and its command below. ``number`` counts from 1."""
    text = step.text + (":" if step.command else "")
    lines = [wrapped(text, f"  {number}. ", "     ", piped=WIDTH)]
    return [*lines, f"     {step.command}"] if step.command else lines


def _file_line(file: InitFile, dry_run: bool) -> str:
    would_be = "would be " if dry_run and file.action in WRITTEN else ""
    return f"{would_be + file.action:<12}  {file.path}" + (f"  ({file.why})" if file.why else "")


def _outcome(report: InitReport) -> str:
    """Return one line with the numbers of written, removed and waiting files, or the sentence that there are none.

    A waiting file has a newer version that was not written. The actions ``WRITTEN`` include "removed".
    """
    removed = sum(file.action == "removed" for file in report.files)
    written = sum(file.action in WRITTEN for file in report.files) - removed
    waiting = sum(file.action in WAITING for file in report.files)
    if written == removed == waiting == 0:
        return "no file has a newer version" if report.next_steps else "nothing to do: everything is in place"
    would_be = "would be " if report.dry_run else ""
    parts = [f"{would_be}written: {written}"] if written else []
    parts += [f"{would_be}removed: {removed}"] if removed else []
    parts += [f"different, but not changed: {waiting}"] if waiting else []
    return "; ".join(parts)
