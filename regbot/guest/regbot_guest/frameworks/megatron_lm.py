"""Megatron-LM's own ``pretrain_gpt.py``: the command line for a shape or a test case, and the contents of the record.

All code of the step comes from the checkout. Data and tokenizer are Megatron's own mocks. Nothing is saved, evaluated
or uploaded.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from regbot_guest.contract import ContractError
from regbot_guest.frameworks.megatron_test_case import MegatronTestCase, read_test_case, set_variables
from regbot_guest.frameworks.own_program import ProgramDescription, TrainingProgram, count_own_step, name_axes
from regbot_guest.frameworks.training_loop import Scalar
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.request import Request

STEP = ("megatron.training.training", "train_step")

AXES = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp_ep_pp",
    "MODEL_PARALLEL_GROUP": "tp_pp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "tp_dp_cp",
}
"""Mesh axes by the description of a process group in ``megatron.core.parallel_state``. Groups over one axis come first,
then groups over several axes.
"""

MEGATRON_FSDP = "--use-megatron-fsdp"
"""Flag with which Megatron requires that CUDA_DEVICE_MAX_CONNECTIONS is not 1."""

_FLAG_NAME = re.compile(r"[A-Za-z]\w*")
_ATTENTION = re.compile(r"(attention|attn)(?!.*(backward|bwd))")
FLEX = ("deepep", "hybridep", "ncclep")
"""Backends of Megatron's dispatcher ``flex``."""
NVCC = "megatron.legacy.fused_kernels.load, which asks nvcc for its version and builds nothing, does nothing"
MOCKED = "data and tokenizer are Megatron's own mocks; nothing is saved, evaluated or logged to a service"

TRAIN_ITERATIONS = 10_000
"""Length of the training. regbot ends the program after the counted step. But Megatron makes an index of all samples
first, which takes about 45 bytes for each: 0.45 GiB for 1024 ranks. The warm-up of a user's learning rate must be
shorter than the training.
"""
OFFLINE_FLAGS: Mapping[str, Scalar] = {
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "eval_iters": 0,
    "eval_interval": 1_000_000,
    "log_interval": 1,
    "distributed_timeout_minutes": 60,
}
"""Flags with which the program needs no files and no network."""
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
"""Flags for settings that a shape does not define. The values are those of Megatron's own MoE recipes. ``config`` can
change them.
"""
FIXED_FLAGS = {
    **dict.fromkeys(
        ("num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_attention_heads",
         "num_query_groups", "kv_channels", "num_experts", "moe_router_topk", "qk_layernorm", "seq_length",
         "micro_batch_size", "vocab_size", "bf16", "fp16"),
        "it is fixed by the shape; choose another shape or variant",
    ),
    "expert_model_parallel_size": "it is fixed by the mesh; set it with --ep",
    "world_size": "it is fixed by the mesh; set it with --world",
    "moe_token_dispatcher_type": "set 'dispatcher' of the workload",
    "moe_flex_dispatcher_backend": "set 'dispatcher' of the workload",
}  # fmt: skip
"""Flags that a user's ``config`` cannot set, each with the reason or with what to do instead."""


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """Run ``request.program`` and return its part of the raw record. Raises ContractError."""
    script = (Path(request.root) / request.program).resolve()
    if not script.is_file():
        raise ContractError("config", f"the checkout has no {request.program}; set 'program' to the training script")
    add_python_to_path()
    test_case = read_test_case(Path(request.root), request.recipe) if request.recipe else None
    if test_case is not None:
        set_variables(test_case)
        experts, top_k = test_case.size("num_experts"), test_case.size("moe_router_topk")
        request = replace(request, geometry=replace(request.geometry, experts=experts, top_k=top_k))
    arguments, patches = command_line(request, test_case), [MOCKED]
    if MEGATRON_FSDP not in arguments:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron requires it for several kinds of overlap
    # Values of these flags come from the user: from keys of the workload, or from the test case.
    users_flags = {
        *read_user_flags(request.config),
        *_dispatcher_flags(request),
        *(test_case.flags if test_case else ()),
    }
    program = TrainingProgram(
        start=script,
        arguments=arguments,
        regbot_flags=[
            word for word in arguments if word.startswith("--") and word[2:].replace("-", "_") not in users_flags
        ],
        step=STEP,
        models=get_model_chunks,
        axes=lambda *_: name_axes(AXES),
        describe=lambda counter: _describe_program(request, counter, test_case.warnings if test_case else ()),
        experts=request.geometry.experts,
        patches=patches,
        replacements=lambda: _without_nvcc(patches),
    )
    return count_own_step(request, device, program)


