"""The common base of all stand-ins for compiled modules."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from regbot_guest.collectives import flatten
from regbot_guest.paper.device import Device


class StandIn(ModuleType):
    """A module of functions that compute shapes.

    Calls of functions in ``kernels`` are counted as launches. Values and functions in ``plain`` become attributes as
    they are, and their calls are not counted. Any other name that begins with a capital letter, or with a prefix in
    ``enumerations``, is an enumeration. All remaining names are functions that refuse to be called.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        kernels: Mapping[str, Callable[..., Any]],
        plain: Mapping[str, Any],
        enumerations: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name)
        self.__file__ = f"<stand-in for {name} on a paper GPU>"
        self.__path__ = []
        self._device, self._enumerations = device, enumerations
        for key, function in kernels.items():
            setattr(self, key, self._make_counted(key, function))
        for key, value in plain.items():
            setattr(self, key, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        missing: Any
        if name[:1].isupper() or name.startswith(self._enumerations or ("\0",)):
            missing = _Enumeration(name, (), {})
        else:
            missing = self._make_refusing(name)
        setattr(self, name, missing)
        return missing

    def _make_counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        operator = f"{self.__name__}::{name}"

        def launch(*args: Any, **kwargs: Any) -> Any:
            tensors = [tensor for value in (*args, *kwargs.values()) for tensor in flatten(value)]
            self._device.launch(operator, [tensor for tensor in tensors if tensor.is_cuda])
            return function(*args, **kwargs)

        launch.__name__ = name
        return launch

    def _make_refusing(self, name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **_: Any) -> Any:
            shapes = [tuple(value.shape) for value in args if isinstance(value, torch.Tensor)][:6]
            self._device.refuse(
                f"{self.__name__}.{name} was called with tensors of {shapes}: the paper GPU has no stand-in for it. "
                "Report it with this line, or switch off what calls it"
            )

        refuse.__name__ = name
        return refuse


class _Enumeration(type):
    """An enumeration whose members are created on first use. They are numbered in the order of this first use."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _Member(len([key for key in vars(cls) if not key.startswith("_")]))
        member.name = name
        setattr(cls, name, member)
        return member


class _Member(int):
    name: str

    @property
    def value(self) -> int:
        return int(self)
