"""Terminal pages about nodes: the list of nodes, one node, fresh probes, and the result of an operator's command."""

from collections.abc import Sequence

from regbot.records.node import (
    NodeChange,
    NodeEvent,
    NodeListing,
    NodeProbe,
    NodeReport,
    NodeRow,
    NodeVerdict,
    ProbeReport,
)
from regbot.text.printable import printable
from regbot.text.words import count
from regbot.text.wrap import wrapped

NO_NODES = "no node is known; run 'regbot node probe' on one"
MAX_PROBES = 10
"""Maximum number of probes on the page of one node."""


def list_page(listing: NodeListing) -> str:
    """Return the list of nodes. Each node has a line with its state, followed by its measurements and findings.

    The last lines are about several nodes: findings about sets of hosts, and changes of the whole fleet.
    """
    if not listing.nodes:
        return NO_NODES
    lines = [line for row in listing.nodes for line in _row_lines(row)]
    return "\n".join([*lines, *_common_lines([finding.text for finding in listing.sets], listing.fleet)])


def report_page(report: NodeReport) -> str:
    """Return the page of one node: its state, its latest probes and its events."""
    lines = _row_lines(report.node)
    if report.node.last:  # the last probe
        lines.append(f"  {printable(_describe_node(report.node.last))}")
    if report.probes:
        is_shortened = len(report.probes) > MAX_PROBES
        lines += ["", f"probes (the last {MAX_PROBES} of {len(report.probes)})" if is_shortened else "probes"]
        for probe in report.probes[-MAX_PROBES:]:
            mark = "  slow" if probe.slow else ""
            lines.append(f"  {_format_measurements(probe)}{mark}")
    if report.events:
        lines += ["", "events"]
        for event in report.events:
            lines += _event_lines(event)
    return "\n".join(lines)


def probe_page(report: ProbeReport) -> str:
    """Return the page of fresh probes: the verdict on each node, and the events that result."""
    lines = []
    for probe, verdict in zip(report.probes, report.judgement.nodes, strict=True):
        lines += [
            f"{probe.host}  {verdict.status}",
            f"  {_format_measurements(probe)}",
            f"  {printable(_describe_node(probe))}",
        ]
        lines += _verdict_lines(verdict)
    lines += _common_lines([finding.text for finding in report.judgement.sets], report.judgement.fleet)
    lines += [event_sentence(event) for event in report.events]
    return "\n".join([*lines, *warning_lines(report.warnings)])


def change_page(change: NodeChange) -> str:
    """Return the page that an operator's command prints."""
    return "\n".join([event_sentence(change.event), *warning_lines(change.warnings)])


def event_sentence(event: NodeEvent) -> str:
    """Return a sentence that describes an event of a node and what to do next."""
    description = {
        "quarantined": f"is in quarantine; 'regbot node release {event.host} --reason WHY' puts it back",
        "released": "is released and on trial: a fresh probe must pass before anything is timed on it",
        "passed": "passed its trial and is in service",
    }[event.event]
    return f"{event.host} {description}"


def warning_lines(warnings: Sequence[str]) -> list[str]:
    """Return the lines of the warnings, with an empty line before each warning."""
    lines = []
    for text in warnings:  # the '' below means that the wrapped lines are not indented
        lines += ["", *wrapped(f"WARNING: {text}", "").splitlines()]
    return lines


def _row_lines(row: NodeRow) -> list[str]:
    """Return the lines of one node: state and verdict, since when and why, measurements, findings."""
    status = f", {row.verdict.status}" if row.verdict else ""
    lines = [f"{row.host}  {row.state}{status}"]
    if row.state != "in service":
        lines.append(wrapped(f"since {row.since}: {row.reason}"))
    lines.append(f"  {_format_measurements(row.last)}" if row.last else "  never probed")
    return [*lines, *_verdict_lines(row.verdict)] if row.verdict else lines


def _verdict_lines(verdict: NodeVerdict) -> list[str]:
    findings = [finding.text for finding in verdict.findings]
    return [wrapped(text) for text in (*findings, *verdict.notes)]


def _common_lines(sets: Sequence[str], fleet: Sequence[str]) -> list[str]:
    """Return the lines about several nodes, without indentation: findings about sets of hosts, and changes of the whole
    fleet."""
    return [wrapped(text, "") for text in (*sets, *fleet)]


def _format_measurements(probe: NodeProbe) -> str:
    """Return time and rates of a probe. Measurements that the probe did not make are left out."""
    parts = [probe.when, f"gemm {_format_rate(probe.gemm_tflops)} TFLOP/s"]
    if probe.local_all_to_all_gbs is not None:
        parts.append(f"all-to-all {_format_rate(probe.local_all_to_all_gbs)} GB/s")
    if probe.all_to_all_gbs is not None:
        parts.append(f"over {len(probe.hosts)} hosts {_format_rate(probe.all_to_all_gbs)} GB/s")
    return "  ".join([*parts, f"copy {_format_rate(probe.copy_gbs)} GB/s"])


def _describe_node(probe: NodeProbe) -> str:
    # "none" stands for a machine without GPUs.
    driver = f", driver {probe.driver}" if probe.driver not in (None, "none") else ""
    return f"{probe.node_class}{driver}, {probe.software}, {count(probe.ranks, 'rank')} a node"


def _event_lines(event: NodeEvent) -> list[str]:
    """Return a line about an event, and a line for each session in which a rank of the node was late."""
    sessions = event.evidence.stragglers if event.evidence else []
    straggler_lines = [
        f"session {session.session}: rank {session.rank} {session.pct:.0f}% late {session.text}".rstrip()
        for session in sessions
    ]
    event_line = f"{event.when}  {event.event} by {event.who}: {event.reason}"
    return [wrapped(event_line), *(wrapped(line, "    ") for line in straggler_lines)]


def _format_rate(value: float) -> str:
    """Return three significant digits, without an exponent for large numbers."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
