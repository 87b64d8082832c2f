"""``regbot run``: time one run of one workload. ``regbot compare`` can read the resulting record."""

from dataclasses import dataclass
from pathlib import Path

from regbot.check.sessions.worktrees import Worktrees
from regbot.check.static_trace import WORKING_TREE, TraceOptions, choose_task
from regbot.engines import open_engine
from regbot.engines.removal import temporary_folder
from regbot.records.config import FILE_NAME, Config, load_config
from regbot.records.run import Position, Run
from regbot.records.text.progress import Progress, Watcher
from regbot.workloads.checkout.arms import resolve_arm
from regbot.workloads.guest import Checkout, Scratch, bare_run
from regbot.workloads.launch import needs_of, time_run
from regbot.workloads.shapes import ShapeError
from regbot.workloads.task import Task, plan_of, single_task, task_on_node, timed_variant, unfit_for
from regbot.workloads.timed import RunSpec


@dataclass(frozen=True)
class SingleRunOptions:
    """Options of ``regbot run``."""

    workload: str
    """A shape or a workload of the configuration, as ``NAME[:SHAPE][/MESH]``."""
    rev: str | None = None
    """Commit to run; None for the files of the working tree."""
    variant: str | None = None
    """Variant of the shape; None for one that the GPUs of this node can time."""
    engine: str = "local"
    """Name of the engine: local or slurm."""
    world: int | None = None
    """Number of ranks, with EP as large as the shape allows. None takes the mesh of the shape or node."""


def run_once(options: SingleRunOptions, folder: Path, cache: Path, watch: Watcher = lambda _: None) -> Run:
    """Launch the workload of the working tree ``folder`` once and time its steps.

    Raises ConfigError, ShapeError, CheckoutError, EngineError.
    """
    config = config_of(folder)
    with open_engine(options.engine, config, cache) as engine:
        task = timed_task(options, folder, engine.gpus)
        plan = plan_of(task, config.session)
        checkout = Checkout(WORKING_TREE, folder)
        spec = RunSpec(Position(block=1, slot=0, order="ABBA"), attempt=1, steps=plan.steps, cut=plan.cut)
        if options.rev is not None:
            arm = resolve_arm(folder, options.rev)
            trees = Worktrees(folder, cache, lambda text: watch(Progress(0, 1, text)), engine.sandbox)
            worktree = trees.worktree(arm, task)
            if isinstance(worktree, str):  # the reason why it could not be built
                return bare_run(task, arm, "crashed", worktree, tier="timed")
            checkout = Checkout(arm, worktree.path, worktree.environment)
        watch(Progress(0, 1, f"{task.entry} {task.variant.name}, {plan.steps} steps on {plan.world_size} ranks"))
        cache.mkdir(parents=True, exist_ok=True)
        # The nodes of a cluster cannot read this machine's /tmp.
        shared_folder = cache if engine.name != "local" else None
        with temporary_folder(shared_folder) as scratch, engine.seat(needs_of(task)) as seat:
            return time_run(task, spec, checkout, seat, Scratch(scratch / "run"))


def config_of(folder: Path) -> Config:
    """Load the ``regbot.toml`` in ``folder``. Return the default configuration if there is none. Raises ConfigError."""
    file = folder / FILE_NAME
    return load_config(file) if file.exists() else Config()


def timed_task(options: SingleRunOptions, folder: Path, gpus: int) -> Task:
    """Return the task that ``options`` selects, at the requested variant or one that ``gpus`` GPUs can time.

    Raises ConfigError, ShapeError.
    """
    traced_task = choose_task(TraceOptions(options.workload, variant=options.variant), folder)
    mesh = traced_task.parallelism.shape_mesh  # None for a mesh that the workload itself defines
    if mesh is None:
        raise ShapeError(f"the mesh {traced_task.parallelism.name} is only traced", "time ep or ep-dp")
    # The variant cpu runs on every machine.
    variant = options.variant or timed_variant(traced_task, mesh, gpus) or "cpu"
    size = traced_task.shape.variant(variant).size  # ``meshes`` of a shape has the sizes that can be timed
    if size not in traced_task.shape.meshes:
        raise ShapeError(f"shape {traced_task.shape.id} has no size {size!r} that can be timed")
    task = task_on_node(traced_task, variant, mesh, gpus)
    if options.world is not None:  # the requested number of ranks
        task = single_task(task.workload_name, task.workload, task.shape, mesh, options.world)
    if why_unfit := unfit_for(task, gpus):
        raise ShapeError(why_unfit)
    return task
