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
from regbot.records.text.clip import clip_line, short_commit
from regbot.records.text.printable import printable
from regbot.records.text.table import format_table
from regbot.records.text.units import binary_bytes
from regbot.records.text.words import count
from regbot.records.text.wrap import wrapped
from regbot.records.verdict import (
    GRAVITY,
    Finding,
    Sharding,
    Status,
    StoredComparison,
    Throughput,
    Verdict,
    Volume,
    WorkloadVerdict,
)
from regbot.report.baseline_row import describe_stored
from regbot.report.evidence import DIFFERENCE, format_difference
from regbot.report.not_measured import list_unmeasured
from regbot.report.quantities import estimate_and_interval, milliseconds
from regbot.report.sizes import ADVICE, name_small_variants
from regbot.report.throughput import describe_expert_shares, explain_mean_only, format_change, select_mean_only_test
from regbot.workloads.shapes import Shape

COMPILING_PACKAGES = ("jax", "jaxlib")
"""Packages that compile the traced program. Another version may compile the same code to other collectives."""
NAME_CHARACTERS = 72
"""Maximum length of a module's or operator's name in a table."""
Table = list[tuple[str, ...]]

MAX_REASONS = 3
"""Maximum number of reasons for the decision about a step time."""


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
    if run.peak_device_bytes is not None:
        notes.append(f"peak memory: {run.peak_device_bytes / 1e9:.2f} GB of the device on rank {run.ledger.rank}")
    notes += [f"warning: {warning}" for warning in run.warnings]
    return ledger_page(run.ledger, f"{run.workload} {run.variant}", notes)


def ledger_page(ledger: Ledger, title: str, notes: Sequence[str] = ()) -> str:
    """Return a page about one ledger, with counts and bytes of each collective.

    A ledger of a compiled program also has static counts: how many lines of the program's text have the collective. A
    profile also gives each collective two times. During the exposed time, no kernel computes. During the hidden time,
    a kernel computes. ``title`` begins the first line. ``notes`` are lines below the table."""
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
    lines = [f"program {ledger.program[:16]}" if ledger.program else ""]  # the fingerprint of the device program
    lines += [f"{name} {version}" for name, version in ledger.software.items()]
    lines += notes
    # A patch is a difference from a run on GPUs, such as a part that was replaced.
    lines += [f"{DIFFERENCE}: {format_difference(patch)}" for patch in ledger.patches]
    lines += [f"not classified: {operator.name} ({operator.count})" for operator in ledger.unclassified]
    lines += [f"guessed: {guess}" for guess in ledger.guesses]
    lines += [f"warning: {warning}" for warning in ledger.warnings]
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


def diff_page(sharding: Sharding, base: Ledger, head: Ledger) -> str:
    """Return a page about the differences of two ledgers: findings and changed collectives.

    ``sharding`` is the verdict about these two ledgers.
    """
    lines = [f"{sharding.status}"]
    lines += [f"  {reason}" for reason in sharding.reasons]
    for finding in sharding.findings:
        lines += ["", f"{finding.status}  {finding.pattern} ({finding.axis})", f"  {finding.text}"]
    changed = [row for row in build_rows(base, head) if row.changed]
    if changed:
        table: Table = [
            ("collective", "axis", "phase", "role", "dtype", "module", "base", "head", "bytes base", "bytes head")
        ]
        for row in changed:
            sizes = (binary_bytes(row.base.bytes), binary_bytes(row.head.bytes))
            table.append((*_row_cells(row), str(row.base.count), str(row.head.count), *sizes))
        lines += ["", format_table(table)]
    lines += _ledger_notes(base, head)
    return "\n".join(lines)


