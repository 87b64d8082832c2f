"""torchtitan: its own training program, and one counted step (``Trainer.train_step``) of it.

In the mode ``static``, ``torchtitan.train`` runs unmodified on a paper GPU. In the mode ``timed``, the trainer
that this program would build makes the steps on real ranks.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from regbot_guest.axes import Axes
from regbot_guest.contract import ContractError
from regbot_guest.count import list_routing_warnings
from regbot_guest.frameworks import torchtitan_config as configuration
from regbot_guest.frameworks.flat_config import flatten_config
from regbot_guest.frameworks.own_program import ProgramDescription, TrainingProgram, count_own_step
from regbot_guest.frameworks.torchtitan_backends import TorchtitanBackends, choose_dispatcher
from regbot_guest.frameworks.torchtitan_replacements import (
    Changes,
    import_torchtitan,
    replacements,
    use_test_data,
)
from regbot_guest.frameworks.torchtitan_shape import PINNED_RECIPE, check_shape, read_routing
from regbot_guest.paper.device import Device
from regbot_guest.probe import time_loop
from regbot_guest.request import Request
from regbot_guest.routing import make_expert_choice
from regbot_guest.software import module_versions
from regbot_guest.tally import StepCounter
from regbot_guest.training_loop import TrainingLoop
from regbot_guest.world import choose_device

EXCLUDED_FIELDS = ("hf_assets_path", "dump_folder", "tokenizer", "dataloader", "validator", "profiler")
"""Fields of the configuration that are left out of the record: they contain file paths, or they are replaced or never
used.
"""
PROGRAM = "torchtitan.train"
STEP = ("torchtitan.trainer", "Trainer.train_step")

AXES = {"ep": "ep", "efsdp": "edp", "fsdp": "dp", "dp_shard": "dp"}
"""Other mesh dimensions keep torchtitan's names. One that spans the same ranks as an earlier one is left out, such as
``batch`` and ``loss`` if only ``fsdp`` splits the data.
"""


def run_request(request: Request, device: Device | None, record: dict[str, Any]) -> None:
    """Run the requested step and add its part to ``record``. Only the mode ``static`` needs a ``device``. Raises
    ContractError.
    """
    if request.mlp != "moe":
        raise ContractError("config", "torchtitan has no dense counterpart; use the smoke model's, or another variant")
    if request.routing == "skewed":
        raise ContractError("config", "torchtitan can force balanced routing only, not skewed; use another variant")
    if request.mode != "static":
        _time_on_ranks(request, record)
        return
    if device is None:
        raise ContractError("config", "torchtitan is traced on a paper GPU only, and there is none")
    record |= _count_own_step(request, device)


def _count_own_step(request: Request, device: Device) -> dict[str, Any]:
    job = _TorchtitanJob(request, torch.device("cuda"))

    def configure(config: Any) -> None:
        job.configure(config)
        # A recipe may have other numbers of experts than the shape.
        experts, top_k = read_routing(config)
        request_of_recipe = replace(request, geometry=replace(request.geometry, experts=experts, top_k=top_k))
        device.set_expert_choice(experts, make_expert_choice(request_of_recipe))

    # The step is a method, so its first argument is the trainer.
    def get_models(args: Sequence[Any], _: Mapping[str, Any]) -> Sequence[nn.Module]:
        job.trainer = args[0]
        return job.models()

    def get_axes(args: Sequence[Any], _: Mapping[str, Any]) -> Axes:
        axes, _groups = name_axes(args[0].parallel_dims)
        return axes

    program = TrainingProgram(
        start=PROGRAM,
        arguments=configuration.command_line(request),
        step=STEP,
        models=get_models,
        axes=get_axes,
        describe=job.describe,
        experts=request.geometry.experts,
        patches=job.changes.made,
        replacements=lambda: replacements(configure, job.refuse_recipe, job.changes, request.world),
    )
    return count_own_step(request, device, program)


def _time_on_ranks(request: Request, record: dict[str, Any]) -> None:
    job = _TorchtitanJob(request, choose_device(request.world, request.device))
    with replacements(job.configure, job.refuse_recipe, job.changes, request.world):
        device_type = import_torchtitan("torchtitan.tools.utils").device_type
        if device_type != job.device.type:
            raise ContractError(
                "config",
                f"torchtitan trains on {device_type} devices on this machine, but this run is for {job.device.type} "
                "devices",
            )
        manager = importlib.import_module("torchtitan.config").ConfigManager()
        job.trainer = manager.parse_args(configuration.command_line(request)).build()
        time_loop(request, job.make_loop(), job.trainer.optimizers.optimizers, record)
        # This is skipped after an error, because it would then wait for collectives of the other ranks.
        dist.destroy_process_group()


@dataclass
class _TorchtitanJob:
    request: Request
    device: torch.device
    changes: Changes = field(default_factory=Changes)
    warnings: list[str] = field(default_factory=list)
    trainer: Any = None
    backends: TorchtitanBackends | None = None

    def configure(self, config: Any) -> None:
        request = self.request
        self.warnings += configuration.configure(config, request)
        self.backends = choose_dispatcher(config, request, self.device)
        use_test_data(config, self.changes)
        configuration.validate(config)
        self.warnings += list_routing_warnings(request)

    def refuse_recipe(self, error: Exception) -> ContractError:
        return configuration.explain_unknown_recipe(self.request, error)

    def models(self) -> list[nn.Module]:
        """The chunked loss calls the output head after the model's forward. Listed heads make these calls part of
        forward.
        """
        parts = self.trainer.model_parts
        heads = [part.lm_head for part in parts if getattr(part, "lm_head", None) is not None]
        return [*heads, *parts]

    def describe(self, counter: StepCounter) -> ProgramDescription:
        assert self.backends is not None
        request = self.request
        config = flatten_config(self.trainer.config, left_out=EXCLUDED_FIELDS)
        config["recipe"] = request.recipe or f"{PINNED_RECIPE[1]} with the numbers of the shape"
        config |= {"world": request.world, "ep": request.ep, "routing": request.routing}
        return ProgramDescription(
            config=config,
            software=module_versions(("torchtitan", "torch")),
            backends=self.backends.describe(counter),
            warnings=[*self.warnings, *self.changes.skipped, *check_shape(self.trainer, self.request)],
        )

    def make_loop(self) -> TrainingLoop:
        assert self.backends is not None
        axes, groups = name_axes(self.trainer.parallel_dims)
        # The backends of this description are not used. They are described again after the counted step.
        description = self.describe(StepCounter(axes))
        return TrainingLoop(
            models=self.models(),
            axes=axes,
            groups=groups,
            step=_make_step(self.trainer),
            backends=self.backends.describe,
            config=description.config,
            software=description.software,
            patches=self.changes.made,
            warnings=description.warnings,
            device=self.device,
        )


def _make_step(trainer: Any) -> Callable[[], float | None]:
    losses: list[float] = []
    log = trainer.metrics_processor.log

    def record_loss(step: int, loss: float, *args: Any, **kwargs: Any) -> Any:
        losses.append(loss)
        return log(step, loss, *args, **kwargs)

    trainer.metrics_processor.log = record_loss
    data = trainer.batch_generator(trainer.dataloader)

    def step() -> float | None:
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(data)
        return losses[-1] if losses else None

    return step


def name_axes(dims: Any) -> tuple[Axes, list[dist.ProcessGroup]]:
    """Return torchtitan's mesh dimensions as axes, and their groups without duplicates. ``dims`` is a ParallelDims."""
    axes = Axes()
    groups: dict[str, dist.ProcessGroup] = {}
    meshes = dims.get_all_one_dimensional_meshes()
    spanned_ranks: set[tuple[int, ...]] = set()
    renamed_dimensions = [name for name in AXES if name in meshes]
    other_dimensions = [name for name in meshes if name not in AXES]
    for name in [*renamed_dimensions, *other_dimensions]:
        group = meshes[name].get_group()
        ranks = tuple(dist.get_process_group_ranks(group))
        groups.setdefault(group.group_name, group)
        if name in AXES or ranks not in spanned_ranks:
            axes.add(AXES.get(name, name), group)
        spanned_ranks.add(ranks)
    return axes, list(groups.values())
