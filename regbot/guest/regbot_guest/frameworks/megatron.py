"""Megatron-core: a GPT MoE of its own parts, whose training step is counted.

Counted in a fake world without values (``static``) or on real ranks (``real``), or timed there (``timed``). Megatron
comes from the checkout's source roots, or where they hold none, from what the interpreter has installed. What is put
together is in ``megatron_model``, what it is configured with in ``megatron_settings`` and ``megatron_recipe``, and what
is replaced to do without a GPU in ``megatron_cpu``.
"""

import importlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbot_guest.axes import Axes
from regbot_guest.compiled import CompileWatch
from regbot_guest.count import FAKE_PATCHES, building
from regbot_guest.frameworks import megatron_cpu as cpu
from regbot_guest.frameworks import megatron_settings as configuration
from regbot_guest.frameworks.megatron_model import (
    Built,
    build,
    check_geometry,
    classes,
    join_groups,
    moe_layers,
    step_of,
)
from regbot_guest.frameworks.megatron_recipe import of_recipe
from regbot_guest.frameworks.megatron_settings import FLEX, Settings
from regbot_guest.frameworks.stepping import Loop, Scalar, count, fake_world
from regbot_guest.frameworks.timed import time_loop
from regbot_guest.harness import ContractError
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.shadow import ShadowValues

STEPS = 2
"""The first step reduces gradients at its end, because the overlap learns its order there; later ones are alike."""

FORCED = (
    "routing is forced: the router's logits choose {} experts (moe_router_force_load_balancing, apply_random_logits)"
)
TIMED = (
    "timed with Megatron's local layers and without its compiled fusions, so only changes of it can be judged; time a "
    "real training run with adapter = 'command'"
)
EXECUTED = {"MoEAlltoAllTokenDispatcher": "alltoall", "MoEAllGatherTokenDispatcher": "allgather"}
"""Megatron's dispatchers by class; every other one exchanges tokens past torch.distributed."""


def work(request: Request) -> dict[str, Any]:
    """The part of the raw record that was asked for. Raises ContractError."""
    warnings = _import_megatron(request)
    static = request.mode == "static"
    device = torch.device("cpu") if static else _device(request)
    settings = of_recipe(request) if request.recipe else configuration.of_shape(request)
    settings.warnings += warnings
    configuration.override(settings, request.config)
    configuration.refuse_other_models(settings)
    asked = configuration.choose_dispatcher(settings, request.dispatcher, static)
    with ExitStack() as stack:
        if device.type == "cpu":
            configuration.fit_for_cpu(settings)
            settings.patches[:0] = stack.enter_context(cpu.device_is_cpu())
        else:
            settings.patches[:0] = [cpu.FUSIONS, cpu.LOCAL]
        if settings.experts and request.routing != "natural":
            stack.enter_context(_forced_routing(request, settings))
        job = _Job(request, settings, asked, device)
        return _count_without_values(job) if static else _run_on_ranks(job)


@dataclass(frozen=True)
class _Job:
    """What is to be built, fit for ``device``. ``asked`` is the dispatcher's word, '' where there are no experts."""

    request: Request
    settings: Settings
    asked: str
    device: torch.device


def _count_without_values(job: _Job) -> dict[str, Any]:
    request, settings = job.request, job.settings
    settings.patches[:0] = FAKE_PATCHES[:2]
    if request.routing == "natural" and settings.experts:
        settings.warnings.append("routing is natural, and without values it was taken to be balanced")
    with fake_world(request.world) as mode:
        axes, groups = join_groups(settings, request.world)  # rank numbers are read from tensors with values
        shadows = ShadowValues(mode, settings.experts, settings.model.get("moe_router_topk") or 1, _route(request))
        with cpu.without_values(shadows) as patches, mode, shadows.readable():
            settings.patches += patches
            with building(shadows), cpu.alike_on_all_ranks() as alike:
                settings.patches += alike
                loop, _ = _loop(job, axes, groups)
            return count(request, loop, shadows, max(STEPS, request.steps))


def _run_on_ranks(job: _Job) -> dict[str, Any]:
    request, settings = job.request, job.settings
    if request.mode == "timed":
        settings.warnings.append(TIMED)
    with _real_world(job.device):
        axes, groups = join_groups(settings, request.world)
        torch.manual_seed(request.seed)
        if job.device.type == "cuda":
            cpu.named("megatron.core.tensor_parallel", "model_parallel_cuda_manual_seed")(request.seed)
        loop, optimizers = _loop(job, axes, groups)
        if request.mode == "timed":
            return time_loop(request, loop, optimizers)
        return count(request, loop, None, max(STEPS, request.steps))


def _loop(job: _Job, axes: Axes, groups: Sequence[dist.ProcessGroup]) -> tuple[Loop, list[torch.optim.Optimizer]]:
    """The loop, and torch's optimizers inside Megatron's."""
    request, settings = job.request, job.settings
    start = time.perf_counter()
    with CompileWatch() as watch:  # what is compiled while building is called later
        built = build(settings, job.device)
    if not request.recipe:
        check_geometry(built, request)
    layers = list(moe_layers(built.core))

    def backends(observer: Observer) -> Mapping[str, Mapping[str, str]]:
        return _backends(job, built, layers, observer)

    version = str(importlib.import_module("megatron.core").__version__)
    if version not in cpu.SEEN:
        settings.warnings.append(f"megatron-core {version} has not been seen to work; {', '.join(cpu.SEEN)} has")
    loop = Loop(
        models=[built.core],
        axes=axes,
        groups=groups,
        step=step_of(built, settings, job.device, values=request.mode != "static"),
        backends=backends,
        config=_resolved(request, settings, built),
        software={"megatron-core": version, "torch": str(torch.__version__)},
        patches=settings.patches,
        warnings=settings.warnings,
        seconds={"build": round(time.perf_counter() - start, 3)},
        built=watch,
        device=job.device,
    )
    parts = getattr(built.optimizer, "chained_optimizers", [built.optimizer])
    return loop, [part.optimizer for part in parts if part.optimizer is not None]


