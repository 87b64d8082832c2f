"""Is a node slow? Its fresh probe against its own history, and against other nodes of its class. No I/O.

The rule. A measurement is slow where its median **and** its fastest tenth are above the reference by more than a
threshold, and the median beyond what the repetitions scatter within a probe. Once the reference is long enough to
know its robust standard deviation, both are beyond so many of those too. Both, because other work on the node slows
the median more than the fastest repetitions, and is no fault of the node. A probe during which other work is known to
have taken a tenth of the cores' time is not judged, and is no reference.

    history   earlier probes of the node that were not slow themselves: their median
    peers     the last probe of each other node, of those probed together first of all: their median

Only what lies within one node accuses a node: the matrix product, the copy, the exchange among its own ranks. The
exchange over several hosts accuses the set. Probes are compared only within one class, driver, container, torch, size
and number of ranks. Where half of the nodes or more became slower than their own histories, and one is no slower than
the others, the fleet changed and not that node.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from regbot.records.baseline import moment
from regbot.records.node import (
    Measure,
    NodeFinding,
    NodeJudgement,
    NodeProbe,
    NodeThresholds,
    NodeVerdict,
    Repeated,
)

WITHIN: tuple[Measure, ...] = ("gemm", "local_all_to_all", "copy")
WORDS: dict[Measure, str] = {
    "gemm": "matrix product",
    "local_all_to_all": "all-to-all within the node",
    "all_to_all": "all-to-all over all hosts",
    "copy": "memory copy",
}
PEER_DAYS = 30
"""A peer that was last probed longer ago says nothing of today's fleet."""
TOGETHER_H = 24
"""Probes that are at most so far apart may show a change of the whole fleet."""
SKEW_S = 5.0
CROWDED = 0.1
NORMAL = 1.4826
"""A median absolute deviation times this is the standard deviation of a normal distribution."""

Histories = Mapping[str, Sequence[NodeProbe]]


@dataclass(frozen=True)
class _Reference:
    """What a measurement is compared with. ``sd_*``: None where there are too few."""

    median_s: float
    fast_s: float
    scatter: float
    sd_median: float | None
    sd_fast: float | None
    n: int


def judge(latest: Sequence[NodeProbe], histories: Histories, thresholds: NodeThresholds | None = None) -> NodeJudgement:
    """Judge the probes that were just taken together. ``histories`` may hold them already."""
    limits = thresholds or NodeThresholds()
    notes: dict[str, list[str]] = {probe.host: _circumstances(probe) for probe in latest}
    compared: set[str] = set()
    found: dict[str, list[NodeFinding]] = {probe.host: [] for probe in latest}
    fleet: list[str] = []
    for measure in WITHIN:
        moved: list[NodeFinding] = []
        for probe in (each for each in latest if not _crowded(each)):
            own = _own(probe, histories, limits)
            peers = _peers(probe, latest, histories)
            compared |= {probe.host} if _enough(own, measure, limits) or _values(peers, measure) else set()
            against_own = _finding(probe, measure, own, "history", limits) if len(own) >= limits.least else None
            against_peers = _finding(probe, measure, peers, "peers", limits) if peers else None
            if against_own and not against_peers and _fleet_moved(probe, measure, latest, histories, limits):
                moved.append(against_own)
                continue
            found[probe.host] += [each for each in (against_own, against_peers) if each]
        if moved:
            fleet.append(_fleet_text(measure, moved))
    fleet += _changed(latest, histories, limits, notes)
    verdicts = [
        NodeVerdict(
            host=probe.host,
            status="slow" if found[probe.host] else "ok" if probe.host in compared else "unknown",
            findings=found[probe.host],
            notes=[
                *notes[probe.host],
                *([] if probe.host in compared or _crowded(probe) else [_nothing_yet(probe, histories, limits)]),
            ],
        )
        for probe in latest
    ]
    return NodeJudgement(nodes=verdicts, sets=_sets(latest, histories, limits), fleet=fleet)


def explains(judgement: NodeJudgement, hosts: Sequence[str], paired: bool) -> list[str]:
    """Why a difference that was timed on ``hosts`` may be the nodes' doing and not the commit's; [] where nothing is.

    ``paired``: base and head ran there by turns, so that what all nodes share meets both.
    """
    reasons = [
        f"{node.host} is slow whatever runs on it: {node.findings[0].text}"
        for node in judgement.nodes
        if node.host in hosts and node.status == "slow"
    ]
    reasons += [each.text for each in judgement.sets if set(each.hosts) <= set(hosts)]
    return reasons if paired else [*reasons, *judgement.fleet]


