"""Steps that all measurements of a point share: checkout, environment, observation, and the reason for a failure.

A fault of the code under test raises no exception. If a point cannot be measured, the observation contains the reason.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from regbot.bisect.environments import VersionEnvironment, VersionUnavailable, find_shadowing
from regbot.bisect.noisy import MeasurementRequest
from regbot.checkout import Worktree
from regbot.records.bisection import Observation, Point
from regbot.records.run import Arm, Run
from regbot.sessions.worktrees import Worktrees, build_change_warnings
from regbot.text.clip import clip, clip_message
from regbot.text.printable import printable
from regbot.workloads import Task


class Measurer(Protocol):
    """Makes the measurements of one bisection. Several slots may measure at the same time."""

    def stratum(self, slot: int) -> str:
        """Return the stratum of a slot: its node and session. Runs of one stratum share one level."""
        ...

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        """Make one measurement. Raises CheckoutError or OSError if a part of regbot itself fails."""
        ...


@dataclass(frozen=True)
class PreparedPoint:
    """A point that is ready for a run."""

    path: Path
    environment: Mapping[str, str]
    python: str | None
    """Interpreter with the version under test; None for the workload's own interpreter."""
    built: bool
    build_s: float


class PointCheckouts:
    """The checkouts and environments of a bisection's points."""

    def __init__(
        self,
        trees: Worktrees,
        build: tuple[str, ...],
        package: str = "",
        version_environment: Callable[[str], VersionEnvironment] | None = None,
        notes: list[str] | None = None,
    ) -> None:
        """Warnings about the environments are appended to ``notes``."""
        self._notes = notes if notes is not None else []
        self.trees, self._build = trees, build
        self.package, self._provide_version = package, version_environment

    def prepare(self, point: Point, task: Task | None, copy: int = 0) -> PreparedPoint | str:
        """Prepare the point, or return why it cannot be prepared. Raises CheckoutError.

        ``copy`` is the number of the checkout if there is no task; see ``reserve_copy``.
        """
        start = time.monotonic()
        if task is not None:
            tree = self.trees.worktree(arm_of(point), _with_all_files(task))
        else:
            tree = self._check_out(point, copy)
        if isinstance(tree, str):
            return tree
        environment, python, environment_built = dict(tree.environment), None, False
        if point.version and self._provide_version is not None:
            try:
                try:
                    version_environment = self._provide_version(point.version)
                except VersionUnavailable:  # try once more: the cause may be the network
                    version_environment = self._provide_version(point.version)
            except VersionUnavailable as error:
                return str(error)
            self.note(*(f"{point.version}: {note}" for note in version_environment.warnings))
            environment |= version_environment.variables
            python, environment_built = version_environment.python, version_environment.built
            roots = task.workload.source_roots if task is not None else ["."]
            if shadowing := find_shadowing(version_environment, self.package, [tree.path / root for root in roots]):
                return f"the checkout hides {self.package} {point.version}: {shadowing} comes first on the import path"
        self.note(*build_change_warnings(tree))
        built = tree.built or environment_built
        return PreparedPoint(tree.path, environment, python, built, time.monotonic() - start if built else 0.0)

    def note(self, *texts: str) -> None:
        """Keep warnings about the measurements. Each text is kept once."""
        self._notes += [text for text in texts if text not in self._notes]

    @contextmanager
    def reserve_copy(self, point: Point) -> Iterator[int]:
        """Reserve a checkout of the point for one command. Yield the number of the checkout.

        A command may write files into its checkout. If two commands shared one checkout, the second would read the
        files of the first, and cleaning the checkout would remove files that the first still needs.
        """
        folder = self.trees.repository_cache / "running"
        folder.mkdir(parents=True, exist_ok=True)
        for copy in itertools.count():
            lock = FileLock(folder / f"{point.tree}.{copy}.lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                continue
            try:
                yield copy
            finally:
                lock.release()
            return

    def _check_out(self, point: Point, copy: int) -> Worktree | str:
        # The marker is a build command without effect. The build commands are part of the name of a checkout, so each
        # copy gets a checkout of its own.
        copy_marker = (f": copy {copy}",) if copy else ()
        return self.trees.check_out(point.commit, (*self._build, *copy_marker), sys.executable)


def _with_all_files(task: Task) -> Task:
    """Return ``task`` without ``sparse``. A point that lacks a file would look like a broken commit."""
    return replace(task, workload=task.workload.model_copy(update={"sparse": []}))


def arm_of(point: Point) -> Arm:
    """Return the arm of a run at this point."""
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
        built=bool(prepared and prepared.built),
        build_s=prepared.build_s if prepared else 0.0,
        **fields,
    )


def unusable_observation(request: MeasurementRequest, reason: str, stratum: str = "") -> Observation:
    """Build an observation that has a reason instead of a value."""
    return build_observation(request, stratum, usable=False, reason=clip_message(printable(reason)))


def strip_arm_prefix(reason: str) -> str:
    """Strip the name of the arm from a reason of the judge: ``head imported moe`` becomes ``imported moe``."""
    return reason.removeprefix("head").lstrip(": ")


def failure_reason(run: Run) -> str:
    """Return why a run cannot be used. If the run crashed, the reason includes the last line of its log."""
    last = last_line(run.log_tail)
    return clip_message(printable(f"{run.outcome}: {run.reason}" + (f" ({clip(last, 300)})" if last else "")))


def last_line(text: str) -> str:
    """Return the last line that is not blank, as printable text; '' if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""
