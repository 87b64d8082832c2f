"""Trace one workload of the working tree without git, and read the ledger files that ``ledger diff`` compares."""

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeVar

from regbot.check.configuration import add_stand_ins
from regbot.check.sessions.trace_devices import TraceDevices
from regbot.engines import LocalEngine
from regbot.engines.removal import temporary_folder
from regbot.ledgers.readers import ReadError, Source, read_file
from regbot.records.config import FILE_NAME, ConfigError, load_file
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger, PaperGpu
from regbot.records.meshes import MeshName, OwnMesh
from regbot.records.run import Arm, Run
from regbot.records.text.clip import clip_line, clip_message
from regbot.records.text.printable import printable
from regbot.records.text.progress import Progress, Watcher
from regbot.records.text.words import plural
from regbot.workloads.guest import Checkout, Scratch, interpreter, trace
from regbot.workloads.paper import Libraries
from regbot.workloads.ranks import digest, ledger_of
from regbot.workloads.shapes import load_shape, shape_names
from regbot.workloads.task import Task, single_task, smoke_task

WORKING_TREE = Arm(name="head", revision="files as they stand", commit="0" * 40, tree="0" * 40)
"""The arm for traces and runs of the working tree. It has no commit, so its ids are zeros."""
RUNNING_LINE_CHARACTERS = 200
_RECORD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"regbot/')  # records begin with their schema
SHAPE_MESHES: dict[str, MeshName] = {"ep": "ep", "ep-dp": "ep-dp"}
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class TraceOptions:
    """Options of ``regbot ledger trace``."""

    workload: str
    """A shape or a workload of the configuration, as ``NAME[:SHAPE][/MESH]``."""
    world: int | None = None
    """Number of ranks; None for that of the mesh."""
    ep: int | None = None
    """Number of ranks that share the experts; None for that of the mesh."""
    variant: str | None = None
    """Variant of the shape; None for the one in the workload's configuration."""
    dispatcher: str = ""
    """Dispatcher to request; '' for the one in the workload's configuration."""
    device: Literal["", "cuda", "cpu"] = ""
    """Device to trace for; '' for the device in the workload's configuration."""
    gpu: PaperGpu | Literal[""] = ""
    """GPU that the paper GPU imitates; '' for the GPU in the workload's configuration."""


def trace_working_tree(options: TraceOptions, folder: Path, cache: Path, watch: Watcher = lambda _: None) -> Run:
    """Trace one workload of ``folder``, or of its nearest parent that has a ``regbot.toml``.

    The trace runs on a paper GPU, built into ``cache``, or else as a CPU program, unless the user requested a device or
    GPU. Raises ConfigError, ShapeError, EngineError, NoPaperGpuError.
    """
    folder = next((parent for parent in (folder, *folder.parents) if (parent / FILE_NAME).is_file()), folder)
    task = choose_task(options, folder)
    if options.gpu and not task.wants_paper_gpu:
        raise ConfigError(f"--gpu {options.gpu}: {task.entry} is not traced on a paper GPU", "leave --gpu out")
    ranks = f"{task.parallelism.world_size} ranks, EP {task.parallelism.ep}"
    watch(Progress(0, 1, f"{task.entry} {task.variant.name}, {ranks}"))
    private = cache / "working-trees" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    with (
        temporary_folder() as scratch,
        closing(Libraries(cache, Path(tempfile.gettempdir()), lambda text: watch(Progress(0, 1, text)))) as libraries,
    ):
        devices = TraceDevices([task], [], libraries)
        if options.device or options.gpu:
            devices.keep(task)
        if task.wants_paper_gpu and (options.device or options.gpu or not task.has_cpu_program):
            libraries.library(interpreter(task, folder), folder, private)  # raises NoPaperGpuError
        checkout = Checkout(WORKING_TREE, folder)

        shown_lines = {""}  # '' if no line of the user's code is running

        def show_running_line() -> None:
            for file in scratch.glob("*/record/running"):
                with suppress(RecordError):
                    line = clip_line(printable(read_capped(file).decode("utf-8", "replace")), RUNNING_LINE_CHARACTERS)
                    if line not in shown_lines:
                        watch(Progress(0, 1, f"{task.entry}: running {line}"))
                    shown_lines.add(line)

        def launch(library: Path | None) -> Run:
            run_folder = Scratch(scratch / ("run" if library is None else "run-on-paper"))
            return trace(task, checkout, LocalEngine(check=show_running_line), run_folder, paper=library)

        run = devices.trace(task, checkout, private, launch, at_once=True)
    assert run is not None  # with ``at_once``
    # ``foreign`` has the packages that were imported from outside the working tree, with their paths.
    if run.outcome == "ok" and run.code is not None and run.code.foreign:
        package, path = min(run.code.foreign.items())
        refusal = f"{package} was imported from {path}, which is not in {folder}; uninstall it or fix 'source_roots'"
        run = run.model_copy(update={"outcome": "refused", "reason": clip_message(refusal), "ledger": None})
    return run


