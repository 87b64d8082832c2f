"""Configurations of Megatron and of Megatron Bridge as flat scalars, to compare two revisions."""

import dataclasses
import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import torch

from regbot_guest.request import Scalar


def flatten_config(configuration: Any, prefix: str = "") -> dict[str, Scalar]:
    """Return the fields of a dataclass as scalars, with dotted keys for nested ones. Absolute paths are left out,
    because they differ between machines and checkouts.
    """
    scalars: dict[str, Scalar] = {}
    for config_field in dataclasses.fields(configuration):
        value = getattr(configuration, config_field.name, None)
        is_section = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if is_section:
            scalars |= flatten_config(value, f"{prefix}{config_field.name}.")
            continue
        scalar = to_scalar(value)
        is_absolute_path = isinstance(scalar, str) and scalar.startswith("/")
        if not is_absolute_path:
            scalars[f"{prefix}{config_field.name}"] = scalar
    return scalars


def to_scalar(value: Any) -> Scalar:
    """Return a value as a scalar whose text is the same in every process. Lists and dictionaries become one text, other
    objects the qualified name of the object or of its class.
    """
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return ",".join(str(to_scalar(item)) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={to_scalar(item)}" for key, item in sorted(value.items(), key=str))
    if isinstance(value, partial):
        return to_scalar(value.func)
    definition: Callable[..., Any] | type = value if hasattr(value, "__qualname__") else type(value)
    return f"{definition.__module__}.{definition.__qualname__}"
