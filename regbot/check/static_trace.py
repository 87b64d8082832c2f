"""Trace one workload of the working tree without git, and read the ledger files that ``ledger diff`` compares."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.config import FILE_NAME, ConfigError, Workload, load_config
from regbot.engines import Engine, LocalEngine
from regbot.ledgers.readers import ReadError, Source, read_file
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import DEFAULT_PAPER_GPU, Ledger, PaperGpu
from regbot.records.run import Arm, Run
from regbot.shapes import MeshName, OwnMesh, Shape, load_shape, shape_names
from regbot.text.clip import clip_message
from regbot.text.progress import Progress, Watcher
from regbot.text.words import plural
from regbot.workloads import (
    Checkout,
    Scratch,
    Task,
    digest,
    interpreter,
    ledger_of,
    single_task,
    smoke_task,
    trace,
)
from regbot.workloads.paper import NoPaperGpuError, library_for

WORKING_TREE = Arm(name="head", revision="files as they stand", commit="0" * 40, tree="0" * 40)
"""The arm for traces and runs of the working tree. It has no commit, so its ids are zeros."""


@dataclass(frozen=True)
class TraceOptions:
    """Options of ``regbot ledger trace``."""

    workload: str
    world: int | None = None
    ep: int | None = None
    variant: str | None = None
    dispatcher: str = ""
    device: Literal["", "cuda", "cpu"] = ""
    """Device to trace for; '' for the device in the workload's configuration."""
    gpu: PaperGpu | Literal[""] = ""
    """GPU that the paper GPU imitates; '' for the GPU in the workload's configuration."""


def trace_working_tree(
    options: TraceOptions, folder: Path, cache: Path, watch: Watcher = lambda _: None, engine: Engine | None = None
) -> Run:
    """Trace one workload of the working tree in ``folder``, or in its nearest parent that has a ``regbot.toml``.

    The trace runs on a paper GPU, whose library is built into ``cache``. If that fails and the user requested neither
    cuda nor a GPU, the workload is traced as a CPU program. Raises ConfigError, ShapeError, EngineError,
    NoPaperGpuError.
    """
    folder = next((parent for parent in (folder, *folder.parents) if (parent / FILE_NAME).is_file()), folder)
    task = choose_task(options, folder)
    if options.gpu and not task.wants_paper_gpu:
        raise ConfigError(f"--gpu {options.gpu}: {task.entry} is not traced on a paper GPU", "leave --gpu out")
    watch(
        Progress(
            0, 1, f"{task.entry} {task.variant.name}, {task.parallelism.world_size} ranks, EP {task.parallelism.ep}"
        )
    )
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch_name:
        scratch = Path(scratch_name)
        reason = ""
        library: Path | None = None
        if task.wants_paper_gpu:
            try:
                library = library_for(interpreter(task, folder), cache, scratch / "paper", folder).path
            except NoPaperGpuError as error:
                if options.device == "cuda" or options.gpu or not task.has_cpu_program:
                    raise
                reason = str(error)
        checkout, engine_in_use = Checkout(WORKING_TREE, folder), engine or LocalEngine()
        run = trace(task, checkout, engine_in_use, Scratch(scratch / "run"), paper=library)
        if library is not None and run.outcome != "ok" and not (options.device or options.gpu) and task.has_cpu_program:
            reason = run.reason
            run = trace(task, checkout, engine_in_use, Scratch(scratch / "run"))
    if run.outcome == "ok" and run.code is not None and run.code.foreign:
        package, path = min(run.code.foreign.items())
        refusal = f"{package} was imported from {path}, which is not in {folder}; uninstall it or fix 'source_roots'"
        run = run.model_copy(update={"outcome": "refused", "reason": clip_message(refusal), "ledger": None})
    if reason:
        warning = clip_message(f"traced as a CPU program, not on a paper GPU: {reason}")
        run = run.model_copy(update={"warnings": [*run.warnings, warning]})
    return run


