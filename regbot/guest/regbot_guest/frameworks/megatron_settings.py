"""What Megatron is configured with: the numbers of a shape or a recipe of the repository, then the user's own keys.

A key of ``config`` is a field of TransformerConfig (``recompute_granularity``, ``moe_aux_loss_coeff``), or, with a
prefix, of DistributedDataParallelConfig (``ddp.overlap_grad_reduce``) or OptimizerConfig (``optimizer.clip_grad``).
What makes the workload the workload it is cannot be set by a key. All fields, defaults and checks are those of the
checkout; nothing here says what a good configuration is.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch

from regbot_guest.frameworks.megatron_cpu import named
from regbot_guest.frameworks.stepping import Scalar
from regbot_guest.harness import ContractError
from regbot_guest.request import Request

MODEL = ("megatron.core.transformer.transformer_config", "TransformerConfig")
DDP = ("megatron.core.distributed", "DistributedDataParallelConfig")
OPTIMIZER = ("megatron.core.optimizer", "OptimizerConfig")

FIXED = {
    **dict.fromkeys(
        (
            "num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_attention_heads",
            "num_query_groups", "kv_channels", "num_moe_experts", "moe_router_topk", "qk_layernorm", "bf16", "fp16",
            "params_dtype",
        ),
        "fixed by the shape; choose another shape or variant",
    ),
    "expert_model_parallel_size": "fixed by the mesh; set it with --ep",
    "moe_token_dispatcher_type": "set 'dispatcher' of the workload",
    "moe_flex_dispatcher_backend": "set 'dispatcher' of the workload",
    "moe_router_force_load_balancing": "set 'routing' of the workload",
    "pipeline_model_parallel_size": "pipeline stages are not traced",
    "virtual_pipeline_model_parallel_size": "pipeline stages are not traced",
}  # fmt: skip
"""Fields that no key can set, and what to do instead."""

NEEDS_GPU: dict[str, Scalar] = {
    "moe_grouped_gemm": False, "moe_permute_fusion": False, "moe_router_fusion": False, "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False, "cross_entropy_loss_fusion": False, "tp_comm_overlap": False,
    "cuda_graph_impl": "none", "transformer_impl": "local", "enable_cuda_graph": False, "external_cuda_graph": False,
}  # fmt: skip
"""Fields that choose a kernel, not a collective: set to this on a CPU, and told as they were asked for."""
NEEDS_ENGINE = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "fp8", "fp4")
"""Fields that change the step, and need layers of Transformer Engine."""
NOT_BUILT = ("model.mtp_num_layers", "model.multi_latent_attention", "model.heterogeneous_block_specs",
             "ddp.use_megatron_fsdp", "ddp.use_custom_fsdp")  # fmt: skip
"""Fields of other models and wrappers than are built here."""

FLEX = {"flex": None, "deepep": "deepep", "hybridep": "hybridep", "ncclep": "ncclep"}
"""Dispatchers that are MCore's 'flex', and the backend they ask of it."""


@dataclass
class Settings:
    """Keyword arguments of Megatron's configurations, and the batch of one rank and step."""

    model: dict[str, Any]
    ddp: dict[str, Any]
    optimizer: dict[str, Any]
    vocabulary: int
    sequence: int
    micro_batch: int
    gpt: dict[str, Any] = field(default_factory=dict)
    """Arguments of GPTModel beyond its configuration."""
    told: dict[str, Scalar] = field(default_factory=dict)
    """What the resolved configuration shows in place of what runs here, and what has no place in it."""
    patches: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def experts(self) -> int:
        return int(self.model.get("num_moe_experts") or 0)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.model["params_dtype"]
        return found


