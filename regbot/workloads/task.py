"""Tasks: the entries of a verdict. A task is one workload at one shape, variant and mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from regbot.records.config import AXIS_KEYS, SMOKE_DISPATCHERS, Config, ConfigError, SessionSettings, Workload, override
from regbot.records.ledger import DEFAULT_PAPER_GPU, PaperGpu, Scalar
from regbot.records.meshes import MeshName, OwnMesh, Parallelism
from regbot.records.session import TimedPlan
from regbot.workloads.shapes import Shape, ShapeError, Variant, load_shape

PAPER_ADAPTERS = ("smoke", "module")
"""Adapters whose programs can run both on a paper GPU and on a CPU. Their models may lack a vocabulary (variants
``-moe``).
"""
GPU_ADAPTERS = ("torchtitan", "megatron")
"""Adapters that run the framework's own program, which needs GPUs: a paper GPU for traces, real ones for times."""
SMALL_NODES = (4, 2, 1)
"""Numbers of ranks on nodes with fewer GPUs than the mesh ``ep`` of the size ``smoke`` has ranks. All ranks are one
expert-parallel group. A single rank has no collectives, so only its times are judged. Frameworks have no such meshes.
"""


@dataclass(frozen=True)
class Task:
    """One entry of the verdict. Both arms run the same task, except for the overrides of an arm."""

    workload_name: str
    workload: Workload
    shape: Shape
    variant: Variant
    parallelism: Parallelism

    @property
    def entry(self) -> str:
        """Name of the entry in the verdict: ``[label:]shape@version/mesh``."""
        label = f"{self.workload.label}:" if self.workload.label else ""
        return f"{label}{self.shape.id}/{self.parallelism.name}"

    @property
    def wants_paper_gpu(self) -> bool:
        return not self.has_cpu_program or (self.workload.adapter in PAPER_ADAPTERS and self.workload.device == "cuda")

    @property
    def has_cpu_program(self) -> bool:
        """Whether this task can be traced as a CPU program if no paper GPU is available."""
        return self.workload.adapter not in GPU_ADAPTERS

    @property
    def timed_device(self) -> Literal["cpu", "cuda"]:
        """Kind of device on which ranks are timed. Variants of size ``cpu`` are timed on CPUs. With all other variants,
        each rank has a GPU of its own.
        """
        return "cpu" if self.variant.size == "cpu" else "cuda"

    def at(self, overrides: Mapping[str, Scalar]) -> "Task":
        """Return this task with an arm's overrides of the workload's configuration. Raises ConfigError."""
        return replace(self, workload=override(self.workload, overrides)) if overrides else self


def plan(config: Config, only: Sequence[str] = (), mesh: MeshName | None = None) -> list[Task]:
    """Return the tasks of a configuration.

    ``only`` selects tasks by the name of their workload or entry; () selects all tasks. ``mesh`` selects the tasks of
    one mesh; None selects all meshes. Raises ConfigError.
    """
    if not config.workloads:
        raise ConfigError("regbot.toml names no workload", "add a table [workloads.NAME] (see docs/configuration.md)")
    tasks: dict[str, Task] = {}
    for name, workload in config.workloads.items():
        for task in _expand(name, workload):
            if other_task := tasks.get(task.entry):
                names = f"workloads.{other_task.workload_name} and workloads.{name}"
                advice = f"set label = '{name}' in one of them"
                raise ConfigError(f"{names} both give the entry {task.entry}", advice)
            tasks[task.entry] = task
    if unknown := [name for name in only if name not in config.workloads and name not in tasks]:
        known = ", ".join([*config.workloads, *tasks])
        raise ConfigError(f"there is no workload or entry {unknown[0]!r}", f"regbot.toml gives {known}")
    selected = [task for task in tasks.values() if not only or task.workload_name in only or task.entry in only]
    return [task for task in selected if mesh is None or task.parallelism.name == mesh]