@contextmanager
def _without_nvcc(patches: list[str]) -> Iterator[None]:
    """While active, releases up to 0.16 start without a CUDA toolkit. Adds what is replaced to ``patches``.

    Their ``fused_kernels.load`` asks nvcc for its version, and builds nothing.
    """
    fused_kernels: Any = None
    with suppress(ImportError):  # an error that is active at the yield would become part of the program's tracebacks
        fused_kernels = importlib.import_module("megatron.legacy.fused_kernels")
    original = getattr(fused_kernels, "load", None)
    if original is None or importlib.import_module("torch.utils.cpp_extension").CUDA_HOME is not None:
        yield
        return
    patches.append(NVCC)
    fused_kernels.load = lambda _: None
    try:
        yield
    finally:
        fused_kernels.load = original


def add_python_to_path() -> None:
    """Put this interpreter's folders first on PATH.

    Megatron compiles its dataset helpers with the python3 and the python3-config on PATH. They must be those of the
    interpreter that runs here. A virtual environment has no python3-config.
    """
    folders = [str(Path(sys.executable).parent), str(Path(sys.base_prefix, "bin")), os.environ.get("PATH", "")]
    os.environ["PATH"] = os.pathsep.join(folders)


def command_line(request: Request, test_case: MegatronTestCase | None = None) -> list[str]:
    """Return the command line: the flags of the test case, or those of the shape and the mesh, and then the user's own
    flags. Raises ContractError.
    """
    if request.routing == "skewed":
        raise ContractError("config", "routing of Megatron's own program is balanced or natural; use another variant")
    user_flags = read_user_flags(request.config)
    if test_case is not None:
        flags = _test_case_flags(request, replace(test_case, flags={**test_case.flags, **user_flags}))
    else:
        flags = {**_shape_flags(request, _count_model_parallel_ranks(user_flags)), **DEFAULT_FLAGS}
    flags = {**flags, **OFFLINE_FLAGS, **_dispatcher_flags(request), **user_flags}
    arguments: list[str] = []
    for key, value in flags.items():
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif isinstance(value, str) and " " in value.strip():
            arguments += [flag, *value.split()]
        elif value is not False and value is not None:
            arguments += [flag, str(value)]
    return arguments


