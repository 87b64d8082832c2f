"""Configurations of Megatron and of Megatron Bridge as flat scalars, to compare two revisions."""

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import torch

from regbot_guest.frameworks.training_loop import Scalar


def flatten_config(configuration: Any, prefix: str = "") -> dict[str, Scalar]:
    """Return the fields of a dataclass as scalars.

    Functions are represented by their names, and keys of nested dataclasses contain dots. Absolute paths are left out.
    """
    scalars: dict[str, Scalar] = {}
    for config_field in dataclasses.fields(configuration):
        value = getattr(configuration, config_field.name, None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            scalars |= flatten_config(value, f"{prefix}{config_field.name}.")
            continue
        scalar = to_scalar(value)
        if not (isinstance(scalar, str) and scalar.startswith("/")):
            scalars[f"{prefix}{config_field.name}"] = scalar
    return scalars


def to_scalar(value: Any) -> Scalar:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else str(value)
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
