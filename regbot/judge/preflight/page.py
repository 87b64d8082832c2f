"""The terminal page of ``regbot preflight``, and the tables in docs/preflight.md."""

from collections.abc import Mapping, Sequence

from regbot.judge.preflight.advice import Advice, AdviceEntry
from regbot.judge.preflight.conditions import Condition, Value
from regbot.judge.preflight.rules import Conflict, Rule
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
PHRASES = {"on": "is on", "off": "is off", "set": "is set", "missing": "is not set", "none": "is None"}
"""Words for tests without an operand, by the field of ``Condition``."""
COMPARISONS = {
    "eq": "=", "ne": "≠", "is_in": "in", "not_in": "not in", "gt": ">", "lt": "<", "has": "has",
    "starts": "begins with", "not_starts": "does not begin with", "before": "is before", "differs": "differs from",
}  # fmt: skip
"""Words for tests with an operand, by the field of ``Condition``."""


def preflight_page(conflicts: Sequence[Conflict], advice: Sequence[Advice], unknown: str = "") -> str:
    """Return the terminal page for one configuration. ``unknown`` is a line about rules that could not be evaluated; ''
    if there are none.
    """
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


def rules_table(rules: Sequence[Rule]) -> str:
    """Return a Markdown table of all rules, for docs/preflight.md."""
    lines = ["| rule | when | what happens | fix | source |", "|---|---|---|---|---|"]
    for rule in rules:
        severity = "" if rule.severity == "invalid" else " (warning)"
        cells = (
            f"`{rule.id}`{severity}",
            _describe_condition(rule.when),
            f"{EFFECTS[rule.effect]}: {rule.what}",
            rule.fix,
        )
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in (*cells, rule.source)) + " |")
    return "\n".join(lines) + "\n"


def advice_table(entries: Sequence[AdviceEntry]) -> str:
    """Return a Markdown table of all advice, for docs/preflight.md."""
    lines = ["| advice | when | what is known | comparison | source |", "|---|---|---|---|---|"]
    for entry in entries:
        base, head = _format_overrides(entry.base), _format_overrides(entry.head)
        comparison = f"{base} against {head}" if entry.head else "nothing to compare"
        cells = (f"`{entry.id}`", _describe_condition(entry.when), entry.text, comparison, entry.source)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _format_overrides(overrides: Mapping[str, Value]) -> str:
    return ", ".join(f"`{key}={_format_value(value)}`" for key, value in overrides.items())


def _describe_condition(condition: Condition, is_part: bool = False) -> str:
    """Return a condition in words. ``is_part``: it is part of another condition, so it may need parentheses."""
    for parts, conjunction in ((condition.all, " and "), (condition.any, " or ")):
        if parts is not None:
            text = conjunction.join(_describe_condition(part, is_part=True) for part in parts)
            return f"({text})" if is_part and len(parts) > 1 else text
    subject = f"the fact `{condition.fact}`" if condition.fact is not None else f"`{condition.names[0]}`"
    for field, phrase in PHRASES.items():
        if getattr(condition, field):
            return f"{subject} {phrase}"
    for field, phrase in COMPARISONS.items():
        operand = getattr(condition, field)
        if operand is not None:
            operands = operand if isinstance(operand, list) else [operand]
            return f"{subject} {phrase} {', '.join(map(_format_value, operands))}"
    raise AssertionError("a condition without a test is refused when it is parsed")


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
