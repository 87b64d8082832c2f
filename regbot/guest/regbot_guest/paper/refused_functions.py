"""Refusals of the functions of ``torch.cuda`` that a paper GPU lacks: those whose code uses CUDA's part of
``torch._C``, or loads a library of the driver. So they fit every torch. To support a function, add it to ``cuda.py``.
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
_DRIVERLESS_NAMES = {"_nccl_version", "_nccl_version_suffix"}
"""NCCL answers these by itself. In a CPU build, ``cuda.py`` replaces the function that uses them."""
_COMPILED_MODULES = ("torch._C", "torch._utils")
"""Modules of compiled base classes, and of the dummies that replace them in a CPU build."""
_COMPILED_CLASSES = {"GreenContext", "GdsFile"}
"""Further compiled classes. In a CPU build, they have no base class in these modules."""


def torch_modules() -> Iterator[types.ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType):
            yield module


def cuda_modules() -> list[types.ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(torch.cuda.__path__) if not info.name.startswith("_")]
    return [torch.cuda, *(importlib.import_module(f"torch.cuda.{name}") for name in names)]


def make_refusing(device: Device, name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        device.refuse(
            f"{name} was called: the paper GPU has no such function. Report it with this line and the version of torch "
            f"({torch.__version__}), or add it to regbot/guest/regbot_guest/paper/cuda.py"
        )

    return refuse


class NoSensorsError(Untraceable, ModuleNotFoundError):
    """A sensor of the GPU was read. As in a torch without that library, programs may catch ModuleNotFoundError and go
    on.
    """


def _make_sensorless(name: str) -> Callable[..., Any]:
    def read(*_: Any, **__: Any) -> Any:
        raise NoSensorsError(f"{name} was called: the paper GPU has no sensors")

    return read


def refuse_functions(device: Device) -> None:
    """Replace every function and class of ``torch.cuda`` that reaches the driver by one that refuses to be called, or,
    if it only reads sensors, raises NoSensorsError.
    """
    replacements: dict[int, Any] = {}  # by the id of the original
    for module in cuda_modules():
        for name, value in list(vars(module).items()):
            full_name = f"{module.__name__}.{name}"
            if id(value) in replacements:  # the same object in another module
                continue
            if isinstance(value, type) and value.__module__.startswith("torch.cuda"):
                if (refusing_class := _refuse_class(device, value, full_name)) is not None:
                    replacements[id(value)] = refusing_class
            elif isinstance(value, types.FunctionType) and value.__module__.startswith("torch") and needs_driver(value):
                # A function that reaches the driver only to read sensors raises NoSensorsError.
                only_reads_sensors = all(name.startswith(_SENSOR_PREFIXES) for name in _list_driver_names(value))
                replacement = _make_sensorless(full_name) if only_reads_sensors else make_refusing(device, full_name)
                replacements[id(value)] = functools.update_wrapper(replacement, value)
    for module in torch_modules():
        for name, value in list(vars(module).items()):
            if id(value) in replacements:
                setattr(module, name, replacements[id(value)])


def _refuse_class(device: Device, original: type, full_name: str) -> type | None:
    """Return the class that replaces ``original``, or None if ``original`` itself was changed to refuse calls."""
    if issubclass(original, torch.TypedStorage):  # such as torch.cuda.FloatStorage
        original.__new__ = make_refusing(device, full_name)  # type: ignore[method-assign]
        return None
    # Classes of compiled code, and the dummies that replace them in a CPU build.
    has_compiled_base = any(base.__module__ in _COMPILED_MODULES for base in original.__mro__[1:])
    if has_compiled_base or original.__name__ in _COMPILED_CLASSES:
        names = [name for name in vars(original) if not name.startswith("_")]
        methods = {name: staticmethod(make_refusing(device, f"{full_name}.{name}")) for name in names}
        refused = {"__new__": make_refusing(device, full_name), "__module__": original.__module__}
        return type(original.__name__, (), {**methods, **refused})
    for name, method in list(vars(original).items()):
        if isinstance(method, types.FunctionType) and needs_driver(method):
            called_name = full_name if name == "__init__" else f"{full_name}.{name}"
            setattr(original, name, make_refusing(device, called_name))
    return None


def needs_driver(function: Any) -> bool:
    return bool(_list_driver_names(function))


def _list_driver_names(function: Any) -> list[str]:
    """[] for a compiled function."""
    undecorated = getattr(function, "__wrapped__", function)
    code = getattr(undecorated, "__code__", None)
    names = _iterate_names(code) if code is not None else ()
    return [name for name in names if _is_driver_name(name)]


def _is_driver_name(name: str) -> bool:
    if name in _DRIVERLESS_NAMES:
        return False
    return name in _DRIVER_NAMES or name.startswith(_DRIVER_PREFIXES)


def _iterate_names(code: types.CodeType) -> Iterator[str]:
    """Yield the global and attribute names in ``code`` and in the functions that are defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_names(constant)
