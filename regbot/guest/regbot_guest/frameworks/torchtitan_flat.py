"""torchtitan's configuration as flat scalars, so that two revisions can be compared."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from regbot_guest.request import Scalar

EXCLUDED_FIELDS = ("hf_assets_path", "dump_folder", "tokenizer", "dataloader", "validator", "profiler")
"""Fields that are left out: they contain file paths, or they are replaced or never used."""


def flatten_config(config: Any, path: str = "") -> dict[str, Scalar]:
    """Return all settings by dotted path. Consecutive equal items of a list become one, such as ``layers.0-47``. A
    section that builds an object also has its class. Absolute paths of files are left out.
    """
    if config is None or isinstance(config, (bool, int, float)):
        return {path: config}
    if isinstance(config, str):
        return {} if Path(config).is_absolute() else {path: str(config)}
    if isinstance(config, Mapping):
        return _flatten_entries(path, ((str(key), value) for key, value in config.items()))
    if isinstance(config, (list, tuple)):
        return _flatten_list(list(config), path)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        builds_object = path and hasattr(config, "build")
        class_of_section = {path: type(config).__qualname__} if builds_object else {}
        names = [field.name for field in dataclasses.fields(config) if field.name not in EXCLUDED_FIELDS]
        fields = ((name, getattr(config, name, None)) for name in names)
        return {**class_of_section, **_flatten_entries(path, fields)}
    return {path: _value_name(config)}


def _flatten_entries(path: str, entries: Iterator[tuple[str, Any]]) -> dict[str, Scalar]:
    settings: dict[str, Scalar] = {}
    for name, value in entries:
        settings |= flatten_config(value, f"{path}.{name}" if path else name)
    return settings


def _flatten_list(values: list[Any], path: str) -> dict[str, Scalar]:
    """Consecutive equal items are returned once, under numbers such as ``0-47``. Scalars become one text."""
    if all(value is None or isinstance(value, (bool, int, float, str)) for value in values):
        return {path: ",".join(map(str, values))}
    # Items are equal if they have the same settings and the same class.
    contents = [(flatten_config(value), getattr(type(value), "__qualname__", "")) for value in values]
    settings: dict[str, Scalar] = {}
    start = 0
    for end in range(1, len(values) + 1):
        is_next_equal = end < len(values) and contents[end] == contents[start]
        if is_next_equal:
            continue
        numbers = f"{start}-{end - 1}" if end - start > 1 else f"{start}"
        settings |= flatten_config(values[start], f"{path}.{numbers}")
        start = end
    return settings


def _value_name(value: Any) -> str:
    """Return a name without memory addresses."""
    if isinstance(value, partial):
        arguments = ", ".join(f"{key}={_value_name(argument)}" for key, argument in value.keywords.items())
        return f"{_value_name(value.func)}({arguments})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text[:200]