def comparable(one: NodeProbe, other: NodeProbe) -> bool:
    """Do two probes measure the same on machines that should be alike?"""
    return not _differences(one, other)


def _differences(one: NodeProbe, other: NodeProbe) -> list[str]:
    """Names of what differs between two probes, of what decides speed."""
    names = ("node_class", "driver", "container", "software", "device", "device_name", "ranks", "sizes")
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def _healthy(probe: NodeProbe) -> bool:
    return not probe.slow and not probe.causes and not _crowded(probe)


def _crowded(probe: NodeProbe) -> bool:
    return probe.others_share is not None and probe.others_share >= CROWDED


def _own(probe: NodeProbe, histories: Histories, limits: NodeThresholds) -> list[NodeProbe]:
    """Earlier healthy probes of the same node that can be compared, the last ones."""
    earlier = [each for each in histories.get(probe.host, ()) if each.when < probe.when and _healthy(each)]
    return [each for each in earlier if comparable(each, probe)][-limits.window :]


def _peers(probe: NodeProbe, latest: Sequence[NodeProbe], histories: Histories) -> list[NodeProbe]:
    """The last probe of each other node that can be compared: of those probed together, as they are."""
    together = {each.host: each for each in latest if each.host != probe.host}
    earlier = {
        host: healthy[-1]
        for host, probes in histories.items()
        if host != probe.host
        and host not in together
        and (healthy := [each for each in probes if _healthy(each) and _apart_h(each, probe) <= 24 * PEER_DAYS])
    }
    return [each for each in (*together.values(), *earlier.values()) if comparable(each, probe)]


def _apart_h(one: NodeProbe, other: NodeProbe) -> float:
    return abs((moment(one.when) - moment(other.when)).total_seconds()) / 3600


def _values(probes: Sequence[NodeProbe], measure: Measure) -> list[Repeated]:
    return [found for probe in probes if (found := probe.of(measure)) is not None]


def _enough(probes: Sequence[NodeProbe], measure: Measure, limits: NodeThresholds) -> bool:
    return len(_values(probes, measure)) >= limits.least


def _reference(values: Sequence[Repeated], limits: NodeThresholds) -> _Reference:
    medians, fasts = [each.median_s for each in values], [each.fast_s for each in values]
    known = len(values) >= limits.long
    return _Reference(
        median(medians),
        median(fasts),
        median(map(_scatter, values)),
        _sd(medians) if known else None,
        _sd(fasts) if known else None,
        len(values),
    )


def _scatter(found: Repeated) -> float:
    """Robust standard deviation of the repetitions within one probe, as a share of their median."""
    return NORMAL * found.mad_s / found.median_s


def _sd(values: Sequence[float]) -> float:
    """Robust standard deviation, as a share of the median."""
    middle = median(values)
    return NORMAL * median(abs(each - middle) for each in values) / middle


def _finding(
    probe: NodeProbe, measure: Measure, others: Sequence[NodeProbe], against: str, limits: NodeThresholds
) -> NodeFinding | None:
    """Where ``probe`` took too long for what ``others`` took."""
    value, values = probe.of(measure), _values(others, measure)
    if value is None or not values:
        return None
    reference = _reference(values, limits)
    scatter = limits.scatters * math.hypot(_scatter(value), reference.scatter)
    above = (
        (value.median_s / reference.median_s - 1, scatter, reference.sd_median),
        (value.fast_s / reference.fast_s - 1, 0.0, reference.sd_fast),
    )
    if not all(share > max(limits.pct / 100, within, limits.sds * (sd or 0.0)) for share, within, sd in above):
        return None
    pct = 100 * min(share for share, _, _ in above)
    sd_pct = None if reference.sd_median is None else 100 * reference.sd_median
    is_set = measure == "all_to_all"
    who = f"{_several(probe.hosts)} together" if is_set else probe.host
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
        text=f"{who}: {WORDS[measure]} {pct:.0f}% slower than {_against(against, reference, sd_pct)} "
        f"({_ms(value.median_s)}, there {_ms(reference.median_s)})"
        + (": an exchange over several hosts cannot tell which of them it is" if is_set else ""),
    )


