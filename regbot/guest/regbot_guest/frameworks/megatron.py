"""Megatron-core: the training step of a GPT MoE model, built from Megatron's own parts.

In the mode ``static`` the step is counted in a fake world. In the modes ``real`` and ``timed`` it is counted or timed
on real ranks. Megatron is imported from the source roots of the checkout. If they do not contain Megatron, it is
imported from the installed packages of the interpreter. ``megatron_model`` builds the model, ``megatron_settings`` and
``megatron_recipe`` configure it, and ``megatron_cpu`` has the replacements that are needed to run it without a GPU.
"""

import importlib
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
from regbot_guest.compile_watch import CompileWatch
from regbot_guest.contract import ContractError
from regbot_guest.count import FAKE_PATCHES, build_context
from regbot_guest.frameworks import megatron_cpu as cpu
from regbot_guest.frameworks import megatron_settings as configuration
from regbot_guest.frameworks.megatron_model import (
    MegatronTraining,
    build,
    check_geometry,
    count_classes,
    find_moe_layers,
    join_groups,
    make_step,
)
from regbot_guest.frameworks.megatron_recipe import settings_from_recipe
from regbot_guest.frameworks.megatron_settings import FLEX, MegatronSettings
from regbot_guest.frameworks.timed_loop import time_loop
from regbot_guest.frameworks.training_loop import Scalar, TrainingLoop, count_loop, fake_world
from regbot_guest.observer import Observer
from regbot_guest.request import Request
from regbot_guest.routing import forced_experts
from regbot_guest.shadow_values import ShadowValues
from regbot_guest.world import choose_device, join_ranks

STEPS = 2
"""Minimum number of steps. Only the last step is counted. The first step reduces all gradients at its end, because the
overlap of reduction and backward has not yet learned the order of the gradients.
"""

FORCED_ROUTING = (
    "routing is forced: the router's logits choose {} experts (moe_router_force_load_balancing, apply_random_logits)"
)
TIMED_WARNING = (
    "timed with Megatron's local layers and without its compiled fusions, so only changes of the step time can be "
    "judged; time a real training run with adapter = 'command'"
)
DISPATCHERS = {"MoEAlltoAllTokenDispatcher": "alltoall", "MoEAllGatherTokenDispatcher": "allgather"}
"""Name of the dispatcher that each class of Megatron implements. All other classes exchange tokens without
torch.distributed.
"""


def run_request(request: Request, record: dict[str, Any]) -> None:
    """Run the requested step and add its part to ``record``, the raw record. Raises ContractError."""
    warnings = _import_megatron(request)
    static = request.mode == "static"
    device = torch.device("cpu") if static else choose_device(request.world, request.device)
    settings = settings_from_recipe(request) if request.recipe else configuration.settings_from_shape(request)
    settings.warnings += warnings
    configuration.override(settings, request.config)
    configuration.refuse_other_models(settings)
    dispatcher = configuration.choose_dispatcher(settings, request.dispatcher, static)
    with ExitStack() as stack:
        if device.type == "cpu":
            configuration.adapt_to_cpu(settings)
            settings.patches[:0] = stack.enter_context(cpu.device_is_cpu())
        else:
            settings.patches[:0] = [cpu.FUSIONS, cpu.LOCAL]
        if settings.experts and request.routing != "natural":
            stack.enter_context(_forced_routing(request, settings))
        job = _MegatronJob(request, settings, dispatcher, device)
        if static:
            record |= _count_without_values(job)
        else:
            _run_on_ranks(job, record)


@dataclass(frozen=True)
class _MegatronJob:
    """Settings from which the model is built, already adapted to ``device``.

    ``dispatcher`` is the name of the requested or configured dispatcher. It is '' if the model has no experts.
    """

    request: Request
    settings: MegatronSettings
    dispatcher: str
    device: torch.device


def _count_without_values(job: _MegatronJob) -> dict[str, Any]:
    """Count one step in a fake world, on fake tensors."""
    request, settings = job.request, job.settings
    settings.patches[:0] = FAKE_PATCHES[:2]
    if request.routing == "natural" and settings.experts:
        settings.warnings.append("routing is natural; without values it was taken to be balanced")
    with fake_world(request.world) as mode:
        # Outside of ``mode``, because Megatron reads rank numbers from real tensors.
        axes, groups = join_groups(settings, request.world)
        shadows = ShadowValues(mode, settings.experts, settings.model.get("moe_router_topk") or 1, _make_route(request))
        with cpu.support_fake_tensors(shadows) as patches, mode, shadows.numpy_from_shadows():
            settings.patches += patches
            with build_context(shadows), cpu.gather_own_objects() as gather_patches:
                settings.patches += gather_patches
                loop, _ = _make_loop(job, axes, groups)
            return count_loop(request, loop, shadows, max(STEPS, request.steps))


