"""Steps that all measurements of a point share: checkout, seat, observation, and the reason for a failure.

A fault of the code under test raises no exception. If a point cannot be measured, the observation contains the reason.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regbot.bisect.driver import MeasurementRequest
from regbot.bisect.environments import VersionFolder, VersionUnavailable, find_shadowing, provide_version
from regbot.check.sessions.worktrees import Worktrees, build_change_warnings
from regbot.engines import Engine, Needs, Seat, SeatLostError
from regbot.records.bisection import Observation, Point
from regbot.records.run import Arm, Run
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import printable
from regbot.workloads.guest import Checkout
from regbot.workloads.task import Task


@dataclass(frozen=True)
class PreparedPoint:
    """A point that is ready for a run."""

    path: Path
    """Folder of the checkout."""
    paper: Path
    """Folder for the paper GPU of a torch in the checkout."""
    environment: Mapping[str, str]
    """Environment variables of the checkout."""
    version: VersionFolder | None
    """The installed version under test; None in a search over commits."""
    built: bool
    """Whether the checkout or the version was built for this run, and did not come from the cache."""
    build_s: float
    """Seconds of the preparation; 0 if nothing was built."""

    def launch(self, point: Point, task: Task) -> tuple[Task, Checkout]:
        """Return the task and the checkout for a launch. The version under test comes first on the import path."""
        if self.version is not None:
            variables = self.version.variables(task.workload.environment.get("PYTHONPATH", ""))
            environment = {**task.workload.environment, **variables}
            task = replace(task, workload=task.workload.model_copy(update={"environment": environment}))
        return task, Checkout(arm_of(point), self.path, self.environment)


class PointCheckouts:
    """The checkouts of a bisection's points, with the versions of the dependency axis."""

    def __init__(
        self,
        trees: Worktrees,
        note: Callable[[str], None],
        build: Sequence[str] = (),
        package: str = "",
        python: str = "",
    ) -> None:
        """``note`` keeps a warning for the result. ``build`` has the build commands of points that are measured by a
        command. If the points are versions, ``package`` is the package, and ``python`` the interpreter to install for.
        """
        self.trees, self.note, self._build, self._package, self._python = trees, note, build, package, python

    def prepare(self, point: Point, task: Task | None) -> PreparedPoint | str:
        """Prepare the point for a run. If this is impossible because of the point, return the reason as text.

        ``task`` is None if a command is measured. Raises CheckoutError if regbot itself cannot make the checkout.
        """
        start = time.monotonic()
        if task is not None:
            tree = self.trees.worktree(arm_of(point), task)
        else:
            tree = self.trees.check_out(point.commit, self._build, sys.executable)
        if isinstance(tree, str):  # the reason why the build failed
            return tree
        for warning in build_change_warnings(tree):
            self.note(warning)
        version = None
        if point.version:
            try:
                version = provide_version(self.trees.cache, self._package, point.version, self._python)
            except VersionUnavailable as error:
                return str(error)
            for warning in version.warnings:
                self.note(f"{point.version}: {warning}")
            roots = [tree.path / root for root in (task.workload.source_roots if task is not None else ["."])]
            if shadowing := find_shadowing(version, self._package, self._python, roots):
                return f"{self._package} {point.version} is hidden: {shadowing} comes first on the import path"
        built = tree.built or (version is not None and version.built)
        build_s = time.monotonic() - start if built else 0.0
        return PreparedPoint(tree.path, tree.paper, tree.environment, version, built, build_s)


class SessionSeat:
    """The nodes of a bisection. They are reserved at the first run, and replaced if they are lost."""

    def __init__(self, engine: Engine, needs: Needs, stack: ExitStack, check_stratum: str = "") -> None:
        """``needs`` says what a run needs: ranks and GPUs. ``stack`` gives the nodes back at the end. ``check_stratum``
        is the stratum of the check whose session the bisection continues; '' if there is none."""
        self._engine, self._needs = engine, needs
        self._reservation = stack.enter_context(ExitStack())
        self._seat: Seat | None = None
        self.stratum = check_stratum or f"session {time.time_ns()}"

    def reserve(self) -> Seat:
        """Return the seat. Wait for new nodes if there are none. Raises NoSeatError if there will be none, and
        SeatLostError if other nodes may be available."""
        if self._seat is None:
            self._seat = self._reservation.enter_context(self._engine.seat(self._needs))
        return self._seat

    def replace(self) -> None:
        """Give lost nodes back. The next nodes form another stratum."""
        self._reservation.close()
        self._seat = None
        self.stratum = f"session {time.time_ns()}"

    def record_loss(self, request: MeasurementRequest, error: SeatLostError) -> Observation:
        """Give the lost nodes back and return a void observation. The loss says nothing about the point."""
        stratum = self.stratum
        self.replace()
        return build_observation(request, stratum, usable=False, void=True, reason=clip_message(printable(str(error))))


def arm_of(point: Point) -> Arm:
    """Return the arm of a run at this point. The point is always the head, because a search run has no base."""
    return Arm(name="head", revision=point.name, commit=point.commit, tree=point.tree, subject=clip(point.subject, 200))


def build_observation(
    request: MeasurementRequest, stratum: str, prepared: PreparedPoint | None = None, **fields: Any
) -> Observation:
    """Build an observation from the request, the cost of preparing the point, and the other ``fields``."""
    return Observation(
        point=request.point.key,
        entry=request.entry,
        purpose=request.purpose,
        contrast=request.contrast,
        block=request.block,
        slot=request.index_in_block,
        stratum=stratum,
        built=prepared is not None and prepared.built,
        build_s=prepared.build_s if prepared is not None else 0.0,
        **fields,
    )


def unusable_observation(request: MeasurementRequest, reason: str, stratum: str = "") -> Observation:
    """Build an observation that has a reason instead of a value."""
    return build_observation(request, stratum, usable=False, reason=clip_message(printable(reason)))


def join_distrust(reasons: list[str]) -> str:
    """Join reasons of the judge, without the name of the arm: ``head imported moe`` becomes ``imported moe``."""
    return clip_message("; ".join(reason.removeprefix("head").lstrip(": ") for reason in reasons))


def failure_reason(run: Run) -> str:
    """Return why a run cannot be used. If the run crashed, the reason includes the last line of its log."""
    line = last_line(run.log_tail)
    quoted_line = f" ({clip(line, 300)})" if line else ""
    return clip_message(printable(f"{run.outcome}: {run.reason}{quoted_line}"))


def last_line(text: str) -> str:
    """Return the last line that is not blank, as printable text; '' if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""
