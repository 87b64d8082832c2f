"""The timed runs of one workload. Each run has its verdict: role, reason and step times.

This module only selects runs. The judge decides which runs count, and computes their numbers.
"""

from dataclasses import dataclass
from typing import Literal

from regbot.records.run import Run
from regbot.records.session import Session, TimedPlan
from regbot.records.verdict import RunVerdict, Throughput

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
        """Number of the block; 0 for a warm launch and for a run without a position in the session."""
        return self.run.position.block if self.run.position else 0

    @property
    def role_words(self) -> str:
        """What the run counts as, in words for a reader."""
        return "compared with stored runs" if self.verdict.role == "stored" else self.verdict.role

    @property
    def steady_s(self) -> list[float]:
        """Seconds of the slowest rank in every step after the warm-up; [] if the run has no steady step. The steady cut
        (``cut``) is the number of warm-up steps."""
        if self.run.timing is None or self.verdict.cut is None:
            return []
        return self.run.timing.step_s[self.verdict.cut :]


@dataclass(frozen=True)
class TimedRuns:
    """All timed runs of one workload, in session order."""

    plan: TimedPlan | None
    """What was planned for the workload; None if no timed run was planned."""
    runs: tuple[TimedRun, ...]

    @property
    def void(self) -> list[TimedRun]:
        """The runs of void pairs."""
        return [run for run in self.runs if run.verdict.role == "void"]

    @property
    def failed(self) -> list[Run]:
        """The runs whose outcome is not ok, the last run first."""
        return [timed_run.run for timed_run in reversed(self.runs) if timed_run.run.outcome != "ok"]


def select_timed_runs(session: Session, entry: str, section: Throughput | None) -> TimedRuns:
    """Return the timed runs of ``entry``, with their verdicts from the throughput ``section`` of this entry.

    The i-th verdict is about the i-th run. Runs without a verdict are left out.
    """
    runs = session.timed_runs(entry)
    plan = next((plan for plan in session.header.timed if plan.entry == entry), None)
    verdicts = section.runs if section is not None else []
    return TimedRuns(plan, tuple(TimedRun(run, verdict) for run, verdict in zip(runs, verdicts, strict=False)))
