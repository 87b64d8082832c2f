"""What ``regbot init`` prints."""

from textwrap import wrap

from regbot.init.flow import Initialised
from regbot.init.next_steps import Step
from regbot.init.planned import WAITING, WRITTEN, InitFile

WIDTH = 100


def page(found: Initialised) -> str:
    """Findings, what became of each file, diffs of what is newer, and the next steps."""
    lines = [f"{found.root}", ""]
    width = max(len(each.what) for each in found.found)
    lines += [f"{each.what:<{width}}  {each.value or 'none'}  ({each.why})" for each in found.found]
    lines.append("")
    lines += [_file(file, found.dry_run) for file in found.files]
    for file in found.files:
        if file.diff:
            lines += ["", file.diff.rstrip("\n")]
    lines += ["", _outcome(found)]
    lines += [f"warning: {warning}" for warning in found.warnings]
    if found.next_steps:
        lines += ["", "next"]
        for number, step in enumerate(found.next_steps, start=1):
            lines += _step(number, step)
        if any("docs/" in step.text for step in found.next_steps):
            where = found.docs or "in the repository that it was installed from"
            lines += ["", f"docs/... are pages of regbot: {where}"]
    return "\n".join(lines) + "\n"


def _step(number: int, step: Step) -> list[str]:
    text = step.text + (":" if step.command else "")
    wrapped = wrap(text, WIDTH, initial_indent=f"  {number}. ", subsequent_indent="     ", break_on_hyphens=False)
    return [*wrapped, f"     {step.command}"] if step.command else wrapped


def _file(file: InitFile, dry_run: bool) -> str:
    would = "would be " if dry_run and file.action in WRITTEN else ""
    return f"{would + file.action:<12}  {file.path}" + (f"  ({file.why})" if file.why else "")


def _outcome(found: Initialised) -> str:
    removed = sum(file.action == "removed" for file in found.files)
    written = sum(file.action in WRITTEN for file in found.files) - removed
    waiting = sum(file.action in WAITING for file in found.files)
    if not written and not removed and not waiting:
        return "nothing is newer" if found.next_steps else "nothing to do: everything is in place"
    would = "would be " if found.dry_run else ""
    parts = [f"{would}written: {written}"] if written else []
    parts += [f"{would}removed: {removed}"] if removed else []
    parts += [f"different, and left as it is: {waiting}"] if waiting else []
    return "; ".join(parts)
