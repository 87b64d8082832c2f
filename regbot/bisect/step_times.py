"""Measuring step times: one launch of a workload at a time."""

import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regbot.bisect.measure import Ground, arm_of, observed, unusable, why, without_arm
from regbot.bisect.noisy import Wanted
from regbot.bisect.seats import Seats
from regbot.engines import SeatLostError
from regbot.judge.backends import not_honoured
from regbot.judge.health import outside_cause
from regbot.judge.pairs import summaries
from regbot.judge.validity import distrust_code
from regbot.records.bisection import Observation
from regbot.records.files import write_record
from regbot.records.run import Position, Run
from regbot.records.session import TimedPlan
from regbot.stats.launch import cut_of
from regbot.trees import Trees, plain_name
from regbot.workloads import Limits, Place, Task, time_run


class StepTimes:
    """Timed runs of one workload, one at a time in each slot's seat."""

    def __init__(
        self, task: Task, plan: TimedPlan, ground: Ground, trees: Trees, seats: Seats, out: Path, limits: Limits
    ) -> None:
        self._task, self._plan, self._ground, self._trees = task, plan, ground, trees
        self._seats, self._out, self._limits = seats, out, limits
        self._session = time.time_ns()
        self._numbers = itertools.count(1)

    def stratum(self, slot: int) -> str:
        return self._seats.stratum(slot)

    def measure(self, wanted: Wanted, slot: int) -> Observation:
        try:
            seat, stratum = self._seats.of(slot), self.stratum(slot)
        except SeatLostError as error:
            return self._seats.lost(slot, wanted, error)
        ready = self._ground.prepare(wanted.point, self._task, self._trees)
        if isinstance(ready, str):
            return unusable(wanted, ready, stratum)
        name = f"{self._session}.{next(self._numbers)}.{plain_name(wanted.point.name)}"
        scratch = self._out / "runs" / name
        place = Place(Position(block=wanted.block or 1, slot=wanted.slot, order="ABBA"), 1, self._plan.steps)
        workload = self._task.workload
        used = replace(self._task, workload=workload.model_copy(update={"python": ready.python or workload.python}))
        run = time_run(
            used,
            self._plan,
            place,
            arm_of(wanted.point),
            ready.path,
            seat,
            scratch,
            self._limits,
            ready.environment,
        )
        shutil.rmtree(scratch / "record", ignore_errors=True)
        write_record(self._out / "runs" / f"{name}.json", run)
        outside = run.reason if run.outcome == "lost" else outside_cause(run)
        if run.outcome == "lost":
            self._seats.leave(slot)
        distrusted = [without_arm(each) for each in _distrust(run)] if run.outcome == "ok" else []
        usable = run.outcome == "ok" and run.timing is not None and not outside and not distrusted
        values: dict[str, float] = {}
        if usable and run.timing is not None:
            values = summaries(run.timing, cut_of(run.timing))
        return observed(
            wanted,
            stratum,
            ready,
            usable=usable,
            void=bool(outside),
            reason="" if usable else (outside or "; ".join(distrusted) or why(run))[:4000],
            values=values,
            wall_s=run.wall_s,
            record=f"runs/{name}.json",
        )


def _distrust(run: Run) -> Iterator[str]:
    """Why a check would not believe the run."""
    yield from distrust_code(run, run.arm)
    yield from not_honoured(run)
