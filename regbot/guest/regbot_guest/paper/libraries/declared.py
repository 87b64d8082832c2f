"""Stand-ins that a repository declares for its own compiled extensions, in the file that the key ``stand_ins`` names.

Its dict ``STAND_INS`` has functions by the dotted name under which the program looks them up. A function makes its
outputs with torch's operators, so their shapes and FLOPs are right, and issues the collectives of the compiled code.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from functools import reduce
from types import FunctionType, ModuleType
from typing import Any, cast

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
    replacements: dict[str, Any] = {}
    for name, value in stand_ins.items():
        is_kernel = isinstance(value, FunctionType)
        replacements[name] = make_launcher(device, "::".join(name.rsplit(".", 1)), value) if is_kernel else value
    sys.meta_path.insert(0, _ReplacingFinder({n: r for n, r in replacements.items() if not missing_modules[n]}))
    # Missing modules come first, because the import of the program's modules imports names from them.
    for name in sorted(replacements, key=lambda name: not missing_modules[name]):
        parent, _, attribute = name.rpartition(".")
        setattr(_find_owner(parent.split(".")), attribute, replacements[name])


class _ReplacingFinder(importlib.abc.MetaPathFinder):
    """Replaces functions of a module as soon as its code has run, before other modules import names from it. A package
    may import the users of its modules.
    """

    def __init__(self, replacements: dict[str, Any]) -> None:
        self._replacements = replacements

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        own = [declared for declared in self._replacements if declared.startswith(f"{name}.")]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if own else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_replace(module: ModuleType) -> None:
            run(module)
            for declared in own:
                *owners, attribute = declared.removeprefix(f"{name}.").split(".")
                owner = reduce(lambda owner, part: getattr(owner, part, None), owners, cast(Any, module))
                if hasattr(owner, attribute):
                    setattr(owner, attribute, self._replacements[declared])

        spec.loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


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
