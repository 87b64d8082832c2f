"""``ledger trace`` and the ledgers that ``ledger diff`` reads: one workload as the files stand, without git."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from regbot.config import FILE_NAME, ConfigError, load_config
from regbot.engines import Engine, LocalEngine
from regbot.progress import Progress, Watcher
from regbot.records.files import RecordError, parse_json, parse_record, read_capped
from regbot.records.ledger import Ledger
from regbot.records.run import Arm, Run
from regbot.shapes import MeshName, Shape, load_shape, shape_names
from regbot.workloads import Limits, Task, single_task, smoke_task, trace

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


def trace_here(choice: Choice, folder: Path, watch: Watcher = lambda _: None, engine: Engine | None = None) -> Run:
    """Trace one workload as the files stand in ``folder`` or the nearest parent with a ``regbot.toml``.

    Raises ConfigError, ShapeError, EngineError.
    """
    folder = next((place for place in (folder, *folder.parents) if (place / FILE_NAME).is_file()), folder)
    task = choose(choice, folder)
    watch(
        Progress(
            0, 1, f"{task.entry} {task.variant.name}, {task.parallelism.world_size} ranks, EP {task.parallelism.ep}"
        )
    )
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        return trace(task, HERE, folder, engine or LocalEngine(), Path(scratch), Limits())


def choose(choice: Choice, folder: Path) -> Task:
    """The task behind ``NAME[:SHAPE][/MESH]``: a shape of regbot's own model, or a workload of ``regbot.toml``."""
    name, _, mesh_name = choice.workload.partition("/")
    name, _, shape_name = name.partition(":")
    mesh = _mesh(mesh_name)
    if name.partition("@")[0] in shape_names():
        if shape_name:
            raise ConfigError(f"{choice.workload!r}: {name} is a shape already; write {name}")
        shape = load_shape(name)
        return smoke_task(shape, choice.variant or "full", mesh, choice.world, choice.ep, choice.dispatcher)
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
    workload = workloads[name].model_copy(update=changes)
    shape = _one_shape(name, shape_name, workload.shapes)
    return single_task(name, workload, shape, mesh, choice.world, choice.ep)


def read_ledger(path: Path) -> Ledger:
    """The ledger in a ledger or run record. Raises RecordError."""
    data = read_capped(path)
    document = parse_json(data, str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == "regbot/ledger@1":
        return parse_record(data, Ledger, str(path))
    if schema == "regbot/run@1":
        run = parse_record(data, Run, str(path))
        if run.ledger is None:
            raise RecordError(f"{path}: this run has no ledger: {run.outcome}: {run.reason}")
        return run.ledger
    raise RecordError(
        f"{path}: is neither a ledger nor a run record (schema {json.dumps(schema)}); "
        "write one with 'regbot ledger trace WORKLOAD --json > FILE'"
    )


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
