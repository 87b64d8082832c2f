"""Megatron-LM's own ``pretrain_gpt.py``: how it is started, and the contents of the record. Data and tokenizer are
Megatron's own mocks. Nothing is saved, evaluated or uploaded.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from regbot_guest import backends
from regbot_guest.backends import backend_entry, count_exchanges, list_exchanges, name_dispatcher
from regbot_guest.contract import ContractError
from regbot_guest.crash import regbot_keys
from regbot_guest.frameworks.flat_config import flatten_config
from regbot_guest.frameworks.megatron_command import (
    FLEX,
    SHAPE_FLAGS,
    CommandLine,
    as_option,
    find_script,
    make_command_line,
    read_size,
    shape_flags,
)
from regbot_guest.frameworks.megatron_test_case import VARIABLES, MegatronTestCase, read_test_case, set_variables
from regbot_guest.frameworks.own_program import ProgramDescription, TrainingProgram, count_own_step, name_axes
from regbot_guest.paper.counter import PaperCounter
from regbot_guest.paper.device import Device
from regbot_guest.replaced import replaced
from regbot_guest.request import Request, Scalar
from regbot_guest.software import module_versions
from regbot_guest.tally import Key

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
"""Mesh axes by group description in ``megatron.core.parallel_state``. Groups over one axis come first: ``name_axes``
needs their sizes to name the joint ones.
"""

_ATTENTION = re.compile(r"(attention|attn)(?!.*(backward|bwd))")
NVCC = "megatron.legacy.fused_kernels.load, which asks nvcc for its version and builds nothing, does nothing"
MOCKED = "data and tokenizer are Megatron's own mocks; nothing is saved, evaluated or logged to a service"


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """Run ``request.program`` and return its part of the raw record. Raises ContractError."""
    script = find_script(request)
    prepare_dataset_helpers(request)
    test_case = read_test_case(Path(request.root), request.recipe) if request.recipe else None
    command_line = make_command_line(request, test_case)
    patches = [MOCKED]  # further ones are added while the program runs
    if test_case is not None:
        set_variables(test_case)
        where = f"recipe {request.recipe!r}"
        experts = read_size(command_line.flags, "num_experts", where)
        top_k = read_size(command_line.flags, "moe_router_topk", where)
        request = replace(request, geometry=replace(request.geometry, experts=experts, top_k=top_k))
    if not command_line.flags.get("use_megatron_fsdp"):  # Megatron-FSDP refuses this setting
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron requires it for several kinds of overlap
    shape_names = SHAPE_FLAGS if test_case is None else ()
    # Flags of the shape are left out, because errors of the code under test name them too.
    regbot_keys[:] = [name for name in command_line.regbot_flags if name not in shape_names]
    program = TrainingProgram(
        start=script,
        arguments=command_line.words,
        regbot_flags=[as_option(name) for name in command_line.regbot_flags],
        step=STEP,
        models=get_model_chunks,
        axes=lambda *_: name_axes(AXES),
        describe=lambda counter: _describe_program(request, counter, command_line, test_case),
        experts=request.geometry.experts,
        patches=patches,
        replacements=lambda: _without_nvcc(patches),
    )
    return count_own_step(request, device, program)


@contextmanager
def _without_nvcc(patches: list[str]) -> Iterator[None]:
    """Megatron's releases up to 0.16 ask nvcc for its version first. Without a CUDA toolkit, replace that call."""
    fused_kernels: Any = None
    with suppress(Exception):  # if the program needs this module, its own import fails and reports the error
        fused_kernels = importlib.import_module("megatron.legacy.fused_kernels")
    has_cuda_toolkit = importlib.import_module("torch.utils.cpp_extension").CUDA_HOME is not None
    if not hasattr(fused_kernels, "load") or has_cuda_toolkit:
        yield
        return
    patches.append(NVCC)
    with replaced(fused_kernels, "load", lambda _: None):
        yield


