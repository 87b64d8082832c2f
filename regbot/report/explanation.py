"""The page of ``regbot explain``: for a terminal, and as one HTML file without scripts."""

from collections.abc import Callable, Sequence
from functools import partial

from jinja2 import Environment, PackageLoader, StrictUndefined

from regbot.ledgers.program import count_totals
from regbot.records.explanation import ExplainedPair, Explanation, ModuleShare
from regbot.records.ledger import DEFAULT_PAPER_GPU
from regbot.records.text.printable import printable
from regbot.records.text.table import format_table
from regbot.records.text.units import binary_bytes, format_amount
from regbot.report.plots import WIDTH
from regbot.report.walls import describe_program

MAX_ROWS = 20
"""Largest number of rows of a table on the terminal. The HTML page and the JSON have all."""
MEASURES: dict[str, tuple[str, Callable[[int], str]]] = {
    "flops": ("FLOPs", partial(format_amount, unit="flops")),
    "recomputed_flops": ("recomputed FLOPs", partial(format_amount, unit="flops")),
    "bytes_moved": ("bytes moved", partial(format_amount, unit="bytes")),
    "launches": ("kernels", str),
    "waits": ("host waits", str),
    "collectives": ("collectives", str),
    "collective_bytes": ("collective bytes", binary_bytes),
}
"""What a module spends, by its field: its name, and how its amount is written."""
Section = tuple[str, Sequence[Sequence[str]]]
"""Title and rows of a table. The first row has the headings."""


def explanation_page(explanation: Explanation) -> str:
    """Return the page for a terminal."""
    parts = [printable(line) for line in (_title(explanation), *_summarise(explanation))]
    for title, table in _build_sections(explanation):
        more = [f"... and {len(table) - 1 - MAX_ROWS} more (--html FILE, --json)"] if len(table) - 1 > MAX_ROWS else []
        parts += [
            "",
            f"{title}:",
            format_table([[printable(cell) for cell in row] for row in table[: MAX_ROWS + 1]]),
            *more,
        ]
    parts += ["", "What its shape does not need:"]
    for remark in explanation.remarks:
        at = f" at {remark.line}" if remark.line else ""
        parts.append(printable(f"- {remark.pattern} in {remark.where or 'the model itself'}{at}: {remark.text}"))
    if not explanation.remarks:
        parts.append("- nothing found (tokens gathered, extra exchanges, host waits, wide products, held buffers)")
    parts += [f"not as on a GPU: {printable(patch)}" for patch in explanation.patches]
    return "\n".join(parts)


def change_page(pair: ExplainedPair) -> str:
    """Return what differs between two steps of one workload: totals, and the modules that changed."""
    base, head = pair.base, pair.head
    totals = [("one step", "base", "head")]
    totals += [
        (name, before, after) for (name, before), (_, after) in zip(_list_totals(base), _list_totals(head), strict=True)
    ]
    shares = [{share.where: share for share in explanation.modules} for explanation in (base, head)]
    modules = [("changed module", "what", "base", "head", "line in base", "line in head")]
    for where in dict.fromkeys([*shares[1], *shares[0]]):
        before, after = (of_arm.get(where, ModuleShare(where=where)) for of_arm in shares)
        modules += [
            (where or "(no module)", words, write(values[0]), write(values[1]), before.line, after.line)
            for name, (words, write) in MEASURES.items()
            for values in [(getattr(before, name), getattr(after, name))]
            if values[0] != values[1]
        ]
    parts = [f"{printable(_title(base))}, base and head", "", format_table(totals)]
    if len(modules) > 1:
        parts += ["", format_table([[printable(cell) for cell in row] for row in modules[: 2 * MAX_ROWS]])]
    parts += ["", *(f"- {printable(change)}" for change in pair.changes or ["nothing that regbot judges changed"])]
    return "\n".join(parts)


