"""Megatron Bridge's own ``scripts/training/run_recipe.py``: its overrides for a recipe, and the contents of the record.

The checkout's recipe keeps its numbers. regbot's overrides ``key=value`` switch off what needs files or a network, and
give a step one micro-batch.
"""

import dataclasses
import importlib
import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.crash import call_unchanged, regbot_keys
from regbot_guest.frameworks import hugging_face
from regbot_guest.frameworks.flat_config import flatten_config
from regbot_guest.frameworks.keys import list_keys, suggest
from regbot_guest.frameworks.megatron_command import (
    choose_global_batch,
    count_model_parallel_ranks,
    dispatcher_flags,
    find_script,
    read_size,
)
from regbot_guest.frameworks.megatron_lm import (
    AXES,
    describe_attention,
    describe_dispatcher,
    get_model_chunks,
    prepare_dataset_helpers,
)
from regbot_guest.frameworks.own_program import ProgramDescription, TrainingProgram, count_own_step, name_axes
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.request import Request, Scalar
from regbot_guest.routing import make_expert_choice
from regbot_guest.software import module_versions

STEP = ("megatron.bridge.training.train", "train_step")
GLOBAL_STATE_POSITION = 5
RECIPES = "recipe_runner"
"""Module beside the script. Its ``load_recipe`` returns the configuration of a recipe, given the recipe's name."""
RESTART_MARKER = "_MB_TRAINING_RECIPE_ENV_BOOTSTRAPPED"
"""Bridge's script restarts itself to set a recipe's variables, unless this variable has the id of its process."""
NULL_TOKENIZER = "NullTokenizer"
PRETRAINING = "_pretrain_"
"""Part of the name of a recipe for pretraining. The script infers the mode from the name."""
LAYOUT_FIELD = "pipeline_model_parallel_layout"
LAYOUT = f"model.{LAYOUT_FIELD}"
"""Layers of each pipeline stage: a text such as ``Et*12|t*12|(t|)*2L``, a list with one item a stage, or None."""
MOCKED = "tokenizer and data are Bridge's own mocks; nothing is saved, evaluated or logged to a service"

OFFLINE_OVERRIDES: Mapping[str, Scalar] = {
    "checkpoint.save": None,
    "checkpoint.load": None,
    "logger.tensorboard_dir": None,
    "validation.eval_iters": 0,
    "dataset.num_workers": 0,
}
"""Overrides with which the script needs no files and no network, and starts no processes for its data."""
SERVICE_KEYS = (
    "dataset.blend", "dataset.blend_per_split", "logger.wandb_project", "logger.mlflow_experiment",
    "logger.comet_project",
)  # fmt: skip
"""Keys that name data or a service. They are set to null if the recipe sets them."""
TOKENIZER_OVERRIDES: Mapping[str, Scalar] = {
    "tokenizer.tokenizer_type": NULL_TOKENIZER,
    "tokenizer.tokenizer_model": None,
}
REQUEST_KEYS = (
    "tokenizer.vocab_size", "train.global_batch_size", "model.moe_token_dispatcher_type",
    "model.moe_flex_dispatcher_backend",
)  # fmt: skip
FIXED_KEYS = {
    "model.expert_model_parallel_size": "it is fixed by the mesh; set it with --ep",
    "train.global_batch_size": "regbot traces as few micro-batches as possible",
    "model.moe_token_dispatcher_type": "set 'dispatcher' of the workload",
    "model.moe_flex_dispatcher_backend": "set 'dispatcher' of the workload",
}


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """Run ``request.program`` with ``request.recipe`` and return its part of the raw record. Raises ContractError."""
    script = find_script(request)
    if PRETRAINING not in f"_{request.recipe}_":  # the name may also begin or end with it
        raise ContractError("config", f"recipe {request.recipe!r} is not one for pretraining, and no other is traced")
    regbot_keys.extend([*OFFLINE_OVERRIDES, *TOKENIZER_OVERRIDES, *REQUEST_KEYS])
    prepare_dataset_helpers(request)
    os.environ[RESTART_MARKER] = str(os.getpid())  # the script then does not restart itself
    job = _RecipeJob(request, device)
    program = TrainingProgram(
        start=script,
        arguments=["--recipe", request.recipe],
        regbot_flags=["--recipe"],
        late_arguments=job.overrides,  # they depend on the recipe, which is code of the checkout
        step=STEP,
        models=job.models,
        axes=lambda *_: name_axes(AXES),
        describe=job.describe,
        experts=request.geometry.experts,
        patches=[MOCKED, hugging_face.PATCH],
        replacements=hugging_face.offline,
    )
    return count_own_step(request, device, program)


