"""Decide whether a node is slow: compare its fresh probe with its own history and with its peers. No I/O.

A probe repeats each measurement many times. A measurement is slow if both of these statistics are too long:

    median          must exceed the reference by more than a threshold, and by more than the scatter of the repetitions
    fastest tenth   must exceed the reference by more than the threshold (10th percentile of the repetitions)

If the reference has enough probes for a robust standard deviation, both statistics must also exceed the reference by a
multiple of this deviation. One slow statistic is not enough: other work on the node slows the median more than the
fastest repetitions, and other work is not a fault of the node.

There are two references:

    history   earlier probes of the same node that were healthy
    peers     the last probe of each other node, preferably from the same seat

A probe is crowded if other work took a tenth of the cores' time. A crowded probe is not judged. A probe is healthy if
it was not slow, not crowded, and showed no other fault of the node. Two probes are comparable if node class, driver,
container, torch, device, sizes and number of ranks are equal. Only comparable probes are compared.

Measurements within a node can show that the node is slow: the matrix product, the copy, and the exchange among its own
ranks. The exchange over several hosts can only show that the set of hosts is slow.

If at least half of the nodes became slower than their own histories, the whole fleet may have changed. A node that is
slower than its history, but not slower than its peers, is then not called slow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

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
"""Measurements within a node."""
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
"""All stored probes of each host, oldest first."""


@dataclass(frozen=True)
class _ReferenceSummary:
    """Summary of the timings that a measurement is compared with: one timing from each probe of the reference."""

    median_s: float
    """Median of the probes' medians."""
    fast_s: float
    """Median of the probes' fastest tenths."""
    scatter: float
    """Median of the scatter within a probe, as a share of its median."""
    sd_median: float | None
    """Robust standard deviation of the probes' medians, as a share of ``median_s``; None if the probes are too few."""
    sd_fast: float | None
    """The same for the fastest tenths."""
    n: int
    """Number of probes."""


def judge(latest: Sequence[NodeProbe], histories: Histories, thresholds: NodeThresholds | None = None) -> NodeJudgement:
    """Judge the fresh probes ``latest``, which were measured together. ``thresholds`` of None means the defaults.

    ``histories`` may already contain these probes. The judgement has a verdict for each node, the findings about sets
    of hosts, and texts about changes of the whole fleet.
    """
    limits = thresholds or NodeThresholds()
    notes: dict[str, list[str]] = {probe.host: _list_circumstances(probe) for probe in latest}
    compared_hosts: set[str] = set()
    findings: dict[str, list[NodeFinding]] = {probe.host: [] for probe in latest}
    fleet: list[str] = []  # texts about changes that many nodes share
    for measure in NODE_MEASURES:
        fleet_findings: list[NodeFinding] = []
        for probe in latest:
            if _is_crowded(probe):
                continue
            own_history = _own_history(probe, histories, limits)
            peers = _find_peers(probe, latest, histories)
            if _has_enough(own_history, measure, limits) or _timings(peers, measure):
                compared_hosts.add(probe.host)
            has_history = len(own_history) >= limits.least  # fewest earlier probes for a comparison
            against_own = _finding(probe, measure, own_history, "history", limits) if has_history else None
            against_peers = _finding(probe, measure, peers, "peers", limits) if peers else None
            # Slower than before, but not slower than the peers: the whole fleet may have changed.
            if against_own and not against_peers and _has_fleet_slowed(probe, measure, latest, histories, limits):
                fleet_findings.append(against_own)
                continue
            findings[probe.host] += [finding for finding in (against_own, against_peers) if finding]
        if fleet_findings:
            fleet.append(_fleet_text(measure, fleet_findings))
    fleet += _find_changed_software(latest, histories, limits, notes)
    verdicts = []
    for probe in latest:
        is_compared = probe.host in compared_hosts
        if not is_compared and not _is_crowded(probe):
            notes[probe.host].append(_no_reference_note(probe, histories, limits))
        status: Literal["ok", "slow", "unknown"] = "ok" if is_compared else "unknown"
        if findings[probe.host]:
            status = "slow"
        verdicts.append(
            NodeVerdict(host=probe.host, status=status, findings=findings[probe.host], notes=notes[probe.host])
        )
    return NodeJudgement(nodes=verdicts, sets=_judge_sets(latest, histories, limits), fleet=fleet)


def explains(judgement: NodeJudgement, hosts: Sequence[str], paired: bool) -> list[str]:
    """Return why the nodes, and not the commit, may have caused a difference in times measured on ``hosts``.

    The result is [] if no slow node, slow set of hosts, or change of the fleet is known. ``paired`` says that base and
    head ran on these hosts in turn. A change of the whole fleet then affects both arms, so it is left out.
    """
    reasons = [
        f"{node.host} is slow, whatever runs on it: {node.findings[0].text}"
        for node in judgement.nodes
        if node.host in hosts and node.status == "slow"
    ]
    reasons += [finding.text for finding in judgement.sets if set(finding.hosts) <= set(hosts)]
    if not paired:
        reasons += judgement.fleet
    return reasons


