"""Find stragglers, which are ranks or hosts that the other ranks wait for, and their probable cause.

If a rank is late by about the same amount in both arms, the cause is either its node or its share of the work. Only a
probe of the nodes, without the workload, can distinguish these two causes. If a rank is late in one arm only, the arm
is the cause. This is a warning about the arm, and no run becomes void. The step times are those that the ranks report
themselves.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from regbot.judge.pairs import is_sound, is_warm
from regbot.records.run import Run
from regbot.stats.stragglers import LATE_SHARE, MIN_SLOWER_SHARE, Lateness, rank_lateness

ArmName = Literal["base", "head"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")
LATE_RUN_SHARE = 0.75
"""A rank counts as late in an arm if it is late in at least this share of the arm's runs."""
SIMILAR_SHARE = 0.5
"""A rank counts as late in both arms if its lateness in the better arm is at least this share of its lateness in the
worse arm."""
RankLocation = tuple[int | None, str]
"""A rank and its host. None as rank stands for all ranks of the host together."""

MAX_NAMED = 4
"""Warnings name at most this many ranks, the most delayed rank first. A last warning counts the other ranks."""


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for. ``rank`` is None if all ranks of ``host`` are late."""

    rank: int | None
    host: str
    slower_pct: float
    """Percent by which the rank's own work takes longer than the work of the other ranks, in the arms where the rank is
    late."""
    seconds: float
    """Seconds per step by which the rank's own work takes longer, in the same arms."""
    arms: tuple[ArmName, ...]
    """The arms in which the rank is late."""
    timed_arms: tuple[ArmName, ...]
    """The arms that have timed runs. If only one arm has timed runs, lateness cannot be attributed to that arm."""
    steps_share: float
    """Share of the steady steps in which the rank's work took longer, in [0, 1]."""
    by_arm: Mapping[ArmName, float]
    """Percent by which the rank's own work takes longer, for every timed arm, even if the rank is not late there."""
    load_pct: float | None = None
    """How many percent more tokens this rank's experts get than those of the median other rank, None if unknown."""

    @property
    def responsible_arm(self) -> ArmName | None:
        """The arm that causes the lateness; None if the cause is the node or the workload, or if the cause is
        unknown."""
        return self.arms[0] if len(self.arms) == 1 and len(self.timed_arms) == 2 else None

    @property
    def is_explained_by_load(self) -> bool:
        """Whether the extra tokens of the rank's experts explain at least half of its lateness."""
        return self.load_pct is not None and self.load_pct >= self.slower_pct / 2

    @property
    def text(self) -> str:
        """The sentence about this straggler in the report."""
        subject = f"all ranks of {self.host}" if self.rank is None else f"rank {self.rank}"
        subject += f" ({self.host})" if self.rank is not None and self.host else ""
        sentence = (
            f"the others wait for {subject}: {'their' if self.rank is None else 'its'} own work takes "
            f"{self.slower_pct:.0f}% longer ({1000 * self.seconds:.3g} ms per step, in {self.steps_share:.0%} of the "
            "steps)"
        )
        if self.responsible_arm is not None:
            other_arm: ArmName = "base" if self.responsible_arm == "head" else "head"
            difference = f"{self.by_arm[other_arm]:+.0f}% in {other_arm}"
            return f"{sentence} in {self.responsible_arm}, and {difference}: the cause is {self.responsible_arm}"
        if self.is_explained_by_load:
            return (
                f"{sentence}: its experts get {self.load_pct:.0f}% more tokens; the cause is the workload, not the node"
            )
        if len(self.timed_arms) < 2:
            return f"{sentence} in {self.timed_arms[0]}; the other arm was not timed, so the cause is not known"
        return (
            f"{sentence}, in base and head alike ({self.by_arm['base']:+.0f}% and {self.by_arm['head']:+.0f}%): its "
            "node or core is slower, or it gets more work"
        )


