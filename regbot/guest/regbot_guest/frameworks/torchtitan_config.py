"""torchtitan's configuration: a recipe, the numbers of the shape if the workload is pinned, and the user's own keys.
regbot sets fields in the loaded recipe, and torchtitan's own checks validate the result.
"""

import dataclasses
import importlib
import importlib.util
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.crash import regbot_keys
from regbot_guest.frameworks.keys import list_keys, suggest
from regbot_guest.frameworks.torchtitan_replacements import import_torchtitan
from regbot_guest.frameworks.torchtitan_shape import (
    CHECKPOINTING,
    MODELS,
    PINNED_RECIPE,
    pin,
    read_routing,
    set_checkpointing,
)
from regbot_guest.request import Request, Scalar

FORCED_KEYS: Mapping[str, Scalar] = {
    "metrics.log_freq": 1,
    "metrics.enable_tensorboard": False,
    "metrics.enable_wandb": False,
    "metrics.disable_color_printing": True,
    "checkpoint.enable": False,
    "validator.enable": False,
    "debug.enable_structured_logging": False,
    "debug.save_config_file": None,
    "training.disable_cuda_graphs": True,
}
"""Nothing is saved, uploaded or validated. torchtitan all-reduces the loss in a step that it logs, so every step is
logged. It refuses CUDA graphs with an expert all-to-all, and replays cannot be counted.
"""

REQUEST_KEYS = ("parallelism.expert_parallel_degree", "debug.moe_force_load_balance", "debug.seed")

SPMD_BACKEND = "parallelism.spmd_backend"
SPMD_TYPES, OLDEST_TORCH_WITH_SPMD_TYPES = "spmd_types", (2, 14)

MODEL_SPEC = "model_spec"
OWNED_KEYS = {
    "parallelism.expert_parallel_degree": "--ep",
    "training.steps": "'steps' of the session",
    "debug.moe_force_load_balance": "'routing' of the workload",
    "debug.seed": "the request",
}
"""Keys that a user cannot override, because regbot sets them. Each value names what to change instead of the key."""
OWNED_KEYS_OF_SHAPE = {
    "training.seq_len": "another shape or variant",
    "training.local_batch_size": "another shape",
    "training.max_context_length": "another shape or variant",
    "training.num_tokens_per_microbatch_per_dp_rank": "another shape",
}
"""Further keys that a user cannot override if the workload is pinned to a shape."""


def command_line(request: Request) -> list[str]:
    """Return the arguments of ``torchtitan.train``. Raises ContractError. torchtitan is not imported here: its modules
    read ``sys.argv`` when they are imported.
    """
    if request.world % request.ep:
        raise ContractError(
            "config", f"EP {request.ep} does not divide {request.world} ranks; choose another --ep or --world"
        )
    module, recipe = PINNED_RECIPE if not request.recipe else _split_recipe(request.recipe)
    return ["--module", module, "--config", recipe]


def configure(config: Any, request: Request) -> list[str]:
    """Set the fields that the request and regbot require, and then the user's. Return a warning for each of
    ``FORCED_KEYS`` that this torchtitan lacks. Raises ContractError.
    """
    regbot_keys.extend([*FORCED_KEYS, *REQUEST_KEYS])
    warnings = []
    if not request.recipe:
        pin(config, request)
    for key, value in FORCED_KEYS.items():
        if has_key(config, key):
            set_field(config, key, value)
        else:
            warnings.append(f"this torchtitan has no key {key}, which regbot sets to {value!r}")
    request_values = (request.ep, request.routing == "balanced", request.seed)
    for key, value in zip(REQUEST_KEYS, request_values, strict=True):
        if not has_key(config, key):
            raise refuse_revision(
                f"torchtitan's configuration has no key {key!r}, which regbot sets{_suggest_keys(config, key)}"
            )
        set_field(config, key, value)
    own_backend = _get_backend(config)
    for key, value in request.config.items():
        _override(config, key, value, is_pinned=not request.recipe)
    warnings += check_backend(_get_backend(config), own_backend)
    if request.mode == "static" and getattr(config.parallelism, "pipeline_parallel_degree", 1) > 1:
        raise ContractError(
            "config",
            "pipeline parallelism of torchtitan is not traced: the stages send each other shapes while they run, and a "
            "trace has one rank; set parallelism.pipeline_parallel_degree to 1",
        )
    experts, _ = read_routing(config)
    if experts % request.ep:
        raise ContractError(
            "config", f"EP {request.ep} does not divide the model's {experts} experts; choose another --ep"
        )
    return warnings


