"""The timed runs of one workload. Each run has its verdict: role, reason and step times.

This module only selects runs. The judge decides which runs count, and computes their numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from regbot.judge.run_verdicts import rank_order
from regbot.records.run import Run
from regbot.records.session import Session, TimedPlan
from regbot.records.verdict import RankTimes, RunVerdict, Throughput

ArmName = Literal["base", "head"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")


@dataclass(frozen=True)
class TimedRun:
    """One timed run and the verdict on it."""

    run: Run
    verdict: RunVerdict

    @property
    def arm(self) -> ArmName:
        return self.verdict.arm

    @property
    def block(self) -> int:
        return self.run.position.block if self.run.position else 0

    @property
    def steady_s(self) -> list[float]:
        """Seconds of the slowest rank in every step from the steady cut on; [] if the run has no steady step."""
        if self.run.timing is None or self.verdict.cut is None:
            return []
        return self.run.timing.step_s[self.verdict.cut :]


@dataclass(frozen=True)
class TimedRuns:
    """All timed runs of one workload, in session order."""

    plan: TimedPlan | None
    runs: tuple[TimedRun, ...]

    def deciding_runs(self, arm: ArmName) -> list[TimedRun]:
        """Return the runs of one arm that the decision used. They are the runs of pairs, or the runs of head alone
        if there are no pairs."""
        pairs = [run for run in self.runs if run.arm == arm and run.verdict.role == "pair"]
        return pairs or [run for run in self.runs if run.arm == arm and run.verdict.role == "stored"]

    @property
    def void(self) -> list[TimedRun]:
        return [run for run in self.runs if run.verdict.role == "void"]

    @property
    def failed(self) -> list[Run]:
        """The runs whose outcome is not ok, the last run first."""
        return [timed_run.run for timed_run in reversed(self.runs) if timed_run.run.outcome != "ok"]

    @cached_property
    def by_rank(self) -> list[tuple[str, RankTimes | None, RankTimes | None]]:
        """For each rank: its name, and its median times over the deciding runs of base and of head. The times are None
        if the arm lacks the rank."""
        sides = [_compute_rank_medians(self.deciding_runs(arm)) for arm in ARMS]
        names = sorted({*sides[0], *sides[1]}, key=rank_order)
        return [(name, sides[0].get(name), sides[1].get(name)) for name in names]


def select_timed_runs(session: Session, entry: str, section: Throughput | None) -> TimedRuns:
    """Return the timed runs of ``entry``, with their verdicts from the throughput ``section`` of this entry."""
    runs = session.timed_runs(entry)
    plan = next((plan for plan in session.header.timed if plan.entry == entry), None)
    verdicts = section.runs if section is not None else []
    return TimedRuns(plan, tuple(TimedRun(run, verdict) for run, verdict in zip(runs, verdicts, strict=False)))


def _compute_rank_medians(runs: Sequence[TimedRun]) -> dict[str, RankTimes]:
    by_rank: dict[str, list[RankTimes]] = {}
    for run in runs:
        for times in run.verdict.ranks:
            by_rank.setdefault(times.rank, []).append(times)
    return {
        name: RankTimes(
            rank=name,
            step_s=_compute_known_median(rank_times.step_s for rank_times in times),
            cpu_s=_compute_known_median(rank_times.cpu_s for rank_times in times),
            wait_s=_compute_known_median(rank_times.wait_s for rank_times in times),
            peak_bytes=max(rank_times.peak_bytes for rank_times in times),
        )
        for name, times in by_rank.items()
    }


def _compute_known_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