def find_stragglers(runs: Sequence[Run]) -> list[Straggler]:
    """Return the ranks that the others wait for in the timed ``runs`` of one workload, the most delayed rank first.

    Failed runs, warm launches, and runs that lack the times of some rank are left out. A rank is identified by its
    number and its host, so that two machines are not mixed if the session moved to another node.
    """
    lateness_by_location: dict[RankLocation, dict[ArmName, list[Lateness]]] = {}
    loads_by_location: dict[RankLocation, list[float]] = {}
    for run in runs:
        if not is_sound(run) or is_warm(run):
            continue
        for location, lateness in _measure_lateness(run):
            lateness_by_location.setdefault(location, {}).setdefault(run.arm.name, []).append(lateness)
            rank, _host = location
            if rank is not None and (load := extra_load(run, rank)) is not None:
                loads_by_location.setdefault(location, []).append(load)
    stragglers: list[Straggler] = []
    for location, by_arm in lateness_by_location.items():
        straggler = _build_straggler(location, by_arm, loads_by_location.get(location, []))
        if straggler is not None:
            stragglers.append(straggler)
    return sorted(_merge_hosts(stragglers, lateness_by_location), key=lambda straggler: -straggler.slower_pct)


def warn_of_stragglers(runs: Sequence[Run]) -> list[str]:
    """Return the report's sentences on at most ``MAX_NAMED`` stragglers, and one sentence with the number of the
    others."""
    stragglers = find_stragglers(runs)
    more = [f"{len(stragglers) - MAX_NAMED} more ranks are late"] if len(stragglers) > MAX_NAMED else []
    return [*(straggler.text for straggler in stragglers[:MAX_NAMED]), *more]


