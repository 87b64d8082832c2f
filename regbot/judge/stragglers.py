"""Stragglers: the rank, or the host, that the others wait for, and whose doing that is.

A rank that is late in both arms by about the same comes with the node, or with what the workload gives it to do: only
a probe of the nodes without the workload tells these apart. One that is late in one arm only comes with that arm; that
is a finding about it and voids nothing. What ranks say of their steps is their own account.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from regbot.judge.pairs import is_warm, sound
from regbot.records.run import Run
from regbot.stats.stragglers import MOST_STEPS, THRESHOLD, Lateness, lateness

ArmName = Literal["base", "head"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")
MOST_RUNS = 0.75
"""Of an arm's runs, in which a rank must be late."""
ALIKE = 0.5
"""An arm is late by about as much as the other where it is late by at least this part of it."""
Place = tuple[int | None, str]
"""A rank and its host; None for all ranks of the host together."""

FEW_NAMED = 4
"""Ranks that are named one by one; of more, the worst are, and their number."""


@dataclass(frozen=True)
class Straggler:
    """One rank that the others wait for; ``rank`` is None where all ranks of ``host`` are late."""

    rank: int | None
    host: str
    slower_pct: float
    """By how much its own work takes longer than the other ranks', in the arms where it is late."""
    seconds: float
    """The same, seconds of a step."""
    arms: tuple[ArmName, ...]
    """The arms in which it is late."""
    timed: tuple[ArmName, ...]
    """The arms that were timed at all: what one arm shows alone is not known to be its own."""
    steps_share: float
    """Of the steady steps in which it took longer, in [0, 1]."""
    by_arm: Mapping[ArmName, float]
    """Percent, of each arm that was timed."""
    load_pct: float | None = None
    """By how much more tokens the experts of the rank get than the others'; None where that is not known."""

    @property
    def of_an_arm(self) -> ArmName | None:
        """The arm that it comes with, None where it comes with node or workload, or where that is not known."""
        return self.arms[0] if len(self.arms) == 1 and len(self.timed) == 2 else None

    @property
    def of_the_load(self) -> bool:
        """Whether the tokens that its experts get explain at least half of it."""
        return self.load_pct is not None and self.load_pct >= self.slower_pct / 2

    @property
    def text(self) -> str:
        """One sentence for people."""
        who = f"all ranks of {self.host}" if self.rank is None else f"rank {self.rank}"
        who += f" ({self.host})" if self.rank is not None and self.host else ""
        late = (
            f"the others wait for {who}: {'their' if self.rank is None else 'its'} own work takes "
            f"{self.slower_pct:.0f}% longer ({1000 * self.seconds:.3g} ms of a step, in {self.steps_share:.0%} of the "
            "steps)"
        )
        if self.of_an_arm is not None:
            other: ArmName = "base" if self.of_an_arm == "head" else "head"
            apart = f"{self.by_arm[other]:+.0f}% in {other}"
            return f"{late} in {self.of_an_arm}, and {apart}: that comes with {self.of_an_arm}"
        if self.of_the_load:
            return f"{late}: its experts get {self.load_pct:.0f}% more tokens; that is the workload's, not the node's"
        if len(self.timed) < 2:
            return f"{late} in {self.timed[0]}; the other arm was not timed, so whether that comes with it is not known"
        return (
            f"{late}, in base and head alike ({self.by_arm['base']:+.0f}% and {self.by_arm['head']:+.0f}%): its node "
            "or core is slower, or the workload gives it more to do"
        )


def stragglers(runs: Sequence[Run], threshold: float = THRESHOLD) -> list[Straggler]:
    """The ranks that the others wait for in the timed ``runs`` of one workload, the latest first.

    Runs that did not end well and warm launches are left out, and so are runs without an account of each rank. A rank
    is told by its host too, so that a session that moved does not mix two machines.
    """
    accounts: dict[Place, dict[ArmName, list[Lateness]]] = {}
    loads: dict[Place, list[float]] = {}
    for run in runs:
        if not sound(run) or is_warm(run):
            continue
        for place, each in _lateness(run):
            accounts.setdefault(place, {}).setdefault(run.arm.name, []).append(each)
            if place[0] is not None and (load := extra_load(run, place[0])) is not None:
                loads.setdefault(place, []).append(load)
    found = [
        late
        for place, by_arm in accounts.items()
        if (late := _straggler(place, by_arm, loads.get(place, []), threshold)) is not None
    ]
    return sorted(_hosts_as_one(found, accounts), key=lambda each: -each.slower_pct)


