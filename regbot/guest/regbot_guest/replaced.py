"""Replaces an attribute of a module or a class for a while. This module does not import torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """While active, ``owner`` has ``replacement`` under ``name``. An inherited attribute is inherited again afterwards.

    A class method is restored from ``__dict__``, because getattr would return a method that is bound to the class.
    """
    is_own = name in vars(owner)
    original = vars(owner)[name] if is_own else None
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
