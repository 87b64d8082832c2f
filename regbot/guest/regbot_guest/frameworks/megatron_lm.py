"""Megatron-LM's own ``pretrain_gpt.py``: how it is started, and the contents of the record.

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
from regbot_guest.frameworks.megatron_command import (
    FLEX,
    SHAPE_FLAGS,
    CommandLine,
    make_command_line,
    read_size,
    shape_flags,
)
from regbot_guest.frameworks.megatron_flat import to_scalar
from regbot_guest.frameworks.megatron_test_case import VARIABLES, MegatronTestCase, read_test_case, set_variables
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

_ATTENTION = re.compile(r"(attention|attn)(?!.*(backward|bwd))")
NVCC = "megatron.legacy.fused_kernels.load, which asks nvcc for its version and builds nothing, does nothing"
MOCKED = "data and tokenizer are Megatron's own mocks; nothing is saved, evaluated or logged to a service"

crash_keys: list[str] = []
"""Flags that regbot has set for the last program. A crash that names one of them does not show whose fault it is. Flags
that define the shape are left out, because errors of the code under test name them too.
"""


def count_step(request: Request, device: Device) -> dict[str, Any]:
    """Run ``request.program`` and return its part of the raw record. Raises ContractError."""
    script = (Path(request.root) / request.program).resolve()
    if not script.is_file():
        raise ContractError("config", f"the checkout has no {request.program}; set 'program' to the training script")
    add_python_to_path()
    test_case = read_test_case(Path(request.root), request.recipe) if request.recipe else None
    command_line, patches = make_command_line(request, test_case), [MOCKED]
    if test_case is not None:
        set_variables(test_case)
        names, where = ("num_experts", "moe_router_topk"), f"recipe {request.recipe!r}"
        experts, top_k = (read_size(command_line.flags, name, where) for name in names)
        request = replace(request, geometry=replace(request.geometry, experts=experts, top_k=top_k))
    if not command_line.flags.get("use_megatron_fsdp"):  # Megatron-FSDP refuses this setting
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron requires it for several kinds of overlap
    shape_names = SHAPE_FLAGS if test_case is None else ()
    crash_keys[:] = [name for name in command_line.regbot_flags if name not in shape_names]
    program = TrainingProgram(
        start=script,
        arguments=command_line.words,
        regbot_flags=command_line.regbot_options,
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
    """While active, releases up to 0.16 start without a CUDA toolkit. Adds what is replaced to ``patches``.

    Their ``fused_kernels.load`` asks nvcc for its version, and builds nothing.
    """
    fused_kernels: Any = None
    with suppress(Exception):  # if the program needs this module, it fails there itself
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


def get_model_chunks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[nn.Module]:
    """Return the model chunks, an argument of ``train_step(forward_step_func, data_iterator, model, ...)``."""
    model = kwargs["model"] if "model" in kwargs else args[2]
    return list(model) if isinstance(model, (list, tuple)) else [model]


def _describe_program(
    request: Request, counter: PaperCounter, command_line: CommandLine, test_case: MegatronTestCase | None
) -> ProgramDescription:
    arguments = vars(_megatron_arguments())
    scalars = {name: to_scalar(value) for name, value in sorted(arguments.items())}
    config = {name: value for name, value in scalars.items() if not (isinstance(value, str) and "/" in value)}
    described: dict[str, Scalar] = {**config, "routing": request.routing, "mlp": request.mlp}
    if test_case is None:
        check_shape(arguments, request)
    else:
        described |= {f"recipe.{name}": value for name, value in command_line.replaced_flags().items()}
        described |= {f"recipe.{VARIABLES}.{name}": value for name, value in test_case.variables.items()}
        described["recipe"] = request.recipe
    core = importlib.import_module("megatron.core")
    return ProgramDescription(
        config=described,
        software={"megatron-core": str(core.__version__), "torch": str(importlib.import_module("torch").__version__)},
        backends={"attention": describe_attention(counter), **describe_dispatcher(request, counter, config)},
        warnings=command_line.warnings,
    )


def check_shape(arguments: Mapping[str, Any], request: Request) -> None:
    """Check that the script's own arguments have the numbers of the shape. Raises ContractError, which lists the
    differing numbers. An argument that this revision does not have is not checked.

    Another name of a flag, or a file that a flag names, can change a number that regbot has set. The size of the
    vocabulary is left out, because Megatron pads it.
    """
    mismatches = [
        f"{name} is {arguments[name]!r}, not {number!r}"
        for name, number in shape_flags(request, 1).items()
        if name in SHAPE_FLAGS and name != "vocab_size" and arguments.get(name) not in (None, number)
    ]
    if mismatches:
        raise ContractError("shape", f"{request.program} did not use the shape's numbers: {'; '.join(mismatches)}")


def _megatron_arguments() -> Any:
    return importlib.import_module("megatron.training").get_args()


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