def smoke_task(
    shape: Shape,
    variant: str,
    mesh: MeshName = "ep",
    world: int | None = None,
    ep: int | None = None,
    dispatcher: str = "",
    *,
    device: Literal["cpu", "cuda"] = "cuda",
    gpu: PaperGpu = DEFAULT_PAPER_GPU,
) -> Task:
    """Return a task that runs regbot's own smoke model, for ``ledger trace SHAPE``. See ``single_task``.

    ``gpu`` is the model that a paper GPU imitates. Raises ShapeError, ConfigError.
    """
    if dispatcher not in ("", *SMOKE_DISPATCHERS):
        raise ConfigError(f"there is no dispatcher {dispatcher!r}", f"there are {', '.join(SMOKE_DISPATCHERS)}")
    workload = Workload(
        adapter="smoke", shapes=[shape.name], variant=variant, meshes=[mesh], dispatcher=dispatcher, device=device,
        gpu=gpu,
    )  # fmt: skip
    return single_task("smoke", workload, shape, mesh, world, ep)


def single_task(
    name: str,
    workload: Workload,
    shape: Shape,
    mesh: MeshName | OwnMesh,
    world: int | None = None,
    ep: int | None = None,
) -> Task:
    """Return the task of the workload called ``name`` at one shape.

    ``mesh`` is the name of a mesh of the shape, or a mesh that the workload itself defines. If ``world`` or ``ep`` is
    given, a mesh of ``world`` ranks with expert-parallel groups of ``ep`` ranks replaces the mesh of the shape, but not
    a mesh of the workload's own. Raises ShapeError.
    """
    variant = shape.variant(workload.variant)
    if not variant.geometry.vocabulary and workload.adapter not in PAPER_ADAPTERS:
        reason = f"the variant {variant.name}, which has no vocabulary: models of this adapter need one"
        raise ShapeError(f"adapter {workload.adapter!r} cannot run {reason}")
    if isinstance(mesh, OwnMesh):
        if variant.geometry.experts % mesh.ep:
            raise ShapeError(f"shape {shape.id}: {variant.geometry.experts} experts do not divide over EP {mesh.ep}")
        workload = workload.model_copy(update={"config": {**workload.config, **_axis_settings(workload, mesh)}})
        parallelism = mesh.parallelism()
    elif world is None and ep is None:
        parallelism = shape.meshes[variant.size][mesh]
    else:
        parallelism = shape.parallelism(variant.size, world, ep)
    return Task(name, workload, shape, variant, parallelism)


def _axis_settings(workload: Workload, mesh: OwnMesh) -> dict[str, Scalar]:
    """Return the keys of the framework's configuration that set the axes of ``mesh``, with their values.

    An axis of size 1 is the framework's default. But Megatron gives ETP (tensor parallelism of the experts) the size of
    TP by default.
    """
    keys, sizes = AXIS_KEYS[workload.adapter], mesh.axis_sizes
    axes_to_set = {axis for axis, size in sizes.items() if size > 1}
    if workload.adapter == "megatron" and mesh.tp > 1:
        axes_to_set.add("etp")
    return {key: sizes[axis] for axis, key in keys.items() if axis in axes_to_set}


def timed_tasks(config: Config, tasks: Sequence[Task], gpus: int) -> list[Task]:
    """Return the tasks to time, each at the variant that a machine with ``gpus`` GPUs can run. Raises ConfigError.

    Each workload is timed once for each shape, on the first of its meshes. MaxText, meshes of the workload's own, and
    shapes without a variant that can be timed are only traced.
    """
    selected: dict[tuple[str, str], Task] = {}
    for task in tasks:
        name, mesh = task.workload_name, task.parallelism.shape_mesh  # None: a mesh that the workload itself defines
        timed_shapes = config.workloads[name].timed  # None: all shapes that can be timed
        is_excluded = timed_shapes is not None and task.shape.name not in timed_shapes
        if task.workload.adapter == "maxtext" or mesh is None or (name, task.shape.name) in selected or is_excluded:
            continue
        variant = timed_variant(task, mesh, gpus)
        if variant is None and timed_shapes is None:
            continue
        if variant is None:
            problem = f"workloads.{name}.timed: {task.shape.id} has no size that can be timed"
            raise ConfigError(problem, "remove it from the list")
        try:
            timed_task = task_on_node(task, variant, mesh, gpus)
        except ShapeError as error:
            raise ConfigError(f"workloads.{name}.timed_variant: {error}") from error
        if unfit_reason := unfit_for(timed_task, gpus):
            raise ConfigError(f"workloads.{name}.timed_variant: {unfit_reason}")
        selected[name, task.shape.name] = timed_task
    return list(selected.values())