def _ledger_notes(base: Ledger, head: Ledger) -> list[str]:
    """Return changed versions of packages, and the guesses, warnings and unclassified operators of both ledgers.

    A note that both ledgers have appears once. A note of one ledger begins with the name of the arm."""
    # What follows the versions of a package that compiles the program.
    effect = "; another version can compile the same code to other collectives"
    versions = [
        f"{name} is {base_version} in base, {head_version} in head{effect if name in COMPILING_PACKAGES else ''}"
        for name, (base_version, head_version) in changed_software(base, head).items()
    ]
    arms_by_note: dict[str, list[str]] = {}
    for arm, ledger in (("base", base), ("head", head)):
        for note in (
            *(f"guessed: {guess}" for guess in ledger.guesses),
            *(f"warning: {warning}" for warning in ledger.warnings),
            *(f"not classified: {operator.name} ({operator.count})" for operator in ledger.unclassified),
        ):
            arms_by_note.setdefault(note, []).append(arm)
    notes = [note if len(arms) == 2 else f"{arms[0]}: {note}" for note, arms in arms_by_note.items()]
    lines = [*versions, *notes]
    return ["", *lines] if lines else []


def verdict_page(verdict: Verdict, out: Path | None, header: SessionHeader | None = None) -> str:
    """Return the page of a verdict: one line for each entry, findings, warnings, and the paths of the report's files.

    ``out`` is the folder of the report; None if no report was written. If the session's ``header`` is given, the page
    also says what the options of the check excluded.
    """
    lines = [f"{verdict.verdict}  {short_commit(verdict.base.commit)} -> {short_commit(verdict.head.commit)}", ""]
    table: Table = [("workload", "sharding", "throughput", "validity", "findings or reason")]
    for entry in verdict.workloads:
        sharding = entry.sharding.status if entry.sharding else "-"
        row = (
            entry.name,
            sharding,
            _format_throughput(entry.throughput),
            entry.validity.status,
            _summarise_entry(entry),
        )
        table.append(tuple(map(printable, row)))
    lines.append(format_table(table))
    if small_variant := name_small_variants(entry.sharding for entry in verdict.workloads):
        lines += ["", f"sharding of the {small_variant} variant, a small copy of the shape: {ADVICE}"]
    for entry in verdict.workloads:
        if entry.sharding is None or entry.validity.status != "PASS":
            lines += ["", f"{entry.validity.status}  {printable(entry.name)}"]
            lines += [wrapped(reason) for reason in entry.validity.reasons]
    for entry in verdict.workloads:
        if entry.throughput is not None:
            lines += ["", *_throughput_lines(entry.name, entry.throughput)]
    stored_comparisons = [(entry.name, entry.stored) for entry in verdict.workloads if entry.stored is not None]
    if stored_comparisons:
        lines.append("")
    for name, comparison in stored_comparisons:
        lines.append(wrapped(f"not part of the verdict, {name}: {_stored_text(comparison)}"))
    for (status, pattern, axis), findings in _group_findings(verdict).items():
        is_everywhere = len(findings) == len(verdict.workloads) > 1
        names = "all workloads" if is_everywhere else ", ".join(name for name, _ in findings)
        text = _example_text(findings)
        lines += ["", printable(f"{status}  {pattern} (axis {axis}) in {names}"), wrapped(text)]
        declared_reasons = dict.fromkeys(finding.accepted for _, finding in findings if finding.accepted is not None)
        lines += [wrapped(f"Accepted with the declared reason: {reason}") for reason in declared_reasons]
    lines += [f"warning: {printable(warning)}" for warning in verdict.warnings]
    # Each sentence is a sequence of parts.
    not_measured = list_unmeasured(verdict, header) if header is not None else []
    if not_measured:
        lines += ["", *(printable("".join(sentence_parts)) for sentence_parts in not_measured)]
    if out is not None:
        lines += ["", f"{out / 'verdict.json'}", f"{out / 'comment.md'}", f"{out / 'report.html'}"]
    return "\n".join(lines)


def _example_text(findings: Sequence[tuple[str, Finding]]) -> str:
    """Return the text of the first finding. ``findings`` are pairs of a workload's name and its finding.

    If another workload's finding has another text, the returned text names the workload as an example."""
    name, finding = findings[0]
    is_same = all(other.text == finding.text for _, other in findings)
    return finding.text if is_same else f"For example {printable(name)}: {finding.text}"


