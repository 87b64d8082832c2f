"""Tasks: the entries of a verdict, each a workload at one shape, variant and mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from regbot.config import SMOKE_DISPATCHERS, Config, ConfigError, Session, Workload, override
from regbot.records.ledger import Scalar
from regbot.records.session import TimedPlan
from regbot.shapes import MeshName, Parallelism, Shape, ShapeError, Variant, load_shape

ON_PAPER = ("smoke", "module")
"""Adapters whose programs run on a paper GPU."""


@dataclass(frozen=True)
class Task:
    """One entry of the verdict. The same task is run at both arms."""

    workload_name: str
    workload: Workload
    shape: Shape
    variant: Variant
    parallelism: Parallelism

    @property
    def entry(self) -> str:
        """Name in the verdict: ``[label:]shape@version/mesh``."""
        label = f"{self.workload.label}:" if self.workload.label else ""
        return f"{label}{self.shape.id}/{self.parallelism.name}"

    @property
    def wants_paper_gpu(self) -> bool:
        """Whether its static traces run on a paper GPU where one can be had."""
        return self.workload.adapter in ON_PAPER and self.workload.device == "cuda"

    def at(self, overrides: Mapping[str, Scalar]) -> "Task":
        """The task at an arm with overrides. Raises ConfigError."""
        return replace(self, workload=override(self.workload, overrides)) if overrides else self


def plan(config: Config, only: Sequence[str] = (), mesh: MeshName | None = None) -> list[Task]:
    """Return the tasks of a configuration.

    ``only`` selects tasks by the name of their workload or entry, ``mesh`` by their mesh. Raises ConfigError.
    """
    if not config.workloads:
        raise ConfigError("regbot.toml names no workload; add a table [workloads.NAME] (see docs/configuration.md)")
    tasks: dict[str, Task] = {}
    for name, workload in config.workloads.items():
        for task in _expand(name, workload):
            if clash := tasks.get(task.entry):
                raise ConfigError(
                    f"workloads.{clash.workload_name} and workloads.{name} both give the entry {task.entry}; "
                    f"set label = '{name}' in one of them"
                )
            tasks[task.entry] = task
    if unknown := [name for name in only if name not in config.workloads and name not in tasks]:
        known = ", ".join([*config.workloads, *tasks])
        raise ConfigError(f"there is no workload or entry {unknown[0]!r}; regbot.toml gives {known}")
    return [
        task
        for task in tasks.values()
        if (not only or {task.workload_name, task.entry} & set(only)) and mesh in (None, task.parallelism.name)
    ]


def smoke_task(
    shape: Shape,
    variant: str,
    mesh: MeshName = "ep",
    world: int | None = None,
    ep: int | None = None,
    dispatcher: str = "",
    device: Literal["cpu", "cuda"] = "cuda",
) -> Task:
    """A task of regbot's own smoke model, for ``ledger trace SHAPE``. Raises ShapeError, ConfigError."""
    if dispatcher not in ("", *SMOKE_DISPATCHERS):
        raise ConfigError(f"there is no dispatcher {dispatcher!r}; there are {', '.join(SMOKE_DISPATCHERS)}")
    workload = Workload(
        adapter="smoke", shapes=[shape.name], variant=variant, meshes=[mesh], dispatcher=dispatcher, device=device
    )
    return single_task("smoke", workload, shape, mesh, world, ep)


def single_task(
    name: str, workload: Workload, shape: Shape, mesh: MeshName, world: int | None = None, ep: int | None = None
) -> Task:
    """One workload at one shape, on a named mesh or on ``world`` ranks with expert-parallel groups of ``ep``."""
    variant = shape.variant(workload.variant)
    if world is None and ep is None:
        parallelism = shape.meshes[variant.size][mesh]
    else:
        parallelism = shape.parallelism(variant.size, world, ep)
    return Task(name, workload, shape, variant, parallelism)


def timed_tasks(config: Config, tasks: Sequence[Task], gpus: int) -> list[Task]:
    """Of the planned tasks those that are timed, each at the variant that ``gpus`` GPUs can run. Raises ConfigError.

    One mesh of a shape is enough: the first that is planned. A shape without a size for it (only ``full``) is traced
    and not timed, unless the configuration names it.
    """
    chosen: dict[tuple[str, str], Task] = {}
    for task in tasks:
        asked = config.workloads[task.workload_name].timed
        key = (task.workload_name, task.shape.name)
        if task.workload.adapter == "maxtext":
            continue  # it compiles ahead of time, and steps are not run
        if key in chosen or (asked is not None and task.shape.name not in asked):
            continue
        variant = timed_variant(task, gpus)
        if variant is None:
            if asked is not None:
                raise ConfigError(
                    f"workloads.{task.workload_name}.timed: {task.shape.id} has no size that can be timed; "
                    "take it out of the list"
                )
            continue
        workload = task.workload.model_copy(update={"variant": variant})
        try:
            chosen[key] = single_task(task.workload_name, workload, task.shape, task.parallelism.name)
        except ShapeError as error:
            raise ConfigError(f"workloads.{task.workload_name}.timed_variant: {error}") from error
        if unfit := unfit_for(chosen[key], gpus):
            raise ConfigError(f"workloads.{task.workload_name}.timed_variant: {unfit}")
    return list(chosen.values())


def plan_of(task: Task, session: Session) -> TimedPlan:
    """How long the runs of ``task`` are: as the configuration has it, else the shape's own numbers."""
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


def unfit_for(task: Task, gpus: int) -> str:
    """Why a machine with ``gpus`` GPUs cannot time ``task``, '' where it can: only ``cpu`` sizes run without."""
    ranks = task.parallelism.world_size
    if task.variant.size == "cpu" or gpus >= ranks or task.workload.adapter == "command":
        return ""
    return (
        f"{task.variant.name} of {task.shape.id} wants {ranks} GPUs, and this machine has {gpus}; use the variant cpu"
    )


def timed_variant(task: Task, gpus: int) -> str | None:
    """The variant of ``task`` that a machine with ``gpus`` GPUs times; None where its shape has none."""
    if task.workload.timed_variant:
        return task.workload.timed_variant
    if task.workload.adapter == "command":  # it starts what it starts; the size only tells what its steps are
        return "smoke" if "smoke" in task.shape.sizes else "cpu" if "cpu" in task.shape.sizes else None
    if "smoke" in task.shape.sizes and gpus >= task.shape.meshes["smoke"][task.parallelism.name].world_size:
        return "smoke"
    return "cpu" if "cpu" in task.shape.sizes else None


def _expand(name: str, workload: Workload) -> list[Task]:
    try:
        return [
            single_task(name, workload, load_shape(shape), mesh)
            for shape in workload.shapes
            for mesh in workload.meshes
        ]
    except ShapeError as error:
        raise ConfigError(f"workloads.{name}: {error}") from error