def choose_task(options: TraceOptions, folder: Path) -> Task:
    """Return the task that ``NAME[:SHAPE][/MESH]`` selects. NAME is a workload, or a shape for regbot's smoke model.

    Raises ConfigError, ShapeError.
    """
    name, _, mesh_name = options.workload.partition("/")
    name, _, shape_name = name.partition(":")
    if name.partition("@")[0] in shape_names():
        if shape_name:
            raise ConfigError(f"{options.workload!r}: {name} is already a shape", f"write {name}")
        shape = load_shape(name)
        if options.gpu and options.device == "cpu":
            raise ConfigError(f"--gpu {options.gpu}: a CPU program is not traced on a paper GPU", "leave --gpu out")
        device, mesh = options.device or "cuda", _shape_mesh(mesh_name or "ep")
        return smoke_task(
            shape, options.variant or "full", mesh, options.world, options.ep, options.dispatcher, device=device,
            gpu=options.gpu or DEFAULT_PAPER_GPU,
        )  # fmt: skip
    config_file = folder / FILE_NAME
    if not config_file.exists():
        raise ConfigError(
            f"{options.workload!r} is not a shape ({', '.join(shape_names())}), and {folder} has no {FILE_NAME} with "
            "workloads"
        )
    workloads = load_config(config_file).workloads
    if name not in workloads:
        known = ", ".join([*workloads, *shape_names()])
        raise ConfigError(f"there is no workload or shape {name!r}", f"use one of {known}")
    changes = {"variant": options.variant} if options.variant else {}
    changes |= {"dispatcher": options.dispatcher} if options.dispatcher else {}
    changes |= {"device": options.device} if options.device else {}
    changes |= {"gpu": options.gpu} if options.gpu else {}
    workload = workloads[name].model_copy(update=changes)
    shape = _load_selected_shape(name, shape_name, workload.shapes)
    workload_mesh = _select_mesh(workload, mesh_name)
    if isinstance(workload_mesh, OwnMesh) and (options.world or options.ep):
        raise ConfigError(
            f"{options.workload!r}: the mesh {workload_mesh.name} has its own number of ranks and EP",
            "leave out --world and --ep, or write the mesh ep",
        )
    return single_task(name, workload, shape, workload_mesh, options.world, options.ep)


def read_ledgers(paths: Sequence[Path], format_name: str = "") -> Ledger:
    """Read one file for each rank. Return the lowest rank's ledger, with a digest of every other rank's ledger.

    The ledger has a warning that names ranks whose collectives differ from the lowest rank's. Raises RecordError,
    ReadError.
    """
    ledgers = [(read_ledger(path, format_name), path) for path in paths]
    ledgers.sort(key=lambda pair: pair[0].rank)
    (first, origin), *others = ledgers
    for ledger, path in others:
        if (ledger.source, ledger.scope, ledger.steps) != (first.source, first.scope, first.steps):
            raise ReadError(
                f"{path}: was counted in another way, or over other steps, than {origin}", "read the files separately"
            )
    ranks = [ledger.rank for ledger, _ in ledgers]
    if len(set(ranks)) != len(ranks):
        duplicate = next(path for ledger, path in ledgers if ranks.count(ledger.rank) > 1)
        raise ReadError(f"{duplicate}: has the same rank as another of these files", "give one file per rank")
    merged = ledger_of([ledger for ledger, _ in ledgers])
    other_ranks = [rank for rank, rank_digest in merged.rank_digests.items() if rank_digest != digest(first)]
    warning = (
        f"{plural('rank', len(other_ranks))} {', '.join(other_ranks[:8])} issued other collectives than rank "
        f"{first.rank}"
    )
    return merged.model_copy(update={"warnings": [*merged.warnings, *([warning] if other_ranks else [])]})


def read_ledger(path: Path, format_name: str = "") -> Ledger:
    """Read a ledger from a ledger record, a run record, or a file in any known format. Raises RecordError,
    ReadError."""
    source = Source(path)
    if format_name or not _is_record(source.head):
        return read_file(path, format_name)
    data = read_capped(path)
    document = parse_json(data, str(path))
    if document["schema"] == "regbot/ledger@1":
        return parse_record(data, Ledger, str(path))
    if document["schema"] == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None:
            raise RecordError(f"{path}: this run has no ledger: {run.outcome}: {run.reason}")
        return run.ledger
    raise RecordError(
        f"{path}: is neither a ledger record nor a run record (schema {json.dumps(document['schema'])})",
        "write one with 'regbot ledger trace WORKLOAD --json > FILE'",
    )


def _is_record(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a record of regbot. Records begin with their schema."""
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"regbot/', head) is not None


def _shape_mesh(name: str) -> MeshName:
    if name == "ep":
        return "ep"
    if name == "ep-dp":
        return "ep-dp"
    raise ConfigError(f"there is no mesh {name!r}", "use ep or ep-dp")


def _select_mesh(workload: Workload, name: str) -> MeshName | OwnMesh:
    """Return the mesh of a workload with the given name. '' selects ep, or the first one if the workload lacks ep."""
    own_meshes = {mesh.name: mesh for mesh in workload.meshes if isinstance(mesh, OwnMesh)}
    if name in own_meshes:
        return own_meshes[name]
    if not name:
        return "ep" if "ep" in workload.meshes else workload.meshes[0]
    if name in ("ep", "ep-dp"):
        return _shape_mesh(name)
    raise ConfigError(f"there is no mesh {name!r}", f"use {', '.join(['ep', 'ep-dp', *own_meshes])}")


def _load_selected_shape(workload: str, requested: str, shapes: list[str]) -> Shape:
    if requested and requested.partition("@")[0] not in {shape.partition("@")[0] for shape in shapes}:
        raise ConfigError(f"workload {workload!r} has no shape {requested!r}", f"use one of {', '.join(shapes)}")
    if not requested and len(shapes) > 1:
        raise ConfigError(f"workload {workload!r} has {len(shapes)} shapes", f"write {workload}:{shapes[0]}")
    return load_shape(requested or shapes[0])
