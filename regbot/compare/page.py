"""What ``regbot compare`` prints for people: the answer, the two tests, why, and what it would take."""

import textwrap

from regbot.records.verdict import Throughput, Verdict
from regbot.text import printable

WORDS = {
    "regressed": "head is slower",
    "improved": "head is faster",
    "no_change": "no change",
    "undecided": "undecided",
}
WIDTH = 110


def compare_page(verdict: Verdict) -> str:
    """The verdict as plain text. File names are made harmless for a terminal."""
    (entry,) = verdict.workloads
    section = entry.throughput
    assert section is not None
    lines = [f"{verdict.verdict}  {_answer(section)}"]
    if section.tests:
        lines += ["", *_table(section)]
    reasons = entry.validity.reasons if verdict.verdict == "INVALID" else section.reasons
    lines += ["", *(_item(reason) for reason in reasons)]
    if section.base_step_s is not None and section.head_step_s is not None:
        lines.append(_item(f"median step: base {section.base_step_s:.4g} s, head {section.head_step_s:.4g} s"))
    lines += [f"warning: {printable(warning)}" for warning in verdict.warnings]
    return "\n".join(lines)


def _answer(section: Throughput) -> str:
    """The decision with the numbers of the summary that made it: the median's, where the median is of one mind."""
    if section.decision is None:
        return section.reasons[0]
    words = WORDS[section.decision]
    agreeing = [test for test in section.tests if test.decision == section.decision]
    if agreeing and agreeing[0].summary != "median":
        made = agreeing[0]
        words += f" by its {made.summary} step time, {_span(made.estimate_pct, made.low_pct, made.high_pct)}"
    elif section.estimate_pct is not None:
        words += f", {_span(section.estimate_pct, section.low_pct, section.high_pct)}"
    if section.pairs:
        words += f" after {section.pairs} pair{'' if section.pairs == 1 else 's'}"
    return words


def _span(estimate: float, low: float | None, high: float | None) -> str:
    return f"{estimate:+.2f}%" + (f" ({low:+.2f}% to {high:+.2f}%)" if low is not None and high is not None else "")


def _table(section: Throughput) -> list[str]:
    rows = [("step time", "estimate", "interval", "")]
    rows += [
        (
            test.summary,
            f"{test.estimate_pct:+.2f}%",
            f"{test.low_pct:+.2f}% to {test.high_pct:+.2f}%",
            WORDS[test.decision],
        )
        for test in section.tests
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]


def _item(reason: str) -> str:
    return textwrap.fill(printable(reason), WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
