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

WARM_UP_STEPS = 10
"""Difference of two warm-ups that is told. Below it are the steps that are left out of every log."""


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
    if said := _warm_up(section):
        lines.append(_item(said))
    lines += [_item(warning, "warning: ") for warning in verdict.warnings]
    return "\n".join(lines)


def _answer(section: Throughput) -> str:
    """The decision with the numbers of the summary that made it: the median's, where the median is of one mind."""
    if section.decision is None:
        return section.reasons[0]
    words = WORDS[section.decision]
    agreeing = [test for test in section.tests if test.decision == section.decision != "undecided"]
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


def _warm_up(section: Throughput) -> str:
    """The lengths of the warm-up where they are far apart: a change that no step time shows."""
    base, head = section.base_warmup_steps, section.head_warmup_steps
    if base is None or head is None or abs(base - head) < WARM_UP_STEPS:
        return ""
    return f"steps until the steady state: {base:g} in base, {head:g} in head; they are no part of the step times"


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


def _item(text: str, begin: str = "- ") -> str:
    """One reason or warning. Names of files are broken nowhere, so that they can be copied."""
    return textwrap.fill(
        printable(text),
        WIDTH,
        initial_indent=begin,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
