"""The timed runs of one workload, put in order: which were warm-up, which made pairs, which are void and why.

What a run measured is its record's; which pairs a decision used is the verdict's. Here they are only arranged. Every
record is taken as it comes: ranks may be missing, lists of unequal length, a run without a single step.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Literal

from regbot.records.run import RankSteps, Run
from regbot.records.session import Session, TimedPlan

ArmName = Literal["base", "head"]
Role = Literal["warm-up", "screen", "pair", "void"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")

PARTNER_VOID = "its pair is void: the other run of it does not count"


@dataclass(frozen=True)
class TimedRun:
    """One timed run. ``number`` counts from 1 in session order; ``why`` says what makes it void."""

    run: Run
    number: int
    role: Role
    why: str = ""

    @property
    def arm(self) -> ArmName:
        return self.run.arm.name

    @property
    def block(self) -> int:
        return self.run.position.block if self.run.position else 0

    @property
    def logged(self) -> bool:
        """Whether the times are those that a command logs, which is one process to regbot whatever it starts."""
        return self.run.timing is not None and self.run.timing.clock == "log"

    @cached_property
    def steady_s(self) -> list[float]:
        """The slowest rank's seconds of every step after the cut; [] where there is none."""
        return self.run.timing.steady_s if self.run.timing else []

    @cached_property
    def median_s(self) -> float | None:
        """Of each rank by itself, then the slowest rank's: the number that the verdict compares."""
        return self._slowest(median)

    @property
    def mean_s(self) -> float | None:
        return self._slowest(fmean)

    def _slowest(self, of: Callable[[Sequence[float]], float]) -> float | None:
        timing = self.run.timing
        if timing is None:
            return None
        steady = [steps.step_s[timing.cut :] for steps in timing.ranks.values()]
        return max((of(seconds) for seconds in steady if seconds), default=None)

    @cached_property
    def ranks(self) -> list["RankTimes"]:
        """Every rank's own account after the cut, in the order of their numbers."""
        if self.run.timing is None:
            return []
        cut, ranks = self.run.timing.cut, self.run.timing.ranks
        return [_rank_times(name, ranks[name], cut) for name in sorted(ranks, key=_rank_order)]


@dataclass(frozen=True)
class RankTimes:
    """Medians over steady steps of one rank of one run, or over several such; None where nothing is known."""

    rank: str
    step_s: float | None
    cpu_s: float | None
    wait_s: float | None
    peak_bytes: int


@dataclass(frozen=True)
class Timed:
    """All timed runs of one workload, in session order."""

    plan: TimedPlan | None
    runs: tuple[TimedRun, ...]

    def of(self, arm: ArmName) -> list[TimedRun]:
        """The runs of one arm that belong to a valid pair; where there is no pair, those of the screen."""
        pairs = [run for run in self.runs if run.arm == arm and run.role == "pair"]
        return pairs or [run for run in self.runs if run.arm == arm and run.role == "screen"]

    @property
    def void(self) -> list[TimedRun]:
        return [run for run in self.runs if run.role == "void"]

    @property
    def failed(self) -> list[Run]:
        """The runs that did not end well, the last one first."""
        return [timed.run for timed in reversed(self.runs) if timed.run.outcome != "ok"]

    @cached_property
    def by_rank(self) -> list[tuple[str, RankTimes | None, RankTimes | None]]:
        """Each rank with the medians over the valid runs of base and of head."""
        sides = [_over_runs(self.of(arm)) for arm in ARMS]
        names = sorted({*sides[0], *sides[1]}, key=_rank_order)
        return [(name, sides[0].get(name), sides[1].get(name)) for name in names]


def timed(session: Session, entry: str) -> Timed:
    """The timed runs of ``entry``."""
    runs = [run for run in session.runs if run.tier == "timed" and run.workload == entry]
    pairs: dict[tuple[int, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        if run.position is not None and run.position.block > 0:
            pairs[_pair(run)].append(run)
    plan = next((plan for plan in session.header.timed if plan.entry == entry), None)
    repeated = {run.position.block for run in runs if run.position is not None and run.attempt > 1}
    return Timed(plan, tuple(_placed(run, number, pairs, repeated) for number, run in enumerate(runs, 1)))


def _placed(run: Run, number: int, pairs: dict[tuple[int, int, int], list[Run]], repeated: Collection[int]) -> TimedRun:
    if not _fault(run) and run.position is not None and run.position.order == "screen" and run.position.slot:
        return TimedRun(run, number, "screen")
    if run.outcome == "ok" and (run.position is None or run.position.block == 0):
        return TimedRun(run, number, "warm-up")
    if (own := _fault(run)) or run.position is None:
        return TimedRun(run, number, "void", own)
    pair = pairs[_pair(run)]
    if {other.arm.name for other in pair} != set(ARMS):
        return TimedRun(run, number, "void", "its pair is void: the other run of it is missing")
    if any(_fault(other) for other in pair):
        return TimedRun(run, number, "void", PARTNER_VOID)
    if run.position.block in repeated and run.attempt == 1:
        return TimedRun(run, number, "void", "its block was repeated")
    return TimedRun(run, number, "pair")


def _pair(run: Run) -> tuple[int, int, int]:
    assert run.position is not None
    return run.position.block, run.attempt, run.position.slot // 2


def _fault(run: Run) -> str:
    """Why a run cannot count, whatever its partner did; '' where it can."""
    if run.outcome != "ok":
        return run.reason or run.outcome.replace("_", " ")
    if run.health is not None and (outside := [cause.text for cause in run.health.causes if cause.outside]):
        return f"the node was not fit: {outside[0]}"
    return "" if run.timing is not None and run.timing.steady_s else "it left no steady step"


def _over_runs(runs: Sequence[TimedRun]) -> dict[str, RankTimes]:
    found: dict[str, list[RankTimes]] = defaultdict(list)
    for run in runs:
        for times in run.ranks:
            found[times.rank].append(times)
    return {
        name: RankTimes(
            rank=name,
            step_s=_median(times.step_s for times in several),
            cpu_s=_median(times.cpu_s for times in several),
            wait_s=_median(times.wait_s for times in several),
            peak_bytes=max(times.peak_bytes for times in several),
        )
        for name, several in found.items()
    }


def _rank_times(name: str, steps: RankSteps, cut: int) -> RankTimes:
    return RankTimes(
        rank=name,
        step_s=_median(steps.step_s[cut:]),
        cpu_s=_median(steps.cpu_s[cut:]),
        wait_s=_median(steps.wait_s[cut:]),
        peak_bytes=steps.peak_bytes,
    )


def _rank_order(name: str) -> tuple[bool, int, str]:
    """Numbers by their size; whatever else somebody wrote after them."""
    numeric = name.isascii() and name.isdigit() and len(name) < 10
    return not numeric, int(name) if numeric else 0, name


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
