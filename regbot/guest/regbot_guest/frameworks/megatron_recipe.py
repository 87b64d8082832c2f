"""Settings from a recipe: ``path/to/model_config.yaml``, a test case of Megatron-LM, used with its own numbers.

The command line flags under MODEL_ARGS are mapped to fields of MCore's configurations. Settings without a corresponding
field (data, logging, checkpoints, schedules) do not change the collectives of a step. They are still recorded in the
resolved configuration, so that a change of them is visible. Pipeline stages are merged into one stage, with a warning.

Recipes of Megatron Bridge run in Bridge's own program (``megatron_bridge``).
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_cpu import import_attribute
from regbot_guest.frameworks.megatron_settings import (
    DDP,
    MODEL,
    OPTIMIZER,
    MegatronSettings,
    precision_fields,
)
from regbot_guest.request import Request

FieldUpdate = tuple[str, str, Callable[[Any], Any]]
"""How one flag changes the settings: the section of the settings, the field, and a conversion of the flag's value."""


def _keep(value: Any) -> Any:
    return value


def _negate(value: Any) -> bool:
    return not value


_RENAMED_FLAGS: dict[str, tuple[FieldUpdate, ...]] = {
    "num_experts": (("model", "num_moe_experts", _keep),),
    "norm_epsilon": (("model", "layernorm_epsilon", _keep),),
    "disable_bias_linear": (("model", "add_bias_linear", _negate),),
    "no_rope_fusion": (("model", "apply_rope_fusion", _negate),),
    "recompute_activations": (("model", "recompute_granularity", lambda enabled: "selective" if enabled else None),),
    "swiglu": (
        ("model", "gated_linear_unit", _keep),
        ("model", "activation_func", lambda enabled: torch.nn.functional.silu if enabled else torch.nn.functional.gelu),
    ),
    "untie_embeddings_and_output_weights": (("gpt", "share_embeddings_and_output_weights", _negate),),
    "position_embedding_type": (("gpt", "position_embedding_type", _keep),),
    "rotary_base": (("gpt", "rotary_base", _keep),),
    "rotary_percent": (("gpt", "rotary_percent", _keep),),
    "accumulate_allreduce_grads_in_fp32": (("ddp", "grad_reduce_in_fp32", _keep),),
    "ddp_bucket_size": (("ddp", "bucket_size", _keep),),
    "ddp_average_in_collective": (("ddp", "average_in_collective", _keep),),
    "check_for_nan_in_loss_and_grad": (("ddp", "check_for_nan_in_grad", _keep),),
}
"""Flags of Megatron-LM whose name or meaning differs from the field that they set."""
_UNRECORDED_FLAGS = frozenset({
    "seq_length", "micro_batch_size", "global_batch_size", "bf16", "fp16", "vocab_size", "padded_vocab_size",
    "group_query_attention", "use_mcore_models", "max_position_embeddings",
})  # fmt: skip
"""Flags without a field that are not recorded. regbot reads them by name, or the traced step does not use them."""
_DEFAULT_LEARNING_RATE = 1e-4
"""Learning rate if the recipe does not set one, for example because its schedule does. The optimizer needs a value."""
_SINGLE_STAGE = {
    "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None, "num_layers_per_virtual_pipeline_stage": None,
    "num_layers_in_first_pipeline_stage": None, "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False, "account_for_loss_in_pipeline_split": False,
}  # fmt: skip
"""Fields that merge all pipeline stages into one."""


def settings_from_recipe(request: Request) -> MegatronSettings:
    """Return the settings of ``request.recipe``.

    Raises ContractError if the recipe cannot be read, or if its expert parallelism differs from the request's.
    """
    settings = _settings_from_test_case(request)
    stages = settings.model.get("pipeline_model_parallel_size") or 1
    settings.model |= {name: value for name, value in _SINGLE_STAGE.items() if name in settings.model}
    if stages > 1:
        settings.warnings.append(
            f"the recipe has {stages} pipeline stages; they were traced as one, so sends between stages are not "
            "counted, and this rank has all layers"
        )
    recipe_ep = settings.model.get("expert_model_parallel_size") or 1
    if recipe_ep != request.ep:
        raise ContractError(
            "config",
            f"recipe {request.recipe!r} has expert_model_parallel_size {recipe_ep}, but EP {request.ep} was requested; "
            f"trace it with --ep {recipe_ep} and a world size that is a multiple of it",
        )
    return settings


def _settings_from_test_case(request: Request) -> MegatronSettings:
    flags = _read_flags(request)
    dtype = "bfloat16" if flags.get("bf16") else "float16" if flags.get("fp16") else "float32"
    # These are defaults of Megatron's arguments.py: bf16 training reduces gradients in fp32, and embeddings are tied.
    settings = MegatronSettings(
        model=precision_fields(dtype),
        ddp={"grad_reduce_in_fp32": dtype == "bfloat16"},
        optimizer={"optimizer": "adam", "lr": _DEFAULT_LEARNING_RATE},
        vocabulary=int(flags.get("padded_vocab_size") or flags.get("vocab_size") or request.geometry.vocabulary),
        sequence=int(flags.get("seq_length") or request.geometry.sequence),
        micro_batch=int(flags.get("micro_batch_size") or 1),
        gpt={"share_embeddings_and_output_weights": True},
    )
    sections = {"model": settings.model, "ddp": settings.ddp, "optimizer": settings.optimizer, "gpt": settings.gpt}
    fields = {"model": _field_names(MODEL), "ddp": _field_names(DDP), "optimizer": _field_names(OPTIMIZER)}
    for flag, value in flags.items():
        updates = _RENAMED_FLAGS.get(flag) or tuple(
            (section, flag, _keep) for section in fields if flag in fields[section]
        )
        for section, name, convert in updates:
            sections[section][name] = convert(value)
        if not updates and flag not in _UNRECORDED_FLAGS and not (isinstance(value, str) and set("/$") & set(value)):
            settings.reported[f"recipe.{flag}"] = value if isinstance(value, (bool, int, float)) else str(value)
    settings.model.setdefault("ffn_hidden_size", 4 * int(settings.model.get("hidden_size", 0)))
    return settings


def _read_flags(request: Request) -> dict[str, Any]:
    """Return the flags under MODEL_ARGS, by the names that argparse gives them. Raises ContractError."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ContractError(
            "config", f"recipe {request.recipe!r} is YAML; install pyyaml in the workload's python"
        ) from error
    path = Path(request.root) / request.recipe
    if not path.resolve().is_relative_to(Path(request.root).resolve()) or not path.is_file():
        raise ContractError(
            "config",
            f"recipe {request.recipe!r}: there is no such file in the checkout; for a recipe of Megatron Bridge set "
            "'program' too (docs/frameworks/megatron.md)",
        )
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    flags = document.get("MODEL_ARGS") if isinstance(document, dict) else None
    if not isinstance(flags, dict):
        raise ContractError(
            "config", f"recipe {request.recipe!r} has no MODEL_ARGS; it is not a test case of Megatron-LM"
        )
    return {str(flag).removeprefix("--").replace("-", "_"): _parse_number(value) for flag, value in flags.items()}


def _parse_number(value: Any) -> Any:
    """Convert text such as ``1e-2`` to a number. YAML reads such numbers as text."""
    try:
        return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+[eE][+-]?\d+", value) else value
    except ValueError:
        return value


def _field_names(class_path: tuple[str, str]) -> set[str]:
    return {
        config_field.name for config_field in dataclasses.fields(import_attribute(*class_path)) if config_field.init
    }
