"""Detection of code that ``torch.compile`` would compile. Under a dispatch mode it runs eagerly, as another program, so
the step must not be counted.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import nn

from regbot_guest.crash import call_unchanged
from regbot_guest.guesses import EXECUTION
from regbot_guest.replaced import replaced


class CompileWatch:
    """While active, nothing is compiled, and each call of code that would have been compiled is recorded."""

    def __init__(self) -> None:
        self.called_names: list[str] = []
        """Name of the module's class or of the function, for each call."""
        self._stack = ExitStack()

    def __enter__(self) -> "CompileWatch":
        self._stack.enter_context(replaced(torch, "compile", self._replacement))
        # A call of ``optimize`` has options and returns a decorator.
        self._stack.enter_context(replaced(torch._dynamo, "optimize", lambda *_, **__: self._replacement))
        self._stack.enter_context(replaced(nn.Module, "compile", lambda module, *_, **__: self._watch_module(module)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def describe(self) -> str:
        return ", ".join(sorted(set(self.called_names))[:5])

    def guesses(self) -> dict[str, str]:
        """Return the guess, by sentence, that code ran eagerly which would be compiled, or {}."""
        if not self.called_names:
            return {}
        return {f"{self.describe()} would be compiled by torch.compile, and ran eagerly": EXECUTION}

    def _replacement(self, model: Any = None, **options: Any) -> Any:
        """Replaces ``torch.compile``. Without ``model``, the call is that of a decorator with options."""
        if model is None:
            return partial(self._replacement, **options)
        if options.get("disable"):
            return model
        if isinstance(model, nn.Module):
            self._watch_module(model)
            return model
        return self._watch_function(model)

    def _watch_module(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(
            lambda called_module, _: self.called_names.append(type(called_module).__name__)
        )

    def _watch_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def eager(*args: Any, **kwargs: Any) -> Any:
            self.called_names.append(getattr(function, "__qualname__", "a function"))
            return call_unchanged(function, args, kwargs)

        return eager
