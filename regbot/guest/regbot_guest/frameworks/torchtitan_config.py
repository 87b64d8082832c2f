"""What torchtitan is asked to train: its own configuration, with the shape's numbers or a recipe's, and the overrides.

The configuration is torchtitan's from beginning to end: a function of its registries makes it, regbot sets fields of
it, and torchtitan's own checks run on the result. Two kinds of workload:

- pinned: the recipe ``qwen3_30b_a3b`` with the numbers of a shape, see ``torchtitan_shape``.
- recipe: what the repository ships, with its own sizes, batch, precision and activation checkpointing.

What is forced in both stands in ``FORCED`` and is part of the resolved configuration.
"""

import dataclasses
import importlib
import typing
from collections.abc import Mapping
from typing import Any

from regbot_guest.frameworks.stepping import Scalar
from regbot_guest.frameworks.torchtitan_shape import MODELS, PINNED, pin
from regbot_guest.harness import ContractError
from regbot_guest.request import Request

FORCED: Mapping[str, Scalar] = {
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
"""Nothing is saved, uploaded or validated, and every step is logged: logging reduces the loss over all ranks. CUDA
graphs are off because torchtitan refuses them with an expert all-to-all, and replayed nothing could be counted."""

CHECKPOINTING = "activation_checkpoint"
OWNED = {
    "parallelism.expert_parallel_degree": "--ep",
    "training.steps": "'steps' of the session",
    "debug.moe_force_load_balance": "'routing' of the workload",
    "debug.seed": "the request",
}
OWNED_WHEN_PINNED = {"training.seq_len": "another shape or variant", "training.local_batch_size": "another shape"}


def imported(name: str) -> Any:
    """A module of torchtitan. Raises ContractError where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        what = "it is neither in the checkout nor installed" if error.name == "torchtitan" else f"{error}"
        raise ContractError(
            "no_framework",
            f"torchtitan cannot be imported: {what}; install it and what it needs in the workload's 'python', and set "
            "'source_roots' to the folder that holds torchtitan/",
        ) from error


def load(request: Request) -> Any:
    """The ``Trainer.Config`` for ``request``, not yet fit for this machine. Raises ContractError."""
    if request.world % request.ep:
        raise ContractError(
            "config", f"EP {request.ep} does not divide {request.world} ranks; choose --ep and --world so"
        )
    module, recipe = PINNED if not request.recipe else _found(request.recipe)
    manager = importlib.import_module("torchtitan.config").ConfigManager()
    try:
        config = manager.parse_args(["--module", module, "--config", recipe])
    except (ValueError, ImportError) as error:
        there = _recipes(module)
        fix = f"there are {', '.join(there)}" if there else f"{error}"
        raise ContractError("config", f"torchtitan has no recipe {recipe!r} in module {module!r}; {fix}") from error
    if not request.recipe:
        pin(config, request)
    for key, value in {**FORCED, **_degrees(request)}.items():
        put(config, key, value)
    for key, value in request.config.items():
        _override(config, key, value, pinned=not request.recipe)
    experts, _ = routing(config)
    if experts % request.ep:
        raise ContractError(
            "config", f"EP {request.ep} does not divide the model's {experts} experts; choose another --ep"
        )
    return config


def routing(config: Any) -> tuple[int, int]:
    """(experts, top-k) of the model's first MoE layer. Raises ContractError where it has none."""
    for layer in getattr(config.model_spec.model, "layers", []):
        if (moe := getattr(layer, "moe", None)) is not None:
            return moe.router.num_experts, moe.router.top_k
    raise ContractError(
        "config", f"the model of {config.model_spec.flavor!r} has no MoE layer; choose a recipe that has"
    )


def put(config: Any, key: str, value: Scalar) -> None:
    """Set the field at a dotted path. Raises ContractError where there is none, or where it takes no such value."""
    owner, name = config, key
    for part in key.split(".")[:-1]:
        owner, name = getattr(owner, part, None), key.rpartition(".")[2]
    names = [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    if name not in names:
        there = f"; there are {', '.join(names)}" if names else ""
        raise ContractError("config", f"torchtitan's configuration has no key {key!r}{there}")
    allowed = _type_of(owner, name)
    if not _fits(value, allowed):
        raise ContractError("config", f"{key}: torchtitan takes {_words(allowed)} there, not {value!r}")
    setattr(owner, name, value)


def validate(config: Any) -> None:
    """torchtitan's own checks once more, after fields were set. Raises ContractError."""
    for part in (*(getattr(config, field.name) for field in dataclasses.fields(config)), config):
        again = getattr(part, "__post_init__", None)
        try:
            if again is not None and dataclasses.is_dataclass(part):
                again()
        except (ValueError, NotImplementedError) as error:
            raise ContractError("config", f"torchtitan refuses this configuration: {error}") from error


def _recipes(module: str) -> list[str]:
    """Functions of a module's registry that make a configuration."""
    try:
        registry = importlib.import_module(f"{MODELS}.{module}.config_registry")
    except ImportError:
        return []
    return [name for name, each in vars(registry).items() if getattr(each, "__module__", "") == registry.__name__]


def _found(recipe: str) -> tuple[str, str]:
    """Module and name of ``NAME`` or ``MODULE/NAME``: the module is the one whose name the recipe begins with."""
    module, slash, name = recipe.rpartition("/")
    if slash:
        return module, name
    known = sorted(importlib.import_module(MODELS)._supported_models, key=len, reverse=True)
    owner = next((model for model in known if recipe.startswith(model)), None)
    if owner is None:
        raise ContractError(
            "config", f"recipe {recipe!r} begins with no model of torchtitan ({', '.join(known)}); write MODULE/RECIPE"
        )
    return owner, recipe


def _degrees(request: Request) -> dict[str, Scalar]:
    return {
        "parallelism.expert_parallel_degree": request.ep,
        "debug.moe_force_load_balance": request.routing == "balanced",
        "debug.seed": request.seed,
    }


def _override(config: Any, key: str, value: Scalar, pinned: bool) -> None:
    owned = {**OWNED, **(OWNED_WHEN_PINNED if pinned else {})}
    if key in owned or key.startswith("model_spec"):
        raise ContractError("config", f"{key} is not set here: it is fixed by {owned.get(key, 'the shape or recipe')}")
    if key == CHECKPOINTING:
        config.activation_checkpoint = _checkpointing(value)
    else:
        put(config, key, value)


def _checkpointing(value: Scalar) -> Any:
    modes = {"full": "FullAC", "selective": "SelectiveAC"}
    if value == "none":
        return None
    if value not in modes:
        raise ContractError("config", f"{CHECKPOINTING}: write none, full or selective, not {value!r}")
    policies = importlib.import_module("torchtitan.distributed.activation_checkpoint")
    return getattr(policies, modes[str(value)]).Config()


def _type_of(owner: Any, name: str) -> Any:
    try:
        return typing.get_type_hints(type(owner)).get(name, Any)
    except NameError:  # a hint that only a type checker can resolve
        return Any


def _fits(value: Scalar, allowed: Any) -> bool:
    if allowed is Any:
        return True
    if typing.get_origin(allowed) is typing.Annotated:
        return _fits(value, typing.get_args(allowed)[0])
    if typing.get_origin(allowed) is typing.Literal:
        return value in typing.get_args(allowed)
    if args := typing.get_args(allowed):
        return any(_fits(value, each) for each in args)
    if allowed is type(None):
        return value is None
    if allowed is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(allowed, type) and type(value) is allowed


def _words(allowed: Any) -> str:
    if typing.get_origin(allowed) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(allowed)))
    return getattr(allowed, "__name__", str(allowed))
