"""What MaxText is asked to compile, as the ``key=value`` arguments of its command line; and what it made of them.

Three layers, each over the one before: the shape's numbers (or a recipe of the repository, as it is), the workload's
``config``, and what is forced because there is no accelerator and nothing may be saved or downloaded.
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

FORCED: Mapping[str, Scalar] = {
    "hardware": "cpu",
    "compile_topology": "a3",
    "compile_topology_num_slices": 1,
    "skip_jax_distributed_system": True,
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "jax_cache_dir": "",  # where the cache has the program already, XLA writes no dump
    "compiled_trainstep_file": "",
    "dump_hlo": False,
    "log_config": False,
    "run_name": "regbot",
    "override_model_config": True,
}
OWNED = {"ici_expert_parallelism": "--ep", "base_output_directory": "nothing: no output is kept"}
"""More keys that are set here, and what to use instead."""

PINNED: Mapping[str, Scalar] = {"sparse_matmul": False, "megablox": False, "capacity_factor": 1.25}
"""How a shape's experts are computed where 'config' does not say: dense, each expert filled up to its capacity.
Megablox is a kernel for accelerators."""

RULES = "logical_axis_rules"
LEFT_OUT = {"run_name", "hf_access_token"}


class Refused(Exception):
    """This cannot be measured. ``kind`` is one of the refusal kinds of the raw record."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Resolved(Protocol):
    """MaxText's configuration after ``pyconfig.initialize``."""

    def get_keys(self) -> Mapping[str, Any]: ...


def arguments(request: Request, package: Path, scratch: Path) -> list[str]:
    """``argv`` of ``train_compile``: its name, the base configuration, ``key=value``... Raises Refused."""
    given = dict(request.config)
    fixed = {**dict.fromkeys(FORCED, "nothing: regbot sets it"), **OWNED}
    if not request.recipe:
        fixed |= {**dict.fromkeys(_asked_for(request.geometry), "another shape or variant"), "model_name": "'recipe'"}
        fixed["dtype"] = "another variant"
    for key in sorted(given.keys() & fixed.keys()):
        raise Refused("config", f"config.{key}: fixed by this workload; use {fixed[key]}")
    base, keys = _recipe(request, package) if request.recipe else (package / "configs" / "base.yml", _shape(request))
    keys |= {"ici_fsdp_parallelism": -1, **given}  # -1: whatever ranks the other axes leave
    keys |= {**FORCED, "ici_expert_parallelism": request.ep, "base_output_directory": str(scratch / "output")}
    return ["train_compile", str(base), *(f"{key}={_text(value)}" for key, value in keys.items())]


def check(config: Resolved, request: Request) -> None:
    """Whether MaxText resolved what was asked for. Raises Refused with every number that differs."""
    if request.recipe:
        return
    keys = config.get_keys()
    wrong = [
        f"{name} is {keys.get(name)!r}, not {number!r}"
        for name, number in _resolved_as(request.geometry).items()
        if keys.get(name) != number
    ]
    if wrong:
        raise Refused("shape", f"MaxText did not take the shape's numbers: {'; '.join(wrong)}")


def complaint(error: BaseException) -> str:
    """What MaxText has against the configuration, without its list of a thousand keys where one is unknown."""
    cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error  # it logs and exits
    text = str(cause)
    unknown = re.match(r"'([^']+)' not in ('.*)", text, re.DOTALL)
    if not unknown:
        return f"MaxText refuses the configuration: {text[:1000]}"
    near = difflib.get_close_matches(unknown[1], re.findall(r"'([^']+)'", unknown[2]), 3)
    meant = f"; is one of these meant: {', '.join(near)}?" if near else ""
    return f"MaxText refuses the configuration: it has no key {unknown[1]!r}{meant}"


def flat(keys: Mapping[str, Any]) -> dict[str, Scalar]:
    """The resolved configuration as scalars; without what names a place on this machine or this very run.

    The logical axis rules, which decide how everything is sharded, become one key per logical axis.
    """
    found: dict[str, Scalar] = {}
    for key, value in sorted(keys.items()):
        if key not in LEFT_OUT:
            _put(found, key, value)
    return found


def _put(found: dict[str, Scalar], key: str, value: Any) -> None:
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        for name, inner in sorted(value.items(), key=lambda item: str(item[0])):
            _put(found, f"{key}.{name}", inner)
    elif isinstance(value, (list, tuple)) and key.startswith(RULES):
        for name, target in value:  # a name may stand more than once: the first rule that fits is used
            place = f"{key}.{name}"
            found[place] = f"{found[place]} | {_joined(target)}" if place in found else _joined(target)
    elif isinstance(value, (list, tuple)):
        found[key] = _joined(value)
    elif value is None or isinstance(value, (bool, int)):
        found[key] = value
    elif isinstance(value, float):
        found[key] = value if math.isfinite(value) else str(value)
    else:
        text = str(value)
        if not (text.startswith(("/", "~")) or "://" in text):
            found[key] = text


def _joined(value: Any) -> str:
    return ",".join(map(_joined, value)) if isinstance(value, (list, tuple)) else str(value)


def _asked_for(geometry: Geometry) -> dict[str, Scalar]:
    """The shape's numbers under the names of MaxText's configuration files."""
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


def _resolved_as(geometry: Geometry) -> dict[str, Scalar]:
    """The same under the names that MaxText's model code reads: ``base_`` numbers are scaled before."""
    return {key.removeprefix("base_"): value for key, value in _asked_for(geometry).items()}


def _shape(request: Request) -> dict[str, Any]:
    model = request.workload.rpartition(":")[2].partition("@")[0]
    return {"model_name": model, **PINNED, **_asked_for(request.geometry), "dtype": request.dtype}


def _recipe(request: Request, package: Path) -> tuple[Path, dict[str, Any]]:
    """Base file and keys of a recipe: a model name, a model's file, or a whole configuration of the repository."""
    if not request.recipe.endswith(".yml"):
        return package / "configs" / "base.yml", {"model_name": request.recipe}
    path = Path(request.root) / request.recipe
    if not path.is_file():
        raise Refused("config", f"recipe: there is no file {request.recipe!r} in the checkout")
    if path.parent.name == "models":
        return package / "configs" / "base.yml", {"model_name": path.stem}
    return path, {}


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
