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

MAX_REASON_CHARACTERS = 3000
Now = Callable[[], datetime]
"""Returns the present time."""


class Fitness:
    """Checks whether the nodes of a seat are fit: it probes them and compares them with their history in ``folder``.

    A seat is the nodes of one session. ``scratch`` is a folder that all nodes share.
    """

    def __init__(self, folder: Path, scratch: Path, now: Now = lambda: datetime.now(UTC)) -> None:
        self._folder, self._scratch, self._now = folder, scratch, now
        self.probe_failure = ""
        """Why the nodes of the last seat could not be probed; '' if nothing failed. Such nodes count as fit."""

    def quarantined_hosts(self) -> frozenset[str]:
        """Return the hosts that are in quarantine at the moment."""
        return frozenset(quarantined_nodes(self._folder))

    def check_before(self, seat: Seat, needs: Needs, python: str = "") -> str:
        """Return why nothing may be timed in ``seat``; '' if its nodes are fit.

        ``needs`` has the ranks and GPUs of a run. ``python`` is the workload's interpreter. A seat on this
        machine is not probed, because no other node could replace this machine. For a program of one process
        (``needs.ranks`` is 0) the nodes are not probed either: the probe needs torch, and the program's interpreter may
        not have it. Raises RecordError, NoSeatError, and the errors of ``Seat.run``.
        """
        self.probe_failure = ""
        if in_quarantine := sorted(self.quarantined_hosts() & set(seat.allocation.hosts)):
            return (
                f"{', '.join(in_quarantine)}: in quarantine; "
                f"'regbot node show {in_quarantine[0]}' says why, 'node release' ends it"
            )
        if not _can_probe(seat, needs):
            return ""
        return self._probe(seat, needs, python, stragglers_by_host={}).reason

    def check_after(self, seat: Seat, needs: Needs, runs: Sequence[Run], python: str = "") -> str:
        """Return why the times measured in ``seat`` do not count; '' if they do. ``runs`` are the runs in this seat.

        The nodes are probed only if a rank was late in both arms and its node may be the reason. There are two other
        reasons for a late rank: a difference between the arms, and extra tokens for the experts of this rank.
        """
        if not _can_probe(seat, needs):
            return ""
        stragglers_by_host: dict[str, list[Straggler]] = {}
        for straggler in find_stragglers(runs):
            # ``responsible_arm`` is the arm that causes the lateness; None if no arm is known to cause it.
            has_other_cause = straggler.responsible_arm is not None or straggler.is_explained_by_load
            was_timed_in_both_arms = len(straggler.timed_arms) == 2
            if was_timed_in_both_arms and not has_other_cause:
                stragglers_by_host.setdefault(straggler.host, []).append(straggler)
        if not stragglers_by_host:
            return ""
        slow_hosts = self._probe(seat, needs, python, stragglers_by_host)
        if not slow_hosts.hosts:
            return ""
        texts: list[str] = []
        for host, stragglers in stragglers_by_host.items():
            if host in slow_hosts.hosts:
                texts += [straggler.text for straggler in stragglers]
        return "; ".join([*texts, slow_hosts.reason])

    def _probe(
        self, seat: Seat, needs: Needs, python: str, stragglers_by_host: dict[str, list[Straggler]]
    ) -> "_SlowHosts":
        """Probe the nodes of ``seat``, and quarantine slow ones. Return the hosts that are slow.

        If a probe shows a slow node, a second probe must confirm it before the node goes into quarantine. If the second
        probe fails, the slow nodes of the first one are returned, but not quarantined. A slow node on trial goes back
        into quarantine after the first probe.
        """
        session = seat.allocation.job  # a seat is one job of the cluster and serves one session
        # The rank of a straggler is None if all ranks of its host are late. The record then has rank 0.
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
        slow_hosts = _find_slow(report)
        # No host of the seat was in quarantine before, and ``examine`` has quarantined only those on trial.
        if slow_hosts and not slow_hosts & self.quarantined_hosts():
            probes = self._measure(seat, needs, python)
            if probes is None:
                # ``probe_failure`` would say that the nodes count as healthy, but the slow ones do not.
                self.probe_failure = ""
                return _SlowHosts(
                    slow_hosts, f"{', '.join(sorted(slow_hosts))}: slow in a probe, and a second probe failed"
                )
            report = examine(self._folder, probes, self._now(), quarantine_slow=slow_hosts, stragglers=evidence)
        confirmed_hosts = _find_slow(report) & self.quarantined_hosts()
        return _SlowHosts(confirmed_hosts, _describe_slow(report, confirmed_hosts)) if confirmed_hosts else _SlowHosts()

    def _measure(self, seat: Seat, needs: Needs, python: str) -> list[NodeProbe] | None:
        """Probe the nodes of ``seat`` once. If they cannot be probed, set ``probe_failure`` and return None."""
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


def _can_probe(seat: Seat, needs: Needs) -> bool:
    """Whether the nodes of a seat can be probed: a cluster reserved them, for ranks of torch."""
    return needs.ranks > 0 and seat.allocation.engine != "local"


def _find_slow(report: ProbeReport) -> frozenset[str]:
    """Return the hosts that a probe found slow."""
    return frozenset(verdict.host for verdict in report.judgement.nodes if verdict.status == "slow")


def _describe_slow(report: ProbeReport, hosts: Collection[str]) -> str:
    """Return a sentence for each of ``hosts``, which are slow, followed by the warnings of the report."""
    sentences = []
    for verdict in report.judgement.nodes:
        if verdict.host in hosts:
            findings = "; ".join(finding.text for finding in verdict.findings)
            sentences.append(f"{verdict.host} is slow, whatever runs on it, and is in quarantine now: {findings}")
    return clip("; ".join([*sentences, *report.warnings]), MAX_REASON_CHARACTERS)
