"""Decide whether a node is slow: compare its fresh probe with its own history and with its peers. No I/O.

A probe repeats each measurement many times. A measurement is slow if both of these statistics are too long:

    median          exceeds the reference by more than a threshold, and by more than the scatter of the repetitions
    fastest tenth   exceeds the reference by more than the threshold

If the reference has enough probes for a robust standard deviation, both statistics must also exceed the reference by a
multiple of this deviation. One slow statistic is not enough: other work on the node slows the median more than the
fastest repetitions, and other work is not a fault of the node. If other work took a tenth of the cores' time during a
probe, the probe is not judged, and it is no reference for later probes. There are two references:

    history   earlier probes of the same node that were not slow
    peers     the last probe of each other node, preferably from the same seat

Only measurements within a node can show that the node is slow: the matrix product, the copy, and the exchange among its
own ranks. The exchange over several hosts can only show that the set of hosts is slow. Probes are compared only if node
class, driver, container, torch, sizes and number of ranks are equal. If at least half of the nodes became slower than
their own histories, and a node is not slower than its peers, the whole fleet has changed and the node is not slow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from regbot.records.baseline import parse_time
from regbot.records.node import (
    Measure,
    NodeFinding,
    NodeJudgement,
    NodeProbe,
    NodeThresholds,
    NodeVerdict,
    RepeatedTiming,
)
from regbot.text.words import count, listed

NODE_MEASURES: tuple[Measure, ...] = ("gemm", "local_all_to_all", "copy")
MEASURE_NAMES: dict[Measure, str] = {
    "gemm": "matrix product",
    "local_all_to_all": "all-to-all within the node",
    "all_to_all": "all-to-all over all hosts",
    "copy": "memory copy",
}
PEER_DAYS = 30
"""Age limit in days of a peer's last probe. Older probes do not describe the fleet of today."""
FLEET_CHANGE_H = 24
"""Probes that are at most this many hours apart can together show that the whole fleet has changed."""
MAX_SKEW_S = 5.0
"""A verdict mentions the clock of a host if it differs from the median clock of the hosts by more than this."""
CROWDED_SHARE = 0.1
"""A probe is not judged if other work took at least this share of the cores' time."""
MAD_TO_SD = 1.4826
"""Factor that converts a median absolute deviation to the standard deviation of a normal distribution."""

Histories = Mapping[str, Sequence[NodeProbe]]


@dataclass(frozen=True)
class _ReferenceSummary:
    """Summary of the timings that a measurement is compared with. ``sd_*`` are None if there are too few timings."""

    median_s: float
    fast_s: float
    scatter: float
    sd_median: float | None
    sd_fast: float | None
    n: int


def judge(latest: Sequence[NodeProbe], histories: Histories, thresholds: NodeThresholds | None = None) -> NodeJudgement:
    """Judge fresh probes that were measured together. ``histories`` may already contain these probes."""
    limits = thresholds or NodeThresholds()
    notes: dict[str, list[str]] = {probe.host: _list_circumstances(probe) for probe in latest}
    compared: set[str] = set()
    findings: dict[str, list[NodeFinding]] = {probe.host: [] for probe in latest}
    fleet: list[str] = []
    for measure in NODE_MEASURES:
        fleet_findings: list[NodeFinding] = []
        for probe in (probe for probe in latest if not _is_crowded(probe)):
            own = _own_history(probe, histories, limits)
            peers = _find_peers(probe, latest, histories)
            compared |= {probe.host} if _has_enough(own, measure, limits) or _timings(peers, measure) else set()
            against_own = _finding(probe, measure, own, "history", limits) if len(own) >= limits.least else None
            against_peers = _finding(probe, measure, peers, "peers", limits) if peers else None
            if against_own and not against_peers and _has_fleet_slowed(probe, measure, latest, histories, limits):
                fleet_findings.append(against_own)
                continue
            findings[probe.host] += [finding for finding in (against_own, against_peers) if finding]
        if fleet_findings:
            fleet.append(_fleet_text(measure, fleet_findings))
    fleet += _find_changed_software(latest, histories, limits, notes)
    verdicts = [
        NodeVerdict(
            host=probe.host,
            status="slow" if findings[probe.host] else ("ok" if probe.host in compared else "unknown"),
            findings=findings[probe.host],
            notes=[
                *notes[probe.host],
                *(
                    []
                    if probe.host in compared or _is_crowded(probe)
                    else [_no_reference_note(probe, histories, limits)]
                ),
            ],
        )
        for probe in latest
    ]
    return NodeJudgement(nodes=verdicts, sets=_judge_sets(latest, histories, limits), fleet=fleet)