def read_user_flags(config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the user's flags by their names with ``_``. A key of ``config`` may have ``-`` instead, as on the command
    line. Raises ContractError if a flag cannot be set, or is written in a way that could set another flag.
    """
    flags: dict[str, Scalar] = {}
    for key, value in config.items():
        name = key.replace("-", "_")
        if not _FLAG_NAME.fullmatch(name):
            raise ContractError("config", f"config.{key} is not a flag; write its name without dashes before it")
        if name in FIXED_FLAGS:
            raise ContractError("config", f"config.{key} cannot be set: {FIXED_FLAGS[name]}")
        if name in flags:
            raise ContractError("config", f"config.{key} sets --{name.replace('_', '-')} twice; remove one of them")
        if isinstance(value, str) and any(word.startswith("--") for word in value.split()):
            raise ContractError("config", f"config.{key}: the value {value!r} contains another flag")
        flags[name] = value
    return flags


def _shape_flags(request: Request, model_parallel_ranks: int) -> dict[str, Scalar]:
    numbers, dense = request.geometry, request.mlp != "moe"
    flags: dict[str, Scalar] = {
        "num_layers": numbers.layers,
        "hidden_size": numbers.hidden,
        "ffn_hidden_size": numbers.dense_width if dense else numbers.expert_width,
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
    if not dense:
        flags |= {
            "num_experts": numbers.experts,
            "moe_ffn_hidden_size": numbers.expert_width,
            "moe_router_topk": numbers.top_k,
            "expert_model_parallel_size": request.ep,
        }
    return flags


def _test_case_flags(request: Request, test_case: MegatronTestCase) -> dict[str, Scalar]:
    """Return the flags of the smallest step of a test case on the requested ranks. Raises ContractError if the test
    case cannot have these ranks.
    """
    model_parallel_ranks = _count_model_parallel_ranks(test_case.flags)
    ep = test_case.size("expert_model_parallel_size")
    if ep != request.ep or request.world % model_parallel_ranks:
        raise ContractError(
            "config",
            f"recipe {request.recipe!r} has EP {ep}, and {model_parallel_ranks} ranks work on one micro-batch, but "
            f"{request.world} ranks with EP {request.ep} were requested; trace it with --ep {ep} and a multiple of "
            f"{model_parallel_ranks} ranks",
        )
    global_batch = test_case.micro_batches * test_case.size("micro_batch_size") * request.world // model_parallel_ranks
    vocabulary = {} if "vocab_size" in test_case.flags else {"vocab_size": request.geometry.vocabulary - 1}
    return {**test_case.flags, **vocabulary, "global_batch_size": global_batch}


def _count_model_parallel_ranks(flags: Mapping[str, Scalar]) -> int:
    """Return the number of ranks that work on the same micro-batch. Raises ContractError."""
    product = 1
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        text = str(flags.get(key) or 1)
        if not text.isdecimal() or int(text) == 0:
            raise ContractError("config", f"{key} must be a number of ranks, not {text!r}")
        product *= int(text)
    return product


def _dispatcher_flags(request: Request) -> dict[str, Scalar]:
    if request.dispatcher in FLEX:
        return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": request.dispatcher}
    return {"moe_token_dispatcher_type": request.dispatcher} if request.dispatcher else {}


def get_model_chunks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[nn.Module]:
    """Return the model chunks, an argument of ``train_step(forward_step_func, data_iterator, model, ...)``."""
    model = kwargs["model"] if "model" in kwargs else args[2]
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _describe_program(request: Request, counter: PaperCounter, warnings: Sequence[str]) -> ProgramDescription:
    arguments = vars(_megatron_arguments())
    if not request.recipe:
        check_shape(arguments, request)
    scalars = {name: _to_scalar(value) for name, value in sorted(arguments.items())}
    config = {name: value for name, value in scalars.items() if _is_scalar(value)}
    core = importlib.import_module("megatron.core")
    return ProgramDescription(
        config={**config, "recipe": request.recipe, "routing": request.routing, "mlp": request.mlp},
        software={"megatron-core": str(core.__version__), "torch": str(importlib.import_module("torch").__version__)},
        backends={"attention": describe_attention(counter), **describe_dispatcher(request, counter, config)},
        warnings=warnings,
    )


def check_shape(arguments: Mapping[str, Any], request: Request) -> None:
    """Check that the script's own arguments have the numbers of the shape. Raises ContractError, which lists the
    differing numbers. An argument that this revision does not have is not checked.

    Another name of a flag, or a file that a flag names, can change a number that regbot has set. The size of the
    vocabulary is left out, because Megatron pads it.
    """
    mismatches = [
        f"{name} is {arguments[name]!r}, not {number!r}"
        for name, number in _shape_flags(request, 1).items()
        if name in FIXED_FLAGS and name != "vocab_size" and arguments.get(name) not in (None, number)
    ]
    if mismatches:
        raise ContractError("shape", f"{request.program} did not use the shape's numbers: {'; '.join(mismatches)}")


def _megatron_arguments() -> Any:
    return importlib.import_module("megatron.training").get_args()


def _to_scalar(value: Any) -> Any:
    """Return a list as a text such as ``moe,layernorm``, and other values as they are."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and "/" not in value)


def describe_attention(counter: PaperCounter) -> dict[str, str]:
    launches = {name: count for name, count in counter.operators.items() if _ATTENTION.search(name)}
    name = max(launches, key=lambda key: launches[key], default="")
    evidence = f"launched {name} x{launches[name]}" if name else "no fused attention operator was launched"
    return _backend_entry("", "", name.split("::")[-1].strip("_") or "unfused", evidence)


def describe_dispatcher(
    request: Request, counter: PaperCounter, config: Mapping[str, Scalar]
) -> dict[str, Mapping[str, str]]:
    if request.mlp != "moe":
        return {}
    counts: dict[str, int] = {}
    for key, times in counter.tally.count.items():
        # A schedule that overlaps layers calls their parts outside of the modules, so that the path is empty.
        is_outside = not key.where and key.phase in ("forward", "backward")
        is_of_experts = key.via in FLEX or is_outside or ".mlp" in key.where
        if key.role == "payload" and "ep" in re.split(r"[_|]", key.axis) and is_of_experts:
            exchange = key.via if key.via in FLEX else key.kind
            counts[exchange] = counts.get(exchange, 0) + times
    dispatcher_by_kind = {"all_to_all": "alltoall", "all_gather": "allgather"}
    executed = next((library for library in FLEX if library in counts), "")
    executed = executed or next((name for kind, name in dispatcher_by_kind.items() if counts.get(kind)), "none")
    resolved = str(config.get("moe_token_dispatcher_type"))
    if resolved == "flex":
        resolved = str(config.get("moe_flex_dispatcher_backend"))
    evidence = ", ".join(f"{times} {exchange}" for exchange, times in sorted(counts.items())) or "none"
    if request.ep == 1:
        return {}
    evidence = f"exchanges of expert layers on axis ep: {evidence}"
    return {"dispatcher": _backend_entry(request.dispatcher or resolved, resolved, executed, evidence)}


def _backend_entry(requested: str, resolved: str, executed: str, evidence: str) -> dict[str, str]:
    return {"requested": requested, "resolved": resolved, "executed": executed, "evidence": evidence}
