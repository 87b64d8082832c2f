"""Megatron's configuration: the numbers of a shape or of a recipe, and then the user's own keys.

A key in ``config`` without a prefix is a field of TransformerConfig (``recompute_granularity``,
``moe_aux_loss_coeff``). A key with the prefix ``ddp.`` is a field of DistributedDataParallelConfig
(``ddp.overlap_grad_reduce``), and a key with the prefix ``optimizer.`` is a field of OptimizerConfig
(``optimizer.clip_grad``). Keys cannot change what identifies the workload (``FIXED_FIELDS``). All fields, their
defaults and their checks come from the checkout. This module does not judge whether a configuration is good.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.frameworks.keys import suggest
from regbot_guest.frameworks.megatron_cpu import import_attribute
from regbot_guest.frameworks.training_loop import Scalar
from regbot_guest.request import Request

MODEL = ("megatron.core.transformer.transformer_config", "TransformerConfig")
DDP = ("megatron.core.distributed", "DistributedDataParallelConfig")
OPTIMIZER = ("megatron.core.optimizer", "OptimizerConfig")

FIXED_FIELDS = {
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
"""Fields that the user's keys cannot set, each with the reason or with what to do instead."""

GPU_FIELDS: dict[str, Scalar] = {
    "moe_grouped_gemm": False, "moe_permute_fusion": False, "moe_router_fusion": False, "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False, "cross_entropy_loss_fusion": False, "tp_comm_overlap": False,
    "cuda_graph_impl": "none", "transformer_impl": "local", "enable_cuda_graph": False, "external_cuda_graph": False,
}  # fmt: skip
"""Fields that choose a kernel but do not change collectives. A run on a CPU uses the values here, and records the
requested values.
"""
TRANSFORMER_ENGINE_FIELDS = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "fp8", "fp4")
"""Fields that change the step and that only layers of Transformer Engine support."""
UNSUPPORTED_FIELDS = ("model.mtp_num_layers", "model.multi_latent_attention", "model.heterogeneous_block_specs",
             "ddp.use_megatron_fsdp", "ddp.use_custom_fsdp")  # fmt: skip
"""Fields of models and wrappers that this adapter does not build."""

FLEX = {"flex": None, "deepep": "deepep", "hybridep": "hybridep", "ncclep": "ncclep"}
"""Dispatchers that use MCore's dispatcher 'flex'. The value is the backend of 'flex', or None for the configured
backend.
"""


@dataclass
class MegatronSettings:
    """Keyword arguments for Megatron's configuration classes, and the sizes of one rank's batch in one step."""

    model: dict[str, Any]
    ddp: dict[str, Any]
    optimizer: dict[str, Any]
    vocabulary: int
    sequence: int
    micro_batch: int
    gpt: dict[str, Any] = field(default_factory=dict)
    """Arguments of GPTModel other than its configuration."""
    reported: dict[str, Scalar] = field(default_factory=dict)
    """Entries that replace or extend the resolved configuration in the record. They are the requested values of
    settings that were changed for this machine, and keys of a recipe that have no corresponding field.
    """
    patches: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def experts(self) -> int:
        return int(self.model.get("num_moe_experts") or 0)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model["params_dtype"]
        return dtype