def _run_on_ranks(job: _MegatronJob, record: dict[str, Any]) -> None:
    """Count or time steps on real ranks."""
    request, settings = job.request, job.settings
    if request.mode == "timed":
        settings.warnings.append(TIMED_WARNING)
    with join_ranks(job.device, request.limit_s):
        axes, groups = join_groups(settings, request.world)
        torch.manual_seed(request.seed)
        if job.device.type == "cuda":
            cpu.import_attribute("megatron.core.tensor_parallel", "model_parallel_cuda_manual_seed")(request.seed)
        loop, optimizers = _make_loop(job, axes, groups)
        if request.mode == "timed":
            time_loop(request, loop, optimizers, record)
        else:
            record |= count_loop(request, loop, None, max(STEPS, request.steps))


def _make_loop(
    job: _MegatronJob, axes: Axes, groups: Sequence[dist.ProcessGroup]
) -> tuple[TrainingLoop, list[torch.optim.Optimizer]]:
    """Build the training loop. Return the loop and the torch optimizers inside Megatron's optimizer."""
    request, settings = job.request, job.settings
    start = time.perf_counter()
    with CompileWatch() as watch:  # code that is compiled during the build is called later
        training = build(settings, job.device)
    if not request.recipe:
        check_geometry(training, request)
    layers = list(find_moe_layers(training.gpt_model))

    def describe_backends(observer: Observer) -> Mapping[str, Mapping[str, str]]:
        return _describe_backends(job, training, layers, observer)

    version = str(importlib.import_module("megatron.core").__version__)
    if version not in cpu.TESTED_VERSIONS:
        settings.warnings.append(
            f"regbot is not tested with megatron-core {version}, only with {', '.join(cpu.TESTED_VERSIONS)}"
        )
    loop = TrainingLoop(
        models=[training.gpt_model],
        axes=axes,
        groups=groups,
        step=make_step(training, settings, job.device, values=request.mode != "static"),
        backends=describe_backends,
        config=_resolve_config(request, settings, training),
        software={"megatron-core": version, "torch": str(torch.__version__)},
        patches=settings.patches,
        warnings=settings.warnings,
        seconds={"build": round(time.perf_counter() - start, 3)},
        build_watch=watch,
        device=job.device,
    )
    parts = getattr(training.optimizer, "chained_optimizers", [training.optimizer])
    return loop, [part.optimizer for part in parts if part.optimizer is not None]


def _import_megatron(request: Request) -> list[str]:
    """Import Megatron without compiling its fused functions, and return warnings. Raises ContractError."""
    try:
        with cpu.without_compile():
            for module in ("megatron.core", "megatron.core.models.gpt", "megatron.core.optimizer"):
                importlib.import_module(module)
        location = str(importlib.import_module("megatron.core").__file__)
    except ModuleNotFoundError as error:
        is_missing = (error.name or "").split(".")[0] == "megatron"
        reason = "megatron.core is neither in the checkout nor installed" if is_missing else str(error)
        raise ContractError(
            "config",
            f"Megatron cannot be imported: {reason}; install its requirements in the workload's 'python', and set "
            "'source_roots' to the folder that contains megatron/",
        ) from error
    root = Path(request.root).resolve()
    if Path(location).resolve().is_relative_to(root):
        return []
    megatron_roots = [source for source in request.source_roots if (root / source / "megatron" / "core").is_dir()]
    if megatron_roots:
        raise ContractError(
            "config",
            f"the checkout has megatron/core in {megatron_roots[0]!r}, but another one was imported: {location}",
        )
    return ["the checkout has no Megatron; the installed one was traced"]


