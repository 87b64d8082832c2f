"""Recipes: configurations that a repository ships, taken over with their own numbers.

Two kinds are known. ``path/to/model_config.yaml`` is a test case of Megatron-LM: command line flags under MODEL_ARGS,
mapped to the fields of MCore's configurations. ``package.module:function`` is a recipe of Megatron Bridge: it returns a
ConfigContainer whose sections have those fields already; this half was tried on a stand-in only, because Bridge needs
more than a CPU has. What has no field there (data, logging, checkpoints, schedules) changes no collective of a step; it
is kept in the resolved configuration, so that a change is seen. Pipeline stages are put into one, with a warning.
"""

import dataclasses
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regbot_guest.frameworks.megatron_cpu import named
from regbot_guest.frameworks.megatron_settings import DDP, MODEL, OPTIMIZER, Settings, flat, precision
from regbot_guest.harness import ContractError
from regbot_guest.request import Request

_BRIDGE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Put = tuple[str, str, Callable[[Any], Any]]
"""Part of the settings, field, and what becomes of the flag's value."""


def _same(value: Any) -> Any:
    return value


def _not(value: Any) -> bool:
    return not value


_RENAMED: dict[str, tuple[Put, ...]] = {
    "num_experts": (("model", "num_moe_experts", _same),),
    "norm_epsilon": (("model", "layernorm_epsilon", _same),),
    "disable_bias_linear": (("model", "add_bias_linear", _not),),
    "no_rope_fusion": (("model", "apply_rope_fusion", _not),),
    "recompute_activations": (("model", "recompute_granularity", lambda on: "selective" if on else None),),
    "swiglu": (
        ("model", "gated_linear_unit", _same),
        ("model", "activation_func", lambda on: torch.nn.functional.silu if on else torch.nn.functional.gelu),
    ),
    "untie_embeddings_and_output_weights": (("gpt", "share_embeddings_and_output_weights", _not),),
    "position_embedding_type": (("gpt", "position_embedding_type", _same),),
    "rotary_base": (("gpt", "rotary_base", _same),),
    "rotary_percent": (("gpt", "rotary_percent", _same),),
    "accumulate_allreduce_grads_in_fp32": (("ddp", "grad_reduce_in_fp32", _same),),
    "ddp_bucket_size": (("ddp", "bucket_size", _same),),
    "ddp_average_in_collective": (("ddp", "average_in_collective", _same),),
    "check_for_nan_in_loss_and_grad": (("ddp", "check_for_nan_in_grad", _same),),
}
"""Flags of Megatron-LM whose field has another name, or the opposite sense."""
_READ_ELSEWHERE = frozenset({
    "seq_length", "micro_batch_size", "global_batch_size", "bf16", "fp16", "vocab_size", "padded_vocab_size",
    "group_query_attention", "use_mcore_models", "max_position_embeddings",
})  # fmt: skip
_RATE = 1e-4
"""Learning rate where a recipe leaves it to a schedule; the optimizer needs one."""
_PIPELINE = {
    "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None, "num_layers_per_virtual_pipeline_stage": None,
    "num_layers_in_first_pipeline_stage": None, "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False, "account_for_loss_in_pipeline_split": False,
}  # fmt: skip


def of_recipe(request: Request) -> Settings:
    """The settings of ``request.recipe``. Raises ContractError where it cannot be read, or is of another mesh."""
    settings = _of_container(request) if _BRIDGE.fullmatch(request.recipe) else _of_test_case(request)
    stages = settings.model.get("pipeline_model_parallel_size") or 1
    settings.model |= {name: one for name, one in _PIPELINE.items() if name in settings.model}
    if stages > 1:
        settings.warnings.append(
            f"the recipe has {stages} pipeline stages; they were traced as one, so sends between stages are not "
            "counted and every layer stands on this rank"
        )
    theirs = settings.model.get("expert_model_parallel_size") or 1
    if theirs != request.ep:
        raise ContractError(
            "config",
            f"recipe {request.recipe!r} has expert_model_parallel_size {theirs}, and EP {request.ep} was asked for; "
            f"trace it with --ep {theirs} and a world size that this divides",
        )
    return settings


