"""Stand-ins for compiled libraries, whose code passes raw pointers to its own kernels.

Their functions return outputs of the right shape and type, and report kernels and exchanges to the counter. A function
that a stand-in lacks is refused by name. For Transformer Engine, flash-attn and Triton, the Python part of the library
must be installed. ``deep_ep`` needs no installation, because no package index offers it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from regbot_guest.paper.device import Device
from regbot_guest.paper.libraries import (
    declared,
    deep_ep,
    flash_attn,
    flex_attention,
    fused_wgrad,
    transformer_engine,
    triton,
)
from regbot_guest.paper.libraries.stand_in import StandIn

MAKERS: dict[str, Callable[[Device], ModuleType]] = {
    transformer_engine.NAME: transformer_engine.stand_in,
    fused_wgrad.NAME: fused_wgrad.stand_in,
    flash_attn.NAME: flash_attn.stand_in,
    deep_ep.NAME: lambda device: deep_ep.stand_in(deep_ep.NAME, device),
}
"""Creates a module's stand-in at its first import. Submodules of ``deep_ep`` have stand-ins too."""
_SUBMODULE = f"{deep_ep.NAME}."

_finder: "_Finder | None" = None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that returns stand-ins for compiled modules, and records their names."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.imported_names: list[str] = []
        self.declared_names: list[str] = []
        self._makers = dict(MAKERS)

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> Any:
        if name not in self._makers and not name.startswith(_SUBMODULE):
            return None  # no stand-in: torch's and the program's modules are imported as usual
        has_submodules = name.startswith(deep_ep.NAME) or name not in MAKERS
        return importlib.machinery.ModuleSpec(name, self, is_package=has_submodules)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if spec.name in MAKERS or spec.name.startswith(_SUBMODULE):
            self.imported_names.append(spec.name)
        if spec.name.startswith(_SUBMODULE):
            return deep_ep.stand_in(spec.name, self._device)
        return self._makers[spec.name](self._device)

    def exec_module(self, module: ModuleType) -> None: ...

    def make_module(self, name: str) -> None:
        """Let the module ``name`` be a stand-in without contents."""
        self._makers[name] = lambda device: StandIn(name, device, {}, {})


def install(device: Device, path: str = "", declarations: str = "") -> None:
    """Install the stand-ins, and those in ``declarations``, the text of the repository's file ``path``. In flex
    attention and Triton, the functions that launch kernels are replaced at once.
    """
    global _finder
    if _finder is not None:  # an earlier trace in this process has installed them
        return
    transformer_engine.prepare()
    flex_attention.replace_kernels(device)
    triton.replace_launches(device)
    _finder = _Finder(device)
    sys.meta_path.insert(0, _finder)
    flash_attn.replace_newer_kernels(_finder.imported_names.append)
    if path:
        stand_ins = declared.load(declarations, path)
        declared.install(device, stand_ins, _finder.make_module)
        _finder.declared_names = list(stand_ins)


def describe_imported() -> list[str]:
    """Return a sentence for each stand-in that the program has imported."""
    names = sorted(_finder.imported_names) if _finder is not None else []
    return [f"{name} is a stand-in whose functions give shapes" for name in names]


def describe_declared() -> list[str]:
    names = sorted(_finder.declared_names) if _finder is not None else []
    return [f"stand-in that the repository declares: {name[:400]}" for name in names]