@contextmanager
def _forced_routing(request: Request, settings: MegatronSettings) -> Iterator[None]:
    """While active, force exactly the requested routing.

    MCore itself forces a routing with random logits, so this routing is balanced only on average.
    """
    settings.model["moe_router_force_load_balancing"] = True
    settings.patches.append(FORCED_ROUTING.format(request.routing))
    top_k = int(settings.model.get("moe_router_topk") or 1)

    def force_logits(logits: Tensor) -> Tensor:
        rows = logits.shape[:-1].numel()
        experts = forced_experts(rows, logits.shape[-1], top_k, request.routing, request.seed, logits.device)
        target = torch.zeros(rows, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        target = target.scatter(1, experts, 1.0).view(logits.shape)
        return logits + (target - logits).detach()  # forced values with the gradients of the router's logits

    router = importlib.import_module("megatron.core.transformer.moe.router")
    with cpu.replaced(router, "apply_random_logits", force_logits):
        yield


def _make_route(request: Request) -> Any:
    routing = "skewed" if request.routing == "skewed" else "balanced"

    def route(tokens: int, experts: int, top_k: int) -> Tensor:
        return forced_experts(tokens, experts, top_k, routing, request.seed, torch.device("cpu"))

    return route


def _describe_backends(
    job: _MegatronJob, training: MegatronTraining, layers: Sequence[Any], observer: Observer
) -> dict[str, Mapping[str, str]]:
    """Return requested, resolved and executed values, and the evidence, for each backend. Call this after the counted
    step.
    """
    reported = job.settings.reported
    cores = [layer.self_attention.core_attention for layer in training.gpt_model.decoder.layers]
    requested = str(reported.get("transformer_impl", "local"))
    backends: dict[str, Mapping[str, str]] = {
        "attention": _backend_entry(requested, "local", type(cores[0]).__name__, count_classes(cores)),
    }
    if not layers:
        return backends
    requested = "grouped_gemm" if reported.get("moe_grouped_gemm") or training.config.moe_grouped_gemm else "sequential"
    experts = [layer.experts for layer in layers]
    executed = (
        "sequential"
        if {type(layer_experts).__name__ for layer_experts in experts} == {"SequentialMLP"}
        else "grouped_gemm"
    )
    resolved = "grouped_gemm" if training.config.moe_grouped_gemm else "sequential"
    backends["grouped_gemm"] = _backend_entry(requested, resolved, executed, count_classes(experts))
    backends["dispatcher"] = _describe_dispatcher(job, training, [layer.token_dispatcher for layer in layers], observer)
    return backends


def _describe_dispatcher(
    job: _MegatronJob, training: MegatronTraining, dispatchers: Sequence[Any], observer: Observer
) -> dict[str, str]:
    """Describe the dispatcher that ran, by the classes of the layers' dispatchers and by the counted collectives.

    With several expert ranks, the collectives decide which dispatcher ran. The exception is ``flex``, which exchanges
    tokens without torch.distributed.
    """
    kinds: dict[str, int] = {}
    for key, times in observer.tally.count.items():
        if key.role == "payload" and "ep" in key.axis.replace("_", "|").split("|") and ".mlp" in key.where:
            kinds[key.kind] = kinds.get(key.kind, 0) + times
    names = {DISPATCHERS.get(type(dispatcher).__name__, "flex") for dispatcher in dispatchers}
    executed = names.pop() if len(names) == 1 else "mixed"
    if executed != "flex" and job.request.ep > 1:
        executed = "alltoall" if kinds.get("all_to_all") else "allgather" if kinds.get("all_gather") else "none"
    if executed == "flex" and job.dispatcher in FLEX:
        executed = job.dispatcher
    resolved = str(training.config.moe_token_dispatcher_type)
    collective_counts = ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items())) or "none"
    evidence = f"{count_classes(dispatchers)}; payload collectives of expert layers on axis ep: {collective_counts}"
    return _backend_entry(
        job.dispatcher,
        job.dispatcher if resolved == "flex" and job.dispatcher in FLEX else resolved,
        executed,
        evidence,
    )


def _backend_entry(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}


def _resolve_config(request: Request, settings: MegatronSettings, training: MegatronTraining) -> dict[str, Scalar]:
    """Return Megatron's resolved configuration.

    Settings that were changed for a CPU have their requested values.
    """
    return {
        **configuration.flatten_config(training.config),
        **configuration.flatten_config(training.ddp_config, "ddp."),
        **configuration.flatten_config(training.optimizer_config, "optimizer."),
        **settings.reported,
        "recipe": request.recipe or "the numbers of the shape",
        "world": request.world,
        "ep": request.ep,
        "routing": request.routing,
        "mlp": request.mlp,
        "vocabulary": settings.vocabulary,
        "sequence": settings.sequence,
        "micro_batch": settings.micro_batch,
    }
