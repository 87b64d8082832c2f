"""Measurement of a ledger by a static trace: exact, and without a GPU."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.measure import (
    PointCheckouts,
    PreparedPoint,
    build_observation,
    failure_reason,
    join_distrust,
    unusable_observation,
)
from regbot.check.sessions.trace_devices import TraceDevices
from regbot.check.sessions.worktrees import folder_name
from regbot.engines import Engine
from regbot.engines.removal import discard_folder
from regbot.judge.backends import DISPATCHER, unmet_dispatcher_request
from regbot.judge.validity import distrust_run
from regbot.records.bisection import Observation
from regbot.records.config import LIBRARY_DISPATCHERS
from regbot.records.files import write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.workloads.guest import Limits, Scratch, trace
from regbot.workloads.paper import Libraries
from regbot.workloads.task import Task


class TraceMeasurer:
    """Measurer that traces workloads. All points of a workload are traced on the device that a check would use."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        checkouts: PointCheckouts,
        engine: Engine,
        out: Path,
        limits: Limits,
        *,
        libraries: Libraries,
        known: Mapping[str, Run],
    ) -> None:
        """``tasks`` has the task of each entry, and ``known`` an earlier trace of an entry, whose device is kept.
        ``out`` is the output folder, and ``libraries`` builds the paper GPU.
        """
        self._tasks, self._checkouts, self._engine = tasks, checkouts, engine
        self._out, self._limits = out, limits
        self._devices = TraceDevices(tasks.values(), list(known.values()), libraries)
        for entry in known:
            self._devices.keep(tasks[entry])

    def stratum(self) -> str:
        return ""  # ledgers are exact, so their strata are not used

    def measure(self, request: MeasurementRequest) -> Observation:
        """Return an observation with the digest of the workload's ledger at the requested point."""
        prepared = self._checkouts.prepare(request.point, self._tasks[request.entry])
        if isinstance(prepared, str):  # the reason why the point cannot be measured
            return unusable_observation(request, prepared)
        task, checkout = prepared.launch(request.point, self._tasks[request.entry])
        folder = self._out / "runs" / f"{folder_name(task.entry)}.{folder_name(request.point.key)}"
        scratch = Scratch(folder, self._limits)
        run = self._devices.trace(
            task,
            checkout,
            prepared.paper,
            lambda library: trace(task, checkout, self._engine, scratch, paper=library),
            at_once=True,
        )
        assert run is not None  # with ``at_once``
        discard_folder(folder / "record")
        if run.outcome == "ok":
            self._devices.keep(task)
        return self._to_observation(request, run, prepared)

    def _to_observation(self, request: MeasurementRequest, run: Run, prepared: PreparedPoint) -> Observation:
        """Store the run and return its observation."""
        name = f"ledgers/{folder_name(run.workload)}.{folder_name(request.point.key)}.json"
        write_record(self._out / name, run)
        distrust = state = ""
        if run.outcome == "ok":
            distrust = join_distrust(list(self._distrust_reasons(run)))
            state = ledger_state(run.ledger) if run.ledger is not None and not distrust else ""
        return build_observation(
            request,
            stratum="",
            prepared=prepared,
            usable=state != "",
            reason="" if state else distrust or failure_reason(run),
            state=state,
            wall_s=run.wall_s,
            record=name,
        )

    def _distrust_reasons(self, run: Run) -> Iterator[str]:
        """Yield the reasons for which a check would distrust the trace.

        A trace has no GPU, so it replaces the dispatchers of GPU libraries by a stand-in. That is no reason for
        distrust, but a note of the bisection says so.
        """
        yield from distrust_run(run, run.arm)
        dispatcher = run.backends.get(DISPATCHER)
        if dispatcher is not None and dispatcher.requested in LIBRARY_DISPATCHERS:
            self._checkouts.note("the traces use a stand-in for the requested dispatcher, which needs GPUs")
        else:
            yield from unmet_dispatcher_request(run)


def ledger_state(ledger: Ledger) -> str:
    """Return a digest of the collectives of a ledger: the numbers of calls and bytes of each kind, axis, group size,
    type, phase, role, and communication library (``via``, such as nccl).

    The digest also covers calls that could not be classified, and the collectives of the other ranks that were run
    (``rank_digests``). It ignores which module asks for a collective, so moving code between modules is no change.
    """
    calls: Counter[tuple[str, ...]] = Counter()
    byte_counts: Counter[tuple[str, ...]] = Counter()
    for entry in ledger.entries:
        group = (entry.kind, entry.axis, str(entry.group_size), entry.dtype, entry.phase, entry.role, entry.via)
        calls[group] += entry.count
        byte_counts[group] += entry.bytes
    groups = sorted((*group, calls[group], byte_counts[group]) for group in calls)
    unclassified = sorted((call.name, call.count) for call in ledger.unclassified)
    text = json.dumps([groups, unclassified, ledger.rank_digests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
