"""Check the nodes of a seat with the reference probe before a session is timed on them. A node is compared with its own
stored probes only. A measurement is slow if its median and its fastest tenth are both more than 10% above the median of
the stored probes, and, from MIN_PROBES stored probes on, more than 5 robust standard deviations. Other work on the node
slows the median more than the fastest repetitions, so one slow statistic is not enough. The exchange over several hosts
cannot show which of them is slow: it is compared with earlier exchanges over the same hosts, and only warns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import get_args

from filelock import FileLock

from regbot.engines.engine import Needs, Seat
from regbot.engines.reference_probe import ProbeError, probe_nodes
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.node import Measure, NodeHistory, NodeProbe
from regbot.records.text.clip import clip_message
from regbot.records.text.words import count

HISTORY_FILE = "nodes.json"
MIN_PROBES, MIN_DAYS = 8, 3
"""A node is refused only against at least this many stored probes, of at least this many days. Fewer probes may all
come from one unusual hour."""
WINDOW = 20
"""Number of stored probes of each node, driver, software and number of ranks."""
SLOW_SHARE = 0.10
SLOW_SDS = 5.0
MAD_TO_SD = 1.4826
"""Factor that converts a median absolute deviation to the standard deviation of a normal distribution."""
MEASURE_NAMES: dict[Measure, str] = {
    "gemm": "matrix product",
    "local_all_to_all": "all-to-all within the node",
    "all_to_all": "all-to-all over all hosts",
    "copy": "memory copy",
}
COMPARED_FIELDS = ("host", "driver", "container", "software", "device_name", "ranks", "sizes")
"""Two probes are compared only if these fields are equal."""


@dataclass(frozen=True)
class NodeCheck:
    probes: list[NodeProbe] = field(default_factory=list)
    refused_hosts: frozenset[str] = frozenset()
    refusal: str = ""
    """Why nothing may be timed on these nodes; '' if they are fit."""
    warnings: list[str] = field(default_factory=list)


def check_nodes(seat: Seat, needs: Needs, python: str, scratch: Path, history_file: Path) -> NodeCheck:
    """Probe the nodes of ``seat``, compare them with their stored probes, and store the probes of healthy nodes. This
    machine is not probed, because no other node could replace it, and for programs of one process neither, because
    their interpreter may lack torch. Nodes whose probe fails count as fit, with a warning. Raises NoSeatError, OSError.
    """
    if needs.ranks == 0 or seat.allocation.engine == "local":
        return NodeCheck()
    now = datetime.now(UTC)
    try:
        probes = probe_nodes(seat, needs.ranks, scratch, now, python=python, gpus=bool(needs.gpus))
    except ProbeError as error:
        hosts = ", ".join(seat.allocation.hosts)
        return NodeCheck(warnings=[clip_message(f"{hosts}: could not be probed, and count as fit: {error}")])
    history_file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(history_file.with_suffix(".lock")):
        try:
            stored_probes = read_record(history_file, NodeHistory).probes if history_file.exists() else []
            warnings = []
        except RecordError as error:
            stored_probes, warnings = [], [f"{error}; the stored probes of nodes begin anew"]
        check = judge_probes(probes, stored_probes, history_file)
        healthy_probes = [probe for probe in probes if not probe.disturbance and probe.host not in check.refused_hosts]
        write_record(history_file, NodeHistory(probes=_keep_latest([*stored_probes, *healthy_probes])))
    return NodeCheck(check.probes, check.refused_hosts, check.refusal, [*warnings, *check.warnings])


def judge_probes(probes: Sequence[NodeProbe], stored_probes: Sequence[NodeProbe], history_file: Path) -> NodeCheck:
    refused_hosts, refusals, warnings = set(), [], []
    for probe in probes:
        if probe.disturbance:
            warnings.append(f"{probe.host}: its reference probe is not judged: {probe.disturbance}")
            continue
        for measure in get_args(Measure):
            if measure == "all_to_all" and probe.host != probe.hosts[0]:
                continue  # one exchange is measured on all its hosts
            references = [
                stored
                for stored in stored_probes
                if _is_comparable(stored, probe) and (measure != "all_to_all" or stored.hosts == probe.hosts)
            ]
            finding = _describe_slowness(probe, measure, references)
            if not finding:
                continue
            days = {int(stored.unix_s // 86400) for stored in references}
            is_known = len(references) >= MIN_PROBES and len(days) >= MIN_DAYS
            if measure == "all_to_all":
                hosts = ", ".join(probe.hosts[:8])
                warnings.append(f"{hosts} together: {finding}; this does not show which of them is slow")
            elif is_known:
                refused_hosts.add(probe.host)
                refusals.append(f"{probe.host}: {finding}")
            else:
                warnings.append(
                    f"{probe.host}: {finding}; a node is refused only against at least {MIN_PROBES} probes of "
                    f"{MIN_DAYS} days"
                )
    refusal = ""
    if refusals:
        refusal = clip_message(
            f"the reference probe found slow nodes. {'; '.join(refusals)}. If this is their usual speed now, delete "
            f"{history_file}"
        )
    return NodeCheck(list(probes), frozenset(refused_hosts), refusal, [clip_message(text) for text in warnings])


def _describe_slowness(probe: NodeProbe, measure: Measure, references: Sequence[NodeProbe]) -> str:
    timing = probe.get_timing(measure)
    timings = [past for reference in references if (past := reference.get_timing(measure)) is not None]
    if timing is None or not timings:
        return ""
    excesses = []
    for value, past_values in (
        (timing.median_s, [past.median_s for past in timings]),
        (timing.fast_s, [past.fast_s for past in timings]),
    ):
        middle = median(past_values)
        deviation = median(abs(past - middle) for past in past_values) / middle
        scatter = SLOW_SDS * MAD_TO_SD * deviation if len(timings) >= MIN_PROBES else 0.0
        excess = value / middle - 1
        if excess <= max(SLOW_SHARE, scatter):
            return ""
        excesses.append(excess)
    return f"{MEASURE_NAMES[measure]} {min(excesses):.0%} slower than in {count(len(timings), 'stored probe')}"


def _is_comparable(first: NodeProbe, second: NodeProbe) -> bool:
    return all(getattr(first, name) == getattr(second, name) for name in COMPARED_FIELDS)


def _keep_latest(probes: Iterable[NodeProbe]) -> list[NodeProbe]:
    kept: list[NodeProbe] = []
    for probe in reversed([*probes]):
        if sum(_is_comparable(later, probe) for later in kept) < WINDOW:
            kept.append(probe)
    return kept[::-1]
