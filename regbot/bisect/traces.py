"""Measurement of a ledger by a static trace: exact, without a GPU, and cached."""

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from regbot import __version__
from regbot.bisect.measure import (
    PointCheckouts,
    PreparedPoint,
    arm_of,
    build_observation,
    failure_reason,
    strip_arm_prefix,
    unusable_observation,
)
from regbot.bisect.noisy import MeasurementRequest
from regbot.config import LIBRARY_DISPATCHERS
from regbot.engines import Engine
from regbot.engines.guest import guest_folder
from regbot.judge.backends import DISPATCHER, unmet_dispatcher_request
from regbot.judge.validity import distrust_run
from regbot.records.bisection import Observation, Point
from regbot.records.files import RecordError, read_record, write_record
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.removal import discard_folder
from regbot.sessions.worktrees import folder_name
from regbot.text.clip import clip_message
from regbot.workloads import Checkout, Limits, Scratch, Task, interpreter, trace
from regbot.workloads.paper import NoPaperGpuError


class TraceMeasurer:
    """Measurer that traces workloads. It caches traces by a key that contains everything that affects a trace."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        checkouts: PointCheckouts,
        engine: Engine,
        out: Path,
        limits: Limits,
        index_options: Sequence[str] = (),
    ) -> None:
        """``tasks`` has the task of each entry. ``out`` is the output folder, and ``limits`` bound a run's output.
        ``index_options`` are the options of pip for a search over versions.
        """
        self._index_options = list(index_options)
        self._tasks, self._checkouts, self._engine = tasks, checkouts, engine
        self._out, self._limits = out, limits

    def stratum(self, slot: int) -> str:
        """Return a name of the slot. Ledgers are exact, so their strata are not used."""
        return f"slot {slot}"

    def measure(self, request: MeasurementRequest, slot: int) -> Observation:
        """Return an observation with the digest of the workload's ledger at the requested point.

        The ledger comes from the cache or from a new trace. ``slot`` only names the folder of the trace.
        """
        task, point = self._tasks[request.entry], request.point
        # The version of an editable package does not identify its files. A trace that may use such a package is not
        # cached.
        is_cacheable = not list_editable_packages(task, self._checkouts.trees.repo)
        cache_file = self._checkouts.trees.repository_cache / "traces" / f"{self._cache_key(task, point)}.json"
        cached = _load_cached_trace(cache_file) if is_cacheable else None
        if cached is not None:
            return self._to_observation(request, cached, cached=True)
        prepared = self._checkouts.prepare(point, task)
        if isinstance(prepared, str):  # the reason why the point cannot be measured
            return unusable_observation(request, prepared)
        python = prepared.python or task.workload.python
        traced_task = replace(task, workload=task.workload.model_copy(update={"python": python}))
        scratch = self._out / "runs" / f"{folder_name(task.entry)}.{folder_name(point.key)}.{slot}"
        checkout = Checkout(arm_of(point), prepared.path, prepared.environment)
        try:
            paper_library = self._find_paper_library(traced_task, prepared)
        except NoPaperGpuError as error:
            return unusable_observation(request, f"its program runs on a paper GPU only: {error}")
        run = trace(traced_task, checkout, self._engine, Scratch(scratch, self._limits), paper=paper_library)
        discard_folder(scratch / "record")
        if run.outcome == "ok" and is_cacheable:
            write_record(cache_file, run)
        return self._to_observation(request, run, prepared)

    def _find_paper_library(self, task: Task, prepared: PreparedPoint) -> Path | None:
        """Return the library of the paper GPU if the task can only be traced on a paper GPU; None otherwise.

        Other tasks are traced as CPU programs. Raises NoPaperGpuError if the library cannot be built.
        """
        if task.has_cpu_program:
            return None
        with closing(self._checkouts.trees.open_libraries(self._out / "runs" / "paper")) as libraries:
            return libraries.library(interpreter(task, prepared.path), prepared.path, prepared.paper).path

    def _to_observation(
        self, request: MeasurementRequest, run: Run, prepared: PreparedPoint | None = None, cached: bool = False
    ) -> Observation:
        """Store the run and return its observation. ``prepared`` is None for a run from the cache."""
        # A cached run may come from another point with the same tree.
        run = run.model_copy(update={"arm": arm_of(request.point)})
        name = f"ledgers/{folder_name(run.workload)}.{folder_name(request.point.key)}.json"
        write_record(self._out / name, run)
        distrust_reasons: list[str] = []
        state = ""
        if run.outcome == "ok":
            distrust_reasons = [strip_arm_prefix(reason) for reason in self._distrust_reasons(run)]
            if run.ledger is not None and not distrust_reasons:
                state = ledger_state(run.ledger)
        usable = state != ""
        return build_observation(
            request,
            stratum="",
            prepared=prepared,
            usable=usable,
            reason="" if usable else clip_message("; ".join(distrust_reasons)) or failure_reason(run),
            state=state,
            cached=cached,
            wall_s=0.0 if cached else run.wall_s,
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

    def _cache_key(self, task: Task, point: Point) -> str:
        """Return the cache key of a trace: a digest of the tree, the version of the dependency, the workload with its
        variant, mesh and shape, regbot itself, and the interpreter with its packages.
        """
        parts = {
            "tree": point.tree,
            "version": [self._checkouts.package, point.version, self._index_options],
            "workload": task.workload.model_dump(mode="json"),
            "variant": repr(task.variant),
            "mesh": repr(task.parallelism),
            "shape": task.shape.id,
            "regbot": [__version__, _guest_digest()],
            "python": _describe_packages(task),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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


def _load_cached_trace(path: Path) -> Run | None:
    """Return the cached run; None if there is none, or if it has no ledger."""
    try:
        run = read_record(path, Run)
    except RecordError:
        return None
    return run if run.outcome == "ok" and run.ledger is not None else None


def _guest_digest() -> str:
    """Return a digest of regbot's guest code, which runs in the training process and takes the trace."""
    digest = hashlib.sha256()
    for path in sorted(path for path in guest_folder().rglob("*") if path.suffix in (".py", ".cpp", ".h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def list_editable_packages(task: Task, repo: Path) -> list[str]:
    """Return the folders of editable packages that a task's interpreter can import.

    Two editable packages are left out: regbot itself, because the cache key contains a digest of it, and ``repo``,
    because the checkout replaces it.
    """
    python = interpreter(task, Path("/"))  # an interpreter in the checkout does not exist below /, so it is not found
    if python == sys.executable:
        package_folders = [Path(folder) for folder in sys.path if folder]
    else:
        program = shutil.which(python)
        package_folders = _list_package_folders(program) if program is not None else []
    # pip writes this file for a package that was installed from a folder (PEP 610).
    origin_files = [file for folder in package_folders for file in folder.glob("*.dist-info/direct_url.json")]
    folders = []
    for file in origin_files:
        is_regbot = file.parent.name.startswith(("regbot_moe-", "regbot-"))
        folder = None if is_regbot else _read_editable_folder(file)
        if folder is not None and not folder.resolve().is_relative_to(repo.resolve()):
            folders.append(str(folder))
    return folders


def _read_editable_folder(origin_file: Path) -> Path | None:
    """Return the source folder of an editable package; None if it is not editable, or the file is not readable."""
    try:
        origin = json.loads(origin_file.read_text("utf-8"))
        if not origin.get("dir_info", {}).get("editable"):
            return None
        return Path(unquote(urlsplit(origin["url"]).path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _describe_packages(task: Task) -> str:
    """Return a description of the packages that a task's interpreter can import, without running the interpreter.

    For regbot's own interpreter these are names and versions. For another one these are its folders of packages with
    their times of change, which differ after an installation.
    """
    python = interpreter(task, Path("/"))  # an interpreter in the checkout does not exist below /
    if python == sys.executable:
        return json.dumps(
            sorted(f"{distribution.metadata['Name']} {distribution.version}" for distribution in distributions())
        )
    program = shutil.which(python)
    if program is None:
        # The interpreter lies in the checkout. The tree and the build commands decide its packages, and both are in the
        # cache key already.
        return python
    folders = _list_package_folders(program)
    return json.dumps([program, *sorted(f"{folder} {folder.stat().st_mtime_ns}" for folder in folders)])


def _list_package_folders(program: str) -> list[Path]:
    """Return the folders ``site-packages`` and ``dist-packages`` of an interpreter, such as ``venv/bin/python``."""
    prefix = Path(program).parent.parent
    return list(prefix.glob("lib*/python*/*-packages"))