def is_comparable(first: NodeProbe, second: NodeProbe) -> bool:
    """Whether two probes measured the same work on machines that should be equally fast."""
    return not _differences(first, second)


def _differences(first: NodeProbe, second: NodeProbe) -> list[str]:
    """Return the names of fields that affect speed and that differ between the two probes."""
    names = ("node_class", "driver", "container", "software", "device", "device_name", "ranks", "sizes")
    return [name for name in names if getattr(first, name) != getattr(second, name)]


def _is_healthy(probe: NodeProbe) -> bool:
    """Whether later probes may be compared with this one: it was not slow, not crowded, and showed no other fault."""
    return not probe.slow and not probe.causes and not _is_crowded(probe)


def _is_crowded(probe: NodeProbe) -> bool:
    """Whether other work took much of the cores' time during the probe. If this is not known, the answer is no."""
    return probe.others_share is not None and probe.others_share >= CROWDED_SHARE


def _own_history(probe: NodeProbe, histories: Histories, limits: NodeThresholds) -> list[NodeProbe]:
    """Return the latest earlier probes of the same node that are healthy and comparable, at most ``limits.window``."""
    earlier_probes = [past for past in histories.get(probe.host, ()) if past.when < probe.when and _is_healthy(past)]
    return [past for past in earlier_probes if is_comparable(past, probe)][-limits.window :]


def _find_peers(probe: NodeProbe, latest: Sequence[NodeProbe], histories: Histories) -> list[NodeProbe]:
    """Return one comparable probe of each other node: its fresh probe, or else its last healthy one.

    ``latest`` are the fresh probes. Healthy probes older than PEER_DAYS are left out. So are nodes whose probe is not
    comparable.
    """
    peers = {fresh.host: fresh for fresh in latest if fresh.host != probe.host}
    for host, probes in histories.items():
        if host == probe.host or host in peers:
            continue
        recent = [past for past in probes if _is_healthy(past) and _hours_between(past, probe) <= 24 * PEER_DAYS]
        if recent:
            peers[host] = recent[-1]
    return [peer for peer in peers.values() if is_comparable(peer, probe)]


def _hours_between(first: NodeProbe, second: NodeProbe) -> float:
    return abs((parse_time(first.when) - parse_time(second.when)).total_seconds()) / 3600


def _timings(probes: Sequence[NodeProbe], measure: Measure) -> list[RepeatedTiming]:
    """Return the timings of one measurement, without the probes that did not make it."""
    return [timing for probe in probes if (timing := probe.get_timing(measure)) is not None]


def _has_enough(probes: Sequence[NodeProbe], measure: Measure, limits: NodeThresholds) -> bool:
    """Whether enough earlier probes made the measurement, so that a fresh one can be compared with them."""
    return len(_timings(probes, measure)) >= limits.least