def straggler_warnings(runs: Sequence[Run]) -> list[str]:
    """What the report says of them."""
    found = stragglers(runs)
    more = [f"{len(found) - FEW_NAMED} more ranks are late"] if len(found) > FEW_NAMED else []
    return [*(each.text for each in found[:FEW_NAMED]), *more]


def host_of(run: Run, rank: int) -> str:
    """The host of a rank: hosts are in the order of their ranks, each has as many as the others; '' if unknown."""
    hosts = run.allocation.hosts if run.allocation is not None else []
    if not hosts or run.timing is None:
        return run.node.name if run.node is not None else ""
    each = max(1, -(-len(run.timing.ranks) // len(hosts)))
    return hosts[min(rank // each, len(hosts) - 1)]


def extra_load(run: Run, rank: int) -> float | None:
    """Percent by which the experts of ``rank`` get more tokens than those of the median other rank of its group.

    Experts are taken to lie on the expert-parallel ranks in order, as many on each. None where that is not known.
    """
    tokens = run.timing.tokens_per_expert if run.timing is not None else []
    axis = run.ledger.axes.get("ep") if run.ledger is not None else None
    if not tokens or axis is None or axis.size < 2 or len(tokens) % axis.size:
        return None
    local = len(tokens) // axis.size
    sums = [sum(tokens[first : first + local]) for first in range(0, len(tokens), local)]
    mine = sums.pop(rank % axis.size)
    usual = median(sums)
    return 100 * (mine / usual - 1) if usual > 0 else None


def _lateness(run: Run) -> Iterator[tuple[Place, Lateness]]:
    """Of each rank, and of each host that has several of them and is not alone."""
    if run.timing is None or run.timing.clock == "log":
        return
    ranks, cut = run.timing.ranks, run.timing.cut
    names = [str(rank) for rank in range(len(ranks))]
    if set(names) != set(ranks):
        return
    step_s, wait_s = [ranks[name].step_s[cut:] for name in names], [ranks[name].wait_s[cut:] for name in names]
    on: dict[str, list[int]] = {}
    for rank in range(len(names)):
        on.setdefault(host_of(run, rank), []).append(rank)
    for each in lateness(step_s, wait_s):
        yield (each.rank, host_of(run, each.rank)), each
    if 1 < len(on) < len(names):
        for host, each in zip(on, lateness(step_s, wait_s, [*on.values()]), strict=False):
            yield (None, host), each


def _straggler(
    place: Place, by_arm: Mapping[ArmName, Sequence[Lateness]], loads: Sequence[float], threshold: float
) -> Straggler | None:
    levels = {name: 100 * median(each.slower for each in own) for name, own in by_arm.items()}
    late = [name for name in ARMS if name in by_arm and _is_late(by_arm[name], threshold)]
    if not late:
        return None
    worst = max(levels[name] for name in late)
    alike = tuple(name for name in ARMS if name in by_arm and levels[name] >= ALIKE * worst and _mostly(by_arm[name]))
    shown = [each for name in alike for each in by_arm[name]]
    return Straggler(
        rank=place[0],
        host=place[1],
        slower_pct=fmean(levels[name] for name in alike),
        seconds=median(each.seconds for each in shown),
        arms=alike,
        timed=tuple(name for name in ARMS if name in by_arm),
        steps_share=fmean(each.steps_share for each in shown),
        by_arm=levels,
        load_pct=fmean(loads) if loads else None,
    )


def _is_late(runs: Sequence[Lateness], threshold: float) -> bool:
    """Late in most runs, and by the threshold in the median one."""
    late = sum(each.late(threshold) for each in runs)
    return late >= MOST_RUNS * len(runs) and median(each.slower for each in runs) > threshold


def _mostly(runs: Sequence[Lateness]) -> bool:
    return median(each.steps_share for each in runs) >= MOST_STEPS


def _hosts_as_one(found: Sequence[Straggler], places: Iterable[Place]) -> list[Straggler]:
    """Where all ranks of a host are late in the same arms: the host in their place; else its ranks alone."""
    ranks: dict[str, set[int]] = {}
    for rank, host in places:
        if rank is not None:
            ranks.setdefault(host, set()).add(rank)
    whole = [
        each
        for each in found
        if each.rank is None
        and ranks[each.host] == {other.rank for other in found if _beside(other, each) and other.rank is not None}
    ]
    return [*whole, *(each for each in found if each.rank is not None and not any(_beside(each, w) for w in whole))]


def _beside(straggler: Straggler, other: Straggler) -> bool:
    return (straggler.host, straggler.arms) == (other.host, other.arms)