def _group_findings(verdict: Verdict) -> dict[tuple[Status, str, str], list[tuple[str, Finding]]]:
    """Group the findings of all workloads by status, pattern and axis. The most severe status comes first.

    The groups have pairs of a workload's name and its finding."""
    findings: dict[tuple[Status, str, str], list[tuple[str, Finding]]] = {}
    for entry in verdict.workloads:
        for finding in entry.sharding.findings if entry.sharding else []:
            findings.setdefault((finding.status, finding.pattern, finding.axis), []).append((entry.name, finding))

    def severity(key: tuple[Status, str, str]) -> int:
        status, _, _ = key
        return GRAVITY.index(status)

    return {key: findings[key] for key in sorted(findings, key=severity)}


def _format_throughput(section: Throughput | None) -> str:
    """Return status, change and interval of the step time, such as ``FAIL +46.7% [+38.2, +55.9]``.

    The change is that of the median step, or of the mean step if only the mean decided."""
    if section is None:
        return "-"
    change = _join_change(format_change(section))
    if mean := select_mean_only_test(section):
        change = f"mean {_join_change(estimate_and_interval(mean.estimate_pct, mean.low_pct, mean.high_pct))}"
    return f"{section.status} {change}".rstrip()


def _join_change(change: tuple[str, str]) -> str:
    """Return a change and its interval as one text, with the minus sign that every terminal has."""
    return " ".join(change).replace("−", "-")


def _throughput_lines(name: str, section: Throughput) -> list[str]:
    """Return lines about the step time of a workload: reasons for the decision, step times, and how these were
    measured.

    ``section.wall`` says which part of the step explains the change; '' if this is unknown."""
    lines = [f"{section.status}  throughput of {printable(name)}"]
    if select_mean_only_test(section):  # only the mean step changed
        median = _join_change(format_change(section))
        lines.append(wrapped(f"The mean step decided, {explain_mean_only(section)}. The median step: {median}"))
    lines += [wrapped(_capitalise(reason)) for reason in (*section.reasons[:MAX_REASONS], section.wall) if reason]
    if section.base_step_s is not None and section.head_step_s is not None:
        void_text = f", and {section.void_pairs} void" if section.void_pairs else ""
        step_times = f"{milliseconds(section.base_step_s)} -> {milliseconds(section.head_step_s)}"
        cost_text = f", {count(section.cost.runs, 'run')} in {section.cost.minutes:.1f} minutes" if section.cost else ""
        node_text = f" on {section.node}" if section.node else ""
        variant_text = f", variant {section.variant}" if section.variant else ""
        measured = f"{count(section.pairs, 'pair')}{void_text}{cost_text}{node_text}{variant_text}"
        lines.append(wrapped(f"median step {step_times}: {measured}"))
        if expert_text := "".join(describe_expert_shares([(name, section)])):
            lines.append(wrapped(expert_text))
    return lines


def _stored_text(comparison: StoredComparison) -> str:
    """Return how a workload's step time compares with the stored baseline, as plain text."""
    return "".join(describe_stored(comparison)).replace("−", "-")


def _capitalise(text: str) -> str:
    """Return ``text`` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


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
    return (row.kind, f"{row.axis} ({row.group_size})", row.phase, row.role, row.dtype, _shorten_name(row.module))


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


def _summarise_entry(entry: WorkloadVerdict) -> str:
    """Return the patterns of an entry's findings. Without findings, return its first reason, shortened.

    A validity section that is not PASS decides, so its reason comes before that of the sharding section. The full
    reason stands below the table."""
    if entry.sharding is not None and entry.sharding.findings:
        return ", ".join(dict.fromkeys(finding.pattern for finding in entry.sharding.findings))
    if entry.sharding is not None and entry.validity.status != "PASS" and entry.validity.reasons:
        before_details, _, _ = entry.validity.reasons[0].partition(": ")
        return clip_line(before_details, 100)
    reasons = entry.sharding.reasons if entry.sharding is not None else entry.validity.reasons
    return clip_line(reasons[0], 100) if reasons else ""


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
