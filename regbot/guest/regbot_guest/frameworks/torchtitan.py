"""torchtitan: its own trainer, configuration and training step, with mock data.

Counted in a fake world without values (``static``) or on real ranks (``real``), or timed on those (``timed``). The step
is ``Trainer.train_step``, called as ``Trainer.train`` calls it; saving, validation and profiling, which surround it
there, never run. What is replaced to do this without a GPU is listed in ``torchtitan_cpu``; what is forced, in
``torchtitan_config``.
"""

import gc
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbot_guest.axes import Axes
from regbot_guest.compiled import CompileWatch
from regbot_guest.count import FAKE_PATCHES, building
from regbot_guest.frameworks import torchtitan_config as configuration
from regbot_guest.frameworks import torchtitan_cpu as cpu
from regbot_guest.frameworks.stepping import Loop, Scalar, count, fake_world
from regbot_guest.frameworks.timed import time_loop
from regbot_guest.frameworks.torchtitan_backends import Backends, choose_dispatcher
from regbot_guest.frameworks.torchtitan_data import NoTokenizer, Numbers
from regbot_guest.frameworks.torchtitan_flat import flat
from regbot_guest.frameworks.torchtitan_shape import PINNED, check
from regbot_guest.harness import ContractError
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.shadow import ShadowValues

STEPS = 2
"""The first step gathers the root's parameters otherwise than all later ones: the last of two or more is steady."""

AXES = {"ep": "ep", "efsdp": "edp", "fsdp": "dp", "dp_shard": "dp"}
"""torchtitan's mesh dimensions under regbot's names; all others keep their own, and are no axis where they are the
ranks of one before (``batch`` and ``loss`` are, where nothing but ``fsdp`` splits the data)."""

DATA = "batches of arithmetic token numbers in place of tokenizer and dataset"


def work(request: Request) -> dict[str, Any]:
    """The part of the raw record that was asked for. Raises ContractError."""
    if request.mlp != "moe":
        raise ContractError(
            "config", "there is no dense control of torchtitan; use the smoke model's, or another variant"
        )
    if request.routing == "skewed":
        raise ContractError("config", "torchtitan can force balanced routing and no skewed one; use another variant")
    return _count_without_values(request) if request.mode == "static" else _count_on_ranks(request)


def _count_without_values(request: Request) -> dict[str, Any]:
    torch.autograd.set_multithreading_enabled(False)  # as torchtitan does where it opens the process groups itself
    with CompileWatch() as built, cpu.device_is_cpu(), _prepared(request, torch.device("cpu")) as job:
        job.patches[:0] = [*FAKE_PATCHES, cpu.MESHES]
        if request.routing == "natural":
            job.warnings.append("routing is natural, and without values it was taken to be balanced")
        with fake_world(request.world) as mode, cpu.meshes_with_values(job.trainer_class), mode:
            shadows = ShadowValues(mode, *configuration.routing(job.config), _balanced(request.seed))
            with shadows.readable():
                with building(shadows):
                    trainer = job.build()
                gc.enable()  # torchtitan turns it off for speed; tensors without values are freed by it
                return count(request, job.loop(trainer, built), shadows, max(STEPS, request.steps))


def _count_on_ranks(request: Request) -> dict[str, Any]:
    if int(os.environ.get("WORLD_SIZE", "1")) != request.world:
        started = os.environ.get("WORLD_SIZE", "1")
        raise ContractError("config", f"the launcher started {started} ranks, the request needs {request.world}")
    device = _device()
    timed = request.mode == "timed"
    # A watch leaves code eager that would be compiled; timed, it must be compiled.
    built = None if timed else CompileWatch()
    with (
        built or nullcontext(),
        cpu.device_is_cpu() if device.type == "cpu" else nullcontext(),
        _prepared(request, device) as job,
    ):
        try:
            trainer = job.build()
            loop = job.loop(trainer, built)
            if timed:
                return time_loop(request, loop, trainer.optimizers.optimizers)
            return count(request, loop, None, max(STEPS, request.steps))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@dataclass
