"""Terminal output of ``regbot compare``."""

from regbot.records.text.table import columns
from regbot.records.text.words import count
from regbot.records.text.wrap import wrapped
from regbot.records.verdict import Throughput, Verdict

DECISION_WORDS = {
    "regressed": "head is slower",
    "improved": "head is faster",
    "no_change": "no change",
    "within_bound": "head is not slower",
    "undecided": "undecided",
}
"""Decision -> words for it in the output."""


def compare_page(verdict: Verdict) -> str:
    (entry,) = verdict.workloads  # an entry is the part of the verdict about one workload
    section = entry.throughput
    assert section is not None
    lines = [f"{verdict.verdict}  {_headline(section)}"]
    rows = [("step time", "estimate", "interval", "result")]
    for test in section.tests:
        interval = f"{test.low_pct:+.2f}% to {test.high_pct:+.2f}%"
        rows.append((test.summary, f"{test.estimate_pct:+.2f}%", interval, DECISION_WORDS[test.decision]))
    if section.tests:
        lines += ["", *columns(rows, right={1, 2}, indent="  ")]  # estimate and interval are aligned on the right
    reasons = entry.validity.reasons if verdict.verdict == "INVALID" else section.reasons
    lines += ["", *(wrapped(reason, "- ", "  ") for reason in reasons)]
    if section.base_step_s is not None and section.head_step_s is not None:
        median_steps = f"median step: base {section.base_step_s:.4g} s, head {section.head_step_s:.4g} s"
        lines.append(wrapped(median_steps, "- ", "  "))
    lines += [wrapped(warning, "warning: ", "  ") for warning in verdict.warnings]
    return "\n".join(lines)


def _headline(section: Throughput) -> str:
    """Return the decision with the estimate of the median, or of the mean if only the mean led to the decision."""
    if section.decision is None:  # the files could not be compared
        return section.reasons[0]
    words = DECISION_WORDS[section.decision]
    # No test decides an undecided section, so the estimate is that of the median.
    deciding = [test for test in section.tests if test.decision == section.decision != "undecided"]
    if deciding and all(test.summary != "median" for test in deciding):
        interval = _format_interval(deciding[0].estimate_pct, deciding[0].low_pct, deciding[0].high_pct)
        words += f" by its {deciding[0].summary} step time, {interval}"
    elif section.estimate_pct is not None:
        words += f", {_format_interval(section.estimate_pct, section.low_pct, section.high_pct)}"
    if section.pairs:
        words += f" after {count(section.pairs, 'pair')}"
    return words


def _format_interval(estimate: float, low: float | None, high: float | None) -> str:
    return f"{estimate:+.2f}%" + (f" ({low:+.2f}% to {high:+.2f}%)" if low is not None and high is not None else "")
