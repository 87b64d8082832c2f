"""What a step computes, holds, launches and waits for: the changed walls, and the details by module."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from regbot.ledgers.program import HOLDER_NAMES, format_rise
from regbot.ledgers.rows import template
from regbot.records.ledger import GPU_MEMORY_BYTES, Count, PaperGpu, Phase, Program
from regbot.records.text.clip import clip
from regbot.records.text.units import format_amount
from regbot.records.verdict import Amounts, ProgramSection
from regbot.report.markdown import STRONG, Name, Words
from regbot.report.notes import list_names
from regbot.report.state import Check
from regbot.report.tables import Block, Log, Table, share

MAX_MODULES = 12
MAX_UNKNOWN = 5
BAR_CHARACTERS = 20
CURVE_CHARACTERS = 80
_LEVELS = "▁▂▃▄▅▆▇█"
NAME_CHARACTERS = 60


def tabulate_walls(check: Check) -> list[Block]:
    """Return a table with one row for each wall that changed; [] if none did."""
    rows: list[tuple[Words, ...]] = []
    changes = share((_list_changes(entry.verdict.program), entry.name) for entry in check.entries)
    for cells, names in changes:
        rows += [(list_names(names) if number == 0 else (), *row) for number, row in enumerate(cells)]
    return [Table(("workload", "what changed in a step", "base", "head", "change"), rows)] if rows else []


def _list_changes(section: ProgramSection | None) -> tuple[tuple[Words, ...], ...]:
    findings = section.findings if section is not None else []
    return tuple(
        ((f"{finding.axis}: {finding.pattern}",), *_format_amounts(finding.amounts))
        for finding in findings
        if finding.amounts is not None
    )


def _format_amounts(amounts: Amounts) -> tuple[Words, ...]:
    head: Words = (format_amount(amounts.head, amounts.unit),)
    if amounts.head != amounts.base:
        head = (STRONG, *head, STRONG)
    return (format_amount(amounts.base, amounts.unit),), head, (format_rise(amounts).strip(" ()"),)


def list_walls(check: Check) -> Iterator[Block]:
    """Yield the totals of every step, the modules that change most, the live bytes over the step and their holders."""
    totals = share((_tabulate_totals(entry.verdict.program), entry.name) for entry in check.entries)
    for rows, names in totals:
        yield list_names(names)
        yield Table(("in one step", "base", "head", "change"), rows)
    programs = [(entry.name, *entry.programs) for entry in check.entries if entry.programs]
    for rows, names in share((_tabulate_modules(base, head), name) for name, base, head in programs):
        yield (*list_names(names), ": the modules that change most")
        yield Table(("module", "base", "head", "change", ""), rows)
    for text, names in share((_sketch_live_bytes(base, head), name) for name, base, head in programs):
        yield (*list_names(names), ": live bytes from the start to the end of the step")
        yield Log(text)
    for rows, names in share((_tabulate_holders(base, head), name) for name, base, head in programs):
        yield (*list_names(names), ": the largest holders at the peak")
        yield Table(("arm", "what", "module", "line", "bytes"), rows)


def _tabulate_totals(section: ProgramSection | None) -> tuple[tuple[Words, ...], ...]:
    if section is None or section.base is None or section.head is None:
        return ()
    base, head = section.base, section.head
    amounts = {
        "FLOPs": Amounts(unit="flops", base=base.flops, head=head.flops),
        "of these done again by recompute": Amounts(
            unit="flops", base=base.recomputed_flops, head=head.recomputed_flops
        ),
        "bytes that kernels read and write": Amounts(unit="bytes", base=base.bytes_moved, head=head.bytes_moved),
        "kernels": Amounts(unit="launches", base=base.launches, head=head.launches),
        "waits of the host": Amounts(unit="waits", base=base.host_waits, head=head.host_waits),
        "peak of live bytes": Amounts(unit="bytes", base=base.peak_bytes, head=head.peak_bytes),
    }
    return tuple(((name,), *_format_amounts(pair)) for name, pair in amounts.items())


def _tabulate_modules(base: Program, head: Program) -> tuple[tuple[Words, ...], ...]:
    """Return a row for each module whose FLOPs or launches change, with a bar as long as the change."""
    rows: list[tuple[Words, ...]] = []
    sides: list[dict[str, Counter[str]]] = []
    for program in (base, head):
        by_module: dict[str, Counter[str]] = defaultdict(Counter)
        for row in program.rows:
            by_module["flops"][template(row.where)] += row.flops
            by_module["launches"][template(row.where)] += row.launches
        sides.append(by_module)
    for unit in ("flops", "launches"):
        before, after = (side[unit] for side in sides)
        growth = {module: after[module] - before[module] for module in {*before, *after}}
        changed = sorted(
            (module for module in growth if growth[module]), key=lambda module: (-abs(growth[module]), module)
        )
        for module in changed[:MAX_MODULES]:
            length = max(1, round(BAR_CHARACTERS * abs(growth[module]) / abs(growth[changed[0]])))
            cells = (
                format_amount(value, unit, sign)
                for value, sign in ((before[module], ""), (after[module], ""), (growth[module], "+"))
            )
            rows.append(
                ((Name(clip(module or "(root)", NAME_CHARACTERS)),), *((cell,) for cell in cells), ("█" * length,))
            )
    return tuple(rows)


def _sketch_live_bytes(base: Program, head: Program) -> str:
    """Return the live bytes of both arms as two lines of block characters; '' without a curve."""
    curves = [program.live_curve for program in (base, head)]
    if not all(curves):
        return ""
    highest = max(max(size for _, size in curve) for curve in curves) or 1
    lines = []
    for arm, curve in zip(("base", "head"), curves, strict=True):
        stride = max(1, -(-len(curve) // CURVE_CHARACTERS))
        peaks = [max(size for _, size in curve[start : start + stride]) for start in range(0, len(curve), stride)]
        sketch = "".join(_LEVELS[(len(_LEVELS) - 1) * peak // highest] for peak in peaks)
        lines.append(f"{arm}  {sketch}  {format_amount(max(peaks), 'bytes')}")
    return "\n".join(lines)


def _tabulate_holders(base: Program, head: Program) -> tuple[tuple[Words, ...], ...]:
    return tuple(
        (
            (arm,),
            (HOLDER_NAMES[holder.kind],),
            (Name(clip(holder.where or "(root)", NAME_CHARACTERS)),),
            (Name(clip(holder.line, NAME_CHARACTERS)),) if holder.line else (),
            (format_amount(holder.bytes, "bytes"),),
        )
        for arm, program in (("base", base), ("head", head))
        for holder in program.holders
    )


def find_phase_ends(curve: Sequence[tuple[Phase, Count]]) -> Iterator[tuple[Phase, float]]:
    """Yield each phase with the share of the step's kernels at which it ends."""
    for number, (phase, _) in enumerate(curve, 1):
        if number == len(curve) or curve[number][0] != phase:
            yield phase, number / len(curve)


