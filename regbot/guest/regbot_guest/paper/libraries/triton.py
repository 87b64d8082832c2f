"""Triton on a paper GPU: a launch is counted, but computes nothing. The caller has allocated the outputs, so all shapes
are right. Afterwards the values of all GPU tensors among the arguments are unknown.
"""

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch

from regbot_guest.paper.device import PLAIN, UNKNOWN_WORK, Device
from regbot_guest.paper.libraries.stand_in import StandIn, make_refusing
from regbot_guest.untraceable import Untraceable

NAME = "triton"


def replace_launches(device: Device) -> None:
    """Let Triton, if it is installed, report its launches to ``device`` and see the GPU that this imitates."""

    def run(self: Any, *args: Any, warmup: bool = False, **kwargs: Any) -> None:
        if warmup:  # compiles the kernel only
            return
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.is_cuda]
        sources = list(_list_sources(self, set()))
        multiplies = any("attr='dot" in source for source in sources)  # tl.dot, in the text of a syntax tree
        work = UNKNOWN_WORK if multiplies else ("other", 0)
        device.launch(f"triton::{kernel_name(self)}", [*args, kwargs, *sources], work=work)
        for tensor in tensors:
            device.write(tensor, None)  # None: the values are unknown now

    if _replace_run(run):
        importlib.import_module("triton.runtime").driver.set_active(_driver(device))


def refuse_launches() -> None:
    """Refuse launches in a CPU program, which has no GPU tensors."""

    def run(self: Any, *_: Any, **__: Any) -> None:
        raise Untraceable(
            f"the Triton kernel {kernel_name(self)} was launched in a CPU program, which has no GPU. Trace the layer "
            "on a paper GPU (docs/paper-gpu.md)"
        )

    _replace_run(run)


def _replace_run(run: Callable[..., None]) -> bool:
    """Replace ``run`` of Triton's classes that launch kernels. Return whether Triton is installed."""
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:  # a folder of this name has no origin
        return False
    for module, name in (("jit", "JITFunction"), ("autotuner", "Autotuner"), ("autotuner", "Heuristics")):
        getattr(importlib.import_module(f"triton.runtime.{module}"), name).run = run
    return True


def _driver(device: Device) -> StandIn:
    """Return Triton's driver: kernels choose their number of programs by the GPU's properties. Timing is refused."""
    gpu = device.gpu
    properties = {
        "multiprocessor_count": gpu.multiprocessors, "max_shared_mem": gpu.shared_bytes_per_block,
        "warpSize": gpu.warp_size,
    }  # fmt: skip
    major, minor = gpu.capability
    is_amd = gpu.architecture.startswith("gfx")
    architecture = gpu.architecture if is_amd else 10 * major + minor
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    name = "triton.runtime.driver.active"
    functions = {
        "utils": StandIn(f"{name}.utils", device, {}, {"get_device_properties": lambda _: properties}),
        "get_current_target": lambda: target("hip" if is_amd else "cuda", architecture, gpu.warp_size),
        "get_current_device": torch.cuda.current_device,
        "set_current_device": torch.cuda.set_device,
        "get_active_torch_device": lambda: torch.device("cuda", torch.cuda.current_device()),
        "get_device_interface": lambda: torch.cuda,
        "get_benchmarker": lambda: make_refusing("triton.testing.do_bench"),
    }
    return StandIn(name, device, {}, functions)


def _list_sources(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the configurations and heuristics to choose from, the source of the kernel and of the functions that it
    calls, and the constants that they read. ``seen`` has the identities of the functions before.
    """
    while hasattr(function, "fn") and not hasattr(function, "src"):
        yield from map(str, getattr(function, "configs", ()))
        for name, choose in (getattr(function, "values", None) or {}).items():
            constants = [value for value in choose.__code__.co_consts if value is None or isinstance(value, PLAIN)]
            yield f"{name} {choose.__code__.co_code.hex()} {constants}"
        function = function.fn
    if not hasattr(function, "src") or id(function) in seen:
        return
    seen.add(id(function))
    yield _without_comments(function.src)
    names = function.fn.__code__.co_names
    values = [function.fn.__globals__.get(name) for name in names]
    modules = [value for value in values if isinstance(value, ModuleType) and not value.__name__.startswith(NAME)]
    values += [getattr(module, name, None) for module in modules for name in names]
    for value in values:
        if hasattr(value, "fn") or hasattr(value, "src"):
            yield from _list_sources(value, seen)
        elif isinstance(value, PLAIN) or type(value).__module__.startswith("triton.language"):
            yield str(value)


@cache
def _without_comments(source: str) -> str:
    return ast.dump(ast.parse(source))


def kernel_name(function: Any) -> str:
    while not hasattr(function, "__name__") and hasattr(function, "fn"):
        function = function.fn
    return str(getattr(function, "__name__", "kernel"))
