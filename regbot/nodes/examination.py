"""Judge fresh probes, store them, end trials, and quarantine slow nodes. This module also reports on known nodes.

A released node is on trial until a fresh probe shows that it is not slow.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from regbot.errors import UserError
from regbot.nodes.history import append_probe, check_host, read_histories
from regbot.nodes.judgement import judge
from regbot.nodes.quarantine import (
    AUTOMATIC_AUTHOR,
    finish_trial,
    node_state,
    nodes_on_trial,
    quarantine,
    read_events,
    read_last_events,
)
from regbot.records.baseline import format_time
from regbot.records.node import (
    MAX_PROBES,
    Evidence,
    NodeEvent,
    NodeJudgement,
    NodeListing,
    NodeProbe,
    NodeReport,
    NodeRow,
    NodeThresholds,
    NodeVerdict,
    ProbeReport,
    StragglerSession,
)
from regbot.text.clip import clip_message

Stragglers = Mapping[str, Sequence[StragglerSession]]
"""For each host, the sessions in which one of its ranks was late in most steps."""


MAX_FINDINGS = 32
"""Maximum number of findings in the evidence of a quarantine."""


def examine(
    folder: Path,
    probes: Sequence[NodeProbe],
    now: datetime,
    *,
    quarantine_slow: Collection[str],
    stragglers: Stragglers | None = None,
) -> ProbeReport:
    """Judge ``probes``, which were measured together, by the stored data in ``folder``. Then store them in ``folder``.

    A node on trial passes its trial if its probe is not slow. A slow node goes into quarantine if it was on trial, or
    if it is one of the hosts ``quarantine_slow``. Other slow nodes stay in service. ``stragglers`` becomes part of the
    evidence of a quarantine. ``now`` is the time of the events. Raises RecordError, OSError.
    """
    judgement = judge(probes, read_histories(folder))
    on_trial = nodes_on_trial(folder)
    new_events: list[NodeEvent] = []
    warnings: list[str] = []
    stored_probes = []
    for probe, verdict in zip(probes, judgement.nodes, strict=True):
        is_slow = verdict.status == "slow"
        stored_probe = probe.model_copy(update={"slow": is_slow})
        append_probe(folder, stored_probe)
        stored_probes.append(stored_probe)
        if is_slow and (probe.host in quarantine_slow or probe.host in on_trial):
            sessions = stragglers.get(probe.host, ()) if stragglers is not None else ()
            warnings += quarantine(folder, probe.host, build_evidence(verdict, [stored_probe], now, sessions))
            new_events.append(read_last_events(folder)[probe.host])
        elif passed_event := finish_trial(folder, verdict, now):
            new_events.append(passed_event)
    return ProbeReport(probes=stored_probes, judgement=judgement, events=new_events, warnings=warnings)


def build_evidence(
    verdict: NodeVerdict,
    probes: Sequence[NodeProbe],
    now: datetime,
    stragglers: Sequence[StragglerSession] = (),
) -> Evidence:
    """Return the evidence for quarantining a node automatically. Of long lists, the first findings,
    the last probes and the last late ranks are kept."""
    reasons = [finding.text for finding in verdict.findings]
    reasons += [
        f"rank {straggler.rank} was {straggler.pct:.0f}% late in session {straggler.session}"
        for straggler in stragglers
    ]
    return Evidence(
        host=verdict.host,
        when=format_time(now),
        who=AUTOMATIC_AUTHOR,
        automatic=True,
        reason=clip_message("; ".join(reasons)) or "it was slow",
        findings=verdict.findings[:MAX_FINDINGS],
        probes=list(probes)[-MAX_PROBES:],
        stragglers=list(stragglers)[-MAX_PROBES:],
        thresholds=NodeThresholds(),
    )


def list_nodes(folder: Path) -> NodeListing:
    """List all nodes that have a probe or an event, and judge the last probe of each. Raises RecordError.

    The result also has the findings about sets of hosts (``sets``), and texts about changes of the whole fleet
    (``fleet``).
    """
    probes_by_host, last_events = read_histories(folder), read_last_events(folder)
    last_probes = [probes[-1] for probes in probes_by_host.values() if probes]
    judgement = _judge_by_seat(last_probes, probes_by_host)
    verdicts = {verdict.host: verdict for verdict in judgement.nodes}
    rows = []
    for host in sorted({*probes_by_host, *last_events}):
        event, probes = last_events.get(host), probes_by_host.get(host, [])
        rows.append(
            NodeRow(
                host=host,
                state=node_state(event),
                since=event.when if event else None,
                reason=event.reason if event else "",
                probes=len(probes),
                last=probes[-1] if probes else None,
                verdict=verdicts.get(host),
            )
        )
    return NodeListing(nodes=rows, sets=judgement.sets, fleet=judgement.fleet)


def report_node(folder: Path, host: str) -> NodeReport:
    """Return everything that is known about one node. Raises RecordError, and UserError if the node is unknown."""
    all_nodes = list_nodes(folder)
    row = next((row for row in all_nodes.nodes if row.host == check_host(host)), None)
    if row is None:
        names = ", ".join(row.host for row in all_nodes.nodes[:8]) or "none"
        raise UserError(f"no node {host!r} is known", f"known nodes: {names}")
    return NodeReport(
        node=row,
        events=[event for event in read_events(folder) if event.host == host],
        probes=read_histories(folder).get(host, []),
    )


def _judge_by_seat(
    last_probes: Sequence[NodeProbe], probes_by_host: Mapping[str, Sequence[NodeProbe]]
) -> NodeJudgement:
    """Judge the last probe of each node, and merge the judgements.

    Probes of the same hosts at the same time were measured together, in one seat. They are judged together.
    """
    probes_by_seat: dict[tuple[str, tuple[str, ...]], list[NodeProbe]] = {}
    for probe in last_probes:
        probes_by_seat.setdefault((probe.when, tuple(probe.hosts)), []).append(probe)
    judgements = [judge(probes, probes_by_host) for probes in probes_by_seat.values()]
    return NodeJudgement(
        nodes=[node for judgement in judgements for node in judgement.nodes],
        sets=[finding for judgement in judgements for finding in judgement.sets],
        fleet=list(dict.fromkeys(text for judgement in judgements for text in judgement.fleet)),
    )
