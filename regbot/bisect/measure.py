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
        """Return the stratum of a slot: its node and session. Step times are compared within a stratum only."""
        ...

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        """Make one measurement. Raises CheckoutError or OSError if a part of regbot itself fails."""
        ...


@dataclass(frozen=True)
class PreparedPoint:
    """A point that is ready for a run."""

    path: Path
    """Folder of the checkout."""
    paper: Path
    """Folder for the paper GPU of a torch in the checkout."""
    environment: Mapping[str, str]
    """Environment variables of the run."""
    python: str | None
    """Interpreter with the version under test; None for the workload's own interpreter."""
    built: bool
    """Whether the checkout or the environment was built for this run, and did not come from the cache."""
    build_s: float
    """Seconds of the preparation; 0 if nothing was built."""


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
        """Create the checkouts.

        ``trees`` makes the worktrees. ``build`` has the build commands of points that are measured without a workload.
        ``package`` and ``version_environment`` are given if the points are versions of a package: the function returns
        the environment of a version. Warnings about checkouts and environments are appended to ``notes``.
        """
        self._notes = notes if notes is not None else []
        self.trees, self._build = trees, build
        self.package, self._provide_version = package, version_environment

    def prepare(self, point: Point, task: Task | None, copy: int = 0) -> PreparedPoint | str:
        """Prepare the point for a run. If this is impossible because of the point, return the reason as text.

        ``task`` is None if a command is measured. ``copy`` is then the number of the checkout, as ``reserve_copy``
        yields it. Raises CheckoutError if regbot itself cannot make the checkout.
        """
        start = time.monotonic()
        if task is not None:
            tree = self.trees.worktree(arm_of(point), _with_all_files(task))
        else:
            tree = self._check_out(point, copy)
        if isinstance(tree, str):  # the reason why the build failed
            return tree
        environment, python, environment_built = dict(tree.environment), None, False
        if point.version and self._provide_version is not None:  # the points are versions of a package
            try:
                version_environment = _retry_once(self._provide_version, point.version)
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
        return PreparedPoint(
            tree.path, tree.paper, environment, python, built, time.monotonic() - start if built else 0.0
        )

    def note(self, *texts: str) -> None:
        """Keep warnings about the measurements. Each text is kept once."""
        self._notes += [text for text in texts if text not in self._notes]

    @contextmanager
    def reserve_copy(self, point: Point) -> Iterator[int]:
        """Reserve a checkout of the point for one command. Yield the number of the checkout.

        If commands of several slots measure the same point, each gets a checkout of its own, because a command may
        write files into it.
        """
        folder = self.trees.repository_cache / "running"
        folder.mkdir(parents=True, exist_ok=True)
        for copy in itertools.count():
            lock = FileLock(folder / f"{point.tree}.{copy}.lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:  # another command uses this copy
                continue
            try:
                yield copy
            finally:
                lock.release()
            return

    def _check_out(self, point: Point, copy: int) -> Worktree | str:
        """Check the point out and build it for a command. If the build fails, return the reason.

        ``copy`` is the number of the checkout, as ``reserve_copy`` yields it.
        """
        # The marker is a build command without effect. The build commands are part of the name of a checkout, so each
        # copy gets a checkout of its own.
        copy_marker = (f": copy {copy}",) if copy else ()
        return self.trees.check_out(point.commit, (*self._build, *copy_marker), sys.executable)


def _retry_once(provide_version: Callable[[str], VersionEnvironment], version: str) -> VersionEnvironment:
    """Return the environment of a version. Try a second time after a failure, because the cause may be the network."""
    try:
        return provide_version(version)
    except VersionUnavailable:
        return provide_version(version)


def _with_all_files(task: Task) -> Task:
    """Return ``task`` with a checkout of all files, whatever its key ``sparse`` says.

    The list of folders in ``sparse`` may not fit an old commit. A commit without a needed file would look broken.
    """
    return replace(task, workload=task.workload.model_copy(update={"sparse": []}))


def arm_of(point: Point) -> Arm:
    """Return the arm of a run at this point. The point is always the head, because a search run has no base."""
    return Arm(name="head", revision=point.name, commit=point.commit, tree=point.tree, subject=clip(point.subject, 200))


def build_observation(
    request: MeasurementRequest, stratum: str, prepared: PreparedPoint | None = None, **fields: Any
) -> Observation:
    """Build an observation from the request, the cost of preparing the point, and the other ``fields``.

    ``prepared`` is None if the point could not be prepared. The field ``slot`` of an observation does not name a slot
    for simultaneous measurements. It is the position of the run in its block, from 0.
    """
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
    line = last_line(run.log_tail)
    quoted_line = f" ({clip(line, 300)})" if line else ""
    return clip_message(printable(f"{run.outcome}: {run.reason}{quoted_line}"))


def last_line(text: str) -> str:
    """Return the last line that is not blank, as printable text; '' if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""
