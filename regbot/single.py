"""``regbot run``: one timed run of one workload, as a record that ``regbot compare`` reads."""

import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout import resolve_arm
from regbot.config import FILE_NAME, Config, load_config
from regbot.engines import Engine, open_engine
from regbot.nodes import Fitness, nodes_folder
from regbot.progress import Progress, Watcher
from regbot.records.run import Position, Run
from regbot.shapes import ShapeError
from regbot.tracing import HERE, Choice, choose
from regbot.trees import Trees
from regbot.workloads import (
    Limits,
    Place,
    Task,
    bare_run,
    needs_of,
    plan_of,
    single_task,
    time_run,
    timed_variant,
    unfit_for,
)


@dataclass(frozen=True)
class Single:
    """What ``run`` was given. Without ``rev`` the files are taken as they stand."""

    workload: str
    rev: str | None = None
    variant: str | None = None
    engine: str = "local"


def run_once(
    asked: Single, folder: Path, cache: Path, watch: Watcher = lambda _: None, engine: Engine | None = None
) -> Run:
    """Launch the workload once and time its steps. Raises ConfigError, ShapeError, CheckoutError, EngineError."""
    config = config_of(folder)
    with nullcontext(engine) if engine is not None else _engine(asked, config, cache) as where:
        return _run_on(where, asked, folder, cache, config, watch)


def _engine(asked: Single, config: Config, cache: Path) -> AbstractContextManager[Engine]:
    return open_engine(asked.engine, config, cache, refused=Fitness(nodes_folder(cache), cache).refused)


def _run_on(engine: Engine, asked: Single, folder: Path, cache: Path, config: Config, watch: Watcher) -> Run:
    task = timed_task(asked, folder, engine.gpus)
    plan = plan_of(task, config.session)
    arm, root, environment = HERE, folder, None
    place = Place(Position(block=1, slot=0, order="ABBA"), 1, plan.steps)
    if asked.rev is not None:
        arm = resolve_arm(folder, asked.rev)
        tree = Trees(folder, cache, lambda text: watch(Progress(0, 1, text)), engine.sandbox).of(arm, task)
        if isinstance(tree, str):
            return bare_run(task, arm, "crashed", tree, tier="timed")
        root, environment = tree.path, tree.environment
    watch(Progress(0, 1, f"{task.entry} {task.variant.name}, {plan.steps} steps on {plan.world_size} ranks"))
    shared = cache if engine.name != "local" else None  # the nodes of a cluster do not see this machine's /tmp
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="regbot-", dir=shared) as scratch, engine.seat(needs_of(task)) as seat:
        return time_run(task, plan, place, arm, root, seat, Path(scratch) / "run", Limits(), environment)


def config_of(folder: Path) -> Config:
    """The ``regbot.toml`` in ``folder``, or what holds without one. Raises ConfigError."""
    file = folder / FILE_NAME
    return load_config(file) if file.exists() else Config()


def timed_task(asked: Single, folder: Path, gpus: int) -> Task:
    """The task behind ``NAME[:SHAPE][/MESH]`` at the variant asked for, else at the one that ``gpus`` GPUs can time."""
    chosen = choose(Choice(asked.workload, variant=asked.variant), folder)
    variant = asked.variant or timed_variant(chosen, gpus) or "cpu"
    size = chosen.shape.variant(variant).size
    if size not in chosen.shape.meshes:
        raise ShapeError(f"shape {chosen.shape.id} has no size {size!r} that can be timed")
    workload = chosen.workload.model_copy(update={"variant": variant})
    task = single_task(chosen.workload_name, workload, chosen.shape, chosen.parallelism.name)
    if unfit := unfit_for(task, gpus):
        raise ShapeError(unfit)
    return task
