"""Are the nodes of a session fit for it? Probed before its first run, and again where the others wait for one of them.

Only nodes of a cluster are probed by themselves: there another can be had. A node that is shown to be slow goes into
quarantine with the evidence, and nothing that was timed on it decides anything.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from regbot.engines import Needs, Seat
from regbot.judge.stragglers import Straggler, stragglers
from regbot.nodes.examination import examine
from regbot.nodes.quarantine import quarantined
from regbot.nodes.reference import ProbeError, probe
from regbot.records.node import NodesProbed, Straggled
from regbot.records.run import Run

Now = Callable[[], datetime]


class Fitness:
    """What is known of nodes, in ``folder``, and what to do about it. ``scratch``: a folder that all of them see."""

    def __init__(self, folder: Path, scratch: Path, now: Now = lambda: datetime.now(UTC)) -> None:
        self._folder, self._scratch, self._now = folder, scratch, now
        self.unprobed = ""
        """Why the nodes of the last seat are taken to be fit though nobody has looked; '' where somebody has."""

    def refused(self) -> frozenset[str]:
        """Hosts that are not to be used now."""
        return frozenset(quarantined(self._folder))

    def before(self, seat: Seat, needs: Needs, python: str = "") -> str:
        """Why nothing is to be timed in ``seat``, '' where its nodes are fit. Raises NoSeatError.

        A program that is one process need not have torch, which the probe is made of: its nodes are not probed.
        """
        self.unprobed = ""
        if taken := sorted(self.refused() & set(seat.allocation.hosts)):
            return f"{', '.join(taken)}: in quarantine; 'regbot node show {taken[0]}' says why, 'node release' ends it"
        if not needs.ranks or seat.allocation.engine == "local":
            return ""
        return _slow(self._probed(seat, needs, python, {}))

    def after(self, seat: Seat, needs: Needs, runs: Sequence[Run], python: str = "") -> str:
        """Why nothing that was timed in ``seat`` decides, '' where it does. ``runs``: those of this seat."""
        if not needs.ranks or seat.allocation.engine == "local":
            return ""
        named: dict[str, list[Straggler]] = {}
        for late in stragglers(runs):
            if late.of_an_arm is None and not late.of_the_load and len(late.timed) == 2:
                named.setdefault(late.host, []).append(late)
        if not named:
            return ""
        found = self._probed(seat, needs, python, named)
        slow = {verdict.host for verdict in found.judgement.nodes if verdict.status == "slow"} if found else set()
        accused = [late.text for host, each in named.items() if host in slow for late in each]
        return "; ".join([*accused, _slow(found)]) if slow else ""

    def _probed(self, seat: Seat, needs: Needs, python: str, named: dict[str, list[Straggler]]) -> NodesProbed | None:
        """The judgement of the seat's nodes; None where they could not be probed, which accuses nobody."""
        session = seat.allocation.job
        evidence = {
            host: [Straggled(session=session, rank=late.rank or 0, pct=late.slower_pct) for late in each]
            for host, each in named.items()
        }
        try:
            probes = probe(
                seat,
                needs.ranks,
                self._scratch / "probe",
                self._now(),
                python=python if Path(python).is_absolute() else sys.executable,  # never one of the checkout's
                gpus=bool(needs.gpus),
            )
        except ProbeError as error:
            self.unprobed = f"{', '.join(seat.allocation.hosts)}: could not be probed, and count as healthy: {error}"
            return None
        return examine(self._folder, probes, self._now(), take_out=True, stragglers=evidence)


def _slow(found: NodesProbed | None) -> str:
    if found is None:
        return ""
    slow = [
        f"{verdict.host} is slow, whatever runs on it, and is in quarantine now: "
        + "; ".join(each.text for each in verdict.findings)
        for verdict in found.judgement.nodes
        if verdict.status == "slow"
    ]
    return "; ".join([*slow, *found.warnings])[:3000]
