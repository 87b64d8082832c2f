"""Pages that commands print for people, as plain text with tables. With --json, commands print records instead."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from regbot.cli.doctor.diagnosis import Diagnosis
from regbot.judge.run_verdicts import run_verdict
from regbot.judge.validity import changed_software
from regbot.ledgers.rows import Row, build_rows
from regbot.records.ledger import DEFAULT_PAPER_GPU, Kind, Ledger
from regbot.records.run import Run
from regbot.records.session import SessionHeader
from regbot.records.text.clip import short_commit
from regbot.records.text.printable import printable
from regbot.records.text.table import format_table
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count
from regbot.records.text.wrap import wrapped
from regbot.records.verdict import LedgerDiff, ProgramSection, Verdict, Volume, select_gravest_status
from regbot.report.advice import share_findings
from regbot.report.markdown import Strong, Words
from regbot.report.notes import (
    DIFFERENCE,
    describe_small_variants,
    format_difference,
    list_unmeasured,
    name_small_variants,
)
from regbot.report.source_lines import describe_lines
from regbot.report.tables import share
from regbot.report.throughput import explain_times
from regbot.report.view import list_stored, tabulate_workloads
from regbot.report.walls import describe_program
from regbot.workloads.shapes import Shape

COMPILING_PACKAGES = ("jax", "jaxlib")
"""Packages that compile the traced program. Another version may compile the same code to other collectives."""
NAME_CHARACTERS = 72
"""Maximum length of a module's or operator's name in a table."""
Table = list[tuple[str, ...]]


def shape_list(shapes: Iterable[Shape]) -> str:
    """Return a table of shapes, with one line for each shape."""
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
    return format_table(table)


def shape_page(shape: Shape) -> str:
    """Return a page about one shape, with all numbers of all its sizes."""
    sizes = list(shape.sizes.values())
    field_names = list(sizes[0].model_dump())
    table = [("", *shape.sizes)]
    table += [(name, *(str(getattr(size, name)) for size in sizes)) for name in field_names]
    table.append(("parameters", *(f"{size.parameters / 1e9:.4g} B" for size in sizes)))
    table.append(("active parameters", *(f"{size.active_parameters / 1e9:.4g} B" for size in sizes)))
    table.append(("FLOPs per step and rank", *(f"{size.flops_per_step / 1e12:.4g} T" for size in sizes)))
    table.append(("FLOPs of the experts", *(f"{100 * size.expert_flops_share:.0f}%" for size in sizes)))
    for mesh_name in ("ep", "ep-dp"):
        meshes = [meshes_of_size.get(mesh_name) for meshes_of_size in shape.meshes.values()]
        cells = (f"{mesh.world_size} ranks, EP {mesh.ep}, EDP {mesh.edp}" if mesh else "-" for mesh in meshes)
        table.append((f"mesh {mesh_name}", *cells))
    title_line = f"{shape.id}: {shape.title}. Source: {shape.source}.\n"
    notes = (
        "Variants: a size, alone or with -skewed (Zipf routing), -dense (one MLP as wide as the active experts)\n"
        "or -moe (no embedding and output head, so that the experts are more of the step).\n"
        f"Timed: {shape.timed_steps} steps after at least {shape.warmup_steps}; routing forced to balance."
    )
    return f"{title_line}\n{format_table(table)}\n\n{notes}"


def trace_page(run: Run) -> str:
    """Return a page about a trace: its ledger, the backends that ran, and warnings."""
    assert run.ledger is not None
    notes = [f"{name}: {backend.executed}" for name, backend in run.backends.items()]
    if run.ledger.program is not None:
        notes += describe_program(run.ledger.program, run.ledger.gpu or DEFAULT_PAPER_GPU)
    notes += [f"warning: {warning}" for warning in run.warnings]
    return ledger_page(run.ledger, f"{run.workload} {run.variant}", notes)


def ledger_page(ledger: Ledger, title: str, notes: Sequence[str] = ()) -> str:
    """Return a page about one ledger, with counts and bytes of each collective. ``title`` begins the first line.
    ``notes`` are lines below the table.

    A ledger of a compiled program also has static counts: how many lines of the program's text have the collective. A
    profile also gives the seconds in which no kernel computes (exposed) and in which one does (hidden)."""
    steps_text = "one steady step" if ledger.scope == "step" else f"{count(ledger.steps, 'step')} together"
    world = f" of {ledger.world_size}" if ledger.world_size else ""
    # ``ledger.gpu`` is the GPU that the trace imitated; None without a paper GPU.
    gpu = f", {ledger.gpu}" if ledger.gpu not in (None, DEFAULT_PAPER_GPU) else ""
    title_line = f"{title}: collectives of {steps_text} on rank {ledger.rank}{world} ({ledger.source}{gpu})\n"
    has_static_counts = any(entry.static_count is not None for entry in ledger.entries)
    has_times = any(entry.exposed_s is not None for entry in ledger.entries)
    headings: tuple[str, ...] = (
        *("collective", "axis", "phase", "role", "dtype", "module", "per layer", "count", "bytes"),
        *(("lines",) if has_static_counts else ()),
        *(("exposed ms", "hidden ms") if has_times else ()),
    )
    table: Table = [headings]
    for row in build_rows(ledger, ledger):  # rows of one ledger: base is this ledger, and so is head
        cells = (*_row_cells(row), _count_per_layer(row, row.base), str(row.base.count), binary_bytes(row.base.bytes))
        if has_static_counts:
            cells += (str(row.static_count),)
        if has_times:
            cells += (f"{1e3 * row.exposed_s:.3g}", f"{1e3 * row.hidden_s:.3g}")
        table.append(cells)
    lines = [f"program {ledger.fingerprint[:16]}" if ledger.fingerprint else ""]
    lines += [f"{name} {version}" for name, version in ledger.software.items()]
    lines += notes
    # A patch is a difference from a run on GPUs, such as a part that was replaced.
    lines += [f"{DIFFERENCE}: {format_difference(patch)}" for patch in ledger.patches]
    lines += _list_notes(ledger)
    lines_below_table = "\n".join(line for line in lines if line)
    return f"{title_line}\n{format_table(table)}\n\n{_format_totals(ledger)}\n{lines_below_table}"


def run_page(run: Run) -> str:
    """Return a page about one timed run: outcome, steady step time, and the times and memory of each rank."""
    verdict = run_verdict(run, number=1, role="unused")  # the page shows neither the number nor the role
    # A run that failed has no step times. ``cut`` is the number of warm-up steps at the start of the run.
    if run.timing is None or verdict.cut is None or verdict.median_s is None or verdict.mean_s is None:
        return "\n".join([f"{run.workload} {run.variant}: {run.outcome}", wrapped(run.reason), run.log_tail])
    timing = run.timing
    table: Table = [("rank", "step ms", "CPU ms", "in collectives ms", "peak memory")]
    for rank in verdict.ranks:
        times = (
            f"{1000 * seconds:.4g}" if seconds is not None else "unknown"
            for seconds in (rank.step_s, rank.cpu_s, rank.wait_s)
        )
        table.append((rank.rank, *times, binary_bytes(rank.peak_bytes) if rank.peak_bytes else "unknown"))
    steps = f"median of {len(timing.step_s) - verdict.cut} after {verdict.cut}"
    step_time = f"{1000 * verdict.median_s:.4g} ms a step ({steps}), mean {1000 * verdict.mean_s:.4g} ms"
    lines_above = [f"{run.workload} {run.variant}: {run.outcome}; {step_time}", run.reason]
    lines_below = [
        f"on {run.node.node_class}, clock {timing.clock}" if run.node else "",
        *(f"{name}: {backend.executed}" for name, backend in run.backends.items()),
        *(f"warning: {warning}" for warning in run.warnings),
    ]
    return "\n".join([*filter(None, lines_above), "", format_table(table), "", *filter(None, lines_below)])


def diff_page(diff: LedgerDiff, base: Ledger, head: Ledger) -> str:
    """Return a page about the differences of two ledgers: findings and changed collectives.

    ``diff`` is the verdict about these two ledgers.
    """
    program = diff.program or ProgramSection(status="PASS", reasons=[])
    lines: list[str] = [select_gravest_status([diff.status, program.status])]
    lines += [f"  {reason}" for reason in (*diff.reasons, *program.reasons)]
    for finding in (*diff.findings, *program.findings):
        lines += ["", f"{finding.status}  {finding.pattern} ({finding.axis})", f"  {finding.text}"]
        source_lines = describe_lines(finding)
        lines += [f"  {_plain(source_lines)}"] if source_lines else []
    changed = [row for row in build_rows(base, head) if row.changed]
    if changed:
        table: Table = [
            ("collective", "axis", "phase", "role", "dtype", "module", "base", "head", "bytes base", "bytes head")
        ]
        for row in changed:
            sizes = (binary_bytes(row.base.bytes), binary_bytes(row.head.bytes))
            table.append((*_row_cells(row), str(row.base.count), str(row.head.count), *sizes))
        lines += ["", format_table(table)]
    lines += _compare_notes(base, head)
    return "\n".join(lines)


def _list_notes(ledger: Ledger) -> list[str]:
    return [
        *(f"not classified: {operator.name} ({operator.count})" for operator in ledger.unclassified),
        *(f"guessed: {guess}" for guess in ledger.guesses),
        *(f"warning: {warning}" for warning in ledger.warnings),
    ]


def _compare_notes(base: Ledger, head: Ledger) -> list[str]:
    """Return changed versions of packages, and the notes of both ledgers. A note that both have appears once. A note of
    one ledger begins with the name of the arm."""
    # What follows the versions of a package that compiles the program.
    effect = "; another version can compile the same code to other collectives"
    versions = [
        f"{name} is {base_version} in base, {head_version} in head{effect if name in COMPILING_PACKAGES else ''}"
        for name, (base_version, head_version) in changed_software(base, head).items()
    ]
    arms_by_note: dict[str, list[str]] = {}
    for arm, ledger in (("base", base), ("head", head)):
        for note in _list_notes(ledger):
            arms_by_note.setdefault(note, []).append(arm)
    notes = [note if len(arms) == 2 else f"{arms[0]}: {note}" for note, arms in arms_by_note.items()]
    lines = [*versions, *notes]
    return ["", *lines] if lines else []


def verdict_page(verdict: Verdict, out: Path | None, header: SessionHeader | None = None) -> str:
    """Return the page of a verdict: one line for each entry, findings, warnings, and the paths of the report's files.

    ``out`` is the folder of the report; None if no report was written. If the session's ``header`` is given, the page
    also says what the options of the check excluded.
    """
    overview = tabulate_workloads(verdict)
    table = [overview.columns, *(tuple(map(_plain, row)) for row in overview.rows)]
    lines = [f"{verdict.verdict}  {short_commit(verdict.base.commit)} -> {short_commit(verdict.head.commit)}", ""]
    lines.append(format_table(table))
    if small_variants := name_small_variants(entry.sharding for entry in verdict.workloads):
        lines += ["", f"sharding of {describe_small_variants(small_variants)}"]
    untrusted = [entry for entry in verdict.workloads if entry.sharding is None or entry.validity.status != "PASS"]
    shared = share(((entry.validity.status, tuple(entry.validity.reasons)), entry.name) for entry in untrusted)
    unseen = [(entry.program, entry.name) for entry in verdict.workloads if entry.program and not entry.findings]
    shared += share(((item.status, tuple(item.reasons)), name) for item, name in unseen if item.status != "PASS")
    for (status, reasons), sharers in shared:
        lines += ["", f"{status}  {printable(', '.join(sharers))}", *map(wrapped, reasons)]
    for entry in verdict.workloads:
        if entry.throughput is not None:
            lines += ["", f"{entry.throughput.status}  throughput of {printable(entry.name)}"]
            lines += [wrapped(_plain(words)) for words in explain_times(entry.name, entry.throughput)]
    stored = list_stored(verdict)
    lines += ["", *(wrapped(_plain(words)) for words in stored)] if stored else []
    for item in share_findings(verdict.workloads):
        is_everywhere = len(item.workloads) == len(verdict.workloads) > 1
        names = "all workloads" if is_everywhere else ", ".join(item.workloads)
        finding = item.finding
        lines += ["", printable(f"{finding.status}  {finding.pattern} (axis {finding.axis}) in {names}")]
        lines.append(wrapped(_plain(item.text)))
        if source_lines := describe_lines(finding):
            lines.append(wrapped(_plain(source_lines)))
        if finding.accepted is not None:
            lines.append(wrapped(f"Accepted with the declared reason: {finding.accepted}"))
    lines += [f"warning: {printable(warning)}" for warning in verdict.warnings]
    not_measured = list_unmeasured(verdict, header) if header is not None else []
    lines += ["", *map(_plain, not_measured)] if not_measured else []
    if out is not None:
        lines += ["", f"{out / 'verdict.json'}", f"{out / 'comment.md'}", f"{out / 'report.html'}"]
    return "\n".join(lines)


def _plain(words: Words) -> str:
    """Return a sentence as one line of plain text, with the minus sign that every terminal has."""
    return printable("".join(word for word in words if not isinstance(word, Strong))).replace("−", "-")


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the page of ``regbot doctor``: all checks, how to fix the failed ones, and commands for an
    environment."""
    lines = []
    for check in diagnosis.checks:
        lines.append(f"{'yes' if check.ok else 'no ':<4} {check.name:<28} {check.detail}")
        if check.fix:
            lines.append(f"{'':<33} {check.fix}")
    if diagnosis.install:
        lines += ["", "A fresh environment for this workload:", *(f"  {command}" for command in diagnosis.install)]
    return "\n".join(lines)