def _import_megatron(request: Request) -> list[str]:
    """Import it with its fused functions left as they are written. Returns warnings; raises ContractError."""
    try:
        with cpu.uncompiled():
            for module in ("megatron.core", "megatron.core.models.gpt", "megatron.core.optimizer"):
                importlib.import_module(module)
        place = str(importlib.import_module("megatron.core").__file__)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0] == "megatron"
        what = "megatron.core is neither in the checkout nor installed" if missing else str(error)
        raise ContractError(
            "config",
            f"Megatron cannot be imported: {what}; install what it needs in the workload's 'python', and set "
            "'source_roots' to the folder that holds megatron/",
        ) from error
    root = Path(request.root).resolve()
    if Path(place).resolve().is_relative_to(root):
        return []
    held = [source for source in request.source_roots if (root / source / "megatron" / "core").is_dir()]
    if held:
        raise ContractError(
            "config", f"the checkout holds megatron/core in {held[0]!r}, and another was imported: {place}"
        )
    return ["the checkout holds no Megatron; the one that is installed was traced"]


def _device(request: Request) -> torch.device:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != request.world:
        raise ContractError("config", f"the launcher started {started} ranks, the request needs {request.world}")
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@contextmanager
def _real_world(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _forced_routing(request: Request, settings: Settings) -> Iterator[None]:
    """MCore's own forcing draws random logits, balanced on average only: exact ones in their place."""
    settings.model["moe_router_force_load_balancing"] = True
    settings.patches.append(FORCED.format(request.routing))
    top_k = int(settings.model.get("moe_router_topk") or 1)

    def forced(logits: Tensor) -> Tensor:
        rows = logits.shape[:-1].numel()
        chosen = forced_experts(rows, logits.shape[-1], top_k, request.routing, request.seed, logits.device)
        wanted = torch.zeros(rows, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        wanted = wanted.scatter(1, chosen, 1.0).view(logits.shape)
        return logits + (wanted - logits).detach()  # their values, and the gradients of the router's

    router = importlib.import_module("megatron.core.transformer.moe.router")
    with cpu.replaced(router, "apply_random_logits", forced):
        yield


def _route(request: Request) -> Any:
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, experts: int, top_k: int) -> Tensor:
        return forced_experts(tokens, experts, top_k, routing, request.seed, torch.device("cpu"))

    return route


def _backends(job: _Job, built: Built, layers: Sequence[Any], observer: Observer) -> dict[str, Mapping[str, str]]:
    """By backend: requested, resolved, executed and the evidence, after the counted step."""
    told = job.settings.told
    cores = [layer.self_attention.core_attention for layer in built.core.decoder.layers]
    wanted = str(told.get("transformer_impl", "local"))
    found: dict[str, Mapping[str, str]] = {
        "attention": _told(wanted, "local", type(cores[0]).__name__, classes(cores)),
    }
    if not layers:
        return found
    wanted = "grouped_gemm" if told.get("moe_grouped_gemm") or built.config.moe_grouped_gemm else "sequential"
    experts = [layer.experts for layer in layers]
    executed = "sequential" if {type(one).__name__ for one in experts} == {"SequentialMLP"} else "grouped_gemm"
    resolved = "grouped_gemm" if built.config.moe_grouped_gemm else "sequential"
    found["grouped_gemm"] = _told(wanted, resolved, executed, classes(experts))
    found["dispatcher"] = _dispatcher(job, built, [layer.token_dispatcher for layer in layers], observer)
    return found


def _dispatcher(job: _Job, built: Built, dispatchers: Sequence[Any], observer: Observer) -> dict[str, str]:
    """Told by the objects in the layers and by what was counted; where these disagree, the count is believed."""
    kinds: dict[str, int] = {}
    for key, times in observer.tally.count.items():
        if key.role == "payload" and "ep" in key.axis.replace("_", "|").split("|") and ".mlp" in key.where:
            kinds[key.kind] = kinds.get(key.kind, 0) + times
    words = {EXECUTED.get(type(one).__name__, "flex") for one in dispatchers}
    executed = words.pop() if len(words) == 1 else "mixed"
    if executed != "flex" and job.request.ep > 1:
        executed = "alltoall" if kinds.get("all_to_all") else "allgather" if kinds.get("all_gather") else "none"
    if executed == "flex" and job.asked in FLEX:
        executed = job.asked
    resolved = str(built.config.moe_token_dispatcher_type)
    counted = ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items())) or "none"
    evidence = f"{classes(dispatchers)}; payload collectives of expert layers on axis ep: {counted}"
    return _told(job.asked, job.asked if resolved == "flex" and job.asked in FLEX else resolved, executed, evidence)


def _told(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def _resolved(request: Request, settings: Settings, built: Built) -> dict[str, Scalar]:
    """The configuration as Megatron resolved it; where a CPU had to have another, as it was asked for."""
    return {
        **configuration.flat(built.config),
        **configuration.flat(built.ddp_config, "ddp."),
        **configuration.flat(built.optimizer_config, "optimizer."),
        **settings.told,
        "recipe": request.recipe or "the numbers of the shape",
        "world": request.world,
        "ep": request.ep,
        "routing": request.routing,
        "mlp": request.mlp,
        "vocabulary": settings.vocabulary,
        "sequence": settings.sequence,
        "micro_batch": settings.micro_batch,
    }
