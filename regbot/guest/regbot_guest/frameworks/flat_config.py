"""A framework's resolved configuration as flat scalars, so that two revisions can be compared. It does not import
torch.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from regbot_guest.request import Scalar


def flatten_config(value: Any, path: str = "", left_out: Collection[str] = ()) -> dict[str, Scalar]:
    """Return all settings of a dataclass or a mapping by dotted path, without fields in ``left_out``, and without
    absolute paths and URLs, which differ between machines. Consecutive equal items of a list become one, such as
    ``layers.0-47``. A section that builds an object also has its class.
    """
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str) else value.name
    if isinstance(value, str):
        return {} if value.startswith(("/", "~")) or "://" in value else {path: str(value)}
    if isinstance(value, float):
        return {path: value if math.isfinite(value) else str(value)}
    if value is None or isinstance(value, (bool, int)):
        return {path: value}
    if _is_plain(value):
        return {path: _join(value)}
    if isinstance(value, Mapping):
        entries = [(str(key), item) for key, item in value.items()]
        return _flatten_entries(path, sorted(entries, key=lambda entry: entry[0]), left_out)
    if isinstance(value, (list, tuple)):
        return _flatten_entries(path, _number_runs(value), left_out)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        builds_object = path and hasattr(value, "build")
        class_of_section: dict[str, Scalar] = {path: type(value).__qualname__} if builds_object else {}
        fields = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
        return class_of_section | _flatten_entries(path, fields, left_out)
    return {path: _name_value(value)}


def _flatten_entries(path: str, entries: Iterable[tuple[str, Any]], left_out: Collection[str]) -> dict[str, Scalar]:
    settings: dict[str, Scalar] = {}
    for name, value in entries:
        if name not in left_out:
            settings |= flatten_config(value, f"{path}.{name}" if path else name, left_out)
    return settings


def _is_plain(value: Any) -> bool:
    """Whether a list has only scalars and lists of scalars. It becomes one text."""
    if isinstance(value, (list, tuple)):
        return all(item is None or isinstance(item, (bool, int, float, str)) or _is_plain(item) for item in value)
    return False


def _join(value: Any) -> str:
    return ",".join(map(_join, value)) if isinstance(value, (list, tuple)) else str(value)


def _number_runs(values: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return the items under their numbers, and consecutive equal items once, under numbers such as ``0-47``."""
    runs: list[tuple[int, int, Any, Any]] = []  # first and last number, contents, and the item
    for number, value in enumerate(values):
        contents = (flatten_config(value), type(value).__qualname__)
        if runs and runs[-1][2] == contents:
            runs[-1] = (runs[-1][0], number, contents, value)
        else:
            runs.append((number, number, contents, value))
    return [(f"{first}-{last}" if last > first else f"{first}", value) for first, last, _, value in runs]


def _name_value(value: Any) -> str:
    """Return a name without memory addresses."""
    if isinstance(value, partial):
        arguments = ", ".join(f"{key}={_name_value(argument)}" for key, argument in value.keywords.items())
        return f"{_name_value(value.func)}({arguments})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = repr(value).removeprefix("torch.")  # such as torch.bfloat16
    return type(value).__qualname__ if " at 0x" in text else text[:200]
