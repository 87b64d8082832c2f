"""Tracks the current module: in forward by module hooks, in backward by the running autograd node.

Each thread numbers the autograd nodes that it creates, so a node's number identifies the module whose forward created
it. FSDP's own collectives run in hooks, sometimes early: their module is taken from FSDP's parameter group.
"""

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_FSDP_GROUP = "FSDPParamGroup"
_WRAPPERS = {"_checkpoint_wrapped_module"}
"""torch adds these path components when it wraps a module, for example for activation checkpointing."""


@dataclass
class _ThreadState:
    """``stack`` has the paths of the modules in forward, the innermost last. The autograd nodes from ``first_node[i]``
    to ``first_node[i + 1] - 1`` belong to ``owner[i]``.
    """

    stack: list[str] = field(default_factory=list)
    first_node: list[int] = field(default_factory=list)
    owner: list[str] = field(default_factory=list)

    def owner_of(self, node: Any) -> str:
        index = bisect_right(self.first_node, node._sequence_nr()) - 1
        return self.owner[index] if index >= 0 else ""


class ModuleTracker:
    """Finds the path of the current module, relative to its model. Use it as a context manager around whole steps."""

    def __init__(self, *models: nn.Module) -> None:
        self.models = models
        self._paths: dict[int, str] = {
            id(part): _unwrap_path(path) for model in models for path, part in model.named_modules()
        }
        self._threads: defaultdict[int, _ThreadState] = defaultdict(_ThreadState)
        self._training_thread = threading.get_ident()
        """The thread that runs the steps. On a GPU, backward runs in another one."""
        self._hooks: list[Any] = []
        self.on_change: Callable[[str], None] = lambda _: None
        """Called with the path of the new module whenever the current module changes in forward."""
        self.on_leave: Callable[[nn.Module], None] = lambda _: None
        """Called with each module after its forward."""

    def __enter__(self) -> "ModuleTracker":
        self._hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def new_step(self) -> None:
        """Discard the autograd nodes of the previous step. Call this from the training thread."""
        self._threads.clear()
        self._training_thread = threading.get_ident()

    def current_path(self) -> str:
        """Return the path of the current module, or '' if it is the model itself or unknown."""
        owner = _fsdp_owner()
        if owner is not None:
            return owner
        thread = self._threads[threading.get_ident()]
        if thread.stack:
            return thread.stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        # If this thread called backward itself, it also created the running nodes. A checkpoint does so in a thread of
        # the autograd engine: it runs the forward of its modules again there, and then their backward. In all other
        # cases, the training thread created the nodes.
        creator = thread if _is_in_own_backward() else self._threads[self._training_thread]
        return creator.owner_of(node)

    def _enter_module(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        path = self._paths.get(id(module))
        thread = self._threads[threading.get_ident()]
        if path is None:
            # A module that was created after the start, such as a functional wrapper, gets the path of its caller.
            path = thread.stack[-1] if thread.stack else ""
        thread.stack.append(path)
        self._record_change(thread)

    def path_of(self, module: nn.Module) -> str:
        return self._paths.get(id(module), "")

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if id(module) in self._paths:
            self.on_leave(module)
        thread = self._threads[threading.get_ident()]
        if thread.stack:
            thread.stack.pop()
        self._record_change(thread)

    def _record_change(self, thread: _ThreadState) -> None:
        thread.first_node.append(torch._C._autograd._get_sequence_nr())
        thread.owner.append(thread.stack[-1] if thread.stack else "")
        self.on_change(thread.owner[-1])


def _unwrap_path(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _is_in_own_backward() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _fsdp_owner() -> str | None:
    """Return the path of the FSDP unit whose parameters the call moves. None outside of FSDP; '' if it names none."""
    frame = sys._getframe(1)
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if type(candidate).__name__ == _FSDP_GROUP:
            return _unwrap_path(getattr(candidate, "_module_fqn", None) or "")
        frame = frame.f_back  # type: ignore[assignment]
    return None
