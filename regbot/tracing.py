"""``ledger trace`` and the ledgers that ``ledger diff`` reads: one workload as the files stand, without git."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbot.config import FILE_NAME, ConfigError, load_config
from regbot.engines import Engine, LocalEngine
from regbot.ledgers.readers import ReadError, Source, read_file
from regbot.paper import NoPaperGpuError, library_for
from regbot.progress import Progress, Watcher
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.shapes import MeshName, Shape, load_shape, shape_names
from regbot.workloads import Limits, Task, digest, interpreter, ledger_of, single_task, smoke_task, trace

HERE = Arm(name="head", revision="files as they stand", commit="0" * 40, tree="0" * 40)
"""The arm of a trace that was asked for by hand: no commit stands behind it."""


@dataclass(frozen=True)
class Choice:
    """What ``ledger trace`` was given."""

    workload: str
    world: int | None = None
    ep: int | None = None
    variant: str | None = None
    dispatcher: str = ""
    device: Literal["", "cuda", "cpu"] = ""
    """'' leaves it to the workload."""


def trace_here(
    choice: Choice, folder: Path, cache: Path, watch: Watcher = lambda _: None, engine: Engine | None = None
) -> Run:
    """Trace one workload as the files stand in ``folder`` or the nearest parent with a ``regbot.toml``.

    On a paper GPU, whose library is built into ``cache``; as a CPU program where that cannot be and was not asked for.
    Raises ConfigError, ShapeError, EngineError, NoPaperGpuError.
    """
    folder = next((place for place in (folder, *folder.parents) if (place / FILE_NAME).is_file()), folder)
    task = choose(choice, folder)
    watch(
        Progress(
            0, 1, f"{task.entry} {task.variant.name}, {task.parallelism.world_size} ranks, EP {task.parallelism.ep}"
        )
    )
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        scratch = Path(name)
        reason = ""
        paper: Path | None = None
        if task.wants_paper_gpu:
            try:
                paper = library_for(interpreter(task, folder), cache, scratch / "paper", folder).path
            except NoPaperGpuError as error:
                if choice.device == "cuda":
                    raise
                reason = str(error)
        run = trace(task, HERE, folder, engine or LocalEngine(), scratch / "run", Limits(), paper=paper)
        if paper is not None and run.outcome != "ok" and not choice.device:
            reason = run.reason
            run = trace(task, HERE, folder, engine or LocalEngine(), scratch / "run", Limits())
    if reason:
        warning = f"traced as a CPU program, not on a paper GPU: {reason}"[:4000]
        run = run.model_copy(update={"warnings": [*run.warnings, warning]})
    return run


def choose(choice: Choice, folder: Path) -> Task:
    """The task behind ``NAME[:SHAPE][/MESH]``: a shape of regbot's own model, or a workload of ``regbot.toml``."""
    name, _, mesh_name = choice.workload.partition("/")
    name, _, shape_name = name.partition(":")
    mesh = _mesh(mesh_name)
    if name.partition("@")[0] in shape_names():
        if shape_name:
            raise ConfigError(f"{choice.workload!r}: {name} is a shape already; write {name}")
        shape = load_shape(name)
        device = choice.device or "cuda"
        return smoke_task(shape, choice.variant or "full", mesh, choice.world, choice.ep, choice.dispatcher, device)
    config_file = folder / FILE_NAME
    if not config_file.exists():
        raise ConfigError(
            f"{choice.workload!r} is no shape ({', '.join(shape_names())}), and there is no {FILE_NAME} in {folder} "
            "that could name it"
        )
    workloads = load_config(config_file).workloads
    if name not in workloads:
        known = ", ".join([*workloads, *shape_names()])
        raise ConfigError(f"there is no workload or shape {name!r}; there are {known}")
    changes = {"variant": choice.variant} if choice.variant else {}
    changes |= {"dispatcher": choice.dispatcher} if choice.dispatcher else {}
    changes |= {"device": choice.device} if choice.device else {}
    workload = workloads[name].model_copy(update=changes)
    shape = _one_shape(name, shape_name, workload.shapes)
    return single_task(name, workload, shape, mesh, choice.world, choice.ep)


def read_ledgers(paths: Sequence[Path], format_name: str = "") -> Ledger:
    """The ledger of a run of which each rank left one file. Raises RecordError, ReadError.

    It is the lowest rank's, with a digest of every other's; ranks that issued other collectives are named.
    """
    found = [(read_ledger(path, format_name), path) for path in paths]
    found.sort(key=lambda each: each[0].rank)
    (first, origin), *others = found
    for ledger, path in others:
        if (ledger.source, ledger.scope, ledger.steps) != (first.source, first.scope, first.steps):
            raise ReadError(f"{path}: was counted in another way, or over other steps, than {origin}; read them apart")
    ranks = [ledger.rank for ledger, _ in found]
    if len(set(ranks)) != len(ranks):
        twice = next(path for ledger, path in found if ranks.count(ledger.rank) > 1)
        raise ReadError(f"{twice}: is of the same rank as another of these files; give one file of each rank")
    merged = ledger_of([ledger for ledger, _ in found])
    other = [rank for rank, seen in merged.rank_digests.items() if seen != digest(first)]
    told = f"rank{'s' * (len(other) > 1)} {', '.join(other[:8])} issued other collectives than rank {first.rank}"
    return merged.model_copy(update={"warnings": [*merged.warnings, *([told] if other else [])]})


def read_ledger(path: Path, format_name: str = "") -> Ledger:
    """The ledger in a ledger or run record, or in any file that a reader knows. Raises RecordError, ReadError."""
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
        f"{path}: is neither a ledger nor a run record (schema {json.dumps(document['schema'])}); "
        "write one with 'regbot ledger trace WORKLOAD --json > FILE'"
    )


def _is_record(head: bytes) -> bool:
    """Whether a file begins as one of regbot's own records: they all name their schema first."""
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"regbot/', head) is not None


def _mesh(name: str) -> MeshName:
    if name in ("", "ep"):
        return "ep"
    if name == "ep-dp":
        return "ep-dp"
    raise ConfigError(f"there is no mesh {name!r}; there are ep and ep-dp")


def _one_shape(workload: str, asked: str, shapes: list[str]) -> Shape:
    if asked and asked.partition("@")[0] not in {shape.partition("@")[0] for shape in shapes}:
        raise ConfigError(f"workload {workload!r} has no shape {asked!r}; it has {', '.join(shapes)}")
    if not asked and len(shapes) > 1:
        raise ConfigError(f"workload {workload!r} has {len(shapes)} shapes; write {workload}:{shapes[0]}")
    return load_shape(asked or shapes[0])