def explains(judgement: NodeJudgement, hosts: Sequence[str], paired: bool) -> list[str]:
    """Return why the nodes, and not the commit, may have caused a difference in times measured on ``hosts``.

    Return [] if the nodes did not cause it. ``paired`` says that base and head ran on these hosts in turn. In this case
    a change of the whole fleet affects both arms and causes no difference between them.
    """
    reasons = [
        f"{node.host} is slow, whatever runs on it: {node.findings[0].text}"
        for node in judgement.nodes
        if node.host in hosts and node.status == "slow"
    ]
    reasons += [finding.text for finding in judgement.sets if set(finding.hosts) <= set(hosts)]
    return reasons if paired else [*reasons, *judgement.fleet]


def is_comparable(first: NodeProbe, second: NodeProbe) -> bool:
    """Whether two probes measured the same work on machines that should be equally fast."""
    return not _differences(first, second)


def _differences(first: NodeProbe, second: NodeProbe) -> list[str]:
    """Return the names of fields that affect speed and that differ between the two probes."""
    names = ("node_class", "driver", "container", "software", "device", "device_name", "ranks", "sizes")
    return [name for name in names if getattr(first, name) != getattr(second, name)]


def _is_healthy(probe: NodeProbe) -> bool:
    return not probe.slow and not probe.causes and not _is_crowded(probe)


def _is_crowded(probe: NodeProbe) -> bool:
    return probe.others_share is not None and probe.others_share >= CROWDED_SHARE


def _own_history(probe: NodeProbe, histories: Histories, limits: NodeThresholds) -> list[NodeProbe]:
    """Return the latest earlier probes of the same node that are healthy and comparable, at most ``limits.window``."""
    earlier = [past for past in histories.get(probe.host, ()) if past.when < probe.when and _is_healthy(past)]
    return [past for past in earlier if is_comparable(past, probe)][-limits.window :]


def _find_peers(probe: NodeProbe, latest: Sequence[NodeProbe], histories: Histories) -> list[NodeProbe]:
    """Return one comparable probe of each other node: its fresh probe, or else its last healthy one."""
    together = {peer.host: peer for peer in latest if peer.host != probe.host}
    earlier = {
        host: healthy[-1]
        for host, probes in histories.items()
        if host != probe.host
        and host not in together
        and (
            healthy := [past for past in probes if _is_healthy(past) and _hours_between(past, probe) <= 24 * PEER_DAYS]
        )
    }
    return [peer for peer in (*together.values(), *earlier.values()) if is_comparable(peer, probe)]


def _hours_between(first: NodeProbe, second: NodeProbe) -> float:
    return abs((parse_time(first.when) - parse_time(second.when)).total_seconds()) / 3600


def _timings(probes: Sequence[NodeProbe], measure: Measure) -> list[RepeatedTiming]:
    return [timing for probe in probes if (timing := probe.get_timing(measure)) is not None]


def _has_enough(probes: Sequence[NodeProbe], measure: Measure, limits: NodeThresholds) -> bool:
    return len(_timings(probes, measure)) >= limits.least


def _summarize(values: Sequence[RepeatedTiming], limits: NodeThresholds) -> _ReferenceSummary:
    medians, fasts = [value.median_s for value in values], [value.fast_s for value in values]
    has_sd = len(values) >= limits.long
    return _ReferenceSummary(
        median(medians),
        median(fasts),
        median(map(_scatter, values)),
        _sd(medians) if has_sd else None,
        _sd(fasts) if has_sd else None,
        len(values),
    )