class _Job:
    """A configuration that can be built here, and what was done to it for that."""

    request: Request
    device: torch.device
    trainer_class: Any
    version: str
    config: Any
    backends: Backends
    told: dict[str, Scalar]
    """The configuration as it was asked for, before anything was set for this machine."""
    patches: list[str]
    warnings: list[str]
    seconds: dict[str, float] = field(default_factory=dict)

    def build(self) -> Any:
        """The trainer. Raises ContractError where it is not of the shape that was asked for."""
        start = time.perf_counter()
        trainer = self.config.build()
        self.warnings += check(trainer, self.request)
        if self.device.type == "cpu":
            self.patches += cpu.reduce_with_sums(trainer.model_parts)
        self.seconds["build"] = round(time.perf_counter() - start, 3)
        return trainer

    def loop(self, trainer: Any, built: CompileWatch | None) -> Loop:
        axes, groups = _axes(trainer.parallel_dims)
        # The chunked loss calls the head by itself: its forward is the step's, although the model's is over.
        heads = [part.lm_head for part in trainer.model_parts if getattr(part, "lm_head", None) is not None]
        return Loop(
            models=[*heads, *trainer.model_parts],
            axes=axes,
            groups=groups,
            step=_step_of(trainer, values=self.request.mode != "static"),
            backends=self.backends.seen,
            config=_resolved(flat(trainer.config), self.told) | _asked(self.request),
            software={"torchtitan": self.version, "torch": str(torch.__version__)},
            patches=self.patches,
            warnings=self.warnings,
            seconds=self.seconds,
            built=built,
            device=self.device,
        )


@contextmanager
def _prepared(request: Request, device: torch.device) -> Iterator[_Job]:
    """The configuration for ``request``, made fit for ``device``; what torchtitan writes goes to a folder that is
    removed afterwards."""
    trainer_class = configuration.imported("torchtitan.trainer").Trainer
    config = configuration.load(request)
    backends = choose_dispatcher(config, request, device)
    told = flat(config)
    patches = [DATA, *(cpu.configure(config, request.config) if device.type == "cpu" else [])]
    configuration.validate(config)
    config.tokenizer, config.dataloader = NoTokenizer(), Numbers(config.model_spec.model.vocab_size)
    version, warnings = _version(Path(request.root)), []
    if version not in cpu.SEEN:
        warnings.append(f"this torchtitan (version {version}) has not been seen to work; {', '.join(cpu.SEEN)} has")
    with tempfile.TemporaryDirectory() as folder:
        config.dump_folder = folder
        yield _Job(request, device, trainer_class, version, config, backends, told, patches, warnings)


def _step_of(trainer: Any, values: bool) -> Callable[[], float | None]:
    """One turn of the loop in ``Trainer.train``."""
    losses: list[float] = []
    log = trainer.metrics_processor.log

    def noted(step: int, loss: float, *args: Any, **kwargs: Any) -> Any:
        losses.append(loss)
        return log(step, loss, *args, **kwargs)

    trainer.metrics_processor.log = noted
    data = trainer.batch_generator(trainer.dataloader)

    def step() -> float | None:
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(data)
        return losses[-1] if values and losses else None

    return step


def _axes(dims: Any) -> tuple[Axes, list[dist.ProcessGroup]]:
    """The mesh dimensions in use, and a process group of each; one that serves several dimensions stands there once."""
    axes = Axes()
    groups: dict[str, dist.ProcessGroup] = {}
    meshes = dims.get_all_one_dimensional_meshes()
    taken: set[tuple[int, ...]] = set()
    for name in [*(name for name in AXES if name in meshes), *(name for name in meshes if name not in AXES)]:
        group = meshes[name].get_group()
        ranks = tuple(dist.get_process_group_ranks(group))
        groups.setdefault(group.group_name, group)
        if name in AXES or ranks not in taken:
            axes.add(AXES.get(name, name), group)
        taken.add(ranks)
    return axes, list(groups.values())


def _resolved(built: dict[str, Scalar], told: dict[str, Scalar]) -> dict[str, Scalar]:
    """The configuration that was built, but for what was set for this machine: there, what was asked for."""

    def machine(key: str) -> bool:
        return ".inner_attention" in key or key in cpu.SET

    return {k: v for k, v in built.items() if not machine(k)} | {k: v for k, v in told.items() if machine(k)}


def _asked(request: Request) -> dict[str, Scalar]:
    recipe = request.recipe or f"{PINNED[1]} with the numbers of the shape"
    return {"recipe": recipe, "world": request.world, "ep": request.ep, "routing": request.routing}


def _balanced(seed: int) -> Callable[[int, int, int], torch.Tensor]:
    def route(tokens: int, experts: int, top_k: int) -> torch.Tensor:
        return forced_experts(tokens, experts, top_k, "balanced", seed, torch.device("cpu"))

    return route


def _device() -> torch.device:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= local:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _version(root: Path) -> str:
    """The version of the torchtitan that was imported; a checkout's own, where it comes from there."""
    package = importlib.import_module("torchtitan")
    if root.resolve() not in Path(str(package.__file__)).resolve().parents:
        return str(getattr(package, "__version__", "unknown"))
    try:
        return (root / "assets" / "version.txt").read_text(encoding="utf-8").strip()[:40]
    except OSError:
        return "unknown"
