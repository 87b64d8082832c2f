"""Refusals of the functions of ``torch.cuda`` that a paper GPU lacks.

A function is refused if its code reaches the driver: it uses CUDA's part of ``torch._C``, or loads a library of the
driver. So the refusals fit every version of torch. To support a function, add it to ``cuda.py``.
"""

import functools
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from regbot_guest.paper.device import Device
from regbot_guest.untraceable import Untraceable

_SENSOR_PREFIXES = ("_get_pynvml", "_get_amdsmi", "pynvml", "amdsmi")
"""Beginnings of names in the code of a function that reads sensors of the GPU, such as its temperature."""
_DRIVER_PREFIXES = (*_SENSOR_PREFIXES, "_cuda_", "_nccl_", "_gds_", "_nvrtc", "_raw_device")
_DRIVER_NAMES = {
    "CDLL", "_get_cuda_library", "_get_gpu_runtime_library", "_broadcast", "_broadcast_coalesced",
    "_scatter", "_gather",
}  # fmt: skip
"""Names in the code of a function that show that it reaches the driver."""
_DRIVERLESS_NAMES = {"_nccl_version", "_nccl_version_suffix"}
"""Names that begin like those of the driver, but that NCCL answers by itself. In a CPU build, ``cuda.py`` replaces the
function that uses them."""
_COMPILED_MODULES = ("torch._C", "torch._utils")
"""Modules of compiled base classes, and of the dummies that replace them in a CPU build."""
_COMPILED_CLASSES = {"GreenContext", "GdsFile"}
"""Further compiled classes. In a CPU build, they have no base class in these modules."""


def torch_modules() -> Iterator[types.ModuleType]:
    """Return the modules of torch that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType):
            yield module


def cuda_modules() -> list[types.ModuleType]:
    """Return ``torch.cuda`` and its public submodules."""
    names = [info.name for info in pkgutil.iter_modules(torch.cuda.__path__) if not info.name.startswith("_")]
    return [torch.cuda, *(importlib.import_module(f"torch.cuda.{name}") for name in names)]


def make_refusing(device: Device, name: str) -> Callable[..., Any]:
    """Return a function that refuses to be called. ``name`` is its full name."""

    def refuse(*_: Any, **__: Any) -> Any:
        device.refuse(
            f"{name} was called: the paper GPU has no such function. Report it with this line and the version of torch "
            f"({torch.__version__}), or add it to regbot/guest/regbot_guest/paper/cuda.py"
        )

    return refuse


class NoSensorsError(Untraceable, ModuleNotFoundError):
    """A sensor of the GPU was read. Torch raises ModuleNotFoundError where the library that reads sensors is missing,
    and programs catch it. They go on without the value, so the step is refused only if nobody catches this error.
    """


def _make_sensorless(name: str) -> Callable[..., Any]:
    def read(*_: Any, **__: Any) -> Any:
        raise NoSensorsError(f"{name} was called: the paper GPU has no sensors")

    return read


def refuse_functions(device: Device) -> None:
    """Replace every function and class of ``torch.cuda`` that reaches the driver by one that refuses to be called."""
    replaced: dict[int, Any] = {}
    for module in cuda_modules():
        for name, value in list(vars(module).items()):
            full_name = f"{module.__name__}.{name}"
            if isinstance(value, type) and value.__module__.startswith("torch.cuda"):
                if issubclass(value, torch.TypedStorage):
                    value.__new__ = make_refusing(device, full_name)  # type: ignore[method-assign]
                elif _is_compiled(value):
                    replaced.setdefault(id(value), _refusing_class(device, value, full_name))
                else:
                    _refuse_methods(device, value, full_name)
            elif isinstance(value, types.FunctionType) and value.__module__.startswith("torch") and needs_driver(value):
                refuse = _make_sensorless(full_name) if _reads_sensors(value) else make_refusing(device, full_name)
                refusing = functools.update_wrapper(refuse, value)
                replaced.setdefault(id(value), refusing)
    for module in torch_modules():
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])


def needs_driver(function: Any) -> bool:
    """Whether the code of ``function`` reaches the driver."""
    return bool(_driver_names(function))


def _reads_sensors(function: Any) -> bool:
    """Whether ``function`` reaches the driver only to read sensors."""
    return all(name.startswith(_SENSOR_PREFIXES) for name in _driver_names(function))


def _driver_names(function: Any) -> list[str]:
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    names = _names_in(code) if code is not None else ()
    return [
        name
        for name in names
        if name in _DRIVER_NAMES or (name.startswith(_DRIVER_PREFIXES) and name not in _DRIVERLESS_NAMES)
    ]


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_compiled(owner: type) -> bool:
    return owner.__name__ in _COMPILED_CLASSES or any(
        base.__module__ in _COMPILED_MODULES for base in owner.__mro__[1:]
    )


def _refuse_methods(device: Device, owner: type, full_name: str) -> None:
    for name, method in list(vars(owner).items()):
        if isinstance(method, types.FunctionType) and needs_driver(method):
            setattr(owner, name, make_refusing(device, full_name if name == "__init__" else f"{full_name}.{name}"))


def _refusing_class(device: Device, original: type, full_name: str) -> type:
    """Return a class with the public names of ``original``, of which no object can be created."""
    methods: dict[str, Any] = {
        name: staticmethod(make_refusing(device, f"{full_name}.{name}"))
        for name in vars(original)
        if not name.startswith("_")
    }
    refused = {"__new__": make_refusing(device, full_name), "__module__": original.__module__}
    return type(original.__name__, (), {**methods, **refused})