def explanation_html(explanation: Explanation) -> str:
    """Return the page as one HTML document. Jinja escapes what it prints, and control characters are made visible."""
    environment = Environment(
        loader=PackageLoader("regbot.report"), undefined=StrictUndefined, autoescape=True, trim_blocks=True
    )
    environment.filters["visible"] = printable
    largest = max((share.flops for share in explanation.modules), default=0) or 1
    bars = [
        (share.where or "(no module)", share.flops, WIDTH * share.flops // largest) for share in explanation.modules
    ]
    return environment.get_template("explanation.html.j2").render(
        title=_title(explanation),
        summary=_summarise(explanation),
        sections=_build_sections(explanation),
        remarks=explanation.remarks,
        patches=explanation.patches,
        bars=[bar for bar in bars if bar[1]][:40],
        width=WIDTH,
    )


def _title(explanation: Explanation) -> str:
    gpu = f", {explanation.gpu}" if explanation.gpu else ""
    ranks = f"rank {explanation.rank} of {explanation.world_size}"
    return f"{explanation.workload} {explanation.variant}: one step on {ranks}{gpu}"


def _summarise(explanation: Explanation) -> list[str]:
    if explanation.program is None:
        return ["only collectives: a trace on a paper GPU (--device cuda) also knows compute, memory and waits"]
    return describe_program(explanation.program, explanation.gpu or DEFAULT_PAPER_GPU)


def _list_totals(explanation: Explanation) -> list[tuple[str, str]]:
    totals = count_totals(explanation.program) if explanation.program is not None else None
    measures = {
        "compute": ("flops", "flops"),
        "recomputed": ("recomputed_flops", "flops"),
        "read and written": ("bytes_moved", "bytes"),
        "launches": ("launches", "launches"),
        "host waits": ("host_waits", "waits"),
        "peak memory": ("peak_bytes", "bytes"),
    }
    collectives = explanation.collectives
    return [
        *(
            (words, format_amount(getattr(totals, name), unit) if totals is not None else "unknown")
            for words, (name, unit) in measures.items()
        ),
        ("collectives", f"{sum(share.count for share in collectives):,}"),
        ("bytes of collectives", binary_bytes(sum(share.bytes for share in collectives))),
        ("wire ms by model", f"{1000 * sum(share.wire_s or 0 for share in collectives):.4g}"),
    ]


def _build_sections(explanation: Explanation) -> list[Section]:
    program = explanation.program
    modules = [("module", "TFLOP", "recomputed", "GB moved", "kernels", "waits", "collectives", "bytes", "line")]
    modules += [
        (
            share.where or "(no module)",
            _tera(share.flops),
            _tera(share.recomputed_flops),
            f"{share.bytes_moved / 1e9:.3g}",
            str(share.launches),
            str(share.waits),
            str(share.collectives),
            binary_bytes(share.collective_bytes),
            share.line,
        )
        for share in explanation.modules
    ]
    collectives = [("collective", "axis", "phase", "module", "count", "bytes", "model ms", "line")]
    collectives += [
        (
            share.kind,
            share.axis,
            share.phase,
            share.where,
            str(share.count),
            binary_bytes(share.bytes),
            f"{1000 * share.wire_s:.3g}" if share.wire_s is not None else "",
            share.line,
        )
        for share in explanation.collectives
    ]
    holders = [("held at the peak", "module", "storages", "GB", "line")]
    holders += [
        (holder.kind, holder.where, str(holder.count), f"{holder.bytes / 1e9:.3g}", holder.line)
        for holder in (program.holders if program else ())
    ]
    waits = [("host wait", "phase", "module", "count", "line")]
    waits += [
        (wait.kind, wait.phase, wait.where, str(wait.count), wait.line) for wait in (program.waits if program else ())
    ]
    tables: list[Section] = [
        ("By module", modules),
        ("Collectives", collectives),
        ("Largest holders of memory", holders),
        ("Host waits", waits),
    ]
    return [(title, table) for title, table in tables if len(table) > 1]


def _tera(flops: int) -> str:
    return f"{flops / 1e12:.4g}"
