"""The command line of Megatron-LM's training script, for a shape and a mesh, or for a test case. Names of flags are
written with ``_``, as argparse names them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_test_case import FILE_FLAGS, FlagValue, MegatronTestCase
from regbot_guest.request import Request, Scalar

FLEX = ("deepep", "hybridep", "ncclep")
"""Backends of Megatron's dispatcher ``flex``."""
TRAIN_ITERATIONS = 10_000
"""It must be longer than a user's warm-up of the learning rate. Megatron indexes all samples first, about 45 bytes
each: 0.45 GiB for 1024 ranks.
"""
OFFLINE_FLAGS: Mapping[str, Scalar] = {
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "eval_iters": 0,
    "eval_interval": 1_000_000,
    "log_interval": 1,
    "distributed_timeout_minutes": 60,
}
DEFAULT_FLAGS: Mapping[str, Scalar] = {
    "lr": 1e-4,
    "swiglu": True,
    "disable_bias_linear": True,
    "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "none",
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "moe_grouped_gemm": True,
}
"""Settings that a shape does not define, as in Megatron's own MoE recipes. ``config`` can change them."""
SHAPE_FLAGS = frozenset({
    "num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "num_experts", "moe_router_topk", "qk_layernorm", "seq_length", "micro_batch_size", "vocab_size",
    "bf16", "fp16",
})  # fmt: skip
FIXED_FLAGS = {
    "expert_model_parallel_size": "it is fixed by the mesh; set it with --ep",
    "world_size": "it is fixed by the mesh; set it with --world",
    "moe_token_dispatcher_type": "set 'dispatcher' of the workload",
    "moe_flex_dispatcher_backend": "set 'dispatcher' of the workload",
}
MODEL_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Flags whose product is the number of ranks that work on the same micro-batch."""
INTERLEAVED = (
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
)  # fmt: skip
"""Flags with which a rank may have several pipeline stages."""
MICRO_BATCH_GROUPS = ("pipeline_model_parallel_size", "microbatch_group_size_per_virtual_pipeline_stage")
"""If a rank has several pipeline stages, it needs as many micro-batches as the largest value of these flags."""

_FLAG_NAME = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class CommandLine:
    """The command line of the training script, and where its flags come from."""

    flags: Mapping[str, Scalar | FlagValue]
    """All flags. True is a flag without a value. A flag with False or None is left out of the command line."""
    given: Mapping[str, Scalar | FlagValue]
    """Flags as the user or the test case sets them. ``flags`` may have other values, or lack some."""
    warnings: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        words: list[str] = []
        for name, value in self.flags.items():
            if value is None or value is False:
                continue
            words.append(as_option(name))
            if isinstance(value, tuple):
                words += value
            elif value is not True:
                words.append(str(value))
        return words

    @property
    def regbot_flags(self) -> list[str]:
        """Flags whose values come from regbot, and not from the user or the test case."""
        return [name for name, value in self.flags.items() if name not in self.given or self.given[name] != value]

    def replaced_flags(self) -> dict[str, Scalar]:
        """Return the test case's values that regbot has left out or replaced, without those for data, checkpoints and
        logs.
        """
        return {
            name: " ".join(value) if isinstance(value, tuple) else value
            for name, value in self.given.items()
            if name not in FILE_FLAGS and (name not in self.flags or self.flags[name] != value)
        }


def make_command_line(request: Request, test_case: MegatronTestCase | None = None) -> CommandLine:
    """Return the command line of the test case, or without one that of the request's shape and mesh. The user's flags
    override all others. Raises ContractError.
    """
    user_flags = read_user_flags(request.config, () if test_case is not None else SHAPE_FLAGS)
    workload_flags = {**dispatcher_flags(request), **user_flags}
    if test_case is None:
        flags_of_shape = shape_flags(request, count_model_parallel_ranks(user_flags, "config"))
        return CommandLine({**flags_of_shape, **DEFAULT_FLAGS, **OFFLINE_FLAGS, **workload_flags}, given=workload_flags)
    requested_flags = {**test_case.flags, **workload_flags}
    batch_flags, batch_warnings = _smallest_step(request, requested_flags)
    return CommandLine(
        flags={**test_case.flags, **batch_flags, **OFFLINE_FLAGS, **workload_flags},
        given={**test_case.left_out, **requested_flags},
        warnings=[*test_case.warnings, *batch_warnings],
    )


def read_user_flags(config: Mapping[str, Scalar], shape_names: Iterable[str]) -> dict[str, Scalar | FlagValue]:
    """Return the user's flags, whose keys may have ``-`` for ``_``. Raises ContractError if a key is no flag, is fixed
    or is in ``shape_names``, or if a value contains another flag, such as ``"1 --save x"``.
    """
    flags: dict[str, Scalar | FlagValue] = {}
    for key, value in config.items():
        name = key.replace("-", "_")
        if not _FLAG_NAME.fullmatch(name):
            raise ContractError(
                "config", f"config.{key} is not a flag; write its name without dashes before it and without dots"
            )
        if name in FIXED_FLAGS or name in shape_names:
            reason = FIXED_FLAGS.get(name, "it is fixed by the shape; choose another shape or variant")
            raise ContractError("config", f"config.{key} cannot be set: {reason}")
        words = value.split() if isinstance(value, str) else []
        if any(word.startswith("--") for word in words):
            raise ContractError("config", f"config.{key}: the value {value!r} contains another flag")
        flags[name] = tuple(words) if len(words) > 1 else value
    return flags


def shape_flags(request: Request, model_parallel_ranks: int) -> dict[str, Scalar]:
    """``model_parallel_ranks`` is the number of ranks that work on the same micro-batch."""
    numbers, is_dense = request.geometry, request.mlp != "moe"
    flags: dict[str, Scalar] = {
        "num_layers": numbers.layers,
        "hidden_size": numbers.hidden,
        "ffn_hidden_size": numbers.dense_width if is_dense else numbers.expert_width,
        "num_attention_heads": numbers.heads,
        "group_query_attention": True,
        "num_query_groups": numbers.kv_heads,
        "kv_channels": numbers.head_dim,
        "qk_layernorm": numbers.qk_norm,
        "rotary_base": int(numbers.rope_theta),
        "seq_length": numbers.sequence,
        "max_position_embeddings": numbers.sequence,
        "micro_batch_size": numbers.micro_batch,
        "global_batch_size": numbers.micro_batch * request.world // model_parallel_ranks,
        "vocab_size": numbers.vocabulary - 1,  # the null tokenizer adds one token for the end of a document
        "bf16": request.dtype == "bfloat16",
        "fp16": request.dtype == "float16",
        "train_iters": TRAIN_ITERATIONS,
    }
    if not is_dense:
        flags |= {
            "num_experts": numbers.experts,
            "moe_ffn_hidden_size": numbers.expert_width,
            "moe_router_topk": numbers.top_k,
            "expert_model_parallel_size": request.ep,
        }
    return flags


def _smallest_step(
    request: Request, flags: Mapping[str, Scalar | FlagValue]
) -> tuple[dict[str, Scalar | FlagValue], list[str]]:
    """Return the flags of a step with one micro-batch on each rank, or as many as an interleaved pipeline needs, and a
    warning if the test case has another global batch. A test case without a vocabulary gets the shape's.
    """
    where = f"recipe {request.recipe!r}"
    group_sizes = (read_size(flags, name, where) for name in MICRO_BATCH_GROUPS)
    global_batch, warnings = choose_global_batch(
        request,
        ep=read_size(flags, "expert_model_parallel_size", where),
        model_parallel_ranks=count_model_parallel_ranks(flags, where),
        micro_batches=max(group_sizes) if any(flags.get(name) for name in INTERLEAVED) else 1,
        micro_batch_size=read_size(flags, "micro_batch_size", where),
        recipe_batch=read_size(flags, "global_batch_size", where) if "global_batch_size" in flags else None,
    )
    batch_flags: dict[str, Scalar | FlagValue] = {"global_batch_size": global_batch}
    if "vocab_size" not in flags:
        batch_flags["vocab_size"] = request.geometry.vocabulary - 1  # the null tokenizer adds one token
    return batch_flags, warnings


def choose_global_batch(
    request: Request,
    *,
    ep: int,
    model_parallel_ranks: int,
    micro_batches: int,
    micro_batch_size: int,
    recipe_batch: int | None,
) -> tuple[int, list[str]]:
    """Return the global batch, in sequences, of a step of a recipe with ``micro_batches`` on each rank, and a warning
    if the recipe has another one. Raises ContractError if the recipe does not fit the mesh.
    """
    if ep != request.ep or request.world % model_parallel_ranks:
        raise ContractError(
            "config",
            f"recipe {request.recipe!r} has EP {ep}, and {model_parallel_ranks} ranks work on one micro-batch, but "
            f"{request.world} ranks with EP {request.ep} were requested; trace it with --ep {ep} and a multiple of "
            f"{model_parallel_ranks} ranks",
        )
    global_batch = micro_batches * micro_batch_size * (request.world // model_parallel_ranks)
    if recipe_batch in (None, global_batch):
        return global_batch, []
    traced = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
    warning = (
        f"the traced step has {traced} on each rank ({global_batch} sequences in all; the recipe's global batch has "
        f"{recipe_batch}). Further micro-batches repeat what these do"
    )
    return global_batch, [warning]


def count_model_parallel_ranks(flags: Mapping[str, Any], where: str, prefix: str = "") -> int:
    """Return the number of ranks that work on the same micro-batch. Raises ContractError."""
    return math.prod(read_size(flags, f"{prefix}{name}", where) for name in MODEL_PARALLEL)


def read_size(flags: Mapping[str, Any], name: str, where: str) -> int:
    """Return a setting as a positive number, or 1 if it is not set. ``where`` begins the ContractError for any other
    value.
    """
    value = flags.get(name)
    text = "1" if value is None else str(value)
    if not text.isdecimal() or int(text) == 0:
        raise ContractError("config", f"{where}: {name} must be a positive number, not {text[:80]!r}")
    return int(text)


def find_script(request: Request) -> Path:
    """Return the checkout's training script. Raises ContractError if there is none, or if it cannot be traced."""
    script = (Path(request.root) / request.program).resolve()
    if not script.is_file():
        raise ContractError("config", f"the checkout has no {request.program}; set 'program' to the training script")
    if request.routing == "skewed":
        raise ContractError("config", "routing of Megatron's own program is balanced or natural; use another variant")
    return script


def dispatcher_flags(request: Request) -> dict[str, Scalar | FlagValue]:
    if request.dispatcher in FLEX:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": request.dispatcher}
    return {"moe_token_dispatcher_type": request.dispatcher} if request.dispatcher else {}


def as_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