def settings_from_shape(request: Request) -> MegatronSettings:
    """Return settings with the numbers of the shape.

    All other settings have the values that Megatron's own MoE recipes have in common: distributed optimizer, both
    overlaps, gradients reduced in fp32, a router in fp32, no dropout.
    """
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
    return MegatronSettings(
        model=model | precision_fields(request.dtype),
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


def precision_fields(dtype: str) -> dict[str, Any]:
    """Return the fields that set the dtype of parameters and compute. Raises ContractError if Megatron does not support
    it.
    """
    known = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if dtype not in known:
        raise ContractError("config", f"Megatron cannot train in {dtype}; choose {', '.join(known)}")
    torch_dtype = known[dtype]
    return {
        "params_dtype": torch_dtype,
        "pipeline_dtype": torch_dtype,
        "bf16": torch_dtype is torch.bfloat16,
        "fp16": torch_dtype is torch.float16,
    }


def override(settings: MegatronSettings, config: Mapping[str, Any]) -> None:
    """Set the user's keys in ``settings``. Raises ContractError for an unknown key or a key in ``FIXED_FIELDS``."""
    parts = {"": (MODEL, settings.model), "ddp": (DDP, settings.ddp), "optimizer": (OPTIMIZER, settings.optimizer)}
    for key, value in config.items():
        prefix, _, name = key.rpartition(".")
        if not prefix and name in FIXED_FIELDS:
            raise ContractError("config", f"config.{key}: {FIXED_FIELDS[name]}")
        fields = _list_fields(parts[prefix][0]) if prefix in parts else {}
        if name not in fields:
            raise ContractError(
                "config",
                f"config.{key}: this Megatron has no such field; a key is a field of TransformerConfig, or 'ddp.' or "
                "'optimizer.' and a field of DistributedDataParallelConfig or OptimizerConfig",
            )
        parts[prefix][1][name] = _parse_value(value, fields[name])


def choose_dispatcher(settings: MegatronSettings, requested: str, static: bool) -> str:
    """Set the requested dispatcher in ``settings`` and return its name. Raises ContractError if it cannot be used.

    If ``requested`` is '', the configured dispatcher or MCore's default is used. If the model has no experts, return
    ''.
    """
    if not settings.experts:
        return ""
    fields = _list_fields(MODEL)
    configured = settings.model.get("moe_token_dispatcher_type", fields["moe_token_dispatcher_type"].default)
    dispatcher = requested or str(configured)
    if dispatcher not in ("alltoall", "allgather", *FLEX):
        raise ContractError("config", f"Megatron has no dispatcher {dispatcher!r}; there are alltoall, allgather, flex")
    if dispatcher in FLEX and static:
        raise ContractError(
            "config",
            f"dispatcher {dispatcher!r} cannot be traced without a GPU: Megatron's flex dispatcher exchanges tokens in "
            "a library's kernels, which need GPUs. Trace alltoall or allgather, or count flex on GPUs",
        )
    if requested:
        settings.model["moe_token_dispatcher_type"] = "flex" if dispatcher in FLEX else dispatcher
    if FLEX.get(requested):
        settings.model["moe_flex_dispatcher_backend"] = FLEX[requested]
    return dispatcher


def refuse_other_models(settings: MegatronSettings) -> None:
    """Raise ContractError if the settings need a model or a wrapper that this adapter does not build."""
    for key in UNSUPPORTED_FIELDS:
        part, _, name = key.partition(".")
        if getattr(settings, part).get(name):
            raise ContractError(
                "config", f"{name} is set, and regbot builds no such model; turn it off for this workload"
            )


def adapt_to_cpu(settings: MegatronSettings) -> None:
    """Disable settings that choose a GPU kernel. Raises ContractError if another setting needs a GPU."""
    fields = _list_fields(MODEL)
    for name in TRANSFORMER_ENGINE_FIELDS:
        if settings.model.get(name):
            raise ContractError(
                "config",
                f"{name} = {settings.model[name]!r} cannot be run without a GPU and Transformer Engine; turn it off "
                "for this workload, or read a profile of a run on GPUs with 'regbot ledger read'",
            )
    for name, cpu_value in GPU_FIELDS.items():
        requested = settings.model.get(name, cpu_value)
        if name in fields and requested != cpu_value:
            settings.model[name] = cpu_value
            settings.reported[name] = _to_scalar(requested)
            settings.patches.append(f"{name} = {cpu_value!r} in place of {_to_scalar(requested)!r}, which needs a GPU")


def construct(class_path: tuple[str, str], arguments: Mapping[str, Any]) -> Any:
    """Create an instance of one of Megatron's configuration classes. Raises ContractError if Megatron rejects the
    arguments.
    """
    known = _list_fields(class_path)
    if unknown := sorted(set(arguments) - set(known)):
        nearest = suggest(unknown[0], known, "fields")
        raise refuse_revision(f"Megatron's {class_path[1]} has no field {unknown[0]!r}, which regbot sets{nearest}")
    try:
        return import_attribute(*class_path)(**arguments)
    except (AssertionError, ValueError, TypeError) as error:
        raise ContractError("config", f"Megatron rejects this configuration: {error}") from error


def flatten_config(configuration: Any, prefix: str = "") -> dict[str, Scalar]:
    """Return the fields of a dataclass as scalars.

    Functions are represented by their names, and keys of nested dataclasses contain dots. Absolute paths are left out.
    """
    scalars: dict[str, Scalar] = {}
    for config_field in dataclasses.fields(configuration):
        value = getattr(configuration, config_field.name, None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            scalars |= flatten_config(value, f"{prefix}{config_field.name}.")
            continue
        scalar = _to_scalar(value)
        if not (isinstance(scalar, str) and scalar.startswith("/")):
            scalars[f"{prefix}{config_field.name}"] = scalar
    return scalars


def _to_scalar(value: Any) -> Scalar:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else str(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return ",".join(str(_to_scalar(item)) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={_to_scalar(item)}" for key, item in sorted(value.items(), key=str))
    if isinstance(value, partial):
        return _to_scalar(value.func)
    definition: Callable[..., Any] | type = value if hasattr(value, "__qualname__") else type(value)
    return f"{definition.__module__}.{definition.__qualname__}"


def _list_fields(class_path: tuple[str, str]) -> dict[str, Any]:
    return {config_field.name: config_field for config_field in dataclasses.fields(import_attribute(*class_path))}


def _parse_value(value: Any, config_field: Any) -> Any:
    """Convert text such as ``a,b`` to a list if the field has a list type. Return other values unchanged."""
    if isinstance(value, str) and "list[" in str(config_field.type).lower():
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
