"""Measurement of step times: one timed launch of a workload at each point."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regbot.bisect.measure import (
    PointCheckouts,
    arm_of,
    build_observation,
    failure_reason,
    strip_arm_prefix,
    unusable_observation,
)
from regbot.bisect.noisy import MeasurementRequest
from regbot.bisect.seats import Seats
from regbot.engines import SeatLostError
from regbot.judge.backends import unmet_dispatcher_request
from regbot.judge.health import describe_outside_cause
from regbot.judge.pairs import summarise_timing
from regbot.judge.validity import distrust_code
from regbot.records.bisection import Observation
from regbot.records.files import write_record
from regbot.records.run import Position, Run
from regbot.records.session import TimedPlan
from regbot.removal import discard_folder
from regbot.sessions.worktrees import folder_name
from regbot.stats.launch import launch_cut
from regbot.text.clip import clip_message
from regbot.workloads import Checkout, Limits, RunSpec, Scratch, Task, time_run


class StepTimeMeasurer:
    """Measurer that times one workload. Each slot has its own seat, in which one run takes place at a time."""

    def __init__(
        self, task: Task, plan: TimedPlan, checkouts: PointCheckouts, seats: Seats, out: Path, limits: Limits
    ) -> None:
        """``task`` is the workload to time, and ``plan`` has its numbers of steps. ``limits`` bound a run's output."""
        self._task, self._plan, self._checkouts = task, plan, checkouts
        self._seats, self._out, self._limits = seats, out, limits
        self._session = time.time_ns()
        self._numbers = itertools.count(1)  # numbers the runs, for the names of their folders

    def stratum(self, slot: int) -> str:
        return self._seats.stratum(slot)

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        """Time one run of the workload at the requested point.

        If the nodes were lost or the machine disturbed the run, the observation is void, so the run is repeated. If the
        code failed or cannot be trusted, the observation has the reason instead of a value.
        """
        try:
            seat, stratum = self._seats.seat(slot), self.stratum(slot)
        except SeatLostError as error:
            return self._seats.record_loss(slot, request, error)
        prepared = self._checkouts.prepare(request.point, self._task)
        if isinstance(prepared, str):  # the reason why the point cannot be measured
            return unusable_observation(request, prepared, stratum)
        name = f"{self._session}.{next(self._numbers)}.{folder_name(request.point.name)}"
        scratch = self._out / "runs" / name
        # ``slot`` is the index of the run in its block. A run of a search belongs to no block. Its record still needs a
        # position, so it gets the first position of block 1.
        position = Position(block=request.block or 1, slot=request.index_in_block, order="ABBA")
        spec = RunSpec(position, attempt=1, steps=self._plan.steps, cut=self._plan.cut)
        python = prepared.python or self._task.workload.python
        task = replace(self._task, workload=self._task.workload.model_copy(update={"python": python}))
        checkout = Checkout(arm_of(request.point), prepared.path, prepared.environment)
        run = time_run(task, spec, checkout, seat, Scratch(scratch, self._limits))
        discard_folder(scratch / "record")
        write_record(self._out / "runs" / f"{name}.json", run)
        # Why the nodes spoilt the run, so that it is void; '' if they did not.
        node_cause = run.reason if run.outcome == "lost" else describe_outside_cause(run)
        if run.outcome == "lost":  # the nodes are gone, so the slot needs new ones
            self._seats.replace(slot)
        distrust_reasons: list[str] = []
        values: dict[str, float] = {}
        if run.outcome == "ok":
            distrust_reasons = [strip_arm_prefix(reason) for reason in _distrust_reasons(run)]
            if run.timing is not None and not node_cause and not distrust_reasons:
                # ``launch_cut`` is the number of warm-up steps to leave out.
                values = summarise_timing(run.timing, launch_cut(run.timing))
        usable = bool(values)
        return build_observation(
            request,
            stratum,
            prepared,
            usable=usable,
            void=bool(node_cause),
            reason="" if usable else clip_message(node_cause or "; ".join(distrust_reasons) or failure_reason(run)),
            values=values,
            wall_s=run.wall_s,
            record=f"runs/{name}.json",
        )


def _distrust_reasons(run: Run) -> Iterator[str]:
    """Yield the reasons for which a check would distrust the run."""
    yield from distrust_code(run, run.arm)
    yield from unmet_dispatcher_request(run)
