"""Which module is at work: in forward from the module calls, in backward from the autograd node that runs.

Autograd nodes are numbered as they are made. While a module's forward runs, the numbers made belong to it; in backward
the number of the running node tells whose work is undone. FSDP's own collectives run in hooks, sometimes ahead of
time for another layer, so there the parameter group says itself whose parameters they are.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_FSDP_GROUP = "FSDPParamGroup"
_WRAPPERS = {"_checkpoint_wrapped_module"}
"""Parts of a path that torch adds where it wraps a module: with and without recompute it is the same module."""


class Where:
    """Module paths as seen from their model. Use as a context manager around whole steps."""

    def __init__(self, *models: nn.Module) -> None:
        self._paths: dict[int, str] = {
            id(part): _unwrapped(path) for model in models for path, part in model.named_modules()
        }
        self._stack: list[str] = []
        self._first_node: list[int] = []
        self._owner: list[str] = []
        self._hooks: list[Any] = []
        self.on_change: Callable[[str], None] = lambda _: None
        """Called with the path of the module that is at work from now on in forward."""

    def __enter__(self) -> "Where":
        self._hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def new_step(self) -> None:
        """Forget the nodes of the step before."""
        self._first_node.clear()
        self._owner.clear()

    def now(self) -> str:
        """Path of the module at work, '' where it is the model itself or none is."""
        owner = _fsdp_owner()
        if owner is not None:
            return owner
        if self._stack:
            return self._stack[-1]
        return self._of_node(torch._C._current_autograd_node())

    def _of_node(self, node: Any | None) -> str:
        if node is None:
            return ""
        place = bisect_right(self._first_node, node._sequence_nr()) - 1
        return self._owner[place] if place >= 0 else ""

    def _enter_module(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        path = self._paths.get(id(module))
        # A module that appeared after the start (a functional wrapper, say) works for the one that called it.
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))
        self._mark()

    def _leave_module(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._first_node.append(torch._C._autograd._get_sequence_nr())
        self._owner.append(self._stack[-1] if self._stack else "")
        self.on_change(self._owner[-1])


def _unwrapped(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _fsdp_owner() -> str | None:
    """Path of the FSDP unit whose parameters are moved by the call under way, None where FSDP is not the caller."""
    frame = sys._getframe(1)
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if type(candidate).__name__ == _FSDP_GROUP:
            return _unwrapped(getattr(candidate, "_module_fqn", None) or "")
        frame = frame.f_back  # type: ignore[assignment]
    return None