def _row_cells(row: Row) -> tuple[str, ...]:
    kind, axis, group_size, dtype, phase, role = row.signature
    return (kind, f"{axis} ({group_size})", phase, role, dtype, _shorten_name(row.module))


def _shorten_name(name: str) -> str:
    """Return the name of a module or operator for a table. A very long name is shortened in the middle.

    The root module has the name ''."""
    if len(name) > NAME_CHARACTERS:
        half = NAME_CHARACTERS // 2 - 1
        name = f"{name[:half]} … {name[-half:]}"
    return name or "(root)"


def _count_per_layer(row: Row, volume: Volume) -> str:
    """Return the number of calls in each layer. Return '' for a module outside of the layers, or if layers differ.

    ``volume`` has the calls and bytes of ``row`` in one arm.
    """
    is_in_layers = "*" in row.template  # the template of a module is for example layers.*.moe
    if not is_in_layers or volume.count % row.layers:
        return ""
    return str(volume.count // row.layers)


def _format_totals(ledger: Ledger) -> str:
    """Return the number of calls of each kind of collective, such as ``192 all_to_all (96 control), 2 all_reduce``."""
    totals: Counter[Kind] = Counter()
    control_totals: Counter[Kind] = Counter()
    for entry in ledger.entries:
        totals[entry.kind] += entry.count
        if entry.role == "control":
            control_totals[entry.kind] += entry.count
    parts = []
    for kind in get_args(Kind):
        if kind in totals:
            control_text = f" ({control_totals[kind]} control)" if control_totals[kind] else ""
            parts.append(f"{totals[kind]} {kind}{control_text}")
    return ", ".join(parts)
