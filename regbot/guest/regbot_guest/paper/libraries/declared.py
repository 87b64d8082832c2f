"""Stand-ins that a repository declares for its own compiled extensions, in the file that the key ``stand_ins`` names.

Its dict ``STAND_INS`` has functions by the dotted name under which the program looks them up. A function makes its
outputs with torch's operators, so their shapes and FLOPs are right, and issues the collectives of the compiled code.
"""

import importlib
import importlib.machinery
import importlib.util
from collections.abc import Callable
from types import FunctionType
from typing import Any

from regbot_guest.contract import ContractError
from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries.stand_in import StandIn, make_launcher

COMPILED = (".so", ".pyd")


def load(source: str, path: str) -> dict[str, Any]:
    """Return the declarations in ``source``, the text of the file ``path``. Raises ContractError."""
    contents: dict[str, Any] = {"__name__": "regbot_stand_ins", "__file__": path}
    exec(compile(source, path, "exec"), contents)  # noqa: S102 (it comes from the base's commit, like regbot.toml)
    stand_ins = contents.get("STAND_INS")
    if not isinstance(stand_ins, dict) or not all(isinstance(name, str) and "." in name for name in stand_ins):
        raise ContractError("config", f"{path}: it must define STAND_INS, a dict of functions by 'module.function'")
    return stand_ins


def install(device: Device, stand_ins: dict[str, Any], make_module: Callable[[str], None]) -> None:
    """Put the declared functions, classes and constants in place. ``make_module`` lets a module be imported that is
    missing or compiled.
    """
    missing_modules = {name: _list_missing_modules(name.split(".")[:-1]) for name in stand_ins}
    for modules in missing_modules.values():
        for module in modules:
            make_module(module)
    # Missing modules come first, because the import of the program's modules imports names from them.
    for name, value in sorted(stand_ins.items(), key=lambda item: not missing_modules[item[0]]):
        parent, _, attribute = name.rpartition(".")
        is_kernel = isinstance(value, FunctionType)
        replacement = make_launcher(device, f"{parent}::{attribute}", value) if is_kernel else value
        setattr(_find_owner(parent.split(".")), attribute, replacement)


def _list_missing_modules(parts: list[str]) -> list[str]:
    """Return the modules among the prefixes of a dotted name that are missing or compiled, without an import."""
    names = [".".join(parts[: number + 1]) for number in range(len(parts))]
    spec = importlib.util.find_spec(names[0])
    for number, name in enumerate(names):
        if number and spec is not None:
            spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
        if spec is None or (spec.origin or "").endswith(COMPILED):
            return names[number:]
        if spec.submodule_search_locations is None:  # a module: the other parts are attributes in it
            break
    return []


def _find_owner(parts: list[str]) -> Any:
    """Return a module, a class, or a namespace of torch.ops."""
    owner: Any = None
    for number, part in enumerate(parts, start=1):
        # A stand-in has an attribute of every name.
        is_attribute = owner is not None and not isinstance(owner, StandIn) and hasattr(owner, part)
        owner = getattr(owner, part) if is_attribute else importlib.import_module(".".join(parts[:number]))
    return owner
