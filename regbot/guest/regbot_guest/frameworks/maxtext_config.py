"""MaxText's configuration: the ``key=value`` arguments of its command line, and a check of the resolved configuration.

There are three layers of keys, and each overrides the layers before it:

1. the numbers of the shape, or an unchanged recipe of the repository,
2. the workload's ``config``,
3. ``FORCED_KEYS``, because there is no accelerator, and because nothing may be saved or downloaded.
"""

import difflib
import math
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from regbot_guest.request import Geometry, Request

Scalar = str | int | float | bool | None

FORCED_KEYS: Mapping[str, Scalar] = {
    "hardware": "cpu",
    "compile_topology": "a3",
    "compile_topology_num_slices": 1,
    "skip_jax_distributed_system": True,
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "jax_cache_dir": "",  # XLA writes no dump for a program that it finds in the cache
    "compiled_trainstep_file": "",
    "dump_hlo": False,
    "log_config": False,
    "run_name": "regbot",
    "override_model_config": True,
}
OWNED_KEYS = {"ici_expert_parallelism": "--ep", "base_output_directory": "nothing: no output is kept"}
"""Further keys that regbot sets. Each value names what to change instead of the key."""

SHAPE_DEFAULTS: Mapping[str, Scalar] = {"sparse_matmul": False, "megablox": False, "capacity_factor": 1.25}
"""Defaults for the experts of a pinned shape: dense matrix products, with each expert's tokens padded to its capacity.
Megablox needs an accelerator.
"""

BATCH = "per_device_batch_size"
"""The only number of a shape that a workload can change. Sharding can depend on it."""
_UNKNOWN_KEY = re.compile(r"'([^']+)' not in ('.*)", re.DOTALL)

RULES = "logical_axis_rules"
EXCLUDED_KEYS = {"run_name", "hf_access_token"}


class MaxTextError(Exception):
    """The requested step cannot be compiled. ``kind`` is one of the kinds of refusal in the raw record."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ResolvedConfig(Protocol):
    """MaxText's configuration, as ``pyconfig.initialize`` returns it."""

    def get_keys(self) -> Mapping[str, Any]: ...


def compile_arguments(request: Request, package: Path, scratch: Path) -> list[str]:
    """Return ``argv`` for ``train_compile``: program name, base file and ``key=value`` pairs. Raises MaxTextError."""
    user_keys = dict(request.config)
    fixed = {**dict.fromkeys(FORCED_KEYS, "nothing: regbot sets it"), **OWNED_KEYS}
    if not request.recipe:
        numbers = _shape_keys(request.geometry).keys() - {BATCH}
        fixed |= {**dict.fromkeys(numbers, "another shape or variant"), "model_name": "'recipe'"}
        fixed["dtype"] = "another variant"
    for key in sorted(user_keys.keys() & fixed.keys()):
        raise MaxTextError("config", f"config.{key}: fixed by this workload; use {fixed[key]}")
    base, keys = (
        _recipe_keys(request, package) if request.recipe else (package / "configs" / "base.yml", _pinned_keys(request))
    )
    keys |= {"ici_fsdp_parallelism": -1, **user_keys}  # -1 means all ranks that are left over by the other axes
    keys |= {**FORCED_KEYS, "ici_expert_parallelism": request.ep, "base_output_directory": str(scratch / "output")}
    return ["train_compile", str(base), *(f"{key}={_format_value(value)}" for key, value in keys.items())]


def check_shape(config: ResolvedConfig, request: Request) -> None:
    """Check that MaxText's configuration has the numbers of the shape. Raises MaxTextError, which lists the differing
    numbers.
    """
    if request.recipe:
        return
    keys = config.get_keys()
    mismatches = [
        f"{name} is {keys.get(name)!r}, not {number!r}"
        for name, number in {**_resolved_shape_keys(request.geometry), **_own_batch(request)}.items()
        if keys.get(name) != number
    ]
    if mismatches:
        raise MaxTextError("shape", f"MaxText did not use the shape's numbers: {'; '.join(mismatches)}")


def list_warnings(request: Request) -> list[str]:
    """Return a warning if the workload sets another batch than the shape."""
    batch, own_batch = request.geometry.micro_batch, _own_batch(request).get(BATCH, request.geometry.micro_batch)
    if request.recipe or own_batch == batch:
        return []
    return [f"{BATCH} is {own_batch}, as the workload sets it, and not the shape's {batch}"]


def _own_batch(request: Request) -> dict[str, Scalar]:
    return {BATCH: request.config[BATCH]} if BATCH in request.config else {}


