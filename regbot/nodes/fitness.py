"""Check the nodes of a session: probe them before the first run, and again if one node has made the others wait.

Only nodes of a cluster are probed automatically, because there another node can replace a slow one. If a probe finds a
slow node, the nodes are probed again, because other work may have slowed the first probe. A node that is slow in both
probes goes into quarantine with the evidence. Runs that were timed on it do not count.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from regbot.engines import Needs, Seat
from regbot.judge.stragglers import Straggler, find_stragglers
from regbot.nodes.examination import examine
from regbot.nodes.quarantine import quarantined_nodes
from regbot.nodes.reference import ProbeError, probe
from regbot.records.node import NodeProbe, ProbeReport, StragglerSession
from regbot.records.run import Run
from regbot.text.clip import clip

Now = Callable[[], datetime]


class Fitness:
    """Probes nodes and compares them with their history in ``folder``. ``scratch`` is a folder that all nodes share."""

    def __init__(self, folder: Path, scratch: Path, now: Now = lambda: datetime.now(UTC)) -> None:
        self._folder, self._scratch, self._now = folder, scratch, now
        self.probe_failure = ""
        """Why the nodes of the last seat could not be probed; '' if they could. Nodes without a probe count as fit."""

    def quarantined_hosts(self) -> frozenset[str]:
        """Return the hosts that are in quarantine at the moment."""
        return frozenset(quarantined_nodes(self._folder))

    def check_before(self, seat: Seat, needs: Needs, python: str = "") -> str:
        """Return why nothing may be timed in ``seat``; '' if its nodes are fit.

        The probe needs torch. A workload that is a program of one process (``needs.ranks`` is 0) may not have torch, so
        its nodes are not probed. Raises RecordError, NoSeatError, and the errors of ``Seat.run``.
        """
        self.probe_failure = ""
        if in_quarantine := sorted(self.quarantined_hosts() & set(seat.allocation.hosts)):
            return (
                f"{', '.join(in_quarantine)}: in quarantine; "
                f"'regbot node show {in_quarantine[0]}' says why, 'node release' ends it"
            )
        if not needs.ranks or seat.allocation.engine == "local":
            return ""
        return self._probe(seat, needs, python, {}).reason

    def check_after(self, seat: Seat, needs: Needs, runs: Sequence[Run], python: str = "") -> str:
        """Return why the times measured in ``seat`` do not count; '' if they do. ``runs`` are the runs in this seat."""
        if not needs.ranks or seat.allocation.engine == "local":
            return ""
        stragglers_by_host: dict[str, list[Straggler]] = {}
        for straggler in find_stragglers(runs):
            has_other_cause = straggler.responsible_arm is not None or straggler.is_explained_by_load
            if not has_other_cause and len(straggler.timed_arms) == 2:
                stragglers_by_host.setdefault(straggler.host, []).append(straggler)
        if not stragglers_by_host:
            return ""
        slow = self._probe(seat, needs, python, stragglers_by_host)
        texts = [
            straggler.text
            for host, stragglers in stragglers_by_host.items()
            if host in slow.hosts
            for straggler in stragglers
        ]
        return "; ".join([*texts, slow.reason]) if slow.hosts else ""

    def _probe(
        self, seat: Seat, needs: Needs, python: str, stragglers_by_host: dict[str, list[Straggler]]
    ) -> "_SlowHosts":
        """Probe the nodes of ``seat``, twice if a node is slow, and quarantine the nodes that are slow in both probes.

        A slow node on trial goes back into quarantine after one probe. If no second probe succeeds, the nodes that were
        slow in the first one are returned, and are not quarantined.
        """
        session = seat.allocation.job
        evidence = {
            host: [
                StragglerSession(session=session, rank=straggler.rank or 0, pct=straggler.slower_pct)
                for straggler in stragglers
            ]
            for host, stragglers in stragglers_by_host.items()
        }
        probes = self._measure(seat, needs, python)
        if probes is None:
            return _SlowHosts()
        report = examine(self._folder, probes, self._now(), quarantine_slow=(), stragglers=evidence)
        slow = _find_slow(report)
        if slow and not slow & self.quarantined_hosts():
            probes = self._measure(seat, needs, python)
            if probes is None:
                self.probe_failure = ""  # the nodes do not count as healthy
                return _SlowHosts(slow, f"{', '.join(sorted(slow))}: slow in a probe, and a second probe failed")
            report = examine(self._folder, probes, self._now(), quarantine_slow=slow, stragglers=evidence)
        confirmed = _find_slow(report) & self.quarantined_hosts()
        return _SlowHosts(confirmed, _describe_slow(report, confirmed)) if confirmed else _SlowHosts()

    def _measure(self, seat: Seat, needs: Needs, python: str) -> list[NodeProbe] | None:
        """Probe the nodes of ``seat`` once. Return None, and set ``probe_failure``, if they could not be probed."""
        try:
            return probe(
                seat,
                needs.ranks,
                self._scratch / "probe",
                self._now(),
                # An interpreter of the checkout is code under test and must not run the probe.
                python=python if Path(python).is_absolute() else sys.executable,
                gpus=bool(needs.gpus),
            )
        except ProbeError as error:
            self.probe_failure = (
                f"{', '.join(seat.allocation.hosts)}: could not be probed, and count as healthy: {error}"
            )
            return None


@dataclass(frozen=True)
class _SlowHosts:
    """Hosts on which nothing may be timed, because a probe found them slow, and the reason as text."""

    hosts: frozenset[str] = frozenset()
    reason: str = ""


def _find_slow(report: ProbeReport) -> frozenset[str]:
    return frozenset(verdict.host for verdict in report.judgement.nodes if verdict.status == "slow")


def _describe_slow(report: ProbeReport, hosts: Collection[str]) -> str:
    slow = [
        f"{verdict.host} is slow, whatever runs on it, and is in quarantine now: "
        + "; ".join(finding.text for finding in verdict.findings)
        for verdict in report.judgement.nodes
        if verdict.host in hosts
    ]
    return clip("; ".join([*slow, *report.warnings]), 3000)
