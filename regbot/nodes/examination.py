"""From fresh probes to what follows: judged, kept, trials ended, slow nodes taken out of service. And what is known."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from regbot.nodes.errors import NodeError
from regbot.nodes.history import append, histories, known
from regbot.nodes.judgement import judge
from regbot.nodes.quarantine import WHO, events, last_events, on_trial, quarantine, settle_trial, state_of
from regbot.records.baseline import utc
from regbot.records.node import (
    MAX_PROBES,
    Evidence,
    NodeEvent,
    NodeJudgement,
    NodeListing,
    NodeProbe,
    NodeReport,
    NodeRow,
    NodesProbed,
    NodeThresholds,
    NodeVerdict,
    Straggled,
)

Stragglers = Mapping[str, Sequence[Straggled]]


def examine(
    folder: Path,
    probes: Sequence[NodeProbe],
    now: datetime,
    *,
    take_out: bool,
    thresholds: NodeThresholds | None = None,
    stragglers: Stragglers | None = None,
) -> NodesProbed:
    """Judge ``probes``, which were taken together, by what ``folder`` knows, and add them to it.

    A node on trial that is not slow passes. One that is slow goes into quarantine where ``take_out`` or where it was on
    trial. ``stragglers``: sessions that named a host, which join the evidence. Raises RecordError, OSError.
    """
    limits = thresholds or NodeThresholds()
    judgement = judge(probes, histories(folder), limits)
    trial = on_trial(folder)
    followed: list[NodeEvent] = []
    warnings: list[str] = []
    kept = []
    for probe, verdict in zip(probes, judgement.nodes, strict=True):
        stored = probe.model_copy(update={"slow": verdict.status == "slow"})
        append(folder, stored)
        kept.append(stored)
        if verdict.status == "slow" and (take_out or probe.host in trial):
            named = (stragglers or {}).get(probe.host, ())
            warnings += quarantine(folder, probe.host, evidence_of(verdict, [stored], limits, now, named))
            followed.append(last_events(folder)[probe.host])
        elif passed := settle_trial(folder, verdict, now):
            followed.append(passed)
    return NodesProbed(probes=kept, judgement=judgement, events=followed, warnings=warnings)


def evidence_of(
    verdict: NodeVerdict,
    probes: Sequence[NodeProbe],
    thresholds: NodeThresholds,
    now: datetime,
    stragglers: Sequence[Straggled] = (),
) -> Evidence:
    """Why regbot itself takes a node out of service."""
    reasons = [each.text for each in verdict.findings]
    reasons += [f"rank {each.rank} was {each.pct:.0f}% late in session {each.session}" for each in stragglers]
    return Evidence(
        host=verdict.host,
        when=utc(now),
        who=WHO,
        automatic=True,
        reason="; ".join(reasons)[:4000] or "it was slow",
        findings=verdict.findings[:32],
        probes=list(probes)[-MAX_PROBES:],
        stragglers=list(stragglers)[-MAX_PROBES:],
        thresholds=thresholds,
    )


def listing(folder: Path, thresholds: NodeThresholds | None = None) -> NodeListing:
    """Every node that was ever probed or taken out of service, its last probe judged. Raises RecordError."""
    past, last = histories(folder), last_events(folder)
    latest = [probes[-1] for probes in past.values() if probes]
    judgement = _judge_each(latest, past, thresholds)
    verdicts = {verdict.host: verdict for verdict in judgement.nodes}
    rows = []
    for host in sorted({*past, *last}):
        event, probes = last.get(host), past.get(host, [])
        rows.append(
            NodeRow(
                host=host,
                state=state_of(event),
                since=event.when if event else None,
                reason=event.reason if event else "",
                probes=len(probes),
                last=probes[-1] if probes else None,
                verdict=verdicts.get(host),
            )
        )
    return NodeListing(nodes=rows, sets=judgement.sets, fleet=judgement.fleet)


def report(folder: Path, host: str, thresholds: NodeThresholds | None = None) -> NodeReport:
    """Everything that is known of one node. Raises NodeError where that is nothing, and RecordError."""
    found = listing(folder, thresholds)
    row = next((row for row in found.nodes if row.host == known(host)), None)
    if row is None:
        names = ", ".join(row.host for row in found.nodes[:8]) or "none"
        raise NodeError(f"nothing is known of a node {host!r}; of these something is: {names}")
    return NodeReport(
        node=row,
        events=[event for event in events(folder) if event.host == host],
        probes=histories(folder).get(host, []),
    )


def _judge_each(
    latest: Sequence[NodeProbe], past: Mapping[str, Sequence[NodeProbe]], thresholds: NodeThresholds | None
) -> NodeJudgement:
    """Nodes that were probed at different times: those of one seat together, then all findings side by side."""
    seats: dict[tuple[str, tuple[str, ...]], list[NodeProbe]] = {}
    for probe in latest:
        seats.setdefault((probe.when, tuple(probe.hosts)), []).append(probe)
    each = [judge(probes, past, thresholds) for probes in seats.values()]
    return NodeJudgement(
        nodes=[node for one in each for node in one.nodes],
        sets=[found for one in each for found in one.sets],
        fleet=list(dict.fromkeys(text for one in each for text in one.fleet)),
    )