def explain_refusal(error: BaseException, request: Request) -> MaxTextError:
    """Return the refusal for MaxText's error about the configuration.

    If regbot has set the key that MaxText does not know, regbot does not support this revision of MaxText.
    """
    unknown = _UNKNOWN_KEY.match(str(_cause(error)))
    is_set_by_regbot = unknown and (unknown[1] in {*FORCED_KEYS, *OWNED_KEYS} or not request.recipe)
    if unknown and is_set_by_regbot and unknown[1] not in request.config:
        return MaxTextError(
            "revision",
            f"regbot does not support this revision: MaxText has no key {unknown[1]!r}, which regbot sets"
            f"{_suggest(unknown)}",
        )
    return MaxTextError("config", describe_error(error))


def _cause(error: BaseException) -> BaseException:
    """Return the error that MaxText logged before it raised SystemExit. Return any other error as it is."""
    return error.__context__ if isinstance(error, SystemExit) and error.__context__ else error


def _suggest(unknown: re.Match[str]) -> str:
    similar = difflib.get_close_matches(unknown[1], re.findall(r"'([^']+)'", unknown[2]), 3)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


def describe_error(error: BaseException) -> str:
    """Return MaxText's error about the configuration. If a key is unknown, leave out the list of all keys."""
    text = str(_cause(error))
    unknown = _UNKNOWN_KEY.match(text)
    if not unknown:
        return f"MaxText refuses the configuration: {text[:1000]}"
    return f"MaxText refuses the configuration: it has no key {unknown[1]!r}{_suggest(unknown)}"


def flatten_config(keys: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the resolved configuration as scalars, without file paths and names of runs.

    The logical axis rules determine all sharding. They become one key per logical axis.
    """
    scalars: dict[str, Scalar] = {}
    for key, value in sorted(keys.items()):
        if key not in EXCLUDED_KEYS:
            _add_scalars(scalars, key, value)
    return scalars


def _add_scalars(scalars: dict[str, Scalar], key: str, value: Any) -> None:
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        for name, nested in sorted(value.items(), key=lambda item: str(item[0])):
            _add_scalars(scalars, f"{key}.{name}", nested)
    elif isinstance(value, (list, tuple)) and key.startswith(RULES):
        for name, target in value:  # a name may occur more than once, and the first applicable rule is used
            rule_key = f"{key}.{name}"
            scalars[rule_key] = f"{scalars[rule_key]} | {_join(target)}" if rule_key in scalars else _join(target)
    elif isinstance(value, (list, tuple)):
        scalars[key] = _join(value)
    elif value is None or isinstance(value, (bool, int)):
        scalars[key] = value
    elif isinstance(value, float):
        scalars[key] = value if math.isfinite(value) else str(value)
    else:
        text = str(value)
        if not (text.startswith(("/", "~")) or "://" in text):
            scalars[key] = text


def _join(value: Any) -> str:
    return ",".join(map(_join, value)) if isinstance(value, (list, tuple)) else str(value)


def _shape_keys(geometry: Geometry) -> dict[str, Scalar]:
    """Return the numbers of the shape by the keys that MaxText's configuration files use."""
    return {
        "base_num_decoder_layers": geometry.layers,
        "base_emb_dim": geometry.hidden,
        "base_num_query_heads": geometry.heads,
        "base_num_kv_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "use_qk_norm": geometry.qk_norm,
        "rope_max_timescale": int(geometry.rope_theta),
        "num_experts": geometry.experts,
        "num_experts_per_tok": geometry.top_k,
        "base_mlp_dim": geometry.expert_width,
        "base_moe_mlp_dim": geometry.expert_width,
        "vocab_size": geometry.vocabulary,
        "max_target_length": geometry.sequence,
        "per_device_batch_size": geometry.micro_batch,
    }


def _resolved_shape_keys(geometry: Geometry) -> dict[str, Scalar]:
    """Return the numbers of the shape by the keys that MaxText's model code reads. These keys lack the prefix
    ``base_``.
    """
    return {key.removeprefix("base_"): value for key, value in _shape_keys(geometry).items()}


def _pinned_keys(request: Request) -> dict[str, Any]:
    model = request.workload.rpartition(":")[2].partition("@")[0]
    return {"model_name": model, **SHAPE_DEFAULTS, **_shape_keys(request.geometry), "dtype": request.dtype}


def _recipe_keys(request: Request, package: Path) -> tuple[Path, dict[str, Any]]:
    """Return the base file and the keys of a recipe.

    A recipe is a model name, the file of a model, or a complete configuration file. Raises MaxTextError if there is no
    such file.
    """
    if not request.recipe.endswith(".yml"):
        return package / "configs" / "base.yml", {"model_name": request.recipe}
    path = Path(request.root) / request.recipe
    if not path.is_file():
        raise MaxTextError("config", f"recipe: there is no file {request.recipe!r} in the checkout")
    if path.parent.name == "models":
        return package / "configs" / "base.yml", {"model_name": path.stem}
    return path, {}


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
