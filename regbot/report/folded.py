"""What the comment folds away: the whole evidence behind its table, for whoever wants to check it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from regbot.records.run import Run
from regbot.report.evidence import by_arm, outcome, timed_evidence
from regbot.report.markdown import code, fence, fit, prose, sentence
from regbot.report.measured import Measured, kind_words
from regbot.report.quantities import count, milliseconds
from regbot.report.state import Check
from regbot.report.timed import TimedRun
from regbot.units import binary_bytes

SECTION_BUDGET = 9_000
LOGS_SHOWN = 3


@dataclass(frozen=True)
class Section:
    """One folded part; the title is ours, the body is markdown."""

    title: str
    body: str


def sections(check: Check) -> list[Section]:
    """All folded parts that have something to say, most wanted first."""
    parts: list[tuple[str, Callable[[Check], list[str]]]] = [
        ("Ends of the logs", _logs),
        ("All collectives, with phase and role", _collectives),
        ("Modelled wire time (a model, not a measurement)", _wire),
        ("Configuration that differs", _configuration),
        ("Can this be trusted: code, backends, counter", _trust),
        ("Step times, run by run", _timed),
        ("How it was measured", _runs),
    ]
    return [Section(title, body) for title, part in parts if (body := _body(part(check)))]


def _body(lines: Sequence[str]) -> str:
    kept, cut = fit(lines, SECTION_BUDGET)
    more = ["", f"…and {cut} more lines, see the report."] if cut else []
    return "\n".join([*kept, *more]).strip()


def _logs(check: Check) -> list[str]:
    failed = [run for entry in check.entries for run in sorted(entry.failed, key=_arm) if run.log_tail]
    told: dict[str, Run] = {}
    for run in failed:
        told.setdefault(f"{run.arm.name} {run.log_tail}", run)
    lines = []
    for run in list(told.values())[:LOGS_SHOWN]:
        lines += [f"{code(run.workload)} at {run.arm.name}, {outcome(run)}:\n\n{fence(run.log_tail)}\n"]
    if len(told) > LOGS_SHOWN:
        lines.append(f"…and {len(told) - LOGS_SHOWN} more, see the report.")
    return lines


def _arm(run: Run) -> str:
    return run.arm.name


def _collectives(check: Check) -> list[str]:
    head = ["| collective | axis | phase | role | dtype | module | base | head | bytes |", "|" + " --- |" * 9]
    lines = []
    for names, rows in _merged((entry for entry in check.entries if entry.judged), _rows):
        lines += [names, "", *head, *rows, ""]
    return lines


def _rows(entry: Measured) -> list[str]:
    lines = []
    for row in entry.rows:
        volumes = [str(row.base.count), str(row.head.count)]
        size = binary_bytes(max(row.base.bytes, row.head.bytes))
        if row.changed:
            volumes[1] = f"**{row.head.count}**"
            size = f"{binary_bytes(row.base.bytes)} → {binary_bytes(row.head.bytes)}"
        cells = (
            kind_words(row.kind),
            f"{code(row.axis, 40)} ({row.group_size})",
            row.phase,
            row.role,
            code(row.dtype, 20),
        )
        lines.append(f"| {' | '.join((*cells, code(row.template or '(root)', 60), *volumes, size))} |")
    return lines


def _wire(check: Check) -> list[str]:
    found = [(entry.name, entry.verdict.sharding.wire) for entry in check.entries if entry.verdict.sharding]
    rows = []
    for name, wire in found:
        if wire is not None:
            ratio = f"{100 * (wire.head_s / wire.base_s - 1):+.1f}%" if wire.base_s > 0 else ""
            ratio = "0%" if wire.head_s == wire.base_s else ratio
            rows.append(f"| {code(name)} | {milliseconds(wire.base_s)} | {milliseconds(wire.head_s)} | {ratio} |")
    note = "Payload bytes over the bandwidth of their axis, nothing overlapped. It ranks, it predicts nothing."
    return [note, "", "| workload | base | head | change |", "| --- | --- | --- | --- |", *rows] if rows else []


def _configuration(check: Check) -> list[str]:
    lines = []
    for names, rows in _merged(check.entries, _settings):
        lines += [names, "", "| setting | base | head |", "| --- | --- | --- |", *rows, ""]
    return lines


def _settings(entry: Measured) -> list[str]:
    changes = entry.verdict.sharding.config_changes if entry.verdict.sharding else {}
    return [f"| {code(key)} | {code(_scalar(old))} | {code(_scalar(new))} |" for key, (old, new) in changes.items()]


def _scalar(value: object) -> str:
    return "absent" if value is None else str(value)


def _trust(check: Check) -> list[str]:
    lines = []
    for names, facts in _merged(check.entries, _evidence):
        lines += [names, "", *facts, ""]
    return lines


def _evidence(entry: Measured) -> list[str]:
    facts = [f"- {prose(reason, 400)}" for reason in entry.verdict.validity.reasons]
    shown = [*by_arm(entry.base, entry.head), *timed_evidence(entry.timed)]
    told = [f"- {arm}: {sentence(fact)}" for arm, fact in shown]
    return [*facts, *told]


def _runs(check: Check) -> list[str]:
    head = ["| workload | arm | attempt | outcome | seconds | counted by | world |", "|" + " --- |" * 7]
    rows = []
    for entry in check.entries:
        for run in entry.runs:
            source = code(run.ledger.source, 40) if run.ledger else ""
            world = str(run.ledger.world_size or "") if run.ledger else ""
            told = (
                code(run.workload),
                run.arm.name,
                str(run.attempt),
                outcome(run),
                f"{run.wall_s:.1f}",
                source,
                world,
            )
            rows.append(f"| {' | '.join(told)} |")
    created = f"Session of {prose(check.session.header.created, 40)}, regbot {prose(check.session.header.regbot, 40)}."
    return [created, "", *head, *rows] if rows else [created]


def _timed(check: Check) -> list[str]:
    """Every timed run in session order, with what became of it."""
    head = ["| run | arm | block | outcome | median step | counts as |", "|" + " --- |" * 6]
    lines = []
    for entry in check.entries:
        rows = [_timed_row(one) for one in entry.timed.runs]
        cost = entry.throughput.cost if entry.throughput else None
        took = f": {count(cost.runs, 'run')}, {cost.minutes:.1f} minutes" if cost else ""
        lines += [f"{code(entry.name)}{took}", "", *head, *rows, ""] if rows else []
    return lines


def _timed_row(one: TimedRun) -> str:
    again = " (repeated)" if one.run.attempt > 1 else ""
    block = f"{one.block}{again}" if one.block else ""
    step = "" if one.median_s is None else milliseconds(one.median_s, 4)
    role = f"void: {prose(one.why, 200)}" if one.role == "void" else one.role
    return f"| {one.number} | {one.arm} | {block} | {outcome(one.run)} | {step} | {role} |"


def _merged(entries: Iterable[Measured], part: Callable[[Measured], list[str]]) -> list[tuple[str, list[str]]]:
    """What ``part`` says of each workload, once for all that say the same: their names and the lines."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        if lines := part(entry):
            groups.setdefault(tuple(lines), []).append(code(entry.name, 80))
    return [
        (", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else ""), list(lines))
        for lines, names in groups.items()
    ]
