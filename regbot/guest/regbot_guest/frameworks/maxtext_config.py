"""MaxText's configuration: the ``key=value`` arguments of its command line, and a check of the resolved configuration.

Each layer of keys overrides those before it: the shape's numbers or a recipe, the user's ``config``, ``FORCED_KEYS``.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from regbot_guest.contract import ContractError, refuse_revision
from regbot_guest.frameworks.flat_config import flatten_config
from regbot_guest.frameworks.keys import suggest
from regbot_guest.request import Geometry, Request, Scalar

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
"""Further keys that regbot sets and a user cannot. Each value completes "use ..." in the error message."""

BATCH = "per_device_batch_size"
"""The only number of a shape that a workload can change, because the sharding can depend on it."""
_UNKNOWN_KEY = re.compile(r"'(?P<key>[^']+)' not in (?P<known_keys>'.*)", re.DOTALL)

RULES = "logical_axis_rules"
"""Key of the rules that map the logical axes of MaxText's tensors to mesh axes."""
EXCLUDED_KEYS = {"run_name", "hf_access_token"}
"""Keys that are left out of the record. They do not influence the step, and one is a secret."""


class ResolvedConfig(Protocol):
    """MaxText's configuration, as ``pyconfig.initialize`` returns it."""

    def get_keys(self) -> Mapping[str, Any]: ...


def compile_arguments(request: Request, package: Path, scratch: Path) -> list[str]:
    """Return ``argv`` for ``train_compile``. ``package`` is the folder of ``maxtext``, ``scratch`` one for its output.
    Raises ContractError if the user sets a key that regbot sets, or if there is no such recipe.
    """
    user_keys = dict(request.config)
    advice_by_key = {**dict.fromkeys(FORCED_KEYS, "nothing: regbot sets it"), **OWNED_KEYS}
    if not request.recipe:
        shape_keys = _shape_keys(request.geometry).keys() - {BATCH}
        advice_by_key |= dict.fromkeys(shape_keys, "another shape or variant")
        advice_by_key |= {"model_name": "'recipe'", "dtype": "another variant"}
    refused_keys = sorted(user_keys.keys() & advice_by_key.keys())
    if refused_keys:
        key = refused_keys[0]
        raise ContractError("config", f"config.{key}: fixed by this workload; use {advice_by_key[key]}")
    if request.recipe:
        base_file, keys = _recipe_keys(request, package)
    else:
        shape_and_version = request.workload.split(":")[-1]  # the workload is called [label:]shape@version/mesh
        model = shape_and_version.split("@")[0]
        base_file = package / "configs" / "base.yml"
        keys = {"model_name": model, **_shape_keys(request.geometry), "dtype": request.dtype}
    keys |= {"ici_fsdp_parallelism": -1, **user_keys}  # -1 means all ranks that are left over by the other axes
    keys |= {**FORCED_KEYS, "ici_expert_parallelism": request.ep, "base_output_directory": str(scratch / "output")}
    return ["train_compile", str(base_file), *(f"{key}={_format_value(value)}" for key, value in keys.items())]


def check_shape(config: ResolvedConfig, request: Request) -> None:
    """Raise ContractError if MaxText's configuration has other numbers than the shape and the user's batch size. A
    recipe is not checked.
    """
    if request.recipe:
        return
    keys = config.get_keys()
    # MaxText's model code reads the keys without the prefix ``base_``.
    shape_keys = {key.removeprefix("base_"): value for key, value in _shape_keys(request.geometry).items()}
    expected = {**shape_keys, **_user_batch(request)}
    mismatches = [
        f"{name} is {keys.get(name)!r}, not {number!r}" for name, number in expected.items() if keys.get(name) != number
    ]
    if mismatches:
        raise ContractError("shape", f"MaxText did not use the shape's numbers: {'; '.join(mismatches)}")


def list_warnings(request: Request, config: ResolvedConfig) -> list[str]:
    warnings = []
    if not config.get_keys().get("sparse_matmul"):
        warnings.append(
            "not compiled: MaxText's sparse MoE path (sparse_matmul, megablox), which is its default; this trace shows "
            "the dense one, and no change of the sparse one"
        )
    shape_batch = request.geometry.micro_batch
    batch = _user_batch(request).get(BATCH, shape_batch)
    if not request.recipe and batch != shape_batch:
        warnings.append(f"{BATCH} is {batch}, as the workload sets it, and not the shape's {shape_batch}")
    return warnings


def _user_batch(request: Request) -> dict[str, Scalar]:
    return {BATCH: request.config[BATCH]} if BATCH in request.config else {}


def explain_refusal(error: BaseException, request: Request) -> ContractError:
    """Return the refusal for MaxText's error. An unknown key that regbot has set means an unsupported revision."""
    # MaxText logs the error, and raises SystemExit.
    cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
    unknown_key = _UNKNOWN_KEY.match(str(cause))
    if unknown_key is None:
        return ContractError("config", f"MaxText refuses the configuration: {str(cause)[:1000]}")
    key = unknown_key["key"]
    nearest_keys = suggest(key, re.findall(r"'([^']+)'", unknown_key["known_keys"]))
    may_be_of_regbot = not request.recipe or key in {*FORCED_KEYS, *OWNED_KEYS}
    if may_be_of_regbot and key not in request.config:
        return refuse_revision(f"MaxText has no key {key!r}, which regbot sets{nearest_keys}")
    return ContractError("config", f"MaxText refuses the configuration: it has no key {key!r}{nearest_keys}")


def record_config(keys: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the configuration as scalars. The logical axis rules become one key per logical axis, so that a changed
    rule is one changed key.
    """
    rules: dict[str, list[str]] = {}
    for logical_axis, mesh_axes in keys.get(RULES, ()):
        # A logical axis may have several rules. MaxText uses the first applicable one, so all are kept in order.
        rule = ",".join(mesh_axes) if isinstance(mesh_axes, (list, tuple)) else str(mesh_axes)
        rules.setdefault(logical_axis, []).append(rule)
    rule_by_axis = {axis: " | ".join(rules_of_axis) for axis, rules_of_axis in rules.items()}
    return flatten_config({**keys, RULES: rule_by_axis}, left_out=EXCLUDED_KEYS)


def _shape_keys(geometry: Geometry) -> dict[str, Scalar]:
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


def _recipe_keys(request: Request, package: Path) -> tuple[Path, dict[str, Any]]:
    """A recipe is the name of a model, or a file ``.yml`` in the checkout. A file in a folder ``models`` configures a
    model, which is also selected by its name. Any other file is a complete configuration.
    """
    base_file = package / "configs" / "base.yml"
    if not request.recipe.endswith(".yml"):
        return base_file, {"model_name": request.recipe}
    path = Path(request.root) / request.recipe
    if not path.is_file():
        raise ContractError("config", f"recipe: there is no file {request.recipe!r} in the checkout")
    if path.parent.name == "models":
        return base_file, {"model_name": path.stem}
    return path, {}


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or '""'