def check_backend(backend: Any, own_backend: Any) -> list[str]:
    """Return a warning if the user has replaced torchtitan's own SPMD backend: the backends dispatch tokens with
    different collectives. Raises ContractError if the installed torch cannot run the backend.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if backend == SPMD_TYPES and version < OLDEST_TORCH_WITH_SPMD_TYPES:
        raise ContractError(
            "config",
            f"torchtitan's {SPMD_BACKEND} is {SPMD_TYPES!r}, which needs torch 2.14 or newer; torch is "
            f"{torch.__version__}. Install torch 2.14 in {sys.executable}, or set config = "
            f'{{ "{SPMD_BACKEND}" = "partial_dtensor" }} in the workload, which traces another dispatch',
        )
    if backend == own_backend:
        return []
    return [f"{SPMD_BACKEND} is {backend!r}; torchtitan's own is {own_backend!r}, which has other collectives"]


def _get_backend(config: Any) -> Any:
    return getattr(getattr(config, "parallelism", None), "spmd_backend", None)


def explain_unknown_recipe(request: Request, error: Exception) -> ContractError:
    """Return the refusal, which lists the recipes that torchtitan has, or ``error`` if none is known."""
    module, recipe = PINNED_RECIPE if not request.recipe else _split_recipe(request.recipe)
    name, known_recipes = f"{MODELS}.{module}.config_registry", list[str]()
    try:
        # Recipes are the functions that the registry itself defines, without the imported ones.
        own_values = vars(importlib.import_module(name)).items()
        known_recipes = [function for function, value in own_values if getattr(value, "__module__", "") == name]
    except ImportError as import_error:
        if import_error.name and not name.startswith(import_error.name):  # something that the recipes import
            return ContractError(
                "no_framework",
                f"torchtitan's module {module!r} cannot be imported: {import_error}; install what it needs in "
                f"{sys.executable}, the workload's 'python'",
            )
    hint = f"there are {', '.join(known_recipes)}" if known_recipes else f"{error}"
    return ContractError("config", f"torchtitan has no recipe {recipe!r} in module {module!r}; {hint}")


def has_key(config: Any, key: str) -> bool:
    return _find_owner(config, key) is not None


def _suggest_keys(config: Any, key: str) -> str:
    """Keys of the model are left out: nobody can set them."""
    return suggest(key, list_keys(config, left_out=(MODEL_SPEC,)))


def set_field(config: Any, key: str, value: Scalar) -> None:
    """Set the field at the dotted path ``key``. Raises ContractError if there is none, or if its type refuses the
    value.
    """
    owner, name = _find_owner(config, key), key.split(".")[-1]
    if owner is None:
        raise ContractError("config", f"torchtitan's configuration has no key {key!r}{_suggest_keys(config, key)}")
    allowed_type: Any = Any
    with suppress(NameError):  # the type hint can be resolved only by a type checker
        allowed_type = typing.get_type_hints(type(owner)).get(name, Any)
    if not _is_allowed(value, allowed_type):
        type_name = getattr(allowed_type, "__name__", str(allowed_type))
        if typing.get_origin(allowed_type) is typing.Literal:
            type_name = " or ".join(map(repr, typing.get_args(allowed_type)))
        raise ContractError("config", f"{key}: torchtitan accepts {type_name}, not {value!r}")
    setattr(owner, name, value)


def _find_owner(config: Any, key: str) -> Any:
    owner = config
    *sections, name = key.split(".")
    for section in sections:
        owner = getattr(owner, section, None)
    is_field = dataclasses.is_dataclass(owner) and name in {field.name for field in dataclasses.fields(owner)}
    return owner if is_field else None


def validate(config: Any) -> None:
    """Repeat torchtitan's own checks (``__post_init__``), because fields were set after them. Raises ContractError."""
    sections = [getattr(config, field.name) for field in dataclasses.fields(config)]
    for section in (*sections, config):
        check = getattr(section, "__post_init__", None)
        try:
            if check is not None and dataclasses.is_dataclass(section):
                check()
        except (ValueError, NotImplementedError) as error:
            raise ContractError("config", f"torchtitan refuses this configuration: {error}") from error


def _split_recipe(recipe: str) -> tuple[str, str]:
    """A recipe is ``MODULE/NAME``, or only ``NAME`` if a module defines it, or if it begins with the module's name."""
    module, slash, name = recipe.rpartition("/")
    if slash:
        return module, name
    # The longest name comes first, because the name of a model can begin with the name of another one.
    registries = {path.parent.name: path for path in _list_registries()}
    known_models = sorted(registries, key=len, reverse=True)
    defining = (model for model in known_models if f"def {recipe}(" in registries[model].read_text(encoding="utf-8"))
    owner = next(defining, None) or next((model for model in known_models if recipe.startswith(model)), None)
    if owner is None:
        raise ContractError(
            "config",
            f"recipe {recipe!r} does not begin with a model of torchtitan ({', '.join(known_models)}); write "
            "MODULE/RECIPE",
        )
    return owner, recipe


def _list_registries() -> list[Path]:
    package = importlib.util.find_spec("torchtitan")
    if package is None:
        import_torchtitan("torchtitan")  # raises ContractError, because the import fails
    folders = (package.submodule_search_locations if package is not None else None) or []
    return [path for folder in folders for path in Path(folder).glob("models/*/config_registry.py")]


def _override(config: Any, key: str, value: Scalar, is_pinned: bool) -> None:
    advice_by_key = {**OWNED_KEYS, **(OWNED_KEYS_OF_SHAPE if is_pinned else {})}
    if key in advice_by_key or key.startswith(MODEL_SPEC):
        advice = advice_by_key.get(key, "the shape or recipe")
        raise ContractError("config", f"{key} cannot be set here; change it with {advice}")
    if key == CHECKPOINTING:
        set_checkpointing(config, value)
    else:
        set_field(config, key, value)


def _is_allowed(value: Scalar, allowed_type: Any) -> bool:
    """A bool is not accepted as a number."""
    origin, type_arguments = typing.get_origin(allowed_type), typing.get_args(allowed_type)
    if allowed_type is Any:
        return True
    if origin is typing.Annotated:
        annotated_type, *_ = type_arguments
        return _is_allowed(value, annotated_type)
    if origin is typing.Literal:
        return value in type_arguments
    if type_arguments:  # a union
        return any(_is_allowed(value, member) for member in type_arguments)
    if allowed_type is type(None):
        return value is None
    if allowed_type is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(allowed_type, type) and type(value) is allowed_type
