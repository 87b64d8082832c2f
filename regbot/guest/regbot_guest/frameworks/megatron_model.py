"""Megatron's own parts put together: GPTModel with the local layer spec, DistributedDataParallel, optimizer, schedule.

Each is built as Megatron's training script builds it, from the configurations alone. The step is one turn of its loop:
zero the gradients, the forward-backward schedule with finalize_model_grads, the optimizer's step. What surrounds it
there (learning rate, logging and its reductions, checkpoints, data) is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbot_guest.axes import Axes
from regbot_guest.frameworks.megatron_cpu import named
from regbot_guest.frameworks.megatron_settings import DDP, MODEL, OPTIMIZER, Settings, construct
from regbot_guest.harness import ContractError
from regbot_guest.request import Request

STATE = "megatron.core.parallel_state"

_SIMPLE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("tp", "get_tensor_model_parallel_group", {}),
    ("cp", "get_context_parallel_group", {}),
    ("dp", "get_data_parallel_group", {}),
    ("ep", "get_expert_model_parallel_group", {}),
    ("etp", "get_expert_tensor_parallel_group", {}),
    ("edp", "get_expert_data_parallel_group", {}),
)
_PRODUCTS: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    (("dp", "cp"), "get_data_parallel_group", {"with_context_parallel": True}),
    (("etp", "ep"), "get_expert_tensor_and_model_parallel_group", {}),
    (("etp", "ep"), "get_expert_tensor_model_pipeline_parallel_group", {}),
    (("tp",), "get_model_parallel_group", {}),
    (("tp", "cp"), "get_tensor_and_context_parallel_group", {}),
    (("tp", "dp"), "get_tensor_and_data_parallel_group", {}),
    (("tp", "dp", "cp"), "get_tensor_and_data_parallel_group", {"with_context_parallel": True}),
    (("tp", "dp", "cp"), "get_intra_distributed_optimizer_instance_group", {}),
)
"""Groups over the ranks of several axes. One whose other axes have a single rank has the name of the one that is left:
with one expert tensor rank, ``tp_ep`` is ``ep``."""


@dataclass(frozen=True)
class Built:
    """``core`` is the GPTModel inside ``wrapped``, which is what the schedule runs."""

    core: Any
    wrapped: Any
    optimizer: Any
    config: Any
    ddp_config: Any
    optimizer_config: Any


def join_groups(settings: Settings, world: int) -> tuple[Axes, list[dist.ProcessGroup]]:
    """Make Megatron's process groups and name them by axis. Raises ContractError where the ranks do not divide."""
    sizes = {
        name: settings.model.get(name) or 1
        for name in ("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    }
    try:
        named(STATE, "initialize_model_parallel")(
            **sizes,
            expert_tensor_parallel_size=settings.model.get("expert_tensor_parallel_size"),
            create_gloo_process_groups=False,
        )
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ContractError("config", f"Megatron cannot arrange {world} ranks as {sizes}: {error}") from error
    axes, groups = Axes(), {}
    for name, getter, arguments in _SIMPLE:
        group = named(STATE, getter)(**arguments)
        axes.add(name, group)
        groups[group.group_name] = group
    size = {name: record["size"] for name, record in axes.as_record().items()}
    for factors, getter, arguments in _PRODUCTS:
        group = named(STATE, getter)(**arguments)
        name = "_".join(factor for factor in factors if size[factor] != 1)
        if name and group.size() > 1:
            axes.add(name, group)
            groups[group.group_name] = group
    return axes, list(groups.values())


def build(settings: Settings, device: torch.device) -> Built:
    """Model, data parallel wrapper and optimizer, with a fresh configuration each."""
    config = construct(MODEL, settings.model)
    spec = named("megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec")(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    core = named("megatron.core.models.gpt", "GPTModel")(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=settings.vocabulary,
        max_sequence_length=settings.sequence,
        **settings.gpt,
    )
    if device.type == "cuda":
        core.cuda(device)
    inner: Any = core
    if config.bf16 or config.fp16:
        inner = named("megatron.core.transformer.module", "Float16Module")(config, core)
    ddp_config = construct(DDP, settings.ddp)
    wrapped = named("megatron.core.distributed", "DistributedDataParallel")(config, ddp_config, inner)
    sharing = ("use_distributed_optimizer", "overlap_param_gather")
    shared = {name: getattr(ddp_config, name) for name in sharing}
    precise = {name: getattr(config, name) for name in ("bf16", "fp16", "params_dtype")}
    optimizer_config = construct(OPTIMIZER, {**settings.optimizer, **shared, **precise})
    optimizer = named("megatron.core.optimizer", "get_megatron_optimizer")(
        optimizer_config, [wrapped], use_gloo_process_groups=False
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = named("megatron.core.distributed", "finalize_model_grads")
    if ddp_config.overlap_grad_reduce:
        config.no_sync_func = wrapped.no_sync
    return Built(core, wrapped, optimizer, config, ddp_config, optimizer_config)


def step_of(built: Built, settings: Settings, device: torch.device, values: bool) -> Callable[[], float | None]:
    """One step on one microbatch of arithmetic token numbers; returns its mean loss where there are values."""
    shape = (settings.micro_batch, settings.sequence)
    tokens = torch.arange(shape[0] * shape[1], device=device).view(shape) % settings.vocabulary
    positions = torch.arange(shape[1], device=device).expand(shape)
    schedule = named("megatron.core.pipeline_parallel", "get_forward_backward_func")()

    def loss_of(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int, device=device)
        return total, count, {"loss": total.detach() / output.numel()}

    def forward(_: Any, model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        return model(tokens, positions, None, labels=tokens), loss_of

    def step() -> float | None:
        built.wrapped.zero_grad_buffer()
        built.optimizer.zero_grad()
        reduced = schedule(
            forward_step_func=forward,
            data_iterator=None,
            model=[built.wrapped],
            num_microbatches=1,
            seq_length=settings.sequence,
            micro_batch_size=settings.micro_batch,
        )
        built.optimizer.step()
        return float(reduced[0]["loss"].item()) if values else None

    return step


def moe_layers(core: Any) -> Iterator[Any]:
    """The MoE layers of a model, in order."""
    kind = named("megatron.core.transformer.moe.moe_layer", "MoELayer")
    return (module for module in core.modules() if isinstance(module, kind))


def check_geometry(built: Built, request: Request) -> None:
    """Raises ContractError where the model is not of the shape that was asked for."""
    numbers, config = request.geometry, built.config
    tensor, expert_tensor = config.tensor_model_parallel_size, config.expert_tensor_parallel_size or 1
    first = built.core.decoder.layers[0]
    attention_rows = (numbers.heads + 2 * numbers.kv_heads) * numbers.head_dim // tensor
    found: dict[str, tuple[Any, Any]] = {
        "layers": (len(built.core.decoder.layers), numbers.layers),
        "query, key and value": (_shape(first.self_attention.linear_qkv), (attention_rows, numbers.hidden)),
        "QK norm": (_has_weight(first.self_attention.q_layernorm), numbers.qk_norm),
        "embedding": (_shape(built.core.embedding.word_embeddings), (numbers.vocabulary // tensor, numbers.hidden)),
        "output": (_shape(built.core.output_layer), (numbers.vocabulary // tensor, numbers.hidden)),
    }
    layers = list(moe_layers(built.core))
    if request.mlp == "moe":
        found |= {
            "MoE layers": (len(layers), numbers.layers),
            "router": ({_shape(layer.router) for layer in layers}, {(numbers.experts, numbers.hidden)}),
            "top-k": ({layer.router.topk for layer in layers}, {numbers.top_k}),
            "experts of this rank": ({layer.num_local_experts for layer in layers}, {numbers.experts // request.ep}),
        }
        for number, layer in enumerate(layers):
            first_of, second_of = _expert_weights(layer.experts)
            width = numbers.expert_width // expert_tensor
            here = layer.num_local_experts
            found[f"experts of layer {number}"] = (
                (first_of, second_of),
                (2 * width * numbers.hidden * here, width * numbers.hidden * here),
            )
    else:
        found["MoE layers"] = (len(layers), 0)
    if wrong := [f"{what}: {is_} instead of {asked}" for what, (is_, asked) in found.items() if is_ != asked]:
        raise ContractError("shape", f"Megatron built another model than was asked for: {'; '.join(wrong[:5])}")


def _expert_weights(experts: nn.Module) -> tuple[int, int]:
    """Elements of the first and of the second matrix of all experts of this rank, however they are laid out."""
    sums = {"fc1": 0, "fc2": 0}
    for name, parameter in experts.named_parameters():
        if "weight" in name:
            sums["fc1" if "fc1" in name else "fc2"] += parameter.numel()
    return sums["fc1"], sums["fc2"]


def _shape(module: Any) -> tuple[int, ...]:
    return tuple(module.weight.shape)


def _has_weight(module: Any) -> bool:
    return getattr(module, "weight", None) is not None


def classes(parts: Sequence[Any]) -> str:
    """``MoEAlltoAllTokenDispatcher x48``"""
    names = [type(part).__name__ for part in parts]
    return ", ".join(f"{name} x{names.count(name)}" for name in dict.fromkeys(names)) or "none"
