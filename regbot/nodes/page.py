"""Nodes as a terminal shows them: the list, one node, fresh probes, and what changed."""

import textwrap
from collections.abc import Sequence

from regbot.records.node import (
    NodeChanged,
    NodeEvent,
    NodeListing,
    NodeProbe,
    NodeReport,
    NodeRow,
    NodesProbed,
    NodeVerdict,
)
from regbot.text import printable

WIDTH = 110
NOTHING = "no node is known here; run 'regbot node probe' on one"
SHOWN_PROBES = 10


def list_page(found: NodeListing) -> str:
    """One line a node, below it what is wrong with it."""
    if not found.nodes:
        return NOTHING
    lines = [line for row in found.nodes for line in _row(row)]
    return "\n".join([*lines, *_shared([each.text for each in found.sets], found.fleet)])


def report_page(found: NodeReport) -> str:
    """One node: what it is, its last probes, everything that happened to it."""
    lines = _row(found.node)
    if found.node.last:
        lines.append(f"  {printable(_what(found.node.last))}")
    if found.probes:
        hidden = len(found.probes) - SHOWN_PROBES
        lines += ["", f"probes{f' (the last {SHOWN_PROBES} of {len(found.probes)})' if hidden > 0 else ''}"]
        lines += [f"  {_numbers(probe)}{'  slow' * probe.slow}" for probe in found.probes[-SHOWN_PROBES:]]
    if found.events:
        lines += ["", "events"]
        lines += [line for event in found.events for line in _event(event)]
    return "\n".join(lines)


def probed_page(found: NodesProbed) -> str:
    """Fresh probes, each with its verdict, and what followed."""
    lines = []
    for probe, verdict in zip(found.probes, found.judgement.nodes, strict=True):
        lines += [f"{probe.host}  {verdict.status}", f"  {_numbers(probe)}", f"  {printable(_what(probe))}"]
        lines += _said(verdict)
    lines += _shared([each.text for each in found.judgement.sets], found.judgement.fleet)
    lines += [event_sentence(event) for event in found.events]
    return "\n".join([*lines, *warning_lines(found.warnings)])


def changed_page(found: NodeChanged) -> str:
    """What an operator's command did."""
    return "\n".join([event_sentence(found.event), *warning_lines(found.warnings)])


def event_sentence(event: NodeEvent) -> str:
    """What happened to a node, and what comes next."""
    then = {
        "quarantined": f"is in quarantine; 'regbot node release {event.host} --reason WHY' puts it back",
        "released": "is released and on trial: a fresh probe must pass before anything is timed on it",
        "passed": "passed its trial and is in service",
    }[event.event]
    return f"{event.host} {then}"


def warning_lines(warnings: Sequence[str]) -> list[str]:
    return [line for text in warnings for line in ("", *_wrapped(f"WARNING: {text}", "").splitlines())]


def _row(row: NodeRow) -> list[str]:
    status = f", {row.verdict.status}" if row.verdict else ""
    lines = [f"{row.host}  {row.state}{status}"]
    if row.state != "in service":
        lines.append(_wrapped(f"since {row.since}: {printable(row.reason)}"))
    lines.append(f"  {_numbers(row.last)}" if row.last else "  never probed")
    return [*lines, *(_said(row.verdict) if row.verdict else [])]


def _said(verdict: NodeVerdict) -> list[str]:
    return [_wrapped(printable(text)) for text in (*(each.text for each in verdict.findings), *verdict.notes)]


def _shared(sets: Sequence[str], fleet: Sequence[str]) -> list[str]:
    return [_wrapped(printable(text), "") for text in (*sets, *fleet)]


def _numbers(probe: NodeProbe) -> str:
    parts = [probe.when, f"gemm {_rate(probe.gemm_tflops)} TFLOP/s"]
    if probe.local_all_to_all_gbs is not None:
        parts.append(f"all-to-all {_rate(probe.local_all_to_all_gbs)} GB/s")
    if probe.all_to_all_gbs is not None:
        parts.append(f"over {len(probe.hosts)} hosts {_rate(probe.all_to_all_gbs)} GB/s")
    return "  ".join([*parts, f"copy {_rate(probe.copy_gbs)} GB/s"])


def _what(probe: NodeProbe) -> str:
    driver = f", driver {probe.driver}" if probe.driver not in (None, "none") else ""
    return f"{probe.node_class}{driver}, {probe.software}, {probe.ranks} rank{'s' * (probe.ranks > 1)} a node"


def _event(event: NodeEvent) -> list[str]:
    named = event.evidence.stragglers if event.evidence else []
    late = [f"session {each.session}: rank {each.rank} {each.pct:.0f}% late {each.text}".rstrip() for each in named]
    first = f"{event.when}  {event.event} by {event.who}: {event.reason}"
    return [_wrapped(printable(first)), *(_wrapped(printable(text), "    ") for text in late)]


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
