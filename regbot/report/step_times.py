"""The table of step times in the comment. It has one row for each timed workload, and explanations below the table."""

from collections.abc import Iterator, Sequence

from regbot.records.settings import ThroughputThresholds as Thresholds
from regbot.records.text.table import markdown_head, markdown_row
from regbot.records.text.words import listed
from regbot.records.verdict import Throughput
from regbot.report.headline import ICONS
from regbot.report.markdown import Markdown, code, fit, sentence
from regbot.report.quantities import estimate_and_interval, milliseconds
from regbot.report.state import Check
from regbot.report.throughput import (
    ThroughputAnswer,
    classify_throughput,
    describe_decision,
    describe_expert_shares,
    describe_setup,
    explain_entry,
    format_change,
    has_times,
    select_mean_only_test,
    timed_entries,
)
from regbot.report.workload_section import WorkloadSection

MAX_EXPLANATIONS = 4
"""Largest number of explanations below the table, and of workloads that an explanation names."""
MAX_SETUPS = 2
"""Largest number of sentences about nodes. Workloads that were timed on the same node share a sentence."""
COLUMNS = ("workload", "base step", "head step", "change [interval]", "pairs", "throughput")


def step_times(check: Check, characters: int) -> Markdown:
    """Return the table and the explanations below it; '' if no workload has a throughput section."""
    timed = timed_entries(check.entries)
    thresholds = check.session.header.throughput
    with_times = [(entry, throughput) for entry, throughput in timed if has_times(throughput)]
    without_times = [(entry, throughput) for entry, throughput in timed if not has_times(throughput)]
    parts = [*_write_table(with_times, thresholds, characters)] if with_times else []
    parts += _write_untimed_lines(without_times, thresholds)
    setups = dict.fromkeys(
        sentence(describe_setup(throughput, entry.timed)) for entry, throughput in timed if entry.timed.runs
    )
    parts += list(setups)[:MAX_SETUPS]
    parts += [sentence(describe_expert_shares([(entry.name, throughput) for entry, throughput in with_times]))]
    return Markdown("\n\n".join(filter(None, parts)))


def _write_table(
    timed: Sequence[tuple[WorkloadSection, Throughput]], thresholds: Thresholds, characters: int
) -> Iterator[str]:
    """Yield the table, a note if rows are cut, and the explanations. Workloads with the same explanation share it.

    ``characters``: largest length of all rows together.
    """
    rows, cut = fit(
        (markdown_row(_format_cells(entry, throughput, thresholds)) for entry, throughput in timed), characters
    )
    yield "\n".join([*markdown_head(*COLUMNS), *rows])
    if cut:
        yield f"…and {cut} more rows, see the report."
    names_by_explanation: dict[str, list[str]] = {}
    for entry, throughput in timed:
        if explanation := sentence(explain_entry(entry, throughput)):
            names_by_explanation.setdefault(explanation, []).append(code(entry.name, 80))
    explanations = [
        f"- {listed(names, MAX_EXPLANATIONS)}: {explanation}" for explanation, names in names_by_explanation.items()
    ]
    if explanations:
        yield "\n".join(explanations[:MAX_EXPLANATIONS])


def _format_cells(entry: WorkloadSection, throughput: Throughput, thresholds: Thresholds) -> tuple[str, ...]:
    """Return the cells of a workload's row, one for each of ``COLUMNS``.

    The step times are medians. A note says so if only the mean decided. A comparison with stored sessions has no pairs,
    and base's step time is that of the stored sessions.
    """
    sign = ICONS[throughput.status]
    if throughput.pairs or throughput.void_pairs:
        pairs = str(throughput.pairs) + (f", and {throughput.void_pairs} void" if throughput.void_pairs else "")
    else:
        pairs = "none" if throughput.by == "stored" else ""
    summary = " (median)" if select_mean_only_test(throughput) else ""
    return (
        code(entry.name),
        _format_step_time(throughput.base_step_s) + (" (of main)" if throughput.by == "stored" else summary),
        _format_step_time(throughput.head_step_s) + summary,
        _format_change_cell(throughput),
        pairs,
        f"{sign} {describe_decision(throughput, thresholds)}",
    )


def _format_step_time(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds)


def _format_change_cell(throughput: Throughput) -> str:
    """Return the cell with the change of the median step time. If only the mean decided, its change is added below."""
    change, interval = format_change(throughput)
    if mean := select_mean_only_test(throughput):
        mean_change, mean_interval = estimate_and_interval(mean.estimate_pct, mean.low_pct, mean.high_pct)
        return f"median {change} {interval}<br>mean **{mean_change}** {mean_interval}"
    if change and classify_throughput(throughput) in (ThroughputAnswer.SLOWER, ThroughputAnswer.FASTER):
        change = f"**{change}**"
    return f"{change} {interval}".strip()


def _write_untimed_lines(untimed: Sequence[tuple[WorkloadSection, Throughput]], thresholds: Thresholds) -> list[str]:
    """Return the lines for workloads without step times, which have no row in the table. Workloads with the same answer
    share a line."""
    names_by_answer: dict[tuple[str, str], list[str]] = {}  # icon and answer -> workloads
    for entry, throughput in untimed:
        reason = sentence(explain_entry(entry, throughput)).rstrip(".")
        answer = f"{describe_decision(throughput, thresholds)}."
        explanation = f" {reason[:1].upper()}{reason[1:]}." if reason else ""
        key = (ICONS[throughput.status], f"{answer}{explanation}")
        names_by_answer.setdefault(key, []).append(code(entry.name, 80))
    return [
        f"{icon} **Throughput** of {listed(names, MAX_EXPLANATIONS)}: {answer}"
        for (icon, answer), names in list(names_by_answer.items())[:MAX_EXPLANATIONS]
    ]
