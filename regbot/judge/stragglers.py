"""Find stragglers, which are ranks that the other ranks wait for, and the arm that causes them.

If a rank is late by about the same amount in both arms, the cause is its node or its share of the work. If it is late
in one arm only, the arm is the cause. This is a warning, and no run becomes void. The step times are those that the
ranks report themselves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from regbot.judge.pairs import is_sound, is_warm
from regbot.records.run import Run
from regbot.stats.stragglers import LATE_SHARE, MIN_SLOWER_SHARE, Lateness, rank_lateness

ARMS = ("base", "head")
LATE_RUN_SHARE = 0.75
"""A rank counts as late in an arm if it is late in at least this share of the arm's runs."""
SIMILAR_SHARE = 0.5
"""A rank counts as late in both arms if its lateness in the better arm is at least this share of its lateness in the
worse arm. Otherwise a rank just below the limit in one arm would be blamed on the other arm."""
MAX_NAMED = 4
"""Warnings name at most this many ranks, the most delayed rank first. A last warning counts the other ranks."""


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for."""

    rank: int
    host: str
    slower_pct: float
    seconds: float
    """Percent and seconds per step by which the rank's own work takes longer, in the arms where the rank is late."""
    arms: tuple[str, ...]
    steps_share: float
    """Share of the steady steps in which the rank's work took longer, in [0, 1]."""
    by_arm: Mapping[str, float]
    """Percent by which the rank's own work takes longer, for every timed arm, even if the rank is not late there."""

    @property
    def responsible_arm(self) -> str | None:
        """The arm that causes the lateness; None if it is late in both arms, or if only one arm was timed."""
        return self.arms[0] if len(self.arms) == 1 and len(self.by_arm) == 2 else None

    @property
    def text(self) -> str:
        host = f" ({self.host})" if self.host else ""
        sentence = (
            f"the others wait for rank {self.rank}{host}: its own work takes {self.slower_pct:.0f}% longer "
            f"({1000 * self.seconds:.3g} ms per step, in {self.steps_share:.0%} of the steps)"
        )
        if len(self.by_arm) < 2:
            (timed_arm,) = self.by_arm
            return f"{sentence} in {timed_arm}; the other arm was not timed, so the cause is not known"
        if self.responsible_arm is not None:
            other_arm = "base" if self.responsible_arm == "head" else "head"
            difference = f"{self.by_arm[other_arm]:+.0f}% in {other_arm}"
            return f"{sentence} in {self.responsible_arm}, and {difference}: the cause is {self.responsible_arm}"
        return (
            f"{sentence}, in base and head alike ({self.by_arm['base']:+.0f}% and {self.by_arm['head']:+.0f}%): its "
            "node or core is slower, or it gets more work"
        )


def find_stragglers(runs: Sequence[Run]) -> list[Straggler]:
    """Return the ranks that the others wait for in the timed ``runs`` of one workload, the most delayed first. A rank
    is identified by its number and its host, so that a session that moved does not mix two machines."""
    lateness_by_rank: dict[tuple[int, str], dict[str, list[Lateness]]] = {}
    for run in runs:
        if is_sound(run) and not is_warm(run):
            for lateness in _measure_lateness(run):
                by_arm = lateness_by_rank.setdefault((lateness.rank, host_of(run, lateness.rank)), {})
                by_arm.setdefault(run.arm.name, []).append(lateness)
    stragglers = [_build_straggler(rank, host, by_arm) for (rank, host), by_arm in lateness_by_rank.items()]
    return sorted((straggler for straggler in stragglers if straggler is not None), key=lambda late: -late.slower_pct)


def warn_of_stragglers(runs: Sequence[Run]) -> list[str]:
    """Return the report's sentences on at most ``MAX_NAMED`` stragglers, and one with the number of the others."""
    stragglers = find_stragglers(runs)
    more = [f"{len(stragglers) - MAX_NAMED} more ranks are late"] if len(stragglers) > MAX_NAMED else []
    return [*(straggler.text for straggler in stragglers[:MAX_NAMED]), *more]


def host_of(run: Run, rank: int) -> str:
    """Return the host of a rank, '' if unknown. Hosts are assumed to be in the order of their ranks, with equally many
    each."""
    hosts = run.allocation.hosts if run.allocation is not None else []
    if not hosts or run.timing is None:
        return run.node.name if run.node is not None else ""
    ranks_per_host = max(1, math.ceil(len(run.timing.ranks) / len(hosts)))
    return hosts[min(rank // ranks_per_host, len(hosts) - 1)]


def _measure_lateness(run: Run) -> list[Lateness]:
    if run.timing is None or run.timing.clock == "log":  # a step log has no times of ranks
        return []
    ranks, cut = run.timing.ranks, run.timing.cut
    names = [str(rank) for rank in range(len(ranks))]
    if set(names) != set(ranks):
        return []  # the times of a rank are missing
    return rank_lateness([ranks[name].step_s[cut:] for name in names], [ranks[name].wait_s[cut:] for name in names])


def _build_straggler(rank: int, host: str, by_arm: Mapping[str, Sequence[Lateness]]) -> Straggler | None:
    """``by_arm``: the lateness of the rank in each run, by arm. None if the rank is late in no arm."""
    slowdowns_pct = {
        name: 100 * median(lateness.slowdown for lateness in lateness_of_runs)
        for name, lateness_of_runs in by_arm.items()
    }
    clearly_late_arms = [name for name, lateness_of_runs in by_arm.items() if _is_late(lateness_of_runs)]
    if not clearly_late_arms:
        return None
    min_pct = SIMILAR_SHARE * max(slowdowns_pct[name] for name in clearly_late_arms)
    late_arms = tuple(
        name
        for name in ARMS
        if name in by_arm
        and slowdowns_pct[name] >= min_pct
        and median(lateness.steps_share for lateness in by_arm[name]) >= MIN_SLOWER_SHARE
    )
    late_runs = [lateness for name in late_arms for lateness in by_arm[name]]
    return Straggler(
        rank=rank,
        host=host,
        slower_pct=fmean(slowdowns_pct[name] for name in late_arms),
        seconds=median(lateness.seconds for lateness in late_runs),
        arms=late_arms,
        steps_share=fmean(lateness.steps_share for lateness in late_runs),
        by_arm=slowdowns_pct,
    )


def _is_late(lateness_of_runs: Sequence[Lateness]) -> bool:
    late_runs = sum(lateness.is_late for lateness in lateness_of_runs)
    median_slowdown = median(lateness.slowdown for lateness in lateness_of_runs)
    return late_runs >= LATE_RUN_SHARE * len(lateness_of_runs) and median_slowdown > LATE_SHARE
