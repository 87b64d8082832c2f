"""Call every public name of ``torch.cuda`` and of its submodules. Print what became of each call, by its full name."""

import inspect
import json
import types
import warnings
from typing import Any

import torch

from regbot_guest.paper.device import paper_gpu
from regbot_guest.paper.refused_functions import cuda_modules
from regbot_guest.untraceable import Untraceable

HOST_ADDRESS = 0x7000
warnings.simplefilter("ignore")
rows = torch.ones(4, device="cuda")
state = torch.cuda.get_rng_state()
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "CudaError": (1,),
    "ExternalStream": (HOST_ADDRESS,),
    "GdsFile": ("file", 0),
    "StreamContext": (None,),
    "can_device_access_peer": (0, 1),
    "check_error": (0,),
    "custom_bwd": (lambda: None,),
    "device": (1,),
    "device_of": (rows,),
    "get_stream_from_external": (HOST_ADDRESS,),
    "graph": (torch.cuda.CUDAGraph(),),
    "is_available": ([rows],),
    "make_graphed_callables": (torch.nn.Linear(4, 4, device="cuda"), (rows,)),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "mark": ("mark",),
    "range": ("range",),
    "range_end": (1,),
    "range_push": ("range",),
    "range_start": ("range",),
    "reduce_add": ([rows, rows],),
    "reduce_add_coalesced": ([[rows], [rows]],),
    "set_device": (1,),
    "set_rng_state": (state,),
    "set_rng_state_all": ([state],),
    "set_stream": (torch.cuda.Stream(),),
    "set_sync_debug_mode": ("warn",),
    "tune_gemm_in_file": ("missing",),
    "stream": (torch.cuda.Stream(),),
}
"""Arguments by name, where a call needs real ones. A refused function takes any."""
STARTS_PROCESSES = "mgpu_tune_gemm_in_file"


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names that ``module`` exports, and the public functions and classes that it defines."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(("torch.cuda", "regbot_guest"))
    ]
    return sorted({*getattr(module, "__all__", ()), *own} - {STARTS_PROCESSES})


def placeholders(function: Any) -> tuple[Any, ...]:
    """Return a value for each required parameter of ``function``, such as of one that only a newer torch has."""
    if not isinstance(function, types.FunctionType):
        return ()
    parameters = inspect.signature(function).parameters.values()
    is_required = [item.default is item.empty and item.kind is item.POSITIONAL_OR_KEYWORD for item in parameters]
    return (lambda *_: None,) * sum(is_required)


def call(function: Any, name: str) -> str:
    arguments = ARGUMENTS.get(name, placeholders(function))
    if name == "is_available" and not function.__module__.endswith("nccl"):
        arguments = ()
    try:
        function(*arguments)
    except Untraceable as refusal:
        return f"refused: {refusal}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


outcomes: dict[str, str] = {}
for module in cuda_modules():
    for name in public_names(module):
        value = getattr(module, name)
        if callable(value):
            outcomes[f"{module.__name__}.{name}"] = call(value, name)
            torch.cuda.set_device(0)
            torch.cuda.set_stream(torch.cuda.default_stream())


SENSORS = ("utilization", "temperature", "power_draw", "clock_rate", "device_memory_used", "list_gpu_processes")


def is_missing(sensor: str) -> bool:
    """Whether a program notices that torch.cuda cannot read the sensor. Such programs go on without it."""
    try:
        getattr(torch.cuda, sensor)()
    except ModuleNotFoundError:
        return True
    return False


device = paper_gpu()
assert device is not None
earlier = list(device.refusals)
sensors = {"missing": [name for name in SENSORS if is_missing(name)], "refusals": device.refusals[len(earlier) :]}
print(json.dumps({"outcomes": outcomes, "sensors": sensors}))