def describe_program(program: Program, gpu: PaperGpu) -> list[str]:
    """Return two lines: what a step computes, and what its memory holds at the peak, beside the memory of ``gpu``."""
    products = [f"{name} {format_amount(flops, 'flops')}" for name, flops in program.flops_by.items() if flops]
    unknown = ", ".join(f"{number} {name}" for name, number in [*program.without_formula.items()][:MAX_UNKNOWN])
    parts = [
        f"{'at least ' if unknown else ''}{format_amount(program.flops, 'flops')} ({', '.join(products)})",
        f"of them {format_amount(program.recomputed_flops, 'flops')} recomputed" if program.recomputed_flops else "",
        f"without a formula: {unknown}" if unknown else "",
        f"{format_amount(program.bytes_moved, 'bytes')} read and written",
        format_amount(program.launches, "launches"),
        format_amount(program.host_waits, "waits"),
    ]
    memory = GPU_MEMORY_BYTES[gpu]
    excess = f", MORE than the {memory / 1e9:.1f} GB of one {gpu.upper()}" if program.peak_bytes > memory else ""
    place = f" of {program.peak_where}" if program.peak_where else ""
    kinds = sorted(program.live_by.items(), key=lambda item: -item[1])
    held = ", ".join(f"{HOLDER_NAMES[kind]} {format_amount(size, 'bytes')}" for kind, size in kinds)
    return [
        f"compute: {'; '.join(part for part in parts if part)}",
        f"peak memory: {program.peak_bytes / 1e9:.2f} GB{excess}, in {program.peak_phase}{place}: {held}",
    ]
