"""Notices code that ``torch.compile`` would compile: a dispatch mode runs it eagerly, so it must not be counted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import nn


class CompileWatch:
    """While installed, ``torch.compile`` and ``Module.compile`` leave code eager and note it when it is called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self._compile, self._module_compile = torch.compile, nn.Module.compile
        self._optimize = torch._dynamo.optimize

    def __enter__(self) -> "CompileWatch":
        torch.compile = self._replacement
        setattr(torch._dynamo, "optimize", lambda *_, **__: self._replacement)  # noqa: B010 (typed as its original)
        watch = self

        def module_compile(module: nn.Module, *_: Any, **__: Any) -> None:
            watch._watch_module(module)

        setattr(nn.Module, "compile", module_compile)  # noqa: B010 (an assignment would be typed as a method's)
        return self

    def __exit__(self, *_: object) -> None:
        torch.compile = self._compile
        setattr(torch._dynamo, "optimize", self._optimize)  # noqa: B010
        setattr(nn.Module, "compile", self._module_compile)  # noqa: B010

    def names(self) -> str:
        """The first of what was called, in words."""
        return ", ".join(sorted(set(self.called))[:5])

    def _replacement(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return partial(self._replacement, **options)
        if options.get("disable"):
            return model
        if isinstance(model, nn.Module):
            self._watch_module(model)
            return model
        return self._watch_function(model)

    def _watch_module(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda m, _: self.called.append(type(m).__name__))

    def _watch_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def eager(*args: Any, **kwargs: Any) -> Any:
            self.called.append(getattr(function, "__qualname__", "a function"))
            return function(*args, **kwargs)

        return eager
