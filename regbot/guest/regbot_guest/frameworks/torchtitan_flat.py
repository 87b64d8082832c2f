"""torchtitan's configuration as flat scalars, so that two revisions can be compared."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from regbot_guest.frameworks.training_loop import Scalar

EXCLUDED_FIELDS = ("hf_assets_path", "dump_folder", "tokenizer", "dataloader", "validator", "profiler")
"""Fields that are left out: they contain file paths, or they are replaced or never used."""


def flatten_config(config: Any, path: str = "") -> dict[str, Scalar]:
    """Return all settings by dotted path.

    Consecutive equal items of a list become one entry, such as ``layers.0-47``.
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
        class_entry = {path: type(config).__qualname__} if path and hasattr(config, "build") else {}
        fields = ((field.name, getattr(config, field.name, None)) for field in dataclasses.fields(config))
        return {
            **class_entry,
            **_flatten_entries(path, ((name, value) for name, value in fields if name not in EXCLUDED_FIELDS)),
        }
    return {path: _value_name(config)}


def _flatten_entries(path: str, entries: Iterator[tuple[str, Any]]) -> dict[str, Scalar]:
    settings: dict[str, Scalar] = {}
    for name, value in entries:
        settings |= flatten_config(value, f"{path}.{name}" if path else name)
    return settings


def _flatten_list(values: list[Any], path: str) -> dict[str, Scalar]:
    if all(value is None or isinstance(value, (bool, int, float, str)) for value in values):
        return {path: ",".join(map(str, values))}
    flattened = [flatten_config(value) for value in values]
    class_names = [getattr(type(value), "__qualname__", "") for value in values]
    settings: dict[str, Scalar] = {}
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and (flattened[end], class_names[end]) == (flattened[start], class_names[start]):
            continue
        item_path = f"{path}.{start}" + (f"-{end - 1}" if end - start > 1 else "")
        settings |= flatten_config(values[start], item_path)
        start = end
    return settings


def _value_name(value: Any) -> str:
    """Return a name for a value that is not a scalar. The name contains no memory addresses."""
    if isinstance(value, partial):
        arguments = ", ".join(f"{key}={_value_name(argument)}" for key, argument in value.keywords.items())
        return f"{_value_name(value.func)}({arguments})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text[:200]
