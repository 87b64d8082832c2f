"""``regbot run``: one timed run of one workload, as a record that ``regbot compare`` reads."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout import resolve_arm
from regbot.config import FILE_NAME, Session, load_config
from regbot.engines import Engine, LocalEngine
from regbot.node import this_node
from regbot.progress import Progress, Watcher
from regbot.records.run import Position, Run
from regbot.shapes import ShapeError
from regbot.tracing import HERE, Choice, choose
from regbot.trees import Trees
from regbot.workloads import Limits, Place, Task, bare_run, plan_of, single_task, time_run, timed_variant, unfit_for


@dataclass(frozen=True)
class Single:
    """What ``run`` was given. Without ``rev`` the files are taken as they stand."""

    workload: str
    rev: str | None = None
    variant: str | None = None


def run_once(
    asked: Single, folder: Path, cache: Path, watch: Watcher = lambda _: None, engine: Engine | None = None
) -> Run:
    """Launch the workload once and time its steps. Raises ConfigError, ShapeError, CheckoutError, EngineError."""
    task = timed_task(asked, folder)
    plan = plan_of(task, session_settings(folder))
    arm, root, environment = HERE, folder, None
    engine = engine or LocalEngine()
    place = Place(Position(block=1, slot=0, order="ABBA"), 1, plan.steps)
    if asked.rev is not None:
        arm = resolve_arm(folder, asked.rev)
        tree = Trees(folder, cache, lambda text: watch(Progress(0, 1, text))).of(arm, task)
        if isinstance(tree, str):
            return bare_run(task, arm, "crashed", tree, tier="timed")
        root, environment = tree.path, tree.environment
    watch(Progress(0, 1, f"{task.entry} {task.variant.name}, {plan.steps} steps on {plan.world_size} ranks"))
    with tempfile.TemporaryDirectory(prefix="regbot-") as scratch:
        return time_run(task, plan, place, arm, root, engine, Path(scratch) / "run", Limits(), environment)


def session_settings(folder: Path) -> Session:
    """How long runs are, as the ``regbot.toml`` in ``folder`` has it, or by default. Raises ConfigError."""
    file = folder / FILE_NAME
    return load_config(file).session if file.exists() else Session()


def timed_task(asked: Single, folder: Path) -> Task:
    """The task behind ``NAME[:SHAPE][/MESH]`` at the variant asked for, else at the one this machine can time."""
    chosen = choose(Choice(asked.workload, variant=asked.variant), folder)
    variant = asked.variant or timed_variant(chosen, len(this_node().gpus)) or "cpu"
    size = chosen.shape.variant(variant).size
    if size not in chosen.shape.meshes:
        raise ShapeError(f"shape {chosen.shape.id} has no size {size!r} that can be timed")
    workload = chosen.workload.model_copy(update={"variant": variant})
    task = single_task(chosen.workload_name, workload, chosen.shape, chosen.parallelism.name)
    if unfit := unfit_for(task, len(this_node().gpus)):
        raise ShapeError(unfit)
    return task