def plan_of(task: Task, session: SessionSettings) -> TimedPlan:
    """Return the plan of a timed run of ``task``, with the numbers of steps of the session or else of the shape."""
    warmup = session.warmup or task.shape.warmup_steps
    geometry = task.variant.geometry
    return TimedPlan(
        entry=task.entry,
        variant=task.variant.name,
        dispatcher=task.workload.dispatcher,
        world_size=task.parallelism.world_size,
        steps=warmup + (session.steps or task.shape.timed_steps),
        cut=warmup,
        tokens_per_step=geometry.tokens,
        flops_per_step=geometry.flops_per_step,
    )


def task_on_node(task: Task, variant: str, mesh: MeshName, gpus: int) -> Task:
    """Return ``task`` at ``variant`` for a node with ``gpus`` GPUs. Raises ShapeError.

    If the variant has the size ``smoke`` and the node has fewer GPUs than ``mesh`` has ranks, the task may have fewer.
    """
    workload = task.workload.model_copy(update={"variant": variant})
    world = _smoke_ranks(task, mesh, gpus) if task.shape.variant(variant).size == "smoke" else None
    is_reduced = world is not None and world < task.shape.meshes["smoke"][mesh].world_size
    return single_task(task.workload_name, workload, task.shape, mesh, world if is_reduced else None)


def _smoke_ranks(task: Task, mesh: MeshName, gpus: int) -> int:
    """Return the number of ranks that time the size ``smoke``. It is above ``gpus`` if no number fits the node."""
    ranks = task.shape.meshes["smoke"][mesh].world_size
    can_use_fewer_ranks = mesh == "ep" and task.workload.adapter in PAPER_ADAPTERS
    if gpus >= ranks or not can_use_fewer_ranks:
        return ranks
    return next((fewer_ranks for fewer_ranks in SMALL_NODES if fewer_ranks <= gpus), ranks)


def unfit_for(task: Task, gpus: int) -> str:
    ranks = task.parallelism.world_size
    if task.variant.size == "cpu" or gpus >= ranks or task.workload.adapter == "command":
        return ""
    needs = f"{task.variant.name} of {task.shape.id} needs {ranks} GPUs"
    return f"{needs}, and this machine has {gpus}; use the variant cpu"


def timed_variant(task: Task, mesh: MeshName, gpus: int) -> str | None:
    """Return the variant of ``task`` to time: the workload's own, ``smoke`` if there are enough GPUs, or ``cpu`` if the
    adapter can run on a CPU. Return None if the shape has no variant that can be timed.
    """
    if task.workload.timed_variant:
        return task.workload.timed_variant
    if task.workload.adapter == "command":  # the command starts its own processes; the size only describes its steps
        return next((size for size in ("smoke", "cpu") if size in task.shape.sizes), None)
    if "smoke" in task.shape.sizes and gpus >= _smoke_ranks(task, mesh, gpus):
        return "smoke"
    return "cpu" if "cpu" in task.shape.sizes and task.has_cpu_program else None


def _expand(name: str, workload: Workload) -> list[Task]:
    try:
        shapes = [load_shape(shape) for shape in workload.shapes]
        return [single_task(name, workload, shape, mesh) for shape in shapes for mesh in workload.meshes]
    except ShapeError as error:
        raise ConfigError(f"workloads.{name}: {error}") from error
