"""torchtitan's configuration as flat scalars, so that those of two revisions can be laid beside each other."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from regbot_guest.frameworks.stepping import Scalar

LEFT_OUT = ("hf_assets_path", "dump_folder", "tokenizer", "dataloader", "validator", "profiler")
"""Fields that say where files lie, or that are replaced by stand-ins or never run."""


def flat(config: Any, path: str = "") -> dict[str, Scalar]:
    """All that is set in ``config``, by dotted path; equal neighbours in a list are told once, as ``layers.0-47``."""
    if config is None or isinstance(config, (bool, int, float)):
        return {path: config}
    if isinstance(config, str):
        return {} if Path(config).is_absolute() else {path: str(config)}
    if isinstance(config, Mapping):
        return _joined(path, ((str(key), value) for key, value in config.items()))
    if isinstance(config, (list, tuple)):
        return _flat_list(list(config), path)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        own = {path: type(config).__qualname__} if path and hasattr(config, "build") else {}
        fields = ((field.name, getattr(config, field.name, None)) for field in dataclasses.fields(config))
        return {**own, **_joined(path, ((name, value) for name, value in fields if name not in LEFT_OUT))}
    return {path: _name(config)}


def _joined(path: str, parts: Iterator[tuple[str, Any]]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, value in parts:
        found |= flat(value, f"{path}.{name}" if path else name)
    return found


def _flat_list(values: list[Any], path: str) -> dict[str, Scalar]:
    if all(value is None or isinstance(value, (bool, int, float, str)) for value in values):
        return {path: ",".join(map(str, values))}
    told = [flat(value) for value in values]
    named = [getattr(type(value), "__qualname__", "") for value in values]
    found: dict[str, Scalar] = {}
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and (told[end], named[end]) == (told[start], named[start]):
            continue
        place = f"{path}.{start}" + (f"-{end - 1}" if end - start > 1 else "")
        found |= flat(values[start], place)
        start = end
    return found


def _name(value: Any) -> str:
    """A word for what is no plain value, without addresses in it."""
    if isinstance(value, partial):
        given = ", ".join(f"{key}={_name(each)}" for key, each in value.keywords.items())
        return f"{_name(value.func)}({given})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text[:200]
