"""Measurement of step times: one timed launch of a workload at each point."""

import time
from pathlib import Path

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.measure import (
    PointCheckouts,
    SessionSeat,
    build_observation,
    failure_reason,
    join_distrust,
    unusable_observation,
)
from regbot.check.sessions.worktrees import folder_name
from regbot.engines import SeatLostError
from regbot.engines.removal import discard_folder
from regbot.judge.backends import unmet_dispatcher_request
from regbot.judge.health import describe_outside_cause
from regbot.judge.validity import distrust_code
from regbot.records.bisection import Observation
from regbot.records.files import write_record
from regbot.records.run import Position
from regbot.records.session import TimedPlan
from regbot.records.text.clip import clip_message
from regbot.stats.launch import launch_cut, summarise_timing
from regbot.workloads.guest import Limits, Scratch
from regbot.workloads.launch import time_run
from regbot.workloads.task import Task
from regbot.workloads.timed import RunSpec


class StepTimeMeasurer:
    """Measurer that times one workload."""

    def __init__(
        self, task: Task, plan: TimedPlan, checkouts: PointCheckouts, seat: SessionSeat, out: Path, limits: Limits
    ) -> None:
        """``task`` is the workload to time, and ``plan`` has its numbers of steps. ``limits`` bound a run's output."""
        self._task, self._plan, self._checkouts = task, plan, checkouts
        self._seat, self._out, self._limits = seat, out, limits

    def stratum(self) -> str:
        return self._seat.stratum

    def measure(self, request: MeasurementRequest) -> Observation:
        """Time one run of the workload at the requested point.

        If the nodes were lost or the machine disturbed the run, the observation is void, so the run is repeated. If the
        code failed or cannot be trusted, the observation has the reason instead of a value.
        """
        try:
            seat, stratum = self._seat.reserve(), self.stratum()
        except SeatLostError as error:
            return self._seat.record_loss(request, error)
        prepared = self._checkouts.prepare(request.point, self._task)
        if isinstance(prepared, str):  # the reason why the point cannot be measured
            return unusable_observation(request, prepared, stratum)
        name = f"{time.time_ns()}.{folder_name(request.point.name)}"
        scratch = self._out / "runs" / name
        # A run of a search belongs to no block. Its record still needs a position, so it gets the first one.
        position = Position(block=request.block or 1, slot=request.index_in_block, order="ABBA")
        spec = RunSpec(position, attempt=1, steps=self._plan.steps, cut=self._plan.cut)
        task, checkout = prepared.launch(request.point, self._task)
        run = time_run(task, spec, checkout, seat, Scratch(scratch, self._limits))
        discard_folder(scratch / "record")
        write_record(self._out / "runs" / f"{name}.json", run)
        # Why the nodes spoilt the run, so that it is void; '' if they did not.
        node_cause = run.reason if run.outcome == "lost" else describe_outside_cause(run)
        if run.outcome == "lost":
            self._seat.replace()
        distrust = ""
        values: dict[str, float] = {}
        if run.outcome == "ok":
            distrust = join_distrust([*distrust_code(run, run.arm), *unmet_dispatcher_request(run)])
            if run.timing is not None and not node_cause and not distrust:
                values = summarise_timing(run.timing, launch_cut(run.timing))
        return build_observation(
            request,
            stratum,
            prepared,
            usable=bool(values),
            void=bool(node_cause),
            reason="" if values else clip_message(node_cause or distrust or failure_reason(run)),
            values=values,
            wall_s=run.wall_s,
            record=f"runs/{name}.json",
        )