def of_shape(request: Request) -> Settings:
    """The numbers of the shape; what it leaves open is what Megatron's own MoE recipes have in common: distributed
    optimizer, both overlaps, gradients reduced in fp32, an fp32 router, no dropout."""
    numbers, dense = request.geometry, request.mlp != "moe"
    model: dict[str, Any] = {
        "num_layers": numbers.layers,
        "hidden_size": numbers.hidden,
        "num_attention_heads": numbers.heads,
        "num_query_groups": numbers.kv_heads,
        "kv_channels": numbers.head_dim,
        "ffn_hidden_size": numbers.dense_width if dense else numbers.expert_width,
        "qk_layernorm": numbers.qk_norm,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if not dense:
        model |= {
            "num_moe_experts": numbers.experts,
            "moe_router_topk": numbers.top_k,
            "moe_ffn_hidden_size": numbers.expert_width,
            "moe_router_dtype": "fp32",
            "expert_model_parallel_size": request.ep,
        }
    return Settings(
        model=model | precision(request.dtype),
        ddp={
            "grad_reduce_in_fp32": True,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
        optimizer={"optimizer": "adam", "lr": 1e-4},
        vocabulary=numbers.vocabulary,
        sequence=numbers.sequence,
        micro_batch=numbers.micro_batch,
        gpt={"position_embedding_type": "rope", "rotary_base": int(numbers.rope_theta)},
    )


def precision(dtype: str) -> dict[str, Any]:
    """Fields that say in which type parameters and compute are."""
    known = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if dtype not in known:
        raise ContractError("config", f"Megatron cannot train in {dtype}; there are {', '.join(known)}")
    chosen = known[dtype]
    return {
        "params_dtype": chosen,
        "pipeline_dtype": chosen,
        "bf16": chosen is torch.bfloat16,
        "fp16": chosen is torch.float16,
    }


def override(settings: Settings, config: Mapping[str, Any]) -> None:
    """Set the user's keys. Raises ContractError for one that is unknown or fixed."""
    parts = {"": (MODEL, settings.model), "ddp": (DDP, settings.ddp), "optimizer": (OPTIMIZER, settings.optimizer)}
    for key, value in config.items():
        prefix, _, name = key.rpartition(".")
        if not prefix and name in FIXED:
            raise ContractError("config", f"config.{key}: {FIXED[name]}")
        fields = _fields(parts[prefix][0]) if prefix in parts else {}
        if name not in fields:
            raise ContractError(
                "config",
                f"config.{key}: this Megatron has no such field; a key is a field of TransformerConfig, or 'ddp.' or "
                "'optimizer.' and a field of DistributedDataParallelConfig or OptimizerConfig",
            )
        parts[prefix][1][name] = _value(value, fields[name])


def choose_dispatcher(settings: Settings, asked: str, static: bool) -> str:
    """Set the dispatcher that was asked for, '' for the one that is configured or MCore's own default. Returns the
    word for what is requested. Raises ContractError."""
    if not settings.experts:
        return ""
    fields = _fields(MODEL)
    configured = settings.model.get("moe_token_dispatcher_type", fields["moe_token_dispatcher_type"].default)
    word = asked or str(configured)
    if word not in ("alltoall", "allgather", *FLEX):
        raise ContractError("config", f"Megatron has no dispatcher {word!r}; there are alltoall, allgather, flex")
    if word in FLEX and static:
        raise ContractError(
            "config",
            f"dispatcher {word!r} cannot be traced without a GPU: Megatron's flex dispatcher exchanges tokens in "
            "kernels of a library, which no fake process group runs. Trace alltoall or allgather, count flex on GPUs",
        )
    if asked:
        settings.model["moe_token_dispatcher_type"] = "flex" if word in FLEX else word
    if FLEX.get(asked):
        settings.model["moe_flex_dispatcher_backend"] = FLEX[asked]
    return word


def refuse_other_models(settings: Settings) -> None:
    """Raises ContractError where the configuration is of something that is not built here, whatever the device."""
    for key in NOT_BUILT:
        part, _, name = key.partition(".")
        if getattr(settings, part).get(name):
            raise ContractError(
                "config", f"{name} is set, and regbot builds no such model; turn it off for this workload"
            )


def fit_for_cpu(settings: Settings) -> None:
    """Leave out what chooses a GPU's kernels. Raises ContractError where that would leave out more."""
    fields = _fields(MODEL)
    for name in NEEDS_ENGINE:
        if settings.model.get(name):
            raise ContractError(
                "config",
                f"{name} = {settings.model[name]!r} cannot be run without a GPU and Transformer Engine; turn it off "
                "for this workload, or read a profile of a run on GPUs with 'regbot ledger read'",
            )
    for name, there in NEEDS_GPU.items():
        asked = settings.model.get(name, there)
        if name in fields and asked != there:
            settings.model[name] = there
            settings.told[name] = _scalar(asked)
            settings.patches.append(f"{name} = {there!r} in place of {_scalar(asked)!r}, which needs a GPU")


def construct(which: tuple[str, str], arguments: Mapping[str, Any]) -> Any:
    """A configuration of Megatron's. Raises ContractError with its reason where it rejects what it is given."""
    known = _fields(which)
    if unknown := sorted(set(arguments) - set(known)):
        raise ContractError("config", f"this Megatron's {which[1]} has no field {unknown[0]!r}, which regbot sets")
    try:
        return named(*which)(**arguments)
    except (AssertionError, ValueError, TypeError) as error:
        raise ContractError("config", f"Megatron rejects this configuration: {error}") from error


def flat(configuration: Any, prefix: str = "") -> dict[str, Scalar]:
    """The fields of a dataclass as scalars: functions by name, sections with a dot, no paths of this machine."""
    found: dict[str, Scalar] = {}
    for one in dataclasses.fields(configuration):
        value = getattr(configuration, one.name, None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= flat(value, f"{prefix}{one.name}.")
            continue
        scalar = _scalar(value)
        if not (isinstance(scalar, str) and scalar.startswith("/")):
            found[f"{prefix}{one.name}"] = scalar
    return found


def _scalar(value: Any) -> Scalar:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else str(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return ",".join(str(_scalar(item)) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={_scalar(item)}" for key, item in sorted(value.items(), key=str))
    if isinstance(value, partial):
        return _scalar(value.func)
    named_by: Callable[..., Any] | type = value if hasattr(value, "__qualname__") else type(value)
    return f"{named_by.__module__}.{named_by.__qualname__}"


def _fields(which: tuple[str, str]) -> dict[str, Any]:
    return {one.name: one for one in dataclasses.fields(named(*which))}


def _value(value: Any, one: Any) -> Any:
    """A list is written as ``a,b`` where the field holds one."""
    if isinstance(value, str) and "list[" in str(one.type).lower():
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