def prepare_dataset_helpers(request: Request) -> None:
    """Megatron compiles its dataset helpers with the python3 and the python3-config on PATH, which must be this
    interpreter's. A virtual environment has no python3-config, so the base installation is added too.

    Raises ContractError without pybind11 if they are not compiled yet, because Megatron then exits without a reason.
    """
    folders = [Path(request.root, folder, "megatron/core/datasets") for folder in request.source_roots]
    needs_helpers = any((folder / "Makefile").is_file() and not [*folder.glob("helpers*.so")] for folder in folders)
    if needs_helpers and importlib.util.find_spec("pybind11") is None:
        raise ContractError(
            "no_framework",
            f"Megatron compiles its dataset helpers with pybind11, which {sys.executable} lacks: install it there",
        )
    own_folder, base_folder = Path(sys.executable).parent, Path(sys.base_prefix, "bin")
    os.environ["PATH"] = os.pathsep.join([str(own_folder), str(base_folder), os.environ.get("PATH", "")])


def get_model_chunks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[nn.Module]:
    """Return the model chunks, an argument of ``train_step(forward_step_func, data_iterator, model, ...)``."""
    model = kwargs["model"] if "model" in kwargs else args[2]
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _describe_program(
    request: Request, counter: PaperCounter, command_line: CommandLine, test_case: MegatronTestCase | None
) -> ProgramDescription:
    arguments = vars(importlib.import_module("megatron.training").get_args())
    config = flatten_config(arguments)
    recorded_config: dict[str, Scalar] = {**config, "routing": request.routing, "mlp": request.mlp}
    if test_case is None:
        check_shape(arguments, request)
    else:
        recorded_config |= {f"recipe.{name}": value for name, value in command_line.replaced_flags().items()}
        recorded_config |= {f"recipe.{VARIABLES}.{name}": value for name, value in test_case.variables.items()}
        recorded_config["recipe"] = request.recipe
    return ProgramDescription(
        config=recorded_config,
        software=module_versions(("megatron.core", "torch")),
        backends={"attention": describe_attention(counter), **describe_dispatcher(request, counter, config)},
        warnings=command_line.warnings,
    )


def check_shape(arguments: Mapping[str, Any], request: Request) -> None:
    """Raise ContractError if the parsed arguments have other numbers than the shape: a user may set one by an alias of
    a flag, or by a file. Arguments that this revision lacks, and the padded vocabulary, are not checked.
    """
    checked_flags = SHAPE_FLAGS - {"vocab_size"}
    # None of the checked flags depends on the number of model-parallel ranks.
    expected_numbers = shape_flags(request, model_parallel_ranks=1)
    mismatches = [
        f"{name} is {arguments[name]!r}, not {number!r}"
        for name, number in expected_numbers.items()
        if name in checked_flags and arguments.get(name) not in (None, number)
    ]
    if mismatches:
        raise ContractError("shape", f"{request.program} did not use the shape's numbers: {'; '.join(mismatches)}")


def describe_attention(counter: PaperCounter) -> dict[str, str]:
    return backends.describe_attention(counter.operators, _ATTENTION, configured="", otherwise="unfused")


def describe_dispatcher(
    request: Request, counter: PaperCounter, config: Mapping[str, Scalar]
) -> dict[str, Mapping[str, str]]:
    """Return requested, configured and executed dispatcher, or {} if no tokens are exchanged."""
    if request.mlp != "moe" or request.ep == 1:
        return {}
    exchanges = count_exchanges(counter, FLEX, _is_of_experts)
    executed = name_dispatcher(exchanges, FLEX)
    configured = str(config.get("moe_token_dispatcher_type"))
    if configured == "flex":
        configured = str(config.get("moe_flex_dispatcher_backend"))
    evidence = f"exchanges of expert layers on axis ep: {list_exchanges(exchanges)}"
    requested = request.dispatcher or configured  # a request without a dispatcher leaves the choice to Megatron
    return {"dispatcher": backend_entry(requested, configured, executed, evidence)}


def _is_of_experts(key: Key) -> bool:
    # A schedule that overlaps layers calls parts of them outside of their modules. The module path is then empty.
    is_in_overlapped_layer = not key.where and key.phase in ("forward", "backward")
    return key.via in FLEX or is_in_overlapped_layer or ".mlp" in key.where