def _scatter(timing: RepeatedTiming) -> float:
    """Return the robust standard deviation of the repetitions within one probe, as a share of the median."""
    return MAD_TO_SD * timing.mad_s / timing.median_s


def _sd(values: Sequence[float]) -> float:
    """Return the robust standard deviation of ``values``, as a share of their median."""
    middle = median(values)
    return MAD_TO_SD * median(abs(value - middle) for value in values) / middle


def _finding(
    probe: NodeProbe, measure: Measure, others: Sequence[NodeProbe], against: str, limits: NodeThresholds
) -> NodeFinding | None:
    """Return a finding if ``probe`` took too long compared with ``others``; None if it did not, or if the measurement
    is missing."""
    value, values = probe.get_timing(measure), _timings(others, measure)
    if value is None or not values:
        return None
    reference = _summarize(values, limits)
    scatter_limit = limits.scatters * math.hypot(_scatter(value), reference.scatter)
    excess_median, excess_fast = value.median_s / reference.median_s - 1, value.fast_s / reference.fast_s - 1
    tests = ((excess_median, scatter_limit, reference.sd_median), (excess_fast, 0.0, reference.sd_fast))
    if not all(excess > max(limits.pct / 100, least, limits.sds * (sd or 0.0)) for excess, least, sd in tests):
        return None
    pct = 100 * min(excess_median, excess_fast)
    sd_pct = None if reference.sd_median is None else 100 * reference.sd_median
    is_set = measure == "all_to_all"
    who = f"{listed(probe.hosts, 8)} together" if is_set else probe.host
    return NodeFinding(
        measure=measure,
        against="history" if against == "history" else "peers",
        accuses="set" if is_set else "node",
        hosts=probe.hosts if is_set else [probe.host],
        pct=pct,
        seconds=value.median_s,
        reference_s=reference.median_s,
        sd_pct=sd_pct,
        compared=reference.n,
        text=f"{who}: {MEASURE_NAMES[measure]} {pct:.0f}% slower than "
        f"{_describe_reference(against, reference, sd_pct)} "
        f"({_format_ms(value.median_s)}, reference {_format_ms(reference.median_s)})"
        + (": an exchange over several hosts does not show which host is slow" if is_set else ""),
    )


def _describe_reference(against: str, reference: _ReferenceSummary, sd_pct: float | None) -> str:
    spread = "" if sd_pct is None else f", sd {sd_pct:.1f}%"
    if against == "history":
        return f"before (median of {count(reference.n, 'probe')}{spread})"
    return f"its peers (median of {count(reference.n, 'node')}{spread})"


def _format_ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _has_fleet_slowed(
    probe: NodeProbe, measure: Measure, latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds
) -> bool:
    """Whether at least half of the nodes, and at least two, are slower than their own histories.

    Only probes that are at most FLEET_CHANGE_H hours apart are counted.
    """
    recent_probes = {fresh.host: fresh for fresh in latest}
    for host, probes in histories.items():
        if probes and host not in recent_probes and _hours_between(probes[-1], probe) <= FLEET_CHANGE_H:
            recent_probes[host] = probes[-1]
    compared, slower = 0, 0
    for recent in recent_probes.values():
        own_history = _own_history(recent, histories, limits)
        if is_comparable(recent, probe) and not _is_crowded(recent) and _has_enough(own_history, measure, limits):
            compared += 1
            slower += _finding(recent, measure, own_history, "history", limits) is not None
    return slower >= 2 and 2 * slower >= compared


def _fleet_text(measure: Measure, findings: Sequence[NodeFinding]) -> str:
    hosts = listed([host for finding in findings for host in finding.hosts], 8)
    return (
        f"{hosts}: {MEASURE_NAMES[measure]} {_format_range([finding.pct for finding in findings])} slower than before, "
        "and no slower than their peers: something that they share changed (firmware, kernel, cooling, a setting), "
        "not one node"
    )