def host_of(run: Run, rank: int) -> str:
    """Return the host of a rank, '' if unknown. The hosts are assumed to be in the order of their ranks, with equally
    many ranks per host."""
    hosts = run.allocation.hosts if run.allocation is not None else []
    if not hosts or run.timing is None:
        return run.node.name if run.node is not None else ""
    ranks_per_host = max(1, math.ceil(len(run.timing.ranks) / len(hosts)))
    return hosts[min(rank // ranks_per_host, len(hosts) - 1)]


def extra_load(run: Run, rank: int) -> float | None:
    """Return how many percent more tokens the experts of ``rank`` get than the experts of the median other rank.

    The expert-parallel ranks are assumed to hold the experts in order, equally many per rank. Return None if the tokens
    per expert are unknown, or if there is no expert parallelism.
    """
    tokens = run.timing.tokens_per_expert if run.timing is not None else []
    axis = run.ledger.axes.get("ep") if run.ledger is not None else None
    if not tokens or axis is None or axis.size < 2 or len(tokens) % axis.size:
        return None
    experts_per_rank = len(tokens) // axis.size
    tokens_by_rank = [
        sum(tokens[first_expert : first_expert + experts_per_rank])
        for first_expert in range(0, len(tokens), experts_per_rank)
    ]
    own_tokens = tokens_by_rank.pop(rank % axis.size)
    median_tokens = median(tokens_by_rank)  # of the other ranks
    return 100 * (own_tokens / median_tokens - 1) if median_tokens > 0 else None


def _measure_lateness(run: Run) -> Iterator[tuple[RankLocation, Lateness]]:
    """Yield the lateness of each rank. If there are several hosts with several ranks, also yield the lateness of each
    host, with None as rank. Yield nothing for a run that was timed by its step log, which has no times of ranks."""
    if run.timing is None or run.timing.clock == "log":
        return
    ranks, cut = run.timing.ranks, run.timing.cut
    names = [str(rank) for rank in range(len(ranks))]
    if set(names) != set(ranks):
        return  # the times of a rank are missing
    step_s, wait_s = [ranks[name].step_s[cut:] for name in names], [ranks[name].wait_s[cut:] for name in names]
    ranks_by_host: dict[str, list[int]] = {}
    for rank in range(len(names)):
        ranks_by_host.setdefault(host_of(run, rank), []).append(rank)
    for lateness in rank_lateness(step_s, wait_s):
        yield (lateness.rank, host_of(run, lateness.rank)), lateness
    if 1 < len(ranks_by_host) < len(names):
        lateness_of_hosts = rank_lateness(step_s, wait_s, list(ranks_by_host.values()))
        for host, lateness in zip(ranks_by_host, lateness_of_hosts, strict=False):  # no lateness if steps are too few
            yield (None, host), lateness


def _build_straggler(
    location: RankLocation, by_arm: Mapping[ArmName, Sequence[Lateness]], loads: Sequence[float]
) -> Straggler | None:
    """Return the straggler at ``location``, a rank or a whole host; None if it is late in no arm.

    ``by_arm``: its lateness in each run, by arm. ``loads``: its extra load in each run, in percent. If it is clearly
    late in one arm, half of that lateness is enough in the other arm (``SIMILAR_SHARE``). Otherwise a rank just below
    the limit in one arm would be blamed on the other arm.
    """
    slowdowns_pct = {
        name: 100 * median(lateness.slowdown for lateness in lateness_of_runs)
        for name, lateness_of_runs in by_arm.items()
    }
    clearly_late_arms = [name for name in ARMS if name in by_arm and _is_late(by_arm[name])]
    if not clearly_late_arms:
        return None
    worst_pct = max(slowdowns_pct[name] for name in clearly_late_arms)
    late_arms = tuple(
        name
        for name in ARMS
        if name in by_arm and slowdowns_pct[name] >= SIMILAR_SHARE * worst_pct and _is_late_in_most_steps(by_arm[name])
    )
    late_runs = [lateness for name in late_arms for lateness in by_arm[name]]
    rank, host = location
    return Straggler(
        rank=rank,
        host=host,
        slower_pct=fmean(slowdowns_pct[name] for name in late_arms),
        seconds=median(lateness.seconds for lateness in late_runs),
        arms=late_arms,
        timed_arms=tuple(name for name in ARMS if name in by_arm),
        steps_share=fmean(lateness.steps_share for lateness in late_runs),
        by_arm=slowdowns_pct,
        load_pct=fmean(loads) if loads else None,
    )


def _is_late(lateness_of_runs: Sequence[Lateness]) -> bool:
    """Whether a rank is late in at least ``LATE_RUN_SHARE`` of the runs, and slower by more than ``LATE_SHARE`` in the
    median run."""
    late_runs = sum(lateness.is_late for lateness in lateness_of_runs)
    median_slowdown = median(lateness.slowdown for lateness in lateness_of_runs)
    return late_runs >= LATE_RUN_SHARE * len(lateness_of_runs) and median_slowdown > LATE_SHARE


def _is_late_in_most_steps(lateness_of_runs: Sequence[Lateness]) -> bool:
    """Whether a rank is late in at least ``MIN_SLOWER_SHARE`` of the steps of the median run."""
    return median(lateness.steps_share for lateness in lateness_of_runs) >= MIN_SLOWER_SHARE


def _merge_hosts(stragglers: Sequence[Straggler], locations: Iterable[RankLocation]) -> list[Straggler]:
    """Return ``stragglers`` so that no host is named together with its ranks. ``locations``: all ranks and hosts whose
    lateness was measured.

    If all ranks of a host are late in the same arms as the host, only the host is returned. Otherwise only its late
    ranks are returned.
    """
    ranks_of_host: dict[str, set[int]] = {}
    for rank, host in locations:
        if rank is not None:
            ranks_of_host.setdefault(host, set()).add(rank)
    late_ranks = [straggler for straggler in stragglers if straggler.rank is not None]
    late_hosts = [straggler for straggler in stragglers if straggler.rank is None]
    whole_hosts = [
        late_host
        for late_host in late_hosts
        if ranks_of_host[late_host.host]
        == {late_rank.rank for late_rank in late_ranks if _is_same_host_and_arms(late_rank, late_host)}
    ]
    other_ranks = [
        late_rank
        for late_rank in late_ranks
        if not any(_is_same_host_and_arms(late_rank, whole_host) for whole_host in whole_hosts)
    ]
    return [*whole_hosts, *other_ranks]


def _is_same_host_and_arms(straggler: Straggler, other: Straggler) -> bool:
    return (straggler.host, straggler.arms) == (other.host, other.arms)
