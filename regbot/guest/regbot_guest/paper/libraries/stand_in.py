"""The common base of all stand-ins for compiled modules. A name that a stand-in lacks can be looked up, because
programs find out so what a library offers. A call of such a name is refused, with its full name.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from regbot_guest.paper.device import Device


def make_refusing(name: str) -> Callable[..., Any]:
    """Return a function whose call is refused, which ends the trace. ``name`` is the function's full name."""

    def refuse(*args: Any, **_: Any) -> Any:
        # The message lists at most six shapes.
        shapes = [tuple(value.shape) for value in args if isinstance(value, torch.Tensor)][:6]
        tensors = f" with tensors of {shapes}" if shapes else ""
        torch.ops.regbot_paper.refuse(
            f"{name} was called{tensors}: the paper GPU has no stand-in for it. Declare one (docs/module.md, Compiled "
            "extensions), or switch off what calls it"
        )

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


def make_launcher(
    device: Device, operator: str, function: Callable[..., Any], work: Callable[..., tuple[str, int]] | None = None
) -> Callable[..., Any]:
    """Return a function that calls ``function`` and counts a launch of ``operator``. ``work`` returns the class and the
    number of the kernel's FLOPs, given the same arguments.
    """

    def launch(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        device.launch(operator, [*args, kwargs], results, work(*args, **kwargs) if work is not None else ("other", 0))
        return results

    launch.__name__ = operator.rpartition("::")[2]
    return launch


class RefusingType(type):
    """Type of the classes of a stand-in. Attributes that a class lacks are functions that refuse to be called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_refusing(f"{cls.__module__}.{cls.__name__}.{name}")


class Refusing(metaclass=RefusingType):
    """Base of the classes of a stand-in. Their objects refuse missing methods too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)


class StandIn(ModuleType):
    """A module of functions that compute shapes. Calls in ``kernels`` are counted as launches, those in ``uncounted``
    are not. ``works`` has the FLOPs of kernels that multiply, see ``make_launcher``. Other names that begin with a
    capital letter or a prefix in ``enumerations`` are enumerations or classes that refuse to be called. All remaining
    names are functions that refuse to be called.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        kernels: Mapping[str, Callable[..., Any]],
        uncounted: Mapping[str, Any],
        enumerations: tuple[str, ...] = (),
        works: Mapping[str, Callable[..., tuple[str, int]]] | None = None,
    ) -> None:
        super().__init__(name)
        self.__file__ = f"<stand-in for {name} on a paper GPU>"
        self.__path__ = []
        self._enumerations = enumerations
        for key, function in kernels.items():
            setattr(self, key, make_launcher(device, f"{name}::{key}", function, (works or {}).get(key)))
        for key, value in uncounted.items():
            setattr(self, key, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute: Any
        # If there are no prefixes, "\0" takes their place, because no name begins with it.
        if name[:1].isupper() or name.startswith(self._enumerations or ("\0",)):
            attribute = _Enumeration(name, (), {"__module__": self.__name__})
        else:
            attribute = make_refusing(f"{self.__name__}.{name}")
        setattr(self, name, attribute)
        return attribute


class _Enumeration(type):
    """Members are created on first use and numbered in order. Creating an object and calling a member are refused."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        # The number of a new member is the number of existing members.
        member = _Member(len([key for key in vars(cls) if not key.startswith("_")]))
        member.name = name
        member.refuse = make_refusing(f"{cls.__module__}.{cls.__name__}.{name}")
        setattr(cls, name, member)
        return member

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        library_class = cls.__mro__[-2]  # the last class before object; a class of the program may be derived from it
        return make_refusing(f"{library_class.__module__}.{library_class.__name__}")(*args, **kwargs)


class _Member(int):
    name: str
    refuse: Callable[..., Any]

    @property
    def value(self) -> int:
        return int(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.refuse(*args, **kwargs)