def _against(against: str, reference: _Reference, sd_pct: float | None) -> str:
    spread = "" if sd_pct is None else f", sd {sd_pct:.1f}%"
    if against == "history":
        return f"before (median of {reference.n} probe{'s' * (reference.n > 1)}{spread})"
    return f"its peers (median of {reference.n} node{'s' * (reference.n > 1)}{spread})"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _fleet_moved(
    probe: NodeProbe, measure: Measure, latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds
) -> bool:
    """Did half of the nodes or more, two at least, become slower than they were, at about the same time?"""
    now = {each.host: each for each in latest}
    for host, probes in histories.items():
        if probes and host not in now and _apart_h(probes[-1], probe) <= TOGETHER_H:
            now[host] = probes[-1]
    told = [
        _finding(each, measure, own, "history", limits) is not None
        for each in now.values()
        if comparable(each, probe)
        and not _crowded(each)
        and _enough(own := _own(each, histories, limits), measure, limits)
    ]
    return sum(told) >= 2 and 2 * sum(told) >= len(told)


def _fleet_text(measure: Measure, moved: Sequence[NodeFinding]) -> str:
    hosts = _several([host for each in moved for host in each.hosts])
    return (
        f"{hosts}: {WORDS[measure]} {_range([each.pct for each in moved])} slower than before, and no slower than "
        "their peers: something that they share changed (firmware, kernel, cooling, a setting), not one node"
    )


def _changed(
    latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds, notes: dict[str, list[str]]
) -> list[str]:
    """Nodes whose driver or torch is another than before: what their product takes now, against what it took then."""
    slower: dict[str, list[tuple[str, float]]] = {}
    for probe in latest:
        earlier = [each for each in histories.get(probe.host, ()) if each.when < probe.when and _healthy(each)]
        if not earlier or _own(probe, histories, limits):
            continue
        last = earlier[-1]
        differ = _differences(last, probe)
        if any(getattr(last, name) != getattr(probe, name) for name in ("sizes", "ranks", "device")):
            continue  # not the same work
        then = [each for each in earlier if comparable(each, last)][-limits.window :]
        words = ", ".join(
            f"{name.replace('_', ' ')} {getattr(last, name)} -> {getattr(probe, name)}" for name in differ
        )
        pct = 100 * (probe.gemm.median_s / median(each.gemm.median_s for each in then) - 1)
        notes[probe.host].append(
            f"it is not what it was ({words}), so that it is not compared with before; its matrix product takes "
            f"{pct:+.0f}%"
        )
        if pct > limits.pct:
            slower.setdefault(words, []).append((probe.host, pct))
    return [
        f"{_several([host for host, _ in moved])}: matrix product {_range([pct for _, pct in moved])} slower since "
        f"{words}: that changed, not one node"
        for words, moved in slower.items()
        if len(moved) > 1
    ]


def _sets(latest: Sequence[NodeProbe], histories: Histories, limits: NodeThresholds) -> list[NodeFinding]:
    """The exchange over all hosts, against earlier ones of as many hosts: of this very set where there are enough."""
    probe = max(latest, key=lambda each: each.all_to_all.median_s if each.all_to_all else 0.0, default=None)
    if probe is None or probe.all_to_all is None:
        return []
    slowest: dict[tuple[str, tuple[str, ...]], NodeProbe] = {}
    for each in (each for probes in histories.values() for each in probes):
        if each.when < probe.when and _healthy(each) and each.all_to_all and comparable(each, probe):
            key = (each.when, tuple(each.hosts))
            known = slowest.get(key)
            if known is None or known.all_to_all is None or known.all_to_all.median_s < each.all_to_all.median_s:
                slowest[key] = each
    alike = [each for _, each in sorted(slowest.items()) if len(each.hosts) == len(probe.hosts)]
    same = [each for each in alike if set(each.hosts) == set(probe.hosts)]
    chosen = (same if len(same) >= limits.least else alike)[-limits.window :]
    found = _finding(probe, "all_to_all", chosen, "history", limits) if len(chosen) >= limits.least else None
    return [found] if found else []


def _circumstances(probe: NodeProbe) -> list[str]:
    notes = [f"not its speed, but wrong with it: {cause}" for cause in probe.causes]
    if _crowded(probe):
        share = f"{100 * (probe.others_share or 0):.0f}%"
        notes.append(f"other work took {share} of its cores' time meanwhile, so that it is not judged; probe it again")
    if abs(probe.skew_s) > SKEW_S:
        notes.append(
            f"its clock is {abs(probe.skew_s):.0f} s {'ahead of' if probe.skew_s > 0 else 'behind'} the others"
        )
    return notes


def _nothing_yet(probe: NodeProbe, histories: Histories, limits: NodeThresholds) -> str:
    own = len(_own(probe, histories, limits))
    return f"nothing to compare with yet: {own} of {limits.least} earlier probes, and no peer of its class"


def _several(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}%", f"{max(values):.0f}%"
    return low if low == high else f"{low} to {high}"
