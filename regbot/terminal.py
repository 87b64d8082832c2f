"""What commands print for people: tables as plain text, as wide as they need to be. JSON is the records' business."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import get_args

from regbot.doctor import Diagnosis
from regbot.judge.pairs import summaries
from regbot.ledgers.rows import Row, rows
from regbot.records.ledger import Kind, Ledger
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.verdict import GRAVITY, Finding, Sharding, Status, Throughput, Verdict, Volume, WorkloadVerdict
from regbot.report.quantities import count, milliseconds
from regbot.report.sizes import ADVICE, small
from regbot.report.throughput import moved
from regbot.report.unmeasured import unmeasured
from regbot.shapes import Shape
from regbot.text import printable
from regbot.units import binary_bytes

NAME_CHARACTERS = 72
Table = list[tuple[str, ...]]

REASONS_SHOWN = 3


def shape_list(shapes: Iterable[Shape]) -> str:
    """One line a shape."""
    table = [("shape", "model", "parameters", "active", "layers", "experts", "sizes", "meshes (world x EP)")]
    for shape in shapes:
        full = shape.sizes["full"]
        meshes = ", ".join(f"{name} {mesh.world_size}x{mesh.ep}" for name, mesh in shape.meshes["full"].items())
        table.append(
            (
                shape.id,
                shape.title,
                f"{full.parameters / 1e9:.1f} B",
                f"{full.active_parameters / 1e9:.1f} B",
                str(full.layers),
                f"{full.experts} top-{full.top_k}",
                " ".join(shape.sizes),
                meshes,
            )
        )
    return _columns(table)


def shape_page(shape: Shape) -> str:
    """One shape in full: every number of every size."""
    names = list(next(iter(shape.sizes.values())).model_dump())
    table = [("", *shape.sizes)]
    table += [(name, *(str(getattr(size, name)) for size in shape.sizes.values())) for name in names]
    for label, unit, scale, attribute in (
        ("parameters", "B", 1e9, "parameters"),
        ("active parameters", "B", 1e9, "active_parameters"),
        ("FLOPs per step and rank", "T", 1e12, "flops_per_step"),
    ):
        cells = (f"{getattr(size, attribute) / scale:.4g} {unit}" for size in shape.sizes.values())
        table.append((label, *cells))
    for mesh in ("ep", "ep-dp"):
        found = [meshes.get(mesh) for meshes in shape.meshes.values()]
        table.append((f"mesh {mesh}", *(f"{m.world_size} ranks, EP {m.ep}, EDP {m.edp}" if m else "-" for m in found)))
    head = f"{shape.id}: {shape.title}. Source: {shape.source}.\n"
    tail = (
        "Variants: a size, alone or with -skewed (Zipf routing) or -dense (one MLP as wide as the active experts).\n"
        f"Timed: {shape.timed_steps} steps after at least {shape.warmup_steps}; routing forced to balance."
    )
    return f"{head}\n{_columns(table)}\n\n{tail}"


def trace_page(run: Run) -> str:
    """The ledger of a trace, with what was resolved to get it."""
    assert run.ledger is not None
    notes = [f"{name}: {backend.executed}" for name, backend in run.backends.items()]
    if run.peak_device_bytes is not None:
        notes.append(f"peak memory: {run.peak_device_bytes / 1e9:.2f} GB of the device on rank {run.ledger.rank}")
    notes += [f"warning: {warning}" for warning in run.warnings]
    return ledger_page(run.ledger, f"{run.workload} {run.variant}", notes)


def ledger_page(ledger: Ledger, title: str, notes: Sequence[str] = ()) -> str:
    """One ledger: kind, axis, phase, how often in each layer and in all, bytes, and what hides of it."""
    span = "one steady step" if ledger.scope == "step" else f"{ledger.steps} step{'s' * (ledger.steps > 1)} together"
    world = f" of {ledger.world_size}" if ledger.world_size else ""
    head = f"{title}: collectives of {span} on rank {ledger.rank}{world} ({ledger.source})\n"
    static = any(entry.static_count is not None for entry in ledger.entries)
    timed = any(entry.exposed_s is not None for entry in ledger.entries)
    names = ("collective", "axis", "phase", "role", "dtype", "module", "per layer", "count", "bytes")
    table: Table = [names + ("lines",) * static + ("exposed ms", "hidden ms") * timed]
    for row in rows(ledger, ledger):
        cells = (*_row_words(row), _each(row, row.base), str(row.base.count), binary_bytes(row.base.bytes))
        if static:
            cells += (str(row.static_count),)
        if timed:
            cells += (f"{1e3 * row.exposed_s:.3g}", f"{1e3 * row.hidden_s:.3g}")
        table.append(cells)
    lines = [f"program {ledger.program[:16]}" if ledger.program else ""]
    lines += [f"{name} {version}" for name, version in ledger.software.items()]
    lines += notes
    lines += [f"replaced: {patch}" for patch in ledger.patches]
    lines += [f"not classified: {each.name} ({each.count})" for each in ledger.unclassified]
    lines += [f"guessed: {guess}" for guess in ledger.guesses]
    lines += [f"warning: {warning}" for warning in ledger.warnings]
    return f"{head}\n{_columns(table)}\n\n{_totals(ledger)}\n" + "\n".join(line for line in lines if line)


def run_page(run: Run) -> str:
    """One timed run: how it ended, its steady step time, what it spent in collectives, memory, loss."""
    if run.timing is None or not run.timing.steady_s:
        return "\n".join([f"{run.workload} {run.variant}: {run.outcome}", _wrapped(run.reason), run.log_tail])
    timing = run.timing
    table: Table = [("rank", "step ms", "CPU ms", "in collectives ms", "peak memory")]
    for rank, steps in timing.ranks.items():
        each = (steps.step_s, steps.cpu_s, steps.wait_s)
        usual = (f"{1000 * median(of[timing.cut :]):.4g}" if of else "unknown" for of in each)
        table.append((rank, *usual, binary_bytes(steps.peak_bytes) if steps.peak_bytes else "unknown"))
    compared = {name: 1000 * math.exp(value) for name, value in summaries(timing, timing.cut).items()}
    times = f"{compared['median']:.4g} ms a step (median of {len(timing.steady_s)} after {timing.cut})"
    lines = [
        f"{run.workload} {run.variant}: {run.outcome}; {times}, mean {compared['mean']:.4g} ms",
        run.reason,
        "",
        _columns(table),
        "",
        f"on {run.node.node_class}, clock {timing.clock}" if run.node else "",
        *(f"{name}: {backend.executed}" for name, backend in run.backends.items()),
        *(f"warning: {warning}" for warning in run.warnings),
    ]
    return "\n".join(line for number, line in enumerate(lines) if line or number in (2, 4))


def diff_page(sharding: Sharding, base: Ledger, head: Ledger) -> str:
    """What changed between two ledgers."""
    lines = [f"{sharding.status}"]
    lines += [f"  {reason}" for reason in sharding.reasons]
    for finding in sharding.findings:
        lines += ["", f"{finding.status}  {finding.pattern} ({finding.axis})", f"  {finding.text}"]
    changed = [row for row in rows(base, head) if row.changed]
    if changed:
        names = ("collective", "axis", "phase", "role", "dtype", "module", "base", "head", "bytes base", "bytes head")
        table: Table = [names]
        for row in changed:
            sizes = (binary_bytes(row.base.bytes), binary_bytes(row.head.bytes))
            table.append((*_row_words(row), str(row.base.count), str(row.head.count), *sizes))
        lines += ["", _columns(table)]
    lines += _beside(base, head)
    return "\n".join(lines)


def _beside(base: Ledger, head: Ledger) -> list[str]:
    """What the two ledgers themselves warn of, and what they could not classify."""
    notes: dict[str, list[str]] = {}
    for name, ledger in (("base", base), ("head", head)):
        for note in (
            *(f"guessed: {guess}" for guess in ledger.guesses),
            *(f"warning: {warning}" for warning in ledger.warnings),
            *(f"not classified: {each.name} ({each.count})" for each in ledger.unclassified),
        ):
            notes.setdefault(note, []).append(name)
    told = [note if len(arms) == 2 else f"{arms[0]}: {note}" for note, arms in notes.items()]
    return ["", *told] if told else []


def verdict_page(verdict: Verdict, out: Path | None, header: SessionHeader | None = None) -> str:
    """The verdict in a terminal: one line per entry, the findings once, what was not measured, where the report lies.

    ``header``: of the session, which knows what its options excluded.
    """
    lines = [f"{verdict.verdict}  {verdict.base.commit[:12]} -> {verdict.head.commit[:12]}", ""]
    table: Table = [("workload", "sharding", "throughput", "validity", "")]
    for entry in verdict.workloads:
        sharding = entry.sharding.status if entry.sharding else "-"
        row = (entry.name, sharding, _pace(entry.throughput), entry.validity.status, _why(entry))
        table.append(tuple(map(printable, row)))
    lines.append(_columns(table))
    if size := small(entry.sharding for entry in verdict.workloads):
        lines += ["", f"sharding of the {size} variant, a small copy of the shape: {ADVICE}"]
    for entry in verdict.workloads:
        if entry.sharding is None or entry.validity.status != "PASS":
            lines += ["", f"{entry.validity.status}  {printable(entry.name)}"]
            lines += [_wrapped(reason) for reason in entry.validity.reasons]
    for entry in verdict.workloads:
        if entry.throughput is not None:
            lines += ["", *_throughput_lines(entry.name, entry.throughput)]
    for (status, pattern, axis), found in _findings(verdict).items():
        names = ", ".join(name for name, _ in found) if len(found) < len(verdict.workloads) else "all workloads"
        lines += ["", printable(f"{status}  {pattern} (axis {axis}) in {names}"), _wrapped(found[0][1].text)]
    lines += [f"warning: {printable(warning)}" for warning in verdict.warnings]
    parts = unmeasured(verdict, header) if header is not None else []
    lines += ["", *(printable("".join(words)) for words in parts)] if parts else []
    if out is not None:
        lines += ["", f"{out / 'verdict.json'}", f"{out / 'comment.md'}", f"{out / 'report.html'}"]
    return "\n".join(lines)


def _findings(verdict: Verdict) -> dict[tuple[Status, str, str], list[tuple[str, Finding]]]:
    """By status, pattern and axis, the gravest first: each finding with the workload that has it."""
    found: dict[tuple[Status, str, str], list[tuple[str, Finding]]] = {}
    for entry in verdict.workloads:
        for finding in entry.sharding.findings if entry.sharding else []:
            found.setdefault((finding.status, finding.pattern, finding.axis), []).append((entry.name, finding))
    return dict(sorted(found.items(), key=lambda item: GRAVITY.index(item[0][0])))


def _pace(section: Throughput | None) -> str:
    """``FAIL +46.7% [+38.2, +55.9]``."""
    return f"{section.status} {moved(section)}".rstrip().replace("−", "-") if section else "-"


def _throughput_lines(name: str, section: Throughput) -> list[str]:
    """Why throughput was decided so or not at all, what a change is made of, what was measured."""
    lines = [f"{section.status}  throughput of {printable(name)}"]
    lines += [_wrapped(_sentence(words)) for words in (*section.reasons[:REASONS_SHOWN], section.wall) if words]
    if section.base_step_s is not None and section.head_step_s is not None:
        void = f" ({section.void_pairs} void)" if section.void_pairs else ""
        steps = f"{milliseconds(section.base_step_s)} -> {milliseconds(section.head_step_s)}"
        cost = f", {count(section.cost.runs, 'run')} in {section.cost.minutes:.1f} minutes" if section.cost else ""
        where = f" on {section.node}" if section.node else ""
        variant = f", variant {section.variant}" if section.variant else ""
        lines.append(_wrapped(f"step {steps}: {count(section.pairs, 'pair')}{void}{cost}{where}{variant}"))
    return lines


def _sentence(words: str) -> str:
    """``words`` as a line of its own, with a capital letter."""
    return words[:1].upper() + words[1:]


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """What the machine can do."""
    lines = []
    for check in diagnosis.checks:
        lines.append(f"{'yes' if check.ok else 'no ':<4} {check.name:<28} {check.detail}")
        if check.fix:
            lines.append(f"{'':<33} {check.fix}")
    return "\n".join(lines)


def _row_words(row: Row) -> tuple[str, ...]:
    return (row.kind, f"{row.axis} ({row.group_size})", row.phase, row.role, row.dtype, _name(row.template))


def _name(template: str) -> str:
    """A module, or an op of a compiled program: one that a combiner merged from many has a name of many lines."""
    if len(template) > NAME_CHARACTERS:
        half = NAME_CHARACTERS // 2 - 1
        template = f"{template[:half]} … {template[-half:]}"
    return template or "(root)"


def _each(row: Row, volume: Volume) -> str:
    if "*" not in row.template or volume.count % row.layers:
        return ""
    return str(volume.count // row.layers)


def _wrapped(text: str) -> str:
    return textwrap.fill(printable(text), 110, initial_indent="  ", subsequent_indent="  ")


def _why(entry: WorkloadVerdict) -> str:
    """The patterns that were found, else the first reason; whole texts stand below the table."""
    if entry.sharding is not None and entry.sharding.findings:
        return ", ".join(dict.fromkeys(finding.pattern for finding in entry.sharding.findings))
    reasons = entry.sharding.reasons if entry.sharding is not None else entry.validity.reasons
    return textwrap.shorten(reasons[0], 100, placeholder=" ...") if reasons else ""


def _totals(ledger: Ledger) -> str:
    counts: dict[str, list[int]] = {}
    for entry in sorted(ledger.entries, key=lambda entry: get_args(Kind).index(entry.kind)):
        total = counts.setdefault(entry.kind, [0, 0])
        total[0] += entry.count
        total[1] += entry.count if entry.role == "control" else 0
    return ", ".join(
        f"{n} {kind}" + (f" ({control} control)" if control else "") for kind, (n, control) in counts.items()
    )


def _columns(table: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; a column of numbers is right-aligned. The first row is the head."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    numeric = [
        all(row[c][:1].isdigit() or not row[c] for row in table[1:]) and len(table) > 1 for c in range(len(widths))
    ]
    lines = []
    for number, row in enumerate(table):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)
