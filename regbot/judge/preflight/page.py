"""The terminal page of ``regbot preflight``."""

from collections.abc import Sequence

from regbot.judge.preflight.rules import Advice, Conflict
from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.records.text.wrap import wrapped

WIDTH = 100
"""Number of characters in a line if the output is not a terminal."""
EFFECTS = {
    "error": "fails at start",
    "silent fallback": "silently runs something else",
    "hang": "hangs",
    "slow": "is slower than necessary",
    "wrong": "measures something else",
}
"""What happens if the configuration is run, by the effect in a rule."""


def preflight_page(conflicts: Sequence[Conflict], advice: Sequence[Advice], unknown: str = "") -> str:
    """Return the terminal page. ``unknown`` is a line about rules that could not be evaluated; '' if there are none."""
    invalid_count = sum(conflict.rule.severity == "invalid" for conflict in conflicts)
    warning_count = len(conflicts) - invalid_count
    lines = [f"{count(invalid_count, 'conflict')}, {count(warning_count, 'warning')}"]
    if not conflicts:
        lines.append("no rule applies to this configuration; only a trace or a run shows which dispatcher runs")
    if unknown:
        lines.append(unknown)
    for conflict in conflicts:
        rule = conflict.rule
        lines += [
            "",
            f"{'INVALID' if rule.severity == 'invalid' else 'WARNING'}  {rule.id}: {EFFECTS[rule.effect]}",
            wrapped(rule.what, piped=WIDTH),
            wrapped(f"values: {conflict.values}", piped=WIDTH),
            wrapped(f"fix: {rule.fix}", piped=WIDTH),
            wrapped(f"source: {rule.source}", piped=WIDTH),
        ]
    if advice:
        lines += ["", "What to try, and the command that compares it on this hardware (advice, not a verdict):"]
    for item in advice:
        lines += ["", wrapped(f"{item.entry.text} ({item.entry.source})", piped=WIDTH)]
        lines += [f"    {printable(item.command)}"] if item.command else []
    return "\n".join(lines) + "\n"