class _RecipeJob:
    def __init__(self, request: Request, device: Device) -> None:
        self._request, self._device = request, device
        self._container: Any = None
        self._warnings: list[str] = []

    def overrides(self) -> list[str]:
        """Return the overrides for the script, and route tokens to the recipe's number of experts. Raises
        ContractError.
        """
        request = self._request
        container = self._load_recipe()
        recipe_settings = flatten_config(container)
        user_overrides = read_user_overrides(request.config)
        layout = getattr(container.model, LAYOUT_FIELD, None)  # unlike in recipe_settings, a list is still a list
        settings = {**recipe_settings, LAYOUT: layout, **user_overrides}
        own_overrides: dict[str, Scalar] = {
            **OFFLINE_OVERRIDES,
            **{key: None for key in SERVICE_KEYS if recipe_settings.get(key)},
            **_tokenizer_overrides(settings),
            "train.global_batch_size": self._choose_global_batch(settings),
        }
        if request.dispatcher:
            flags: Mapping[str, Any] = dispatcher_flags(request)
            for name in ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"):
                own_overrides[f"model.{name}"] = flags.get(name)
        refuse_unknown_keys(own_overrides, user_overrides, list_keys(container))
        experts, top_k = settings.get("model.num_moe_experts"), settings.get("model.moe_router_topk")
        if isinstance(experts, int) and isinstance(top_k, int):  # otherwise the model has no experts
            geometry = dataclasses.replace(request.geometry, experts=experts, top_k=top_k)
            choice = make_expert_choice(dataclasses.replace(request, geometry=geometry))
            self._device.set_expert_choice(experts, choice)
        return [f"{key}={format_value(value)}" for key, value in {**own_overrides, **user_overrides}.items()]

    def _load_recipe(self) -> Any:
        request = self._request
        runner = importlib.import_module(RECIPES)
        try:
            container = call_unchanged(runner.load_recipe, (request.recipe,), {})
        except AttributeError as error:
            raising_function = traceback.extract_tb(error.__traceback__)[-1].name
            if raising_function != "load_recipe":  # the recipe exists, and its own code failed
                raise
            raise ContractError("config", f"recipe {request.recipe!r} cannot be loaded: {error}") from error
        if not dataclasses.is_dataclass(container) or getattr(container, "model", None) is None:
            raise ContractError("config", f"recipe {request.recipe!r} returns {container!r:.80}, not a configuration")
        return container

    def _choose_global_batch(self, settings: Mapping[str, Any]) -> int:
        where = f"recipe {self._request.recipe!r}"
        global_batch, self._warnings = choose_global_batch(
            self._request,
            ep=read_size(settings, "model.expert_model_parallel_size", where),
            model_parallel_ranks=count_model_parallel_ranks(settings, where, prefix="model."),
            micro_batches=_count_micro_batches(settings, where),
            micro_batch_size=read_size(settings, "train.micro_batch_size", where),
            recipe_batch=read_size(settings, "train.global_batch_size", where),
        )
        return global_batch

    def models(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[nn.Module]:
        """Return the model chunks and remember the configuration, arguments of ``train_step(forward_step_func,
        data_iterator, model, optimizer, scheduler, global_state, ...)``.
        """
        global_state = kwargs["global_state"] if "global_state" in kwargs else args[GLOBAL_STATE_POSITION]
        self._container = global_state.cfg
        return get_model_chunks(args, kwargs)

    def describe(self, counter: PaperCounter) -> ProgramDescription:
        request, config = self._request, flatten_config(self._container)
        model_settings = {
            key.removeprefix("model."): value for key, value in config.items() if key.startswith("model.")
        }
        return ProgramDescription(
            config={**config, "routing": request.routing, "mlp": request.mlp},
            software=module_versions(("megatron.bridge", "megatron.core", "torch")),
            backends={
                "attention": describe_attention(counter),
                **describe_dispatcher(request, counter, model_settings),
            },
            warnings=self._warnings,
        )


def read_user_overrides(config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the user's overrides by dotted key. A key without a dot is a field of ``model``. Raises ContractError."""
    overrides: dict[str, Scalar] = {}
    for key, value in config.items():
        name = key if "." in key else f"model.{key}"
        if not all(part.isidentifier() for part in name.split(".")):
            raise ContractError("config", f"config.{key} is not a key of a recipe; write it as in model.num_layers")
        if name in FIXED_KEYS:
            raise ContractError("config", f"config.{key} cannot be set: {FIXED_KEYS[name]}")
        overrides[name] = value
    return overrides


def refuse_unknown_keys(own_overrides: Iterable[str], user_overrides: Iterable[str], known_keys: Sequence[str]) -> None:
    """Raise ContractError if the recipe lacks a key. A missing key of regbot means an unsupported revision."""
    for key in user_overrides:
        if key not in known_keys:
            raise ContractError("config", f"the recipe has no key {key}{suggest(key, known_keys)}")
    for key in own_overrides:
        if key not in known_keys:
            raise refuse_revision(f"the recipe has no key {key}, which regbot sets{suggest(key, known_keys)}")


def _tokenizer_overrides(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """A null tokenizer needs no files. It gets as many tokens as the recipe's, else the model's vocabulary."""
    if settings.get("tokenizer.tokenizer_type") == NULL_TOKENIZER:
        return {}
    name = settings.get("tokenizer.tokenizer_model")
    tokens = settings.get("tokenizer.vocab_size") or hugging_face.TOKENS.get(str(name))
    lacks_own_vocabulary = settings.get("model.vocab_size") is None
    takes_tokenizer_vocabulary = settings.get("tokenizer.use_tokenizer_vocab_size") or lacks_own_vocabulary
    if tokens is None and takes_tokenizer_vocabulary:
        raise ContractError(
            "config",
            f"the recipe takes its vocabulary from the tokenizer {name}; set 'tokenizer.vocab_size' in the workload's "
            "config to the tokenizer's number of tokens",
        )
    return {**TOKENIZER_OVERRIDES, "tokenizer.vocab_size": tokens or settings["model.vocab_size"]}


def _count_micro_batches(settings: Mapping[str, Any], where: str) -> int:
    """Return the smallest number that Megatron accepts: several if a rank has several pipeline stages."""
    ranks = read_size(settings, "model.pipeline_model_parallel_size", where)
    layout = settings.get(LAYOUT)
    layout_stages = len(layout or ())
    if isinstance(layout, str):
        module = importlib.import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
        layout_stages = int(module.PipelineParallelLayerLayout.get_num_stages_from_str(layout))
    virtual_stages = read_size(settings, "model.virtual_pipeline_model_parallel_size", where)
    group_size = read_size(settings, "model.microbatch_group_size_per_vp_stage", where)
    return max(ranks, group_size) if max(virtual_stages, layout_stages // ranks) > 1 else 1


def format_value(value: Scalar) -> str:
    """Return a value in the grammar of Hydra, which parses the script's overrides. ``null`` means no value, brackets a
    list, any other text is quoted. Raises ContractError for an interpolation such as ``${model.num_layers}``.
    """
    if value is None or value == "null":
        return "null"
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if "${" in value:
        raise ContractError("config", f"the value {value!r} contains ${{, which would insert another key's value")
    if value.startswith("[") and value.endswith("]"):
        return value
    # Hydra reads a backslash as an escape only before a quote. So only backslashes there and at the end are doubled.
    escaped = re.sub(r"(\\*)'", lambda match: 2 * match[1] + "\\'", value)
    escaped = re.sub(r"\\+$", lambda match: 2 * match[0], escaped)
    return f"'{escaped}'"
