"""The page of ``regbot explain``: for a terminal, and as one HTML file without scripts."""

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from regbot.records.explanation import ExplainedPair, Explanation, ModuleShare
from regbot.records.text.printable import printable
from regbot.records.text.table import format_table
from regbot.records.text.units import binary_bytes
from regbot.report.plots import WIDTH

MAX_ROWS = 20
"""Largest number of rows of a table on the terminal. The HTML page and the JSON have all."""
MEASURES = {
    "flops": "FLOPs",
    "recomputed_flops": "recomputed FLOPs",
    "bytes_moved": "bytes moved",
    "launches": "kernels",
    "waits": "host waits",
    "collectives": "collectives",
    "collective_bytes": "collective bytes",
}
"""What a module spends, by its field, in words."""
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
            (where or "(no module)", words, f"{values[0]:,}", f"{values[1]:,}", before.line, after.line)
            for name, words in MEASURES.items()
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
    if explanation.flops is None:
        return ["only collectives: a trace on a paper GPU (--device cuda) also knows compute, memory and waits"]
    classes = ", ".join(f"{name} {_tera(number)}" for name, number in explanation.flops_by.items() if number)
    at_least = "at least " if explanation.without_formula else ""
    unknown = ", ".join(f"{number} x {name}" for name, number in list(explanation.without_formula.items())[:5])
    waits = sum(wait.count for wait in explanation.waits)
    traffic = f"{explanation.bytes_moved / 1e9:.4g} GB by {explanation.launches:,} kernels"
    peak = f"peak {(explanation.peak_bytes or 0) / 1e9:.2f} GB in {explanation.peak_phase}"
    return [
        f"FLOPs: {at_least}{_tera(explanation.flops)} T ({classes}), {_tera(explanation.recomputed_flops)} recomputed",
        *([f"without a formula: {unknown}"] if unknown else []),
        f"bytes read and written: {traffic}; {waits:,} host waits",
        f"memory: {peak}{f' of {explanation.peak_where}' if explanation.peak_where else ''}",
    ]


def _list_totals(explanation: Explanation) -> list[tuple[str, str]]:
    is_known = explanation.flops is not None
    totals = {
        "TFLOP": _tera(explanation.flops or 0),
        "TFLOP recomputed": _tera(explanation.recomputed_flops),
        "GB moved": f"{explanation.bytes_moved / 1e9:.4g}",
        "kernels": f"{explanation.launches:,}",
        "host waits": f"{sum(wait.count for wait in explanation.waits):,}",
        "peak GB": f"{(explanation.peak_bytes or 0) / 1e9:.3f}",
    }
    collectives = explanation.collectives
    return [
        *((name, value if is_known else "unknown") for name, value in totals.items()),
        ("collectives", f"{sum(share.count for share in collectives):,}"),
        ("bytes of collectives", binary_bytes(sum(share.bytes for share in collectives))),
        ("wire ms by model", f"{1000 * sum(share.wire_s or 0 for share in collectives):.4g}"),
    ]


def _build_sections(explanation: Explanation) -> list[Section]:
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
        for holder in explanation.holders
    ]
    waits = [("host wait", "phase", "module", "count", "line")]
    waits += [(wait.kind, wait.phase, wait.where, str(wait.count), wait.line) for wait in explanation.waits]
    tables: list[Section] = [
        ("By module", modules),
        ("Collectives", collectives),
        ("Largest holders of memory", holders),
        ("Host waits", waits),
    ]
    return [(title, table) for title, table in tables if len(table) > 1]


def _tera(flops: int) -> str:
    return f"{flops / 1e12:.4g}"
