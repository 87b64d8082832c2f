"""Write the folded sections of the comment, which contain the evidence for its tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from regbot.records.run import Run
from regbot.records.text.table import markdown_head, markdown_row
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count, listed
from regbot.report.evidence import collect_evidence, format_outcome
from regbot.report.markdown import code, fence, fit, prose, sentence
from regbot.report.quantities import milliseconds
from regbot.report.state import Check
from regbot.report.timed_runs import TimedRun
from regbot.report.workload_section import WorkloadSection, kind_words

SECTION_BUDGET = 9_000
"""Largest number of characters of a section."""
MAX_ROWS = 200
"""Number of rows that fill a section. Further rows are not written; they only count as lines that do not fit."""
MAX_LOGS = 3
MAX_WORKLOAD_NAMES = 8
"""Largest number of workloads that the title of a block names."""


@dataclass(frozen=True)
class Section:
    """One folded section. The title is trusted text, the body is markdown."""

    title: str
    body: str


def folded_sections(check: Check) -> list[Section]:
    """Return all folded sections that are not empty, the most useful first."""
    writers: list[tuple[str, Callable[[Check], list[str]]]] = [
        ("Ends of the logs", _list_logs),
        ("All collectives, with phase and role", _list_collectives),
        ("Modelled wire time (a model, not a measurement)", _list_wire_times),
        ("Configuration that differs", _list_configuration_changes),
        ("Can this be trusted: code, backends, counter", _list_trust_facts),
        ("Step times, run by run", _list_timed_runs),
        ("How it was measured", _list_runs),
    ]
    return [Section(title, body) for title, list_lines in writers if (body := _join_lines(list_lines(check)))]


def _join_lines(lines: Sequence[str]) -> str:
    """Join the lines of a section up to ``SECTION_BUDGET``. A note gives the number of lines that do not fit."""
    fitting_lines, cut = fit(lines, SECTION_BUDGET)
    note = ["", f"…and {cut} more lines, see the report."] if cut else []
    return "\n".join([*fitting_lines, *note]).strip()


def _list_logs(check: Check) -> list[str]:
    """Return the ends of the logs of failed runs. Equal logs of one arm appear once."""
    failed = [run for entry in check.entries for run in sorted(entry.failed, key=_get_arm_name) if run.log_tail]
    runs_by_log: dict[str, Run] = {}
    for run in failed:
        runs_by_log.setdefault(f"{run.arm.name} {run.log_tail}", run)
    lines = []
    for run in list(runs_by_log.values())[:MAX_LOGS]:
        lines += [f"{code(run.workload)} at {run.arm.name}, {format_outcome(run)}:\n\n{fence(run.log_tail)}\n"]
    if len(runs_by_log) > MAX_LOGS:
        lines.append(f"…and {len(runs_by_log) - MAX_LOGS} more, see the report.")
    return lines


def _get_arm_name(run: Run) -> str:
    return run.arm.name


def _list_collectives(check: Check) -> list[str]:
    """Return a table of the changed collectives of all workloads, then a table of the unchanged collectives. Workloads
    with equal rows share a table."""
    header_rows = markdown_head(
        "collective", "axis (ranks)", "phase", "role", "dtype", "module", "base", "head", "bytes"
    )
    judged = [entry for entry in check.entries if entry.judged]
    is_changed = any(row.changed for entry in judged for row in entry.rows)
    lines = []
    for changed, title_end in ((True, ": changed"), (False, ": unchanged")):
        for names, rows in _merge_entries(judged, partial(_format_collective_rows, changed=changed)):
            lines += [f"{names}{title_end if is_changed else ''}", "", *header_rows, *rows, ""]
    return lines


def _format_collective_rows(entry: WorkloadSection, changed: bool) -> list[str]:
    """Return the rows of a workload's changed collectives. If ``changed`` is False, return the rows of its unchanged
    collectives."""
    lines = []
    rows = [row for row in entry.rows if row.changed is changed]
    for row in rows[:MAX_ROWS]:
        counts = [str(row.base.count), str(row.head.count)]
        size = binary_bytes(max(row.base.bytes, row.head.bytes))
        if row.changed:
            counts[1] = f"**{row.head.count}**"
            size = f"{binary_bytes(row.base.bytes)} → {binary_bytes(row.head.bytes)}"
        cells = (
            kind_words(row.kind),
            f"{code(row.axis, 40)} ({row.group_size})",
            row.phase,
            row.role,
            code(row.dtype, 20),
        )
        lines.append(markdown_row([*cells, code(row.module or "(root)", 60), *counts, size]))
    return [*lines, *[""] * len(rows[MAX_ROWS:])]


def _list_wire_times(check: Check) -> list[str]:
    """Return a table of the modelled wire times of both arms; [] if no workload has them."""
    wires = [(entry.name, entry.verdict.sharding.wire) for entry in check.entries if entry.verdict.sharding]
    rows = []
    for name, wire in wires:
        if wire is not None:
            ratio = f"{100 * (wire.head_s / wire.base_s - 1):+.1f}%" if wire.base_s > 0 else ""
            ratio = "0%" if wire.head_s == wire.base_s else ratio
            rows.append(markdown_row([code(name), milliseconds(wire.base_s), milliseconds(wire.head_s), ratio]))
    note = (
        "The model divides the payload bytes of all collectives by the bandwidth of their axis, and ignores overlap. "
        "It compares base and "
        "head. It does not predict step times."
    )
    return [note, "", *markdown_head("workload", "base", "head", "change"), *rows] if rows else []


def _list_configuration_changes(check: Check) -> list[str]:
    """Return a table of the settings that differ between the arms. Workloads with equal differences share a table."""
    lines = []
    for names, rows in _merge_entries(check.entries, _format_setting_rows):
        lines += [names, "", *markdown_head("setting", "base", "head"), *rows, ""]
    return lines


def _format_setting_rows(entry: WorkloadSection) -> list[str]:
    changes = entry.verdict.sharding.config_changes if entry.verdict.sharding else {}
    return [
        markdown_row([code(key), code(format_setting(old)), code(format_setting(new))])
        for key, (old, new) in changes.items()
    ]


def format_setting(value: object) -> str:
    """Return the value of a setting as text, ``absent`` for None."""
    return "absent" if value is None else str(value)


def _list_trust_facts(check: Check) -> list[str]:
    """Return the facts that tell whether the runs can be trusted. Workloads with equal facts share a list."""
    lines = []
    for names, facts in _merge_entries(check.entries, _format_facts):
        lines += [names, "", *facts, ""]
    return lines


def _format_facts(entry: WorkloadSection) -> list[str]:
    facts = [f"- {prose(reason, 400)}" for reason in entry.verdict.validity.reasons]
    arm_facts = collect_evidence(entry.base, entry.head, entry.timed)
    fact_lines = [f"- {arm}: {sentence(fact)}" for arm, fact in arm_facts]
    return [*facts, *fact_lines]


def _list_runs(check: Check) -> list[str]:
    """Return the time of the session, and a table of the static runs."""
    header_rows = markdown_head(
        "workload", "arm", "attempt", "outcome", "seconds", "source of the counts", "world size"
    )
    rows = []
    for entry in check.entries:
        for run in entry.runs:
            source = code(run.ledger.source, 40) if run.ledger else ""
            world = str(run.ledger.world_size or "") if run.ledger else ""
            cells = (
                code(run.workload),
                run.arm.name,
                str(run.attempt),
                format_outcome(run),
                f"{run.wall_s:.1f}",
                source,
                world,
            )
            rows.append(markdown_row(cells))
    created = f"Session of {prose(check.session.header.created, 40)}, regbot {prose(check.session.header.regbot, 40)}."
    return [created, "", *header_rows, *rows] if rows else [created]


def _list_timed_runs(check: Check) -> list[str]:
    """Return every timed run in session order, with its outcome and role."""
    header_rows = markdown_head("run", "arm", "block", "outcome", "median step", "mean step", "counts as")
    lines = []
    for entry in check.entries:
        rows = [_format_timed_row(run) for run in entry.timed.runs]
        cost = entry.throughput.cost if entry.throughput else None
        cost_text = f": {count(cost.runs, 'run')}, {cost.minutes:.1f} minutes" if cost else ""
        lines += [f"{code(entry.name)}{cost_text}", "", *header_rows, *rows, ""] if rows else []
    return lines


def _format_timed_row(run: TimedRun) -> str:
    """Return the row of a timed run. It has no block if the run is a warm launch."""
    repeated = " (repeated)" if run.run.attempt > 1 else ""
    block = f"{run.block}{repeated}" if run.block else ""
    verdict = run.verdict
    step = "" if verdict.median_s is None else milliseconds(verdict.median_s, 4)
    mean = "" if verdict.mean_s is None else milliseconds(verdict.mean_s, 4)
    role = f"{run.role_words}: {prose(verdict.reason, 200)}" if verdict.reason else run.role_words
    role += " (earlier session)" if run.run.is_from_earlier_session else ""
    return f"| {verdict.number} | {run.arm} | {block} | {format_outcome(run.run)} | {step} | {mean} | {role} |"


def _merge_entries(
    entries: Iterable[WorkloadSection], list_lines: Callable[[WorkloadSection], list[str]]
) -> list[tuple[str, list[str]]]:
    """Return pairs of a text with workload names and the lines of these workloads.

    ``list_lines`` gives the lines of a workload. Workloads with equal lines share a pair. Workloads without lines are
    left out.
    """
    names_by_lines: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        if lines := list_lines(entry):
            names_by_lines.setdefault(tuple(lines), []).append(code(entry.name, 80))
    return [(listed(names, MAX_WORKLOAD_NAMES), list(lines)) for lines, names in names_by_lines.items()]
