"""A training step from Megatron's own parts: GPTModel with local layers, DistributedDataParallel, optimizer, schedule.

Each part is built in the same way as in Megatron's training script, but from the configurations only. The step is one
iteration of that script's loop: it zeroes the gradients, runs the forward-backward schedule with finalize_model_grads,
and steps the optimizer. Learning-rate schedule, logging with its reductions, checkpoints and data are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbot_guest.axes import Axes
from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_cpu import import_attribute
from regbot_guest.frameworks.megatron_settings import DDP, MODEL, OPTIMIZER, MegatronSettings, construct
from regbot_guest.request import Request

STATE = "megatron.core.parallel_state"

_SINGLE_AXIS_GROUPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("tp", "get_tensor_model_parallel_group", {}),
    ("cp", "get_context_parallel_group", {}),
    ("dp", "get_data_parallel_group", {}),
    ("ep", "get_expert_model_parallel_group", {}),
    ("etp", "get_expert_tensor_parallel_group", {}),
    ("edp", "get_expert_data_parallel_group", {}),
)
_MULTI_AXIS_GROUPS: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    (("dp", "cp"), "get_data_parallel_group", {"with_context_parallel": True}),
    (("etp", "ep"), "get_expert_tensor_and_model_parallel_group", {}),
    (("etp", "ep"), "get_expert_tensor_model_pipeline_parallel_group", {}),
    (("tp",), "get_model_parallel_group", {}),
    (("tp", "cp"), "get_tensor_and_context_parallel_group", {}),
    (("tp", "dp"), "get_tensor_and_data_parallel_group", {}),
    (("tp", "dp", "cp"), "get_tensor_and_data_parallel_group", {"with_context_parallel": True}),
    (("tp", "dp", "cp"), "get_intra_distributed_optimizer_instance_group", {}),
)
"""Groups over several axes. The name of a group contains only the axes that have more than one rank. For example, if
there is one expert tensor rank, the group ``etp_ep`` is named ``ep``.
"""


@dataclass(frozen=True)
class MegatronTraining:
    """The built model, optimizer and configurations. The schedule runs ``ddp_model``, which wraps ``gpt_model``."""

    gpt_model: Any
    ddp_model: Any
    optimizer: Any
    config: Any
    ddp_config: Any
    optimizer_config: Any


def join_groups(settings: MegatronSettings, world: int) -> tuple[Axes, list[dist.ProcessGroup]]:
    """Create Megatron's process groups and register each under its mesh axis.

    Raises ContractError if Megatron cannot arrange the ranks with the configured sizes.
    """
    sizes = {
        name: settings.model.get(name) or 1
        for name in ("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    }
    try:
        import_attribute(STATE, "initialize_model_parallel")(
            **sizes,
            expert_tensor_parallel_size=settings.model.get("expert_tensor_parallel_size"),
            create_gloo_process_groups=False,
        )
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ContractError("config", f"Megatron cannot arrange {world} ranks as {sizes}: {error}") from error
    axes, groups = Axes(), {}
    for name, getter, arguments in _SINGLE_AXIS_GROUPS:
        group = import_attribute(STATE, getter)(**arguments)
        axes.add(name, group)
        groups[group.group_name] = group
    sizes_by_axis = {name: record["size"] for name, record in axes.as_record().items()}
    for factors, getter, arguments in _MULTI_AXIS_GROUPS:
        group = import_attribute(STATE, getter)(**arguments)
        name = "_".join(factor for factor in factors if sizes_by_axis[factor] != 1)
        if name and group.size() > 1:
            axes.add(name, group)
            groups[group.group_name] = group
    return axes, list(groups.values())


def build(settings: MegatronSettings, device: torch.device) -> MegatronTraining:
    """Build the model, its data-parallel wrapper and its optimizer, each with a newly created configuration."""
    config = construct(MODEL, settings.model)
    spec = import_attribute("megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec")(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )
    gpt_model = import_attribute("megatron.core.models.gpt", "GPTModel")(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=settings.vocabulary,
        max_sequence_length=settings.sequence,
        **settings.gpt,
    )
    if device.type == "cuda":
        gpt_model.cuda(device)
    wrapped_model: Any = gpt_model
    if config.bf16 or config.fp16:
        wrapped_model = import_attribute("megatron.core.transformer.module", "Float16Module")(config, gpt_model)
    ddp_config = construct(DDP, settings.ddp)
    ddp_model = import_attribute("megatron.core.distributed", "DistributedDataParallel")(
        config, ddp_config, wrapped_model
    )
    ddp_fields = ("use_distributed_optimizer", "overlap_param_gather")
    from_ddp = {name: getattr(ddp_config, name) for name in ddp_fields}
    from_model = {name: getattr(config, name) for name in ("bf16", "fp16", "params_dtype")}
    optimizer_config = construct(OPTIMIZER, {**settings.optimizer, **from_ddp, **from_model})
    optimizer = import_attribute("megatron.core.optimizer", "get_megatron_optimizer")(
        optimizer_config, [ddp_model], use_gloo_process_groups=False
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = import_attribute("megatron.core.distributed", "finalize_model_grads")
    if ddp_config.overlap_grad_reduce:
        config.no_sync_func = ddp_model.no_sync
    return MegatronTraining(gpt_model, ddp_model, optimizer, config, ddp_config, optimizer_config)


def make_step(
    training: MegatronTraining, settings: MegatronSettings, device: torch.device, values: bool
) -> Callable[[], float | None]:
    """Return a function that runs one step on one microbatch.

    The function returns the mean loss, or None if the tensors are fake.
    """
    shape = (settings.micro_batch, settings.sequence)
    tokens = torch.arange(shape[0] * shape[1], device=device).view(shape) % settings.vocabulary
    positions = torch.arange(shape[1], device=device).expand(shape)
    schedule = import_attribute("megatron.core.pipeline_parallel", "get_forward_backward_func")()

    def compute_loss(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int, device=device)
        return total, count, {"loss": total.detach() / output.numel()}

    def forward(_: Any, model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        return model(tokens, positions, None, labels=tokens), compute_loss

    def step() -> float | None:
        training.ddp_model.zero_grad_buffer()
        training.optimizer.zero_grad()
        losses = schedule(
            forward_step_func=forward,
            data_iterator=None,
            model=[training.ddp_model],
            num_microbatches=1,
            seq_length=settings.sequence,
            micro_batch_size=settings.micro_batch,
        )
        training.optimizer.step()
        return float(losses[0]["loss"].item()) if values else None

    return step


def find_moe_layers(gpt_model: Any) -> Iterator[Any]:
    """Yield the MoE layers of a model in order."""
    layer_class = import_attribute("megatron.core.transformer.moe.moe_layer", "MoELayer")
    return (module for module in gpt_model.modules() if isinstance(module, layer_class))


def check_geometry(training: MegatronTraining, request: Request) -> None:
    """Raise ContractError if the built model does not have the numbers of the requested shape."""
    numbers, config = request.geometry, training.config
    tensor_ranks = config.tensor_model_parallel_size
    expert_tensor_ranks = config.expert_tensor_parallel_size or 1
    first = training.gpt_model.decoder.layers[0]
    attention_rows = (numbers.heads + 2 * numbers.kv_heads) * numbers.head_dim // tensor_ranks
    comparisons: dict[str, tuple[Any, Any]] = {
        "layers": (len(training.gpt_model.decoder.layers), numbers.layers),
        "query, key and value": (_weight_shape(first.self_attention.linear_qkv), (attention_rows, numbers.hidden)),
        "QK norm": (_has_weight(first.self_attention.q_layernorm), numbers.qk_norm),
        "embedding": (
            _weight_shape(training.gpt_model.embedding.word_embeddings),
            (numbers.vocabulary // tensor_ranks, numbers.hidden),
        ),
        "output": (
            _weight_shape(training.gpt_model.output_layer),
            (numbers.vocabulary // tensor_ranks, numbers.hidden),
        ),
    }
    layers = list(find_moe_layers(training.gpt_model))
    if request.mlp == "moe":
        comparisons |= {
            "MoE layers": (len(layers), numbers.layers),
            "router": ({_weight_shape(layer.router) for layer in layers}, {(numbers.experts, numbers.hidden)}),
            "top-k": ({layer.router.topk for layer in layers}, {numbers.top_k}),
            "experts of this rank": ({layer.num_local_experts for layer in layers}, {numbers.experts // request.ep}),
        }
        for number, layer in enumerate(layers):
            fc1_elements, fc2_elements = _count_expert_elements(layer.experts)
            width = numbers.expert_width // expert_tensor_ranks
            local_experts = layer.num_local_experts
            comparisons[f"experts of layer {number}"] = (
                (fc1_elements, fc2_elements),
                (2 * width * numbers.hidden * local_experts, width * numbers.hidden * local_experts),
            )
    else:
        comparisons["MoE layers"] = (len(layers), 0)
    if mismatches := [
        f"{name}: {actual} instead of {expected}"
        for name, (actual, expected) in comparisons.items()
        if actual != expected
    ]:
        raise ContractError("shape", f"Megatron built another model than requested: {'; '.join(mismatches[:5])}")


def _count_expert_elements(experts: nn.Module) -> tuple[int, int]:
    """Return the number of elements in the first matrices, and in the second matrices, of all experts on this rank."""
    sums = {"fc1": 0, "fc2": 0}
    for name, parameter in experts.named_parameters():
        if "weight" in name:
            sums["fc1" if "fc1" in name else "fc2"] += parameter.numel()
    return sums["fc1"], sums["fc2"]


def _weight_shape(module: Any) -> tuple[int, ...]:
    return tuple(module.weight.shape)


def _has_weight(module: Any) -> bool:
    return getattr(module, "weight", None) is not None


def count_classes(objects: Sequence[Any]) -> str:
    """Return the names of the objects' classes with their counts, such as ``MoEAlltoAllTokenDispatcher x48``."""
    names = [type(item).__name__ for item in objects]
    return ", ".join(f"{name} x{names.count(name)}" for name in dict.fromkeys(names)) or "none"