def _find_changed_software(
    latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds, notes: dict[str, list[str]]
) -> list[str]:
    """Return a text for each change of driver or software after which several nodes have a slower matrix product.

    A note is added to ``notes`` for every node that has changed since its earlier probes.
    """
    slower: dict[str, list[tuple[str, float]]] = {}
    for probe in latest:
        earlier = [past for past in histories.get(probe.host, ()) if past.when < probe.when and _is_healthy(past)]
        if not earlier or _own_history(probe, histories, limits):
            continue
        previous = earlier[-1]
        changed = _differences(previous, probe)
        if any(getattr(previous, name) != getattr(probe, name) for name in ("sizes", "ranks", "device")):
            continue  # the probes did not measure the same work
        reference = [past for past in earlier if is_comparable(past, previous)][-limits.window :]
        change = ", ".join(
            f"{name.replace('_', ' ')} {getattr(previous, name)} -> {getattr(probe, name)}" for name in changed
        )
        pct = 100 * (probe.gemm.median_s / median(past.gemm.median_s for past in reference) - 1)
        notes[probe.host].append(
            f"it has changed ({change}) and is not compared with its earlier probes; its matrix product takes "
            f"{pct:+.0f}%"
        )
        if pct > limits.pct:
            slower.setdefault(change, []).append((probe.host, pct))
    return [
        f"{listed([host for host, _ in slower_nodes], 8)}: matrix product "
        f"{_format_range([pct for _, pct in slower_nodes])} slower since {change}: "
        "that change is the cause, not one node"
        for change, slower_nodes in slower.items()
        if len(slower_nodes) > 1
    ]


def _judge_sets(latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds) -> list[NodeFinding]:
    """Compare the exchange over all hosts with earlier exchanges over the same hosts.

    If there are too few of these, compare it with earlier exchanges over any set with the same number of hosts.
    """
    probe = max(latest, key=lambda fresh: fresh.all_to_all.median_s if fresh.all_to_all else 0.0, default=None)
    if probe is None or probe.all_to_all is None:
        return []
    slowest: dict[tuple[str, tuple[str, ...]], NodeProbe] = {}
    for past in (past for probes in histories.values() for past in probes):
        if past.when < probe.when and _is_healthy(past) and past.all_to_all and is_comparable(past, probe):
            key = (past.when, tuple(past.hosts))
            recorded = slowest.get(key)
            if (
                recorded is None
                or recorded.all_to_all is None
                or recorded.all_to_all.median_s < past.all_to_all.median_s
            ):
                slowest[key] = past
    same_size = [past for _, past in sorted(slowest.items()) if len(past.hosts) == len(probe.hosts)]
    same_set = [past for past in same_size if set(past.hosts) == set(probe.hosts)]
    reference = (same_set if len(same_set) >= limits.least else same_size)[-limits.window :]
    finding = _finding(probe, "all_to_all", reference, "history", limits) if len(reference) >= limits.least else None
    return [finding] if finding else []


def _list_circumstances(probe: NodeProbe) -> list[str]:
    notes = [f"a fault of the node other than its speed: {cause}" for cause in probe.causes]
    if _is_crowded(probe):
        share = f"{100 * (probe.others_share or 0):.0f}%"
        notes.append(f"other work took {share} of its cores' time, so it is not judged; probe it again")
    if abs(probe.skew_s) > MAX_SKEW_S:
        notes.append(
            f"its clock is {abs(probe.skew_s):.0f} s {'ahead of' if probe.skew_s > 0 else 'behind'} the other hosts"
        )
    return notes


def _no_reference_note(probe: NodeProbe, histories: Histories, limits: NodeThresholds) -> str:
    own = len(_own_history(probe, histories, limits))
    return f"nothing to compare with yet: {own} of {limits.least} earlier probes, and no peer of its class"


def _format_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}%", f"{max(values):.0f}%"
    return low if low == high else f"{low} to {high}"