def _summarize(timings: Sequence[RepeatedTiming], limits: NodeThresholds) -> _ReferenceSummary:
    """Summarize the timings of a reference. The standard deviations need at least ``limits.long`` timings."""
    medians = [timing.median_s for timing in timings]
    fastest_tenths = [timing.fast_s for timing in timings]
    has_sd = len(timings) >= limits.long
    return _ReferenceSummary(
        median_s=median(medians),
        fast_s=median(fastest_tenths),
        scatter=median(map(_scatter, timings)),
        sd_median=_sd(medians) if has_sd else None,
        sd_fast=_sd(fastest_tenths) if has_sd else None,
        n=len(timings),
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
    """Return a finding if a measurement of ``probe`` took too long compared with the probes ``others``; None otherwise.

    ``against`` names the reference: "history" or "peers". All excesses and limits are shares of the reference. Both
    statistics must exceed the reference by ``limits.pct`` percent, and by ``limits.sds`` standard deviations of the
    reference's probes. The median must also exceed it by ``limits.scatters`` standard deviations of the repetitions.
    Returns None too if the measurement is missing.
    """
    timing, other_timings = probe.get_timing(measure), _timings(others, measure)
    if timing is None or not other_timings:
        return None
    reference = _summarize(other_timings, limits)
    excess_median = timing.median_s / reference.median_s - 1
    excess_fast = timing.fast_s / reference.fast_s - 1
    min_excess = limits.pct / 100
    # The scatter of the compared probes adds up like independent errors.
    scatter_limit = limits.scatters * math.hypot(_scatter(timing), reference.scatter)
    # A standard deviation of None means that the reference has too few probes for one.
    median_limit = max(min_excess, scatter_limit, limits.sds * (reference.sd_median or 0.0))
    fast_limit = max(min_excess, limits.sds * (reference.sd_fast or 0.0))
    if excess_median <= median_limit or excess_fast <= fast_limit:
        return None
    pct = 100 * min(excess_median, excess_fast)
    sd_pct = None if reference.sd_median is None else 100 * reference.sd_median
    is_set = measure == "all_to_all"  # this measurement runs over several hosts
    who = f"{listed(probe.hosts, 8)} together" if is_set else probe.host
    return NodeFinding(
        measure=measure,
        against="history" if against == "history" else "peers",
        accuses="set" if is_set else "node",
        hosts=probe.hosts if is_set else [probe.host],
        pct=pct,
        seconds=timing.median_s,
        reference_s=reference.median_s,
        sd_pct=sd_pct,
        compared=reference.n,
        text=f"{who}: {MEASURE_NAMES[measure]} {pct:.0f}% slower than "
        f"{_describe_reference(against, reference, sd_pct)} "
        f"({_format_ms(timing.median_s)}, reference {_format_ms(reference.median_s)})"
        + (": an exchange over several hosts does not show which host is slow" if is_set else ""),
    )


def _describe_reference(against: str, reference: _ReferenceSummary, sd_pct: float | None) -> str:
    """Return what a measurement was compared with, for the text "NN% slower than ..."."""
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

    ``latest`` are the fresh probes. Only the last probe of each node is counted, if it is comparable with ``probe``, at
    most FLEET_CHANGE_H hours apart from it, not crowded, and has enough history.
    """
    recent_probes = {fresh.host: fresh for fresh in latest}
    for host, probes in histories.items():
        if probes and host not in recent_probes and _hours_between(probes[-1], probe) <= FLEET_CHANGE_H:
            recent_probes[host] = probes[-1]
    compared_count, slower_count = 0, 0
    for recent_probe in recent_probes.values():
        own_history = _own_history(recent_probe, histories, limits)
        if (
            is_comparable(recent_probe, probe)
            and not _is_crowded(recent_probe)
            and _has_enough(own_history, measure, limits)
        ):
            compared_count += 1
            if _finding(recent_probe, measure, own_history, "history", limits) is not None:
                slower_count += 1
    return slower_count >= 2 and 2 * slower_count >= compared_count


def _fleet_text(measure: Measure, findings: Sequence[NodeFinding]) -> str:
    """Return a sentence about the nodes that became slower together, and are therefore not called slow."""
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

    A new driver or torch makes a node's earlier probes not comparable, so it starts a new history. This function
    compares the fresh probe with the old history nevertheless. It adds a note to ``notes``, which has the notes by
    host, for every such node. ``latest`` are the fresh probes.
    """
    slower: dict[str, list[tuple[str, float]]] = {}  # change -> host and slowdown in percent
    for probe in latest:
        earlier_probes = [
            past for past in histories.get(probe.host, ()) if past.when < probe.when and _is_healthy(past)
        ]
        has_comparable_history = bool(_own_history(probe, histories, limits))
        if not earlier_probes or has_comparable_history:
            continue
        previous_probe = earlier_probes[-1]
        changed_fields = _differences(previous_probe, probe)
        if {"sizes", "ranks", "device"} & set(changed_fields):
            continue  # the probes did not measure the same work
        reference = [past for past in earlier_probes if is_comparable(past, previous_probe)][-limits.window :]
        change = ", ".join(
            f"{name.replace('_', ' ')} {getattr(previous_probe, name)} -> {getattr(probe, name)}"
            for name in changed_fields
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
    """Return a finding if the exchange over all hosts is slower than earlier exchanges over the same hosts; else [].

    ``latest`` are the fresh probes. An exchange is as slow as its slowest host, so one probe stands for each exchange.
    If there are too few exchanges over the same hosts, all exchanges over the same number of hosts are the reference.
    """
    probe = max(latest, key=_exchange_s, default=None)
    if probe is None or probe.all_to_all is None:
        return []
    slowest: dict[tuple[str, tuple[str, ...]], NodeProbe] = {}  # time and hosts of an exchange -> its slowest probe
    all_probes = [past for probes in histories.values() for past in probes]
    for past in all_probes:
        if past.when < probe.when and _is_healthy(past) and past.all_to_all and is_comparable(past, probe):
            exchange = (past.when, tuple(past.hosts))
            if exchange not in slowest or _exchange_s(slowest[exchange]) < _exchange_s(past):
                slowest[exchange] = past
    same_size_probes = [past for _, past in sorted(slowest.items()) if len(past.hosts) == len(probe.hosts)]
    same_hosts_probes = [past for past in same_size_probes if set(past.hosts) == set(probe.hosts)]
    reference = (same_hosts_probes if len(same_hosts_probes) >= limits.least else same_size_probes)[-limits.window :]
    if len(reference) < limits.least:
        return []
    finding = _finding(probe, "all_to_all", reference, "history", limits)
    return [finding] if finding else []


def _exchange_s(probe: NodeProbe) -> float:
    """Return the seconds of the exchange over all hosts; 0 if the probe did not make it."""
    return probe.all_to_all.median_s if probe.all_to_all is not None else 0.0


def _list_circumstances(probe: NodeProbe) -> list[str]:
    """Return notes about the node that do not decide whether it is slow: other faults, other work, a wrong clock."""
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
    earlier_count = len(_own_history(probe, histories, limits))
    return f"nothing to compare with yet: {earlier_count} of {limits.least} earlier probes, and no peer of its class"


def _format_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}%", f"{max(values):.0f}%"
    return low if low == high else f"{low} to {high}"