def choose_task(options: TraceOptions, folder: Path) -> Task:
    """NAME in ``NAME[:SHAPE][/MESH]`` is a workload, or a shape for regbot's smoke model. Raises ConfigError,
    ShapeError.
    """
    name, _, mesh_name = options.workload.partition("/")
    name, _, shape_name = name.partition(":")
    if name.partition("@")[0] in shape_names():
        if shape_name:
            raise ConfigError(f"{options.workload!r}: {name} is already a shape", f"write {name}")
        if options.gpu and options.device == "cpu":
            raise ConfigError(f"--gpu {options.gpu}: a CPU program is not traced on a paper GPU", "leave --gpu out")
        device, mesh = options.device or "cuda", _choose("mesh", mesh_name or "ep", SHAPE_MESHES)
        return smoke_task(
            load_shape(name), options.variant or "full", mesh, options.world, options.ep, options.dispatcher,
            device=device, gpu=options.gpu or DEFAULT_PAPER_GPU,
        )  # fmt: skip
    config_file = folder / FILE_NAME
    if not config_file.exists():
        shapes_text = f"is not a shape ({', '.join(shape_names())})"
        raise ConfigError(f"{options.workload!r} {shapes_text}, and {folder} has no {FILE_NAME} with workloads")
    configured = _choose("workload or shape", name, add_stand_ins(load_file(config_file), folder).config.workloads)
    settings = {key: getattr(options, key) for key in ("variant", "dispatcher", "device", "gpu")}
    workload = configured.model_copy(update={key: value for key, value in settings.items() if value})
    if not shape_name and len(workload.shapes) > 1:
        raise ConfigError(f"workload {name!r} has several shapes", f"write {name}:{workload.shapes[0]}")
    # The version after ``@`` may be left out.
    shapes = {written: shape for shape in workload.shapes for written in (shape, shape.partition("@")[0])}
    shape = load_shape(_choose("shape", shape_name or workload.shapes[0], shapes))
    meshes = {**SHAPE_MESHES, **{mesh.name: mesh for mesh in workload.meshes if isinstance(mesh, OwnMesh)}}
    default_mesh = "ep" if "ep" in workload.meshes else workload.meshes[0]
    workload_mesh = _choose("mesh", mesh_name, meshes) if mesh_name else default_mesh
    if isinstance(workload_mesh, OwnMesh) and (options.world or options.ep):
        raise ConfigError(
            f"{options.workload!r}: the mesh {workload_mesh.name} has its own number of ranks and EP",
            "leave out --world and --ep, or write the mesh ep",
        )
    return single_task(name, workload, shape, workload_mesh, options.world, options.ep)


def _choose(noun: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    if name not in choices:
        raise ConfigError(f"there is no {noun} {name!r}", f"use one of {', '.join(choices)}")
    return choices[name]


def read_ledgers(paths: Sequence[Path], format_name: str = "") -> Ledger:
    """Read one file for each rank. Return the lowest rank's ledger, with a digest of every other rank's ledger, and a
    warning if they differ. Raises RecordError, ReadError.
    """
    ledgers = [(read_ledger(path, format_name), path) for path in paths]
    ledgers.sort(key=lambda ledger_and_path: ledger_and_path[0].rank)
    (first, first_path), *others = ledgers
    for ledger, path in others:
        # ``source`` is the way of counting. ``scope`` says whether the counts are those of one step or of a whole file.
        if (ledger.source, ledger.scope, ledger.steps) != (first.source, first.scope, first.steps):
            raise ReadError(
                f"{path}: was counted in another way, or over other steps, than {first_path}",
                "read the files separately",
            )
    for (ledger, _), (other, path) in pairwise(ledgers):
        if ledger.rank == other.rank:
            raise ReadError(f"{path}: has the same rank as another of these files", "give one file per rank")
    merged = ledger_of([ledger for ledger, _ in ledgers])
    first_digest = digest(first)
    differing_ranks = [rank for rank, rank_digest in merged.rank_digests.items() if rank_digest != first_digest]
    if not differing_ranks:
        return merged
    ranks = f"{plural('rank', len(differing_ranks))} {', '.join(differing_ranks[:8])}"
    warning = f"{ranks} issued other collectives than rank {first.rank}"
    return merged.model_copy(update={"warnings": [*merged.warnings, warning]})


def read_ledger(path: Path, format_name: str = "") -> Ledger:
    """Read a ledger or run record, or a file in a known format, '' to detect it. Raises RecordError, ReadError."""
    if format_name or not _RECORD.match(Source(path).head):
        return read_file(path, format_name)
    data = read_capped(path)
    schema = parse_json(data, str(path))["schema"]
    if schema == "regbot/ledger@1":
        return parse_record(data, Ledger, str(path))
    if schema == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None:
            raise RecordError(f"{path}: this run has no ledger: {run.outcome}: {run.reason}")
        return run.ledger
    raise RecordError(
        f"{path}: is neither a ledger record nor a run record (schema {json.dumps(schema)})",
        "write one with 'regbot ledger trace WORKLOAD --json > FILE'",
    )