def _of_test_case(request: Request) -> Settings:
    flags = _flags(request)
    dtype = "bfloat16" if flags.get("bf16") else "float16" if flags.get("fp16") else "float32"
    # Megatron's arguments.py: bf16 reduces gradients in fp32, embeddings are tied unless said otherwise.
    settings = Settings(
        model=precision(dtype),
        ddp={"grad_reduce_in_fp32": dtype == "bfloat16"},
        optimizer={"optimizer": "adam", "lr": _RATE},
        vocabulary=int(flags.get("padded_vocab_size") or flags.get("vocab_size") or request.geometry.vocabulary),
        sequence=int(flags.get("seq_length") or request.geometry.sequence),
        micro_batch=int(flags.get("micro_batch_size") or 1),
        gpt={"share_embeddings_and_output_weights": True},
    )
    parts = {"model": settings.model, "ddp": settings.ddp, "optimizer": settings.optimizer, "gpt": settings.gpt}
    fields = {"model": _names(MODEL), "ddp": _names(DDP), "optimizer": _names(OPTIMIZER)}
    for flag, value in flags.items():
        puts = _RENAMED.get(flag) or tuple((part, flag, _same) for part in fields if flag in fields[part])
        for part, name, change in puts:
            parts[part][name] = change(value)
        if not puts and flag not in _READ_ELSEWHERE and not (isinstance(value, str) and set("/$") & set(value)):
            settings.told[f"recipe.{flag}"] = value if isinstance(value, (bool, int, float)) else str(value)
    settings.model.setdefault("ffn_hidden_size", 4 * int(settings.model.get("hidden_size", 0)))
    return settings


def _flags(request: Request) -> dict[str, Any]:
    """Flags under MODEL_ARGS by the name that argparse would give them."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ContractError(
            "config", f"recipe {request.recipe!r} is YAML; install pyyaml in the workload's python"
        ) from error
    path = Path(request.root) / request.recipe
    if not path.resolve().is_relative_to(Path(request.root).resolve()) or not path.is_file():
        raise ContractError("config", f"recipe {request.recipe!r}: there is no such file in the checkout")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    flags = document.get("MODEL_ARGS") if isinstance(document, dict) else None
    if not isinstance(flags, dict):
        raise ContractError("config", f"recipe {request.recipe!r} has no MODEL_ARGS; a test case of Megatron-LM has")
    return {str(flag).removeprefix("--").replace("-", "_"): _number(value) for flag, value in flags.items()}


def _number(value: Any) -> Any:
    """YAML takes ``1e-2`` for text."""
    try:
        return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+[eE][+-]?\d+", value) else value
    except ValueError:
        return value


def _of_container(request: Request) -> Settings:
    module, _, function = request.recipe.partition(":")
    try:
        container = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ContractError("config", f"recipe {request.recipe!r} cannot be made: {error}") from error
    return of_container(container, request)


def of_container(container: Any, request: Request) -> Settings:
    """The settings of a ConfigContainer of Megatron Bridge: its sections ``model``, ``ddp``, ``optimizer``, ``train``
    and ``dataset`` are read, all of it is told."""
    missing = [name for name in ("model", "ddp", "optimizer") if getattr(container, name, None) is None]
    if missing:
        raise ContractError("config", f"recipe {request.recipe!r} gives a container without section {missing[0]!r}")
    model = {name: getattr(container.model, name) for name in _names(MODEL) if hasattr(container.model, name)}
    model.setdefault("params_dtype", torch.float32)
    gpt = {name: getattr(container.model, name) for name in _GPT if hasattr(container.model, name)}
    train, data = getattr(container, "train", None), getattr(container, "dataset", None)
    sequence = getattr(container.model, "seq_length", None) or getattr(data, "seq_length", None)
    optimizer = _present(container.optimizer, OPTIMIZER)
    optimizer["lr"] = optimizer.get("lr") or _RATE
    told = {
        key: value for key, value in flat(container).items() if key.split(".")[0] not in ("model", "ddp", "optimizer")
    }
    return Settings(
        model=model,
        ddp=_present(container.ddp, DDP),
        optimizer=optimizer,
        vocabulary=int(getattr(container.model, "vocab_size", None) or request.geometry.vocabulary),
        sequence=int(sequence or request.geometry.sequence),
        micro_batch=int(getattr(train, "micro_batch_size", None) or 1),
        gpt=gpt,
        told={f"recipe.{key}": value for key, value in told.items()},
    )


_GPT = ("position_embedding_type", "rotary_base", "rotary_percent", "share_embeddings_and_output_weights")


def _present(section: Any, which: tuple[str, str]) -> dict[str, Any]:
    return {name: getattr(section, name) for name in _names(which) if hasattr(section, name)}


def _names(which: tuple[str, str]) -> set[str]:
    return {one.name for one in dataclasses.fields(named(*which)) if one.init}
