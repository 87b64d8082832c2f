"""What ``regbot preflight`` prints, and the tables of docs/preflight.md."""

import textwrap
from collections.abc import Sequence

from regbot.preflight.advice import Advice, Entry
from regbot.preflight.conditions import Condition
from regbot.preflight.rules import Conflict, Rule
from regbot.text import printable

WIDTH = 100
EFFECTS = {
    "error": "ends at start",
    "silent fallback": "something else runs, silently",
    "hang": "hangs",
    "slow": "is slower than it need be",
    "wrong": "measures something else",
}


def preflight_page(conflicts: Sequence[Conflict], advice: Sequence[Advice], unknown: str = "") -> str:
    """The answer for one configuration, for a terminal. ``unknown``: what rules could not be asked about."""
    invalid = sum(conflict.rule.severity == "invalid" for conflict in conflicts)
    warnings = len(conflicts) - invalid
    lines = [f"{_count(invalid, 'conflict')}, {_count(warnings, 'warning')}"]
    if not conflicts:
        lines.append("no rule applies; that a dispatcher is configured does not show that it runs")
    if unknown:
        lines.append(unknown)
    for conflict in conflicts:
        rule = conflict.rule
        lines += [
            "",
            f"{'INVALID' if rule.severity == 'invalid' else 'WARNING'}  {rule.id}: {EFFECTS[rule.effect]}",
            *_wrapped(rule.what),
            *_wrapped(f"here: {printable(conflict.values)}"),
            *_wrapped(f"fix: {rule.fix}"),
            *_wrapped(f"source: {rule.source}"),
        ]
    if advice:
        lines += ["", "What to try, and how to settle it here (advice, no verdict):"]
    for each in advice:
        lines += ["", *_wrapped(f"{each.entry.text} ({each.entry.source})")]
        lines += [f"    {printable(each.command)}"] if each.command else []
    return "\n".join(lines) + "\n"


def rules_table(rules: Sequence[Rule]) -> str:
    """The rules as a table in Markdown."""
    lines = ["| rule | when | what happens | fix | source |", "|---|---|---|---|---|"]
    for rule in rules:
        severity = "" if rule.severity == "invalid" else " (warning)"
        cells = (f"`{rule.id}`{severity}", _in_words(rule.when), f"{EFFECTS[rule.effect]}: {rule.what}", rule.fix)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in (*cells, rule.source)) + " |")
    return "\n".join(lines) + "\n"


def advice_table(entries: Sequence[Entry]) -> str:
    """The advice as a table in Markdown."""
    lines = ["| advice | when | what is known | settled by | source |", "|---|---|---|---|---|"]
    for entry in entries:
        arms = [", ".join(f"`{key}={_word(value)}`" for key, value in arm.items()) for arm in (entry.base, entry.head)]
        settled = " against ".join(arms) if entry.head else "nothing to compare"
        cells = (f"`{entry.id}`", _in_words(entry.when), entry.text, settled, entry.source)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _in_words(condition: Condition, inner: bool = False) -> str:
    """A condition as a reader of the documentation wants it."""
    for parts, word in ((condition.all, " and "), (condition.any, " or ")):
        if parts is not None:
            text = word.join(_in_words(part, True) for part in parts)
            return f"({text})" if inner and len(parts) > 1 else text
    name = f"the fact `{condition.fact}`" if condition.fact is not None else f"`{condition.names[0]}`"
    yes = {"on": "is on", "off": "is off", "set": "is set", "missing": "is not set", "none": "is None"}
    for field, words in yes.items():
        if getattr(condition, field):
            return f"{name} {words}"
    for field, words in (
        ("eq", "="), ("ne", "≠"), ("is_in", "in"), ("not_in", "not in"), ("gt", ">"), ("lt", "<"), ("has", "has"),
        ("starts", "begins with"), ("not_starts", "does not begin with"), ("before", "is before"),
        ("differs", "differs from"),
    ):  # fmt: skip
        value = getattr(condition, field)
        if value is not None:
            shown = ", ".join(map(_word, value)) if isinstance(value, list) else _word(value)
            return f"{name} {words} {shown}"
    raise AssertionError("a condition without a test is refused when it is read")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
