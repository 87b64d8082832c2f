"""Where a point is measured, and what every measurement has: its checkout, its environment, why it cannot be used.

Nothing is raised for what the code under test does: a point that cannot be measured is an observation that says why.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from filelock import FileLock, Timeout

from regbot.bisect.environments import VersionEnvironment, VersionUnavailable, hidden_by
from regbot.bisect.noisy import Wanted
from regbot.checkout import Builder, BuildError, Worktree, check_out
from regbot.engines import clean_environment
from regbot.records.bisection import Observation, Point
from regbot.records.run import Arm, Run
from regbot.text import printable
from regbot.trees import BUILD_TIMEOUT_S, Trees, changed_by_build
from regbot.workloads import Task

T = TypeVar("T")


class Measurer(Protocol):
    """Makes the measurements of one bisection. Any number of slots may ask at a time."""

    def stratum(self, slot: int) -> str:
        """Node and session of a slot: the runs that have one level."""
        ...

    def measure(self, wanted: Wanted, slot: int) -> Observation:
        """One measurement. Raises CheckoutError, OSError where regbot itself cannot do its part."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A point that is ready to be run."""

    path: Path
    environment: Mapping[str, str]
    python: str | None
    """Interpreter of the version under test; None for the workload's own."""
    built: bool
    build_s: float


class Ground:
    """The checkouts and environments of the points."""

    def __init__(
        self,
        repo: Path,
        cache: Path,
        build: tuple[str, ...],
        package: str = "",
        version_environment: Callable[[str], VersionEnvironment] | None = None,
        notes: list[str] | None = None,
        builder: Builder | None = None,
    ) -> None:
        """``notes`` grows by what is to be known of the environments. ``builder`` confines build commands."""
        self._builder = builder
        self._notes = notes if notes is not None else []
        self.repo, self._cache, self._build = repo, cache, build
        self.package, self._version = package, version_environment

    def prepare(self, point: Point, task: Task | None, trees: Trees, copy: int = 0) -> Prepared | str:
        """The point, or why it cannot be had. ``copy``: of a checkout without a task. Raises CheckoutError."""
        start = time.monotonic()
        if task is not None:
            tree = trees.of(arm_of(point), task)
        else:
            tree = self._plain(point, copy)
        if isinstance(tree, str):
            return tree
        environment, python, made = dict(tree.environment), None, False
        if point.version and self._version is not None:
            try:
                found = _twice(partial(self._version, point.version), VersionUnavailable)
            except VersionUnavailable as error:
                return str(error)
            self.note(*(f"{point.version}: {note}" for note in found.warnings))
            environment |= found.variables
            python, made = found.python, found.built
            roots = task.workload.source_roots if task is not None else ["."]
            if hidden := hidden_by(found, self.package, [tree.path / root for root in roots]):
                return f"the checkout hides {self.package} {point.version}: {hidden} comes first"
        self.note(*changed_by_build(tree))
        built = tree.built or made
        return Prepared(tree.path, environment, python, built, time.monotonic() - start if built else 0.0)

    def note(self, *texts: str) -> None:
        """Keep what is to be known of the measurements, once."""
        self._notes += [text for text in texts if text not in self._notes]

    @contextmanager
    def alone(self, point: Point) -> Iterator[int]:
        """The number of a checkout of the point that no other command runs in.

        A command may write into its checkout. Another one there would read that, and to make it clean again would
        take it away from the first.
        """
        folder = self._cache / "running"
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

    def _plain(self, point: Point, copy: int) -> Worktree | str:
        other = (f": copy {copy}",) if copy else ()  # does nothing, but a checkout is named by its build commands
        attempt = partial(
            check_out,
            self.repo,
            point.commit,
            self._cache,
            (*self._build, *other),
            sys.executable,
            BUILD_TIMEOUT_S,
            clean_environment({}),
            self._builder,
        )
        try:
            return _twice(attempt, BuildError)
        except BuildError as error:
            return f"the build failed twice: {error}"


def _twice(attempt: Callable[[], T], fault: type[Exception]) -> T:
    """What fails once may be the network's fault, and a point that failed is not tried again."""
    try:
        return attempt()
    except fault:
        return attempt()


def arm_of(point: Point) -> Arm:
    """A point as the arm that a run is of."""
    return Arm(name="head", revision=point.name, commit=point.commit, tree=point.tree, subject=point.subject[:200])


def observed(wanted: Wanted, stratum: str, ready: Prepared | None = None, **found: Any) -> Observation:
    """What was ``found`` at a point, with what was wanted and what it took to prepare."""
    return Observation(
        point=wanted.point.key,
        entry=wanted.entry,
        purpose=wanted.purpose,
        contrast=wanted.contrast,
        block=wanted.block,
        slot=wanted.slot,
        stratum=stratum,
        built=bool(ready and ready.built),
        build_s=ready.build_s if ready else 0.0,
        **found,
    )


def unusable(wanted: Wanted, reason: str, stratum: str = "") -> Observation:
    """An observation that says why there is no value."""
    return observed(wanted, stratum, usable=False, reason=printable(reason)[:4000])


def without_arm(reason: str) -> str:
    """What the judge says of a run of head, where there is no head: ``imported moe from ...``."""
    return reason.removeprefix("head").lstrip(": ")


def why(run: Run) -> str:
    """Why a run cannot be used, with its last line where it crashed."""
    last = last_line(run.log_tail)
    return printable(f"{run.outcome}: {run.reason}" + (f" ({last[:300]})" if last else ""))[:4000]


def last_line(text: str) -> str:
    """The last line that is not blank, printable; '' where there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""
